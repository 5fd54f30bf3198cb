# SPDX-License-Identifier: LGPL-2.1-or-later
"""File formats of dumps: what a file is, and which pages it contains."""
