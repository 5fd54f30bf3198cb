# SPDX-License-Identifier: LGPL-2.1-or-later
"""*Synthetic* types and symbols, modelled on kernels that the lab cannot boot.

Each set has the names that the detection of patches looks up, as in the sources of that kernel, and
nothing else. Offsets are invented; none of it was ever part of a real kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import drgn
from drgn import Object, Program, TypeEnumerator

from tests.unit.fakekernel import add_types

_WALK = ("D_WALK_CONTINUE", "D_WALK_QUIT", "D_WALK_NORETRY", "D_WALK_SKIP")


@dataclass(frozen=True)
class Distribution:
    """A program with the names of one kernel."""

    release: str
    structs: dict[str, tuple[str, ...]]
    """Members by struct; all are 64-bit words."""
    symbols: tuple[str, ...] = ()
    enumerators: tuple[str, ...] = ("PG_locked", "PG_slab", "THP_FAULT_ALLOC", *_WALK)

    def with_members(self, **structs: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return the structs with more members in some of them."""
        changed = dict(self.structs)
        for name, members in structs.items():
            changed[name] = (*changed.get(name, ()), *members)
        return changed

    def without_members(self, **structs: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return the structs with fewer members in some of them."""
        changed = dict(self.structs)
        for name, members in structs.items():
            changed[name] = tuple(kept for kept in changed[name] if kept not in members)
        return changed

    def program(self) -> Program:
        """Make the program."""
        flags = drgn.PlatformFlags.IS_64_BIT | drgn.PlatformFlags.IS_LITTLE_ENDIAN
        prog = Program(drgn.Platform(drgn.Architecture.X86_64, flags))
        table = {}
        for name, members in self.structs.items():
            lines = [f"{8 * row} {_type(member)}" for row, member in enumerate(members)]
            table[f"struct {name}"] = (8 * len(lines), "\n".join(lines))
        # RHEL 8 put memcg_data into an anonymous union beside the old member.
        table["union kabi"] = (8, "0 unsigned long memcg_data\n0 struct old -")
        table["struct old"] = (8, "0 unsigned long rh_reserved_mem_cgroup")
        table["struct list_lru_ext"] = (16, "0 unsigned long node\n8 unsigned long xa")
        add_types(prog, table)
        known = {name: Object(prog, "unsigned long", 0) for name in self.symbols}
        enumerators = [TypeEnumerator(name, value) for value, name in enumerate(self.enumerators)]
        if enumerators:
            enum = prog.enum_type("synthetic", prog.type("unsigned int"), enumerators)
            known |= {each.name: Object(prog, enum, each.value) for each in enumerators}
        prog.register_object_finder(
            "synthetic", lambda prog, name, flags, file: known.get(name), enable_index=0
        )
        return prog


def _type(member: str) -> str:
    if member == "<kabi>":
        return "union kabi -"
    if member == "ext":
        return "struct list_lru_ext * ext"
    return f"unsigned long {member}"


RHEL_7_4 = Distribution(
    "3.10.0-693.el7.x86_64",
    {
        "list_lru": ("node", "active_nodes"),
        "list_lru_node": ("lock", "list", "nr_items"),
        "mem_cgroup": ("kmemcg_id", "memcg_slab_caches"),
        "mem_cgroup_per_node": ("zoneinfo",),
        "kmem_cache": ("cpu_slab", "memcg_params", "node"),
        "page": ("flags", "_count", "first_page"),
        "request_queue": ("request_fn", "mq_ops", "queue_hw_ctx"),
        "elevator_queue": ("type", "elevator_data"),
        "dm_snapshot": ("origin", "cow", "lock", "kcopyd_client"),
        "dm_kcopyd_client": ("nr_jobs", "complete_jobs", "io_jobs", "pages_jobs"),
        "hash_cell": ("name_list", "uuid_list"),
        "deadline_data": ("fifo_list", "sort_list"),
        "worker_pool": ("watchdog_ts", "worklist"),
        "worker": ("current_work",),
        "pool_workqueue": ("delayed_works", "max_active"),
        "workqueue_struct": ("cpu_pwqs", "pwqs"),
    },
    ("kmem_limited_groups", "memcg_limited_groups_array_size", "d_hash_mask"),
    ("PG_locked", "PG_slab", "THP_FAULT_ALLOC"),
)

_MAINLINE_4_19_STRUCTS = RHEL_7_4.structs | {
    "list_lru": ("node", "list", "shrinker_id"),
    "list_lru_node": ("lock", "lru", "memcg_lrus", "nr_items"),
    "list_lru_memcg": ("rcu", "lru"),
    "list_lru_one": ("list", "nr_items"),
    "mem_cgroup": ("kmemcg_id", "kmem_caches"),
    "page": ("flags", "compound_head", "_refcount", "mem_cgroup"),
}
MAINLINE_4_19 = Distribution(
    "4.19.0", _MAINLINE_4_19_STRUCTS, ("memcg_nr_cache_ids", "memcg_cache_ida", "list_lrus")
)

MAINLINE_4_19_BFQ = replace(
    MAINLINE_4_19,
    structs=MAINLINE_4_19.structs
    | {
        "bfq_data": ("queue", "active_list", "word_depths"),
        "bfq_queue": ("fifo", "dispatched", "pid"),
        "bfq_entity": ("service", "budget", "weight"),
    },
)
"""The same with BFQ, whose debug info a vmlinux of 4.19.40 has."""

STABLE_4_19_SEMAPHORE = replace(
    MAINLINE_4_19,
    release="4.19.19",
    structs=MAINLINE_4_19.with_members(
        dm_snapshot=("cow_count",), dm_kcopyd_client=("callback_jobs",)
    ),
)
"""A stable kernel with dm-snapshot's limit (a semaphore), before its rework."""

RHEL_8_3 = replace(
    MAINLINE_4_19,
    release="4.18.0-240.el8.x86_64",
    structs=MAINLINE_4_19.with_members(
        dm_snapshot=("in_progress", "in_progress_wait"), dm_kcopyd_client=("callback_jobs",)
    )
    | {"request_queue": ("mq_ops", "queue_hw_ctx")},
    symbols=(*MAINLINE_4_19.symbols, "nr_dentry_negative"),
)

RHEL_8_1_BFQ = replace(
    RHEL_8_3,
    release="4.18.0-147.el8.x86_64",
    structs=RHEL_8_3.structs
    | MAINLINE_4_19_BFQ.structs
    | {
        "request_queue": ("mq_ops", "queue_hw_ctx"),
        "bfq_queue": ("fifo", "dispatched", "pid", "inject_limit"),
    },
)
"""The schedulers of RHEL 8.1: BFQ of 5.2, mq-deadline without classes."""

RHEL_8_10 = replace(
    RHEL_8_3,
    release="4.18.0-553.el8_10.x86_64",
    structs=RHEL_8_3.structs
    | {
        "kmem_cache": ("cpu_slab", "rh_reserved_memcg_params", "node"),
        "page": ("flags", "compound_head", "_refcount", "<kabi>"),
        "obj_cgroup": ("refcnt", "memcg"),
        "hash_cell": ("name_node", "uuid_node"),
        "deadline_data": ("per_prio",),
        "pool_workqueue": ("inactive_works", "max_active"),
    },
    symbols=(*RHEL_8_3.symbols, "dentry_fs_klimit_sysctl", "dentry_nlru_limit"),
)

RHEL_9_0 = replace(
    RHEL_8_10,
    release="5.14.0-70.13.1.el9_0.x86_64",
    structs=RHEL_8_10.structs
    | {
        "kmem_cache": ("cpu_slab", "node"),
        "page": ("flags", "compound_head", "_refcount", "memcg_data"),
        "list_lru": ("node", "list", "shrinker_id", "memcg_aware"),
    },
    symbols=RHEL_8_3.symbols,
)

RHEL_9_2 = replace(
    RHEL_9_0,
    release="5.14.0-284.11.1.el9_2.x86_64",
    structs=RHEL_9_0.structs
    | {
        "list_lru": ("node", "list", "shrinker_id", "memcg_aware", "xa"),
        "list_lru_node": ("lock", "lru", "nr_items"),
        "list_lru_memcg": ("rcu", "node"),
        "slab": ("__page_flags", "slab_cache", "freelist", "memcg_data"),
        "request_queue": ("mq_ops", "hctx_table"),
    },
    symbols=("memcg_list_lrus", "nr_dentry_negative", "kmem_cache_alloc_lru"),
)

RHEL_9_4 = replace(RHEL_9_2, release="5.14.0-427.13.1.el9_4.x86_64")

UEK_7 = replace(
    RHEL_9_0,
    release="5.15.0-101.103.2.1.el9uek.x86_64",
    structs=RHEL_9_0.structs | {"list_lru": ("node", "list", "shrinker_id", "memcg_aware", "ext")},
    symbols=("list_lrus", "nr_dentry_negative"),
)
