# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of memory cgroups, their use, and the kinds of memory in them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Numbers
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.names import DAMAGED

_UNSET = 255
"""Place of a kind without a counter, since v6.12 or so (commit not verified); before, places are
counted from 1 on."""
_KINDS = {"anonymous": "NR_ANON_MAPPED", "page cache": "NR_FILE_PAGES", "shmem (tmpfs)": "NR_SHMEM"}
"""Counters in pages by kind of memory; the page cache includes shmem."""
_UNWRITTEN = ("NR_FILE_DIRTY", "NR_WRITEBACK")
"""Counters of the pages that cannot be reclaimed before a disk has them."""


@dataclass(frozen=True)
class Limits:
    """Use and limits in bytes, by row of :class:`.memcgs.Memcgs`; -1 without a limit."""

    usage: Numbers
    high: Numbers
    """``memory.high``: above it, tasks of the cgroup are throttled."""
    most: Numbers
    """``memory.max``, or ``memory.limit_in_bytes`` of cgroup v1."""
    is_without_oom: Mask
    """Whether the OOM killer is disabled (``memory.oom_control`` of cgroup v1)."""
    with_swap: Numbers
    """Use of memory and swap, with cgroup v1."""
    most_with_swap: Numbers
    """``memory.memsw.limit_in_bytes``."""
    faults: Faults = field(default_factory=Faults)


@once
def limits(kernel: Kernel) -> Limits:
    """Return the limits of all memory cgroups.

    :raises LookupError: the debug info lacks a member
    """
    prog, faults, groups = kernel.prog, Faults(), memcgs(kernel)
    # Since Linux kernel commit 3e32cb2e0a12 ("mm: memcontrol: lockless page counters") (in v3.19),
    # a page_counter; before, a res_counter in bytes.
    members = {"usage": ("memory.usage.counter", "memory.count.counter", "res.usage")}
    optional = {
        # Since Linux kernel commit bbec2e15170a ("mm: rename page_counter's count/limit into
        # usage/max") (in v4.18).
        "most": ("memory.max", "memory.limit", "res.limit"),
        # Since v5.8 (commit not verified), memory.high is in the page_counter, too.
        "high": ("memory.high", "high"),
        "without_oom": ("oom_kill_disable",),
        "with_swap": ("memsw.usage.counter", "memsw.count.counter", "memsw.usage"),
        "most_with_swap": ("memsw.max", "memsw.limit"),
    }
    read = gather(
        kernel.memory, groups.address, layout(prog, "struct mem_cgroup", members, optional), faults
    )
    unit = 1 if prog.type("struct mem_cgroup").has_member("res") else kernel.memory.page_size
    none = np.full(len(groups), np.iinfo(np.int64).max, np.uint64)

    def in_bytes(name: str) -> Numbers:
        pages = read.columns.get(name, none).astype(np.uint64)
        # PAGE_COUNTER_MAX, and RES_COUNTER_MAX rounded down to pages.
        is_set = pages < np.uint64(np.iinfo(np.int64).max // unit // 2)
        return np.where(is_set, pages * np.uint64(unit), np.uint64(0)).astype(np.int64) - ~is_set

    return Limits(
        usage=np.maximum(in_bytes("usage"), 0),
        high=in_bytes("high"),
        most=in_bytes("most"),
        is_without_oom=read.columns.get("without_oom", np.zeros(len(groups))) != 0,
        with_swap=np.maximum(in_bytes("with_swap"), 0),
        most_with_swap=in_bytes("most_with_swap"),
        faults=faults,
    )


def is_unified(prog: drgn.Program) -> bool:
    """Return whether the memory controller is on the unified hierarchy (cgroup v2)."""
    try:
        root = int(prog["memory_cgrp_subsys"].root)
        return root == int(prog["cgrp_dfl_root"].address_of_())
    except DAMAGED:
        return False


def memory_by_kind(kernel: Kernel, memcg: int) -> dict[str, int]:
    """Return the bytes of some kinds of memory of a cgroup and those below it; empty if unknown.

    The kernel adds the counters of CPUs every two seconds: they are approximate.

    :param memcg: address of a ``struct mem_cgroup``
    """
    sizes = {kind: _counted(kernel, memcg, name) for kind, name in _KINDS.items()}
    found = {kind: size for kind, size in sizes.items() if size is not None}
    if len(found) < len(_KINDS):
        return {}
    found["page cache"] = max(found["page cache"] - found["shmem (tmpfs)"], 0)
    return found


def unwritten(kernel: Kernel, memcg: int) -> int:
    """Return the bytes of page cache of a cgroup that are dirty or under writeback; 0 if unknown.

    :param memcg: address of a ``struct mem_cgroup``
    """
    return sum(_counted(kernel, memcg, name) or 0 for name in _UNWRITTEN)


def _counted(kernel: Kernel, memcg: int, name: str) -> int | None:
    """Return a counter of a cgroup and those below it, in bytes; None if unknown."""
    prog = kernel.prog
    try:
        # Since Linux kernel commit 42a300353577 ("mm: memcontrol: fix recursive statistics
        # correctness & scalabilty") (in v5.2), counters include those of cgroups below.
        counters = drgn.Object(prog, "struct mem_cgroup", address=memcg).vmstats
        if counters.type_.kind == drgn.TypeKind.POINTER:
            # Since Linux kernel commit 410f8e82689e ("memcg: extract memcg_vmstats from struct
            # mem_cgroup") (in v6.1).
            counters = counters.state
        place = _place(prog, int(prog.constant(name)), counters.type_.length or 0)
        # An atomic_long_t before Linux kernel commit 2d146aa3aa84 ("mm: memcontrol: switch to
        # rstat") (in v5.13).
        value = getattr(counters[place], "counter", counters[place])
        return max(int(value), 0) * kernel.memory.page_size
    except DAMAGED:
        return None


def _place(prog: drgn.Program, item: int, count: int) -> int:
    """Return the index of a kind of memory among the counters of a cgroup.

    Since Linux kernel commit ff48c71c26aa ("memcg: reduce memory for the lruvec and memcg stats")
    (in v6.10), an array has the indexes.

    :raises LookupError: the kernel lacks the counter
    """
    with contextlib.suppress(LookupError):
        places = [int(each) for each in prog["mem_cgroup_stats_index"]]
        item = places[item] - (_UNSET not in places)
    if not 0 <= item < count:
        raise LookupError("no such counter")
    return item
