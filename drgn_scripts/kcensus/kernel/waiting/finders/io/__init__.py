# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of I/O: requests, pages, journals and logs."""
