# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that a timer wakes up, whatever happens to the object of their wait, and ages of waits.

Such a task goes on by itself, mostly to report an error: it is slow, but it is not stuck.

Others go on to wait: a task that waits for its own I/O wakes up in half of hung_task_timeout_secs,
and sleeps again (blk_wait_io(), since v5.7, commit not verified). Its last sleep is shorter than
its wait.
"""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Guess, Mask, Numbers, Words
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.requests import requests
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import MISSING
from kcensus.kernel.tasks.functions import WaitKind, plain
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.waiting.joined import joined
from kcensus.kernel.waiting.objects.queued import picked_words
from kcensus.kernel.waiting.waits import Waits
from kcensus.sources.capsule import NotRecorded

_TIMED = frozenset(
    {"wait_for_completion_timeout", "wait_for_completion_io_timeout"}
    | {"wait_for_completion_interruptible_timeout", "wait_for_completion_killable_timeout"}
    | {"bit_wait_timeout", "bit_wait_io_timeout", "out_of_line_wait_on_bit_timeout"}
    | {"down_timeout", "__down_timeout"}
)
_REPEATED = frozenset(
    {"io_schedule_timeout", "blk_io_schedule", "blk_execute_rq", "submit_bio_wait"}
    | {"synchronize_rcu_expedited_wait", "synchronize_rcu_expedited_wait_once"}
)
"""Functions that repeat a wait with a timeout: for I/O, to avoid reports of hung tasks."""
_OWN_IO = frozenset({"blk_wait_io", "blk_execute_rq", "submit_bio_wait", "bio_await"})
"""Functions that sleep again until their I/O is done."""
_IO_SLEEP = frozenset({"blk_io_schedule"})
"""Function that is called in a loop."""
_SLEEPS = ("schedule_timeout", "schedule_hrtimeout", "futex", "rt_mutex")
"""Starts of the names of functions with callees that may have a timer on the stack."""


def timed(kernel: Kernel, known: Tasks, rows: Numbers, waits: Waits, faults: Faults) -> Mask:
    """Return which of the waits end by a timer.

    :param rows: row of each wait's task among all tasks
    :raises LookupError: the debug info lacks a type
    """
    stacks = waits.stacks
    plains = {pc: plain(name) for pc, name in stacks.names.items()}
    found, repeated = _having(waits, plains, _TIMED), _having(waits, plains, _REPEATED)
    begins = {name for name in plains.values() if name.lstrip("_").startswith(_SLEEPS)}
    lanes = np.flatnonzero(_having(waits, plains, frozenset(begins)) & ~found & ~repeated)
    if len(lanes) and stacks.size:
        found[lanes[_with_timer(kernel, known, rows[lanes], stacks.size, faults)]] = True
    return found & ~repeated


def _having(waits: Waits, plains: dict[int, str], names: frozenset[str]) -> Mask:
    stacks = waits.stacks
    places = np.array([pc for pc, name in plains.items() if name in names], np.uint64)
    found = np.zeros(len(waits), np.bool_)
    found[stacks.lane[np.isin(stacks.pc, places)]] = True
    return found


def _with_timer(kernel: Kernel, known: Tasks, rows: Numbers, size: int, faults: Faults) -> Numbers:
    """Return the tasks with a pending timer on their stack that wakes them up."""
    prog = kernel.prog
    found = [np.empty(0, np.int64)]
    # Since Linux kernel commit 58e1177b4cd1 ("timer: Convert schedule_timeout() to use
    # from_timer()") (in v4.15), the timer_list is in a `struct process_timer`.
    wakers = {"process_timeout": "struct timer_list", "hrtimer_wakeup": "struct hrtimer"}
    places: dict[str, set[int]] = {}
    for name in wakers:
        try:
            places[name] = {int(symbol.address) for symbol in prog.symbols(name)}
        except (LookupError, NotRecorded):
            # Only functions tell, as for a capsule recorded by older versions.
            continue
    wanted = np.array(sorted(set().union(*places.values())), np.uint64)
    if not len(wanted):
        return found[0]
    for lane, value, place in picked_words(
        kernel.memory, known, rows, size, faults, lambda words, _: np.isin(words, wanted)
    ):
        for name, addresses in places.items():
            is_one = np.isin(value, np.array(sorted(addresses), np.uint64))
            inside = layout(prog, wakers[name], ["function"]).fields["function"].offset
            timers = place[is_one] - np.uint64(inside)
            pending = _is_pending(kernel, wakers[name], timers, faults)
            found.append(lane[is_one][pending])
    return np.unique(np.concatenate(found))


def _is_pending(kernel: Kernel, type_: str, timers: Words, faults: Faults) -> Mask:
    prog = kernel.prog
    if type_ == "struct hrtimer":
        # Since v7.1 or so (commit not verified), is_queued is a bool; before, it was bit 0.
        fields = layout(prog, type_, {"state": ("is_queued", "state")})
        state = gather(kernel.memory, timers, fields, faults)["state"].astype(np.uint64)
        return np.asarray((state & np.uint64(1)) != 0)
    # Since Linux kernel commit 1dabbcec2c0a ("timer: Use hlist for the timer wheel hash buckets")
    # (in v4.2), timers are in hashed lists, which link back like the former lists. A timer that is
    # not pending has no such link.
    members = {"back": ("entry.pprev", "entry.prev")}
    back = gather(kernel.memory, timers, layout(prog, type_, members), faults)["back"]
    target, readable = gather_words(kernel.memory, back, word_dtype(prog), Guess())
    return np.asarray((back != 0) & readable & (target == timers))


def wait_ages(kernel: Kernel, waits: Waits) -> tuple[Numbers, Mask]:
    """Return the ages of waits in nanoseconds, or -1, and which may be longer.

    A task has waited since the allocation of the youngest of its own requests at least, proven by a
    pointer. A request with bios of others, too, may be older than the task's own bio.

    :param waits: all rows of :func:`.sleeps`
    """
    since = waits.since_ns.copy()
    is_least = np.zeros(len(waits), np.bool_)
    is_least[_in_loop(waits)] = True
    is_own = np.array([kind is WaitKind.REQUEST for kind in waits.kind], np.bool_)
    if not is_own.any():
        return since, is_least & (since >= 0)
    try:
        joins, every, age = joined(kernel), bios(kernel), requests(kernel).age_ns
    except MISSING:
        return since, is_least & (since >= 0)  # a gap already
    pairs = np.flatnonzero(joins.is_proven & is_own[joins.wait])
    request = joins.request[pairs]
    is_shared = np.isin(request, shared(every.request, every.origin_private))
    is_clone = np.isin(request, every.request[every.origin != every.address])
    ages = np.where(is_shared, -1, age[request])
    return since_submitted(since, is_least, joins.wait[pairs], ages, is_clone)


def shared(request: Numbers, owner: Words) -> Numbers:
    """Return the requests with bios of several owners, whose age is that of the first bio.

    :param request: of each bio, ascending
    :param owner: of each bio
    """
    found: Numbers = request[1:][(request[1:] == request[:-1]) & (owner[1:] != owner[:-1])]
    return found


def since_submitted(
    since: Numbers, is_least: Mask, wait: Numbers, age: Numbers, is_clone: Mask
) -> tuple[Numbers, Mask]:
    """Return the ages of waits with pairs of a wait and the age of its own request, or -1.

    :param is_clone: whether a device above has cloned the bio: after an error, it issues another
    """
    known = age >= 0
    unknown = np.iinfo(np.int64).max
    youngest = np.full(len(since), unknown)
    np.minimum.at(youngest, wait[known], age[known])
    has_one = youngest < unknown
    is_exact = has_one & ~np.isin(np.arange(len(since)), wait[known & is_clone])
    since = np.where(has_one, np.maximum(since, youngest), since)
    return since, is_least & ~is_exact & (since >= 0)


def _in_loop(waits: Waits) -> Numbers:
    """Return the tasks that sleep again; one that allocates a request for its I/O does not."""
    stacks = waits.stacks
    places = [pc for pc, name in stacks.names.items() if plain(name) in _IO_SLEEP]
    calls = stacks.lane[np.isin(stacks.pc, np.array(places, np.uint64))]
    sleeps = [lane for lane, name in enumerate(waits.function) if name in _OWN_IO]
    return np.union1d(calls, np.array(sleeps, np.int64))
