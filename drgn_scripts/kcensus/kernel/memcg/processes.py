# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups of tasks, and the largest processes in a cgroup."""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np
from drgn.helpers.linux.percpu import percpu_counter_sum

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.names import DAMAGED, MISSING, cgroup_path
from kcensus.kernel.tasks.tasks import tasks

_TASK, _MM = "struct task_struct", "struct mm_struct"
_CANDIDATES = 16
"""Largest processes to read exactly: the counters of CPUs are not in the first estimate."""


@dataclass(frozen=True)
class Members:
    """Memory cgroups of all tasks, by their rows."""

    memcg: Numbers
    """Row of the memory cgroup that a task's memory is charged to, or -1."""
    mm: Words
    """``struct mm_struct *``; 0 for a kernel thread."""
    faults: Faults


@once
def members(kernel: Kernel) -> Members:
    """Return the memory cgroup of each task: that of the owner of its memory, usually itself.

    :raises LookupError: the debug info lacks a type, or the kernel has no memory cgroups
    """
    prog, memory, known, faults = kernel.prog, kernel.memory, tasks(kernel), Faults()
    read = gather(memory, known.address, layout(prog, _TASK, ["mm"]), faults)
    has_mm = read["mm"] != 0
    owner = np.zeros(len(known), np.uint64)
    owners = layout(prog, _MM, ["owner"])
    owner[has_mm] = gather(memory, read["mm"][has_mm], owners, faults)["owner"]
    # The owner of a process's memory may have exited.
    rows = known.rows(owner)
    rows = np.where(rows >= 0, rows, np.arange(len(known)))
    states = states_of(kernel, known.address[rows], faults)
    start = states - np.uint64(drgn.offsetof(prog.type("struct mem_cgroup"), "css"))
    return Members(memcgs(kernel).rows(start), read["mm"], faults)


def states_of(kernel: Kernel, addresses: Words, faults: Faults) -> Words:
    """Return the ``struct cgroup_subsys_state`` of memory of each task; 0 if unknown.

    :param addresses: ``struct task_struct *``
    :raises LookupError: the kernel has no memory cgroups, or the debug info lacks a type
    """
    prog, memory = kernel.prog, kernel.memory
    sets = gather(memory, addresses, layout(prog, _TASK, ["cgroups"]), faults)["cgroups"]
    state = layout(prog, "struct css_set", {"state": f"subsys[{_controller(prog)}]"})
    return gather(memory, sets, state, faults)["state"]


def path_of(kernel: Kernel, state: int) -> str:
    """Return the path of the cgroup of a state; Unicode, not safe to print.

    :raises LookupError: the debug info lacks a type or member
    :raises drgn.FaultError: a part is not in the dump
    """
    css = drgn.Object(kernel.prog, "struct cgroup_subsys_state *", value=state)
    return cgroup_path(css.cgroup)


def _controller(prog: drgn.Program) -> int:
    """Return the number of the memory controller.

    :raises LookupError: there is none
    """
    try:
        return int(prog["memory_cgrp_subsys"].id)
    except MISSING:
        # Until v3.13 (commit not verified).
        return int(prog.constant("mem_cgroup_subsys_id"))


def below(kernel: Kernel, row: int) -> Mask:
    """Return a mask of a memory cgroup and all those below it."""
    parent = memcgs(kernel).parent
    mask = np.zeros(len(parent), np.bool_)
    mask[row] = True
    while True:  # once for each level
        more = mask | (mask[parent] & (parent >= 0))
        if (more == mask).all():
            return mask
        mask = more


def largest(kernel: Kernel, row: int, most: int) -> list[tuple[int, int]]:
    """Return the largest processes in a memory cgroup and those below it.

    :return: row of one of the tasks, and bytes of resident memory; the largest first
    """
    try:
        return _largest(kernel, row)[:most]
    except DAMAGED:
        return []


def _largest(kernel: Kernel, row: int) -> list[tuple[int, int]]:
    prog, of = kernel.prog, members(kernel)
    inside = (of.memcg >= 0) & (of.mm != 0)
    inside[inside] = below(kernel, row)[of.memcg[inside]]
    # Threads of a process share its memory; the first one is its leader.
    spaces, first = np.unique(of.mm[inside], return_index=True)
    task = np.flatnonzero(inside)[first]
    type_ = prog.type(_MM)
    # Since Linux kernel commit f1a7941243c1 ("mm: convert mm's rss stats into percpu_counter") (in
    # v6.2); before, an array of atomic_long_t in a struct.
    is_percpu = type_.member("rss_stat").type.kind == drgn.TypeKind.ARRAY
    names = ("MM_FILEPAGES", "MM_ANONPAGES", "MM_SHMEMPAGES")  # not MM_SWAPENTS
    kinds = [
        value for name, value in prog.constant(names[0]).type_.enumerators or () if name in names
    ]
    path = "rss_stat[{}].count" if is_percpu else "rss_stat.count[{}].counter"
    paths = {str(kind): path.format(kind) for kind in kinds}
    read = gather(kernel.memory, spaces, layout(prog, type_, paths), of.faults)
    pages = sum((read[name].astype(np.int64) for name in paths), np.zeros(len(spaces), np.int64))
    order = np.argsort(-pages, kind="stable")[:_CANDIDATES]
    sizes = {int(task[each]): int(pages[each]) for each in order}
    if is_percpu:
        for each in order.tolist():
            space = drgn.Object(prog, type_, address=int(spaces[each]))
            counters = [space.rss_stat[kind].address_of_() for kind in kinds]
            sizes[int(task[each])] = sum(int(percpu_counter_sum(counter)) for counter in counters)
    size = kernel.memory.page_size
    found = [(each, max(count, 0) * size) for each, count in sizes.items()]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))
