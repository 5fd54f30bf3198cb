# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts what happened to each queue of a scheduler, by its messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from kcensus.trace.events import Integers, Trace
from kcensus.trace.messages import (
    DISPATCHED,
    EMPTY,
    EXPIRED,
    INSERTED,
    OTHER,
    PREEMPTED,
    PREEMPTS,
    SELECTED,
)

_NAME = re.compile(rb"(cfq|bfq)(?:(\d{1,10})|SHARED-)([SA])")


@dataclass(frozen=True)
class Queue:
    """What messages say of one queue."""

    device: int
    """dev_t of the trace."""
    name: bytes
    scheduler: str
    pid: int | None
    """For which it was made; None for a shared queue."""
    is_sync: bool
    inserted: int
    selected: int
    """How often it became the active queue, or the one in service."""
    dispatched: int
    expired: int
    """How often its turn ended, preemptions included."""
    preempted: int
    preempts: int | None
    """How often it preempted another one; None where the scheduler does not say."""
    expired_empty: int
    """How often its turn ended without a dispatch."""


def tally(trace: Trace) -> list[Queue]:
    """Return all queues, by device and name."""
    messages = trace.messages
    rows = np.flatnonzero((messages["queue"] > 0) & (messages["kind"] != OTHER))
    if not len(rows):
        return []
    kind = messages["kind"][rows].astype(np.int64)
    devices, device = np.unique(messages["device"][rows], return_inverse=True)
    count = len(trace.queues)
    key = device * count + messages["queue"][rows]
    known, code = np.unique(key, return_inverse=True)
    width = max(kind.max(), EMPTY) + 1
    counts = np.bincount(code * width + kind, minlength=len(known) * width)
    counts = counts.reshape(len(known), width)
    is_cfq = np.array([trace.queues[each % count].startswith(b"cfq") for each in known.tolist()])
    preempted = np.where(is_cfq, _followers(device, code, kind, len(known)), counts[:, PREEMPTED])
    empty = np.where(is_cfq, counts[:, EMPTY], _without_dispatch(code, kind, len(known)))
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
                inserted=int(counts[row, INSERTED]),
                selected=int(counts[row, SELECTED]),
                dispatched=int(counts[row, DISPATCHED]),
                expired=int(counts[row, EXPIRED] + counts[row, PREEMPTED]),
                preempted=int(preempted[row]),
                preempts=int(counts[row, PREEMPTS]) if of_cfq else None,
                expired_empty=int(empty[row]),
            )
        )
    return queues


def _followers(device: Integers, code: Integers, kind: Integers, count: int) -> Integers:
    """Return how often each queue of CFQ expires right after another one said that it preempts.

    ``cfq_preempt_queue()`` logs ``preempt`` of the new queue and expires the active one.
    """
    # Messages of several devices are mixed: each one follows the one before on its device.
    order = np.argsort(device, kind="stable")
    chosen = order[np.isin(kind[order], (PREEMPTS, EXPIRED))]
    is_next = (kind[chosen[:-1]] == PREEMPTS) & (kind[chosen[1:]] == EXPIRED)
    is_next &= device[chosen[:-1]] == device[chosen[1:]]
    return np.bincount(code[chosen[1:][is_next]], minlength=count)


def _without_dispatch(code: Integers, kind: Integers, count: int) -> Integers:
    """Return how often each queue of BFQ expires with no dispatch since it was selected."""
    order = np.argsort(code, kind="stable")
    mine, what = code[order], kind[order]
    is_start, is_end = what == SELECTED, (what == EXPIRED) | (what == PREEMPTED)
    served = np.cumsum(what == DISPATCHED)
    place = np.maximum.accumulate(np.where(is_start, np.arange(len(order)), -1))
    ends = np.flatnonzero(is_end & (place >= 0))
    start = place[ends]
    # What began its turn before the trace, or lost its messages, is not judged.
    same = (mine[start] == mine[ends]) & (np.cumsum(is_end)[ends] - np.cumsum(is_end)[start] == 1)
    empty = ends[same & (served[ends] == served[start])]
    return np.bincount(mine[empty], minlength=count)
