# SPDX-License-Identifier: LGPL-2.1-or-later
"""How full are the slab caches, and whose objects are in them?

Symptom: ``Slab`` in meminfo is large, or grows with the number of cgroups, and it is unclear
whether the memory is in use. ``/proc/slabinfo`` counts objects as active that are free in per-CPU
lists and sheaves, and does not know cgroups.
"""

from __future__ import annotations

from kcensus.analyses import Analysis

ANALYSIS = Analysis(
    name="slab",
    question="how full are the slab caches, and whose objects are in them?",
    runner="kcensus.analyses.slab.run:run",
    gauges="kcensus.analyses.slab.checks:gauges",
    specs="kcensus.analyses.slab.tables:TABLES",
    charts="kcensus.analyses.slab.charts:CHARTS",
    ram="kcensus.analyses.slab.charts:ram",
    headline=("slab_bytes", "share_of_ram", "utilization"),
    first_tables=("caches", "waste", "memcgs"),
    description="""\
Counts every slab and every object in it: allocated, or free on the slab's own freelist, on the
freelist of a CPU, or in a sheaf. So `active` is what users of the cache hold; /proc/slabinfo
shows more, since it counts the free objects of CPUs and sheaves as active.

The bytes of a cache are its objects, free slots, padding (slots are larger than objects) and tails
(what is left at the end of a slab). Utilization is the share of the objects.

Objects of kmalloc() are attributed to users that can be found, such as obj_cgroup vectors,
list_lrus, memory cgroups and external names of dentries; the rest is "(not attributed)".

Objects are attributed to the memory cgroups that they are charged to. From that follows how many
slab pages these objects would need with the controller of kernels up to 5.8, which gave each memory
cgroup slab pages of its own. Both figures assume slabs as full as they can be, so their difference
is due to sharing alone; real slabs are less full, with either controller.
""",
    examples=(
        ("kcensus slab vmcore -s vmlinux", "the census of a dump"),
        ("kcensus slab vmcore --json | jq .summary", "its totals for a script"),
        ("kcensus slab vmcore --table kmalloc", "what kmalloc() allocated, by cache and user"),
        ("sudo kcensus slab --top 40", "the running kernel, forty rows per table"),
    ),
    # Devices and file systems that allocate with kmalloc(), and have list_lrus.
    modules=("dm_mod", "xfs", "nfsv4", "gfs2", "nfsd"),
)
