# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ages of waits: since when tasks wait, though they wake up and go on to wait.

A task that waits for its own I/O wakes up in half of hung_task_timeout_secs, and sleeps again:
blk_wait_io(), since v5.7 (commit not verified). Its last sleep is shorter than its wait.
"""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Mask, Numbers
from kcensus.kernel.block.requests import requests
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.functions import WaitKind, plain
from kcensus.kernel.waiting.joined import joined
from kcensus.kernel.waiting.waits import Waits

_REPEATED = frozenset({"blk_wait_io", "blk_execute_rq", "submit_bio_wait", "bio_await"})
"""Functions that sleep again until their I/O is done."""
_SLEEP = frozenset({"blk_io_schedule"})
"""Function that is called in a loop."""


def wait_ages(kernel: Kernel, waits: Waits) -> tuple[Numbers, Mask]:
    """Return the ages of waits in nanoseconds, or -1, and which may be longer.

    A task has waited since the allocation of the youngest of its own requests at least, proven by a
    pointer.

    :param waits: all rows of :func:`.sleeps`
    """
    since = waits.since_ns.copy()
    is_least = np.zeros(len(waits), np.bool_)
    is_least[_in_loop(waits)] = True
    is_own = np.array([kind is WaitKind.REQUEST for kind in waits.kind], np.bool_)
    if not is_own.any():
        return since, is_least & (since >= 0)
    try:
        joins, age = joined(kernel), requests(kernel).age_ns
    except MISSING:
        return since, is_least & (since >= 0)  # a gap already
    pairs = np.flatnonzero(joins.is_proven & is_own[joins.wait])
    return since_submitted(since, is_least, joins.wait[pairs], age[joins.request[pairs]])


def since_submitted(
    since: Numbers, is_least: Mask, wait: Numbers, age: Numbers
) -> tuple[Numbers, Mask]:
    """Return the ages of waits with pairs of a wait and the age of its own request, or -1."""
    known = age >= 0
    unknown = np.iinfo(np.int64).max
    youngest = np.full(len(since), unknown)
    np.minimum.at(youngest, wait[known], age[known])
    has_one = youngest < unknown
    return (
        np.where(has_one, np.maximum(since, youngest), since),
        is_least & ~has_one & (since >= 0),
    )


def _in_loop(waits: Waits) -> Numbers:
    """Return the tasks that sleep again; one that allocates a request for its I/O does not."""
    stacks = waits.stacks
    places = [pc for pc, name in stacks.names.items() if plain(name) in _SLEEP]
    calls = stacks.lane[np.isin(stacks.pc, np.array(places, np.uint64))]
    sleeps = [lane for lane, name in enumerate(waits.function) if name in _REPEATED]
    return np.union1d(calls, np.array(sleeps, np.int64))
