# SPDX-License-Identifier: LGPL-2.1-or-later
"""What do offline memory cgroups hold, and what pins each?

Symptom: memory that no process and no cgroup accounts for, on a machine where cgroups come and go;
``nr_dying_descendants`` in ``cgroup.stat`` and ``Percpu`` in meminfo grow.
"""

from __future__ import annotations

from kcensus.analyses import Analysis

ANALYSIS = Analysis(
    name="memcgs",
    question="what do memory cgroups hold, offline (dying) ones above all, and what pins each?",
    runner="kcensus.analyses.memcgs.run:run",
    gauges="kcensus.analyses.memcgs.checks:gauges",
    specs="kcensus.analyses.memcgs.tables:TABLES",
    charts="kcensus.analyses.memcgs.charts:CHARTS",
    ram="kcensus.analyses.memcgs.charts:ram",
    headline=("memcgs_offline", "offline_bytes", "share_of_ram"),
    first_tables=("pins", "mounts", "offline"),
    description="""\
A memory cgroup that is removed goes offline (dying), and is released with the last reference to it:
those of the pages that are charged to it, of sockets, swapped pages, structures of writeback, and
its children. Until then it keeps its structures, and a per-CPU area on every possible CPU.

Bytes of structures are what the allocator uses: slots of slab caches. Per-CPU areas are as asked
for, rounded up to 4 bytes, times the possible CPUs; the allocator's own fragmentation is not in
them. Pages are found in the `struct page` array by their owner. Objects in slabs pin none since
5.9: they are charged to the parent from then on.

The references of each holder are added up and compared with the kernel's own count, so that it
shows when something else pins a memory cgroup.
""",
    examples=(
        ("kcensus memcgs vmcore -s vmlinux", "the memory cgroups of a dump"),
        ("sudo kcensus memcgs --csv DIR", "the running kernel; files.csv lists the files"),
    ),
)
