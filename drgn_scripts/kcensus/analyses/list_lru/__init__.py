# SPDX-License-Identifier: LGPL-2.1-or-later
"""What do per-memcg list_lrus cost, and who needs them?

Symptom: kmalloc-32 (or -64, -96) grows by gigabytes on a machine with many mounts on which many
memory cgroups come and go, and nothing gives it back. Up to 5.17 every super block keeps lists for
as many memory cgroups as have ever existed at the same time, whether they use it or not.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

ANALYSIS = Analysis(
    name="list-lru",
    question="what do per-memcg list_lrus cost, and who needs them?",
    runner="kcensus.analyses.list_lru.run:run",
    description="""\
Unused dentries and inodes stand on list_lrus, two per super block. Each has a list for each memory
cgroup and node. Up to 5.17 all of these are there from the start, for as many memory cgroups as
have ever existed at the same time (memcg_nr_cache_ids), on all mounts; since 5.18 a list comes with
the first object that a cgroup has on a file system.

Bytes are what the allocator uses: slots of slab caches, pages, vmalloc areas. Lists of no memory
cgroup are waste, and so are those of one that are empty.

The projection is what the same mounts and memory cgroups cost at each stage of the series that
went into 5.18. Up to 5.17 it takes the cgroups that have something on a list now as those that
would have one: a lower bound. Since 5.18 it takes the ids in use now for all there have ever been,
which makes what the arrays would have cost a lower bound.
""",
    examples=(
        ("kcensus list-lru vmcore -s vmlinux", "the list_lrus of a dump"),
        (
            "kcensus list-lru --what-if nodes=2,memcgs=10000,mounts=10000",
            "the model of a machine that one does not have",
        ),
        (
            "kcensus list-lru vmcore --before kmalloc-32=2816",
            "how much of that cache's growth since then the lists explain",
        ),
    ),
    params=(
        Param(
            "what_if",
            str,
            None,
            "Print the model for nodes=N,memcgs=N,mounts=N[,ids=N][,pairs=N] instead.",
        ),
        Param(
            "before",
            str,
            None,
            "Slots (num_objs) that slab caches had earlier, as CACHE=N,…, for a check.",
        ),
    ),
    modules=("xfs", "nfsv4", "gfs2", "nfsd"),
    without_target=("what_if",),
)
