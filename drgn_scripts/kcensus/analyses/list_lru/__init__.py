# SPDX-License-Identifier: LGPL-2.1-or-later
"""What do per-memcg list_lrus cost, and which lists are in use?

Symptom: kmalloc-32 (or -64, -96) grows by gigabytes on a machine with many mounts where memory
cgroups come and go, and does not shrink.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

ANALYSIS = Analysis(
    name="list-lru",
    needs=("struct list_lru.node",),
    question="what do per-memcg list_lrus cost, and which lists are in use?",
    plain="lists that the kernel keeps for each file system and container",
    gauges="kcensus.analyses.list_lru.checks:gauges",
    headline=("structural_bytes", "share_of_ram", "dead_slot_bytes"),
    first_tables=("owners", "super_blocks", "projection"),
    description="""\
Unused dentries and inodes are on list_lrus, two per super block. Each has a list for each memory
cgroup and node. Up to 5.17 all these lists are allocated at mount, for as many memory cgroups as
have ever existed at the same time (memcg_nr_cache_ids); since 5.18 a list is allocated with the
first object of a memory cgroup on a file system.

Bytes are slots of slab caches, pages and vmalloc areas. Waste is lists of ids that no online memory
cgroup uses, and empty lists.

The projection is the cost of the same mounts and memory cgroups at each stage of the series merged
in 5.18. Up to 5.17 it assumes that only memory cgroups with items need lists: a lower bound. Since
5.18 it estimates memcg_nr_cache_ids from the ids in use now: the cost of the arrays is a lower
bound. No stage has shrinker maps, which 5.13 made larger for another reason.
""",
    examples=(
        ("kcensus list-lru vmcore -s vmlinux", "the list_lrus of a dump"),
        (
            "kcensus list-lru --what-if nodes=2,memcgs=10000,mounts=10000",
            "the model of a hypothetical machine",
        ),
        (
            "kcensus list-lru vmcore --before kmalloc-32=2816",
            "with the share of the lists in the growth of kmalloc-32",
        ),
    ),
    params=(
        Param(
            "what_if",
            str,
            None,
            "Evaluate only the model, for nodes=N,memcgs=N,mounts=N[,ids=N][,pairs=N].",
        ),
        Param(
            "before",
            str,
            None,
            "CACHE=N,…: show how much of the growth of slab caches the lists explain; N is the "
            "earlier num_objs of the cache in /proc/slabinfo.",
        ),
    ),
    modules=("xfs", "nfsv4", "gfs2", "nfsd"),
    without_target=("what_if",),
)
