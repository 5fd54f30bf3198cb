# SPDX-License-Identifier: LGPL-2.1-or-later
"""CPUs and the tasks that run on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.kernel import Kernel, once


@dataclass(frozen=True)
class RunQueues:
    """CPUs as columns; unreadable run queues are left out."""

    row: dict[int, int]
    """Row of each CPU, by number."""
    address: Words
    """``struct rq *``."""
    current: Words
    """``rq.curr``: the task that runs, or the idle task of the CPU."""
    place: Words
    """Addresses of the members ``curr``."""
    is_idle: Mask
    is_online: Mask
    faults: Faults
    is_throttled: Mask
    """Whether its real-time tasks wait for the next period of ``sched_rt_period_us``: then it looks
    idle, or runs others."""


@once
def run_queues(kernel: Kernel) -> RunQueues:
    """Return all CPUs.

    :raises LookupError: the debug info lacks a type or variable
    """
    prog, faults = kernel.prog, Faults()
    # Since Linux kernel commit 5f6bd380c7bd ("sched/rt: Remove default bandwidth control") (in
    # v6.12), the member is there with CONFIG_RT_GROUP_SCHED only.
    optional = {"cpu": "cpu", "online": "online", "throttled": "rt.rt_throttled"}
    members = layout(prog, "struct rq", ["curr", "idle"], optional)
    queues = np.uint64(int(prog["runqueues"].address_of_())) + cpu_offsets(prog)
    read = gather(kernel.memory, queues, members, faults)
    known = np.flatnonzero(read.readable)
    # A kernel for one CPU only has no such members.
    number = read.columns.get("cpu", np.arange(len(queues))).astype(np.int64)[known]
    online = read.columns.get("online", np.ones(len(queues)))[known] != 0
    current = read["curr"][known]
    return RunQueues(
        row={each: row for row, each in enumerate(number.tolist())},
        address=queues[known],
        current=current,
        place=queues[known] + np.uint64(members.fields["curr"].offset),
        is_idle=current == read["idle"][known],
        is_online=online,
        faults=faults,
        is_throttled=read.columns.get("throttled", np.zeros(len(queues)))[known] != 0,
    )
