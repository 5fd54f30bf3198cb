# SPDX-License-Identifier: LGPL-2.1-or-later
"""What do memory cgroups hold, and what pins the offline (dying) ones?

Symptom: memory without a process or cgroup, on a machine where cgroups come and go;
``nr_dying_descendants`` in ``cgroup.stat`` and ``Percpu`` in meminfo grow.
"""

from __future__ import annotations

from kcensus.analyses import Analysis

ANALYSIS = Analysis(
    name="memcgs",
    needs=("struct mem_cgroup.css",),
    question="what do memory cgroups hold, and what pins the offline (dying) ones?",
    plain="memory of containers and services (control groups), removed ones included",
    gauges="kcensus.analyses.memcgs.checks:gauges",
    headline=("memcgs_offline", "offline_bytes", "share_of_ram"),
    first_tables=("pins", "mounts", "offline"),
    description="""\
A removed memory cgroup goes offline (dying), and is freed with its last reference. Charged pages
(up to 7.0), sockets, swapped pages, writeback structures and children hold references. Until then
it keeps its structures, and a per-CPU area on every possible CPU.

Bytes of structures are slots of slab caches. Per-CPU areas count with their requested size, rounded
up to 4 bytes, times the possible CPUs, without fragmentation of the allocator. Pages are found in
the `struct page` array by their owner. Since 5.3 (and in RHEL 8.1), slab objects do not pin a
removed memory cgroup: their caches, and since 5.9 their charges, move to its parent.

The references of all known holders are compared with the kernel's own count; the rest belong to
unknown holders.
""",
    examples=(
        ("kcensus memcgs vmcore -s vmlinux", "the memory cgroups of a dump"),
        ("sudo kcensus memcgs --csv DIR", "the running kernel; files.csv lists the files"),
    ),
)
