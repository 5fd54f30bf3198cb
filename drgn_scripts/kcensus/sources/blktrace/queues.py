# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count the events of each queue of a scheduler, by its messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from kcensus.sources.blktrace import messages
from kcensus.sources.blktrace.events import Integers, Trace

_NAME = re.compile(rb"(cfq|bfq)(?:(\d{1,10})|SHARED-)([SA])")


@dataclass(frozen=True)
class Queue:
    """Counts of the messages about one queue."""

    device: int
    """dev_t of the trace."""
    name: bytes
    scheduler: str
    pid: int | None
    """PID of its first task; None for a shared queue."""
    is_sync: bool
    inserted: int
    selected: int
    """Times that it became the active queue, or the one in service."""
    dispatched: int
    expired: int
    """Ends of its turns, preemptions included."""
    preempted: int
    preempts: int | None
    """Times that it preempted another queue; None if the scheduler does not tell."""
    expired_empty: int
    """Ends of its turns without a dispatch."""


def tally(trace: Trace) -> list[Queue]:
    """Return all queues, by device and name."""
    said = trace.messages
    rows = np.flatnonzero((said["queue"] > 0) & (said["kind"] != messages.OTHER))
    if not len(rows):
        return []
    kind = said["kind"][rows].astype(np.int64)
    devices, device = np.unique(said["device"][rows], return_inverse=True)
    count = len(trace.queues)
    key = device * count + said["queue"][rows]
    known, code = np.unique(key, return_inverse=True)
    width = max(kind.max(), messages.EMPTY) + 1
    counts = np.bincount(code * width + kind, minlength=len(known) * width)
    counts = counts.reshape(len(known), width)
    is_cfq = np.array([trace.queues[each % count].startswith(b"cfq") for each in known.tolist()])
    preempted = np.where(
        is_cfq, _followers(device, code, kind, len(known)), counts[:, messages.PREEMPTED]
    )
    empty = np.where(is_cfq, counts[:, messages.EMPTY], _without_dispatch(code, kind, len(known)))
    queues = []
    for row, each in enumerate(known.tolist()):
        name = trace.queues[each % count]
        match = _NAME.match(name)
        if not match:
            continue
        of_cfq = match[1] == b"cfq"
        queues.append(
            Queue(
                device=int(devices[each // count]),
                name=name,
                scheduler=match[1].decode(),
                pid=int(match[2]) if match[2] else None,
                is_sync=match[3] == b"S",
                inserted=int(counts[row, messages.INSERTED]),
                selected=int(counts[row, messages.SELECTED]),
                dispatched=int(counts[row, messages.DISPATCHED]),
                expired=int(counts[row, messages.EXPIRED] + counts[row, messages.PREEMPTED]),
                preempted=int(preempted[row]),
                preempts=int(counts[row, messages.PREEMPTS]) if of_cfq else None,
                expired_empty=int(empty[row]),
            )
        )
    return queues


def _followers(device: Integers, code: Integers, kind: Integers, count: int) -> Integers:
    """Return how often each queue of CFQ expires right after a preemption by another one.

    ``cfq_preempt_queue()`` logs ``preempt`` of the new queue and expires the active one.
    """
    # Messages of several devices are mixed: each one follows the one before on its device.
    order = np.argsort(device, kind="stable")
    chosen = order[np.isin(kind[order], (messages.PREEMPTS, messages.EXPIRED))]
    is_next = (kind[chosen[:-1]] == messages.PREEMPTS) & (kind[chosen[1:]] == messages.EXPIRED)
    is_next &= device[chosen[:-1]] == device[chosen[1:]]
    return np.bincount(code[chosen[1:][is_next]], minlength=count)


def _without_dispatch(code: Integers, kind: Integers, count: int) -> Integers:
    """Return how often each queue of BFQ expires without a dispatch since its selection."""
    order = np.argsort(code, kind="stable")
    mine, what = code[order], kind[order]
    is_start = what == messages.SELECTED
    is_end = np.isin(what, (messages.EXPIRED, messages.PREEMPTED))
    served = np.cumsum(what == messages.DISPATCHED)
    place = np.maximum.accumulate(np.where(is_start, np.arange(len(order)), -1))
    ends = np.flatnonzero(is_end & (place >= 0))
    start = place[ends]
    # Leave out turns that began before the trace, or lost messages.
    same = (mine[start] == mine[ends]) & (np.cumsum(is_end)[ends] - np.cumsum(is_end)[start] == 1)
    empty = ends[same & (served[ends] == served[start])]
    return np.bincount(mine[empty], minlength=count)
