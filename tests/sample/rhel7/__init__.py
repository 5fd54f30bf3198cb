# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels of RHEL 7.9 (3.10.0-1160): two guests, and what their own /proc said before the dump.

One has 200 memory cgroups, 170 of them removed, 60 mounts of tmpfs and 25,000 negative dentries;
the other reads and writes a slow disk behind CFQ.

The capsule of the first one has more than `kcensus capsule create` records, so that a vmcore can be
made of it: pages that redaction reads, the page tables of the direct map, and pages on lists of
reclaim. `rhel7.kctypes` is by `kcensus types save` of its vmlinux.
"""
