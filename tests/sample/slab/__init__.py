# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel of Debian's 6.1 compiled with SLAB and frame pointers: two guests, and their own /proc.

Each has two NUMA nodes. One has memory cgroups, mounts of tmpfs, negative dentries and snapshots
(scenario ``mixed`` of the lab); the other reads and writes a slow disk (``iosched-bfq``).
"""
