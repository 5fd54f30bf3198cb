# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file formats of dumps: what a file is, and which pages it holds."""
