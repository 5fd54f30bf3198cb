# SPDX-License-Identifier: LGPL-2.1-or-later
"""The longest delays by scheduler, and the missing patches."""

from __future__ import annotations

import numpy as np

from kcensus.analyses.iosched.kernel.figures import Figures, Queue, Verdict
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.results import Figure, Unit

_SCHEDULERS = ("bfq", "cfq", "mq-deadline")
_RESERVED = 0.75
"""Share of tags beyond which schedulers with a limit leave the rest to synchronous reads."""


def costs(figures: Figures) -> dict[str, Figure]:
    """Return the longest delays by scheduler, in seconds; 0 where a scheduler causes none."""
    starved = [queue for queue in figures.queues if queue.verdict is Verdict.STARVED]
    found = {}
    for name in _SCHEDULERS:
        own = [queue for queue in starved if figures.disks[queue.disk].scheduler == name]
        key = name.replace("-", "_")
        found[f"starved_{key}"] = _seconds(_worst(own), f"longest overtaken, {name}")
        if name == "cfq":
            own = [queue for queue in own if figures.is_async(queue)]
            found["async_starved_cfq"] = _seconds(_worst(own), "longest overtaken, async, cfq")
            continue
        if name == "mq-deadline":
            own = [queue for queue in own if _is_behind_higher_class(figures, queue)]
            label = "longest overtaken by class"
            found["class_starved_mq_deadline"] = _seconds(_worst(own), label)
        wait = _tag_wait(figures, name)
        found[f"tag_wait_{key}"] = _seconds(wait, f"longest without tag, {name}")
    return found


def lacking_patch(figures: Figures, queue: Queue) -> str:
    """Return the missing patch against a queue's starvation; empty if types do not show one.

    Types do not show the fix of CFQ, and requests are starved with it, too.
    """
    scheduler = figures.schedulers[queue.disk]
    if scheduler.scheduler == "bfq":
        type_ = figures.kernel.prog.type("struct bfq_queue")
        fixes = {"inject_limit": "bfq-injection", "waker_bfqq": "bfq-wakers"}
        return next((fix for member, fix in fixes.items() if not type_.has_member(member)), "")
    lacks_aging = "prio_aging_expire" not in scheduler.tunables
    if scheduler.scheduler == "mq-deadline" and lacks_aging:
        return "mq-deadline-prio-aging" if _is_behind_higher_class(figures, queue) else ""
    return ""


def _seconds(nanoseconds: int, label: str) -> Figure:
    return Figure(nanoseconds / 1e9, Unit.SECONDS, label)


def _worst(queues: list[Queue]) -> int:
    return max((queue.served_ns for queue in queues), default=0)


def _is_behind_higher_class(figures: Figures, queue: Queue) -> bool:
    """Return whether mq-deadline served a higher class after a queue's first request expired."""
    if len(figures.schedulers[queue.disk]) <= 2:
        return False  # one queue for reads and one for writes, of all classes
    return bool((figures.ranks(queue.overtakers) < queue.row // 2).any())


def _tag_wait(figures: Figures, scheduler: str) -> int:
    """Return the longest wait for a tag while writes hold most tags, nanoseconds; 0 without one.

    Only disks with the scheduler count where most tags in use belong to writes and asynchronous
    requests. Some tags may be free: a waiter runs some time after it was woken up.
    """
    waits = figures.waits
    disks = [
        disk.address
        for row, disk in enumerate(figures.disks)
        if disk.scheduler == scheduler and _is_full_of_writes(figures, row)
    ]
    is_tag = np.array([kind is WaitKind.TAG for kind in waits.kind], np.bool_)
    since = waits.since_ns[is_tag & np.isin(waits.disk, np.array(disks, np.uint64))]
    return max(int(since.max(initial=0)), 0)


def _is_full_of_writes(figures: Figures, row: int) -> bool:
    """Return whether writes and asynchronous requests hold most tags of the scheduler in use."""
    requests, own = figures.requests, figures.rows(row)
    own = own[requests.sched_tag[own] >= 0]
    is_write = requests.operations.is_write(requests.operation[own])
    limited = int(np.count_nonzero(is_write | ~requests.is_sync[own]))
    return limited > _RESERVED * len(own)
