# SPDX-License-Identifier: LGPL-2.1-or-later
"""How full are the slab caches, and who owns the objects?

Symptom: ``Slab`` in meminfo is large, or grows with the number of cgroups, and it is unclear
whether the memory is in use.
"""

from __future__ import annotations

from kcensus.analyses import Analysis

ANALYSIS = Analysis(
    name="slab",
    question="how full are the slab caches, and who owns the objects?",
    plain="the memory of the kernel itself",
    gauges="kcensus.analyses.slab.checks:gauges",
    headline=("slab_bytes", "share_of_ram", "utilization"),
    first_tables=("caches", "waste", "memcgs"),
    description="""\
Counts every slab and every object in it: allocated, or free on the slab's own freelist, on the
freelist of a CPU, or in a sheaf. So `active` counts allocated objects alone; /proc/slabinfo also
counts free objects of CPUs and sheaves as active.

The bytes of a cache are objects, free slots, padding (slots are larger than objects) and tails
(ends of slabs, too small for a slot). Utilization is the share of the objects.

Objects of kmalloc() are attributed to known users, such as obj_cgroup vectors, list_lrus, memory
cgroups and external names of dentries; the rest is "(not attributed)".

Charged objects are attributed to their memory cgroups, which shows how many slab pages the
controller of kernels up to 5.8 would need: it gave each memory cgroup slab pages of its own. The
figures with and without sharing assume full slabs, so they differ by sharing alone; real slabs are
less full with either controller.
""",
    examples=(
        ("kcensus slab vmcore -s vmlinux", "the census of a dump"),
        ("kcensus slab vmcore --json | jq .summary", "the totals for a script"),
        ("kcensus slab vmcore --table kmalloc", "objects of kmalloc(), by cache and user"),
        ("sudo kcensus slab --top 40", "the running kernel, forty rows per table"),
    ),
    # Devices and file systems that allocate with kmalloc(), and have list_lrus.
    modules=("dm_mod", "xfs", "nfsv4", "gfs2", "nfsd"),
)
