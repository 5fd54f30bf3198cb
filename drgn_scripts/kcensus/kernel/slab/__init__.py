# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's counters of slab caches, and users of kmalloc()."""
