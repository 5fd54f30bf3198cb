# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel memory as NumPy columns, by layout, scan, gather and chase.

This layer knows no subsystem beyond pages and slabs.
"""
