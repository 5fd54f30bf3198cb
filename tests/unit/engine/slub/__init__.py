# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slabs of the other allocator."""
