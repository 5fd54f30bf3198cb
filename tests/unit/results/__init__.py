# SPDX-License-Identifier: LGPL-2.1-or-later
"""The model of results: comparison, and documents that are read again."""
