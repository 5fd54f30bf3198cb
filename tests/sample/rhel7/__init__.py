# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels of RHEL 7.9 (3.10.0-1160): two guests, and what their own /proc said before the dump.

One has 200 memory cgroups, 170 of them removed, 60 mounts of tmpfs and 25,000 negative dentries;
the other reads and writes a slow disk behind CFQ.
"""
