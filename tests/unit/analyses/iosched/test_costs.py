# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which delays are the price of absent patches, and which patches a finding names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from kcensus.analyses.iosched.kernel.costs import costs, lacking_patch
from kcensus.analyses.iosched.kernel.figures import Queue, Verdict
from kcensus.kernel.tasks.functions import WaitKind
from tests.unit import distributions as known

SECOND = 10**9
NOW = 100 * SECOND
NONE = np.empty(0, np.int64)
DISK, IDLE_DISK = 0x1000, 0x2000
REALTIME, BEST_EFFORT, IDLE = 1, 2, 3


def queue(
    row: int, served: float, verdict: Verdict = Verdict.STARVED, *, overtakers: Any = NONE
) -> Queue:
    return Queue(0, row, NONE, 99 * SECOND, 1, overtakers, int(served * SECOND), verdict)


def figures(
    scheduler: str,
    queues: list[Queue],
    *,
    dispatched: tuple[float, int] = (0.0, BEST_EFFORT),
    lists: int = 6,
    writes: int = 0,
    reads: int = 0,
) -> Any:
    """One disk: a request in the driver since a time, of a class, and others that hold tags; the
    other disk is idle."""
    count = writes + reads
    since, kind = dispatched
    stamps = np.zeros(count + 1, np.uint64)
    stamps[0] = int(since * SECOND)
    operation = np.array([0] + [1] * writes + [0] * reads)
    requests = SimpleNamespace(
        dispatched_ns=stamps,
        priority_class=np.full(count + 1, kind),
        operation=operation,
        is_sync=operation == 0,
        sched_tag=np.arange(-1, count),
        operations=SimpleNamespace(is_write=lambda values: values == 1),
    )
    return SimpleNamespace(
        disks=[SimpleNamespace(scheduler=scheduler, address=each) for each in (DISK, IDLE_DISK)],
        queues=queues,
        schedulers=[range(lists), range(lists)],
        requests=requests,
        ranks=lambda rows: np.array([1, 0, 1, 2])[requests.priority_class[rows]],
        clock=SimpleNamespace(ns=NOW),
        rows=lambda disk: np.arange(0 if disk else count + 1),
        with_requests=[0],
        is_async=lambda one: one.row % 2 == 1,
    )


def waits(disk: int = DISK, **since: float) -> Any:
    return SimpleNamespace(
        kind=[WaitKind[name.upper()] for name in since],
        since_ns=np.array([int(each * SECOND) for each in since.values()], np.int64),
        disk=np.full(len(since), disk, np.uint64),
    )


def values(found: Any, asleep: Any = None) -> dict[str, float]:
    found.waits = asleep or waits()
    return {key: float(figure.value) for key, figure in costs(found).items() if figure.value}


def test_each_scheduler_has_its_own() -> None:
    queues = [queue(0, 2.0), queue(1, 9.0), queue(1, 30.0, Verdict.DEVICE)]
    assert values(figures("bfq", queues)) == {"starved_bfq": 9.0}
    both = {"starved_cfq": 9.0, "async_starved_cfq": 2.0}
    assert values(figures("cfq", [queue(0, 9.0), queue(1, 2.0)])) == both
    assert values(figures("none", queues)) == {}


@pytest.mark.parametrize(
    ("kind", "row", "lists", "is_by_class"),
    [
        (REALTIME, 3, 6, True),  # before best effort
        (BEST_EFFORT, 3, 6, False),  # the same class
        (BEST_EFFORT, 5, 6, True),  # idle behind best effort
        (IDLE, 3, 6, False),
        (REALTIME, 1, 2, False),  # no classes before 5.14
    ],
)
def test_starved_by_a_higher_class(kind: int, row: int, lists: int, is_by_class: bool) -> None:
    late = queue(row, 10.0, overtakers=np.array([0]))
    found = figures("mq-deadline", [late], dispatched=(99.0, kind), lists=lists)
    expected = {"starved_mq_deadline": 10.0}
    assert values(found) == expected | ({"class_starved_mq_deadline": 10.0} if is_by_class else {})


@pytest.mark.parametrize(
    ("scheduler", "writes", "reads", "key"),
    [
        ("mq-deadline", 60, 4, "tag_wait_mq_deadline"),
        ("bfq", 60, 4, "tag_wait_bfq"),
        ("bfq", 48, 16, ""),  # what the patches leave to writes, too
        ("bfq", 7, 1, "tag_wait_bfq"),  # whatever share of all tags that is
        ("bfq", 0, 0, ""),
        ("kyber", 60, 4, ""),
    ],
)
def test_tags_that_writes_use_up(scheduler: str, writes: int, reads: int, key: str) -> None:
    found = figures(scheduler, [], writes=writes, reads=reads)
    asleep = waits(tag=12.5, xfs_buf=20.0)
    assert values(found, asleep) == ({key: 12.5} if key else {})
    assert values(found, waits(IDLE_DISK, tag=12.5)) == {}
    assert values(found, waits(xfs_buf=20.0)) == {}


@pytest.mark.parametrize(
    ("scheduler", "row", "tunables", "members", "patch"),
    [
        ("cfq", 1, {}, (), ""),  # types do not show its fix
        ("bfq", 1, {}, (), "bfq-injection"),
        ("bfq", 1, {}, ("inject_limit",), "bfq-wakers"),
        ("bfq", 1, {}, ("inject_limit", "waker_bfqq"), ""),
        ("mq-deadline", 3, {}, (), "mq-deadline-prio-aging"),
        ("mq-deadline", 3, {"prio_aging_expire": 10_000}, (), ""),
        ("mq-deadline", 1, {}, (), ""),  # the highest class
        ("kyber", 1, {}, (), ""),
    ],
)
def test_the_patch_that_is_lacking(
    scheduler: str, row: int, tunables: dict[str, int], members: tuple[str, ...], patch: str
) -> None:
    found = figures(scheduler, [], dispatched=(99.0, REALTIME))
    kernel = replace(
        known.MAINLINE_4_19_BFQ, structs=known.MAINLINE_4_19_BFQ.with_members(bfq_queue=members)
    )
    found.kernel = SimpleNamespace(prog=kernel.program())
    found.schedulers = [MagicMock(scheduler=scheduler, tunables=tunables)]
    found.schedulers[0].__len__.return_value = 6  # reads and writes of three classes
    assert lacking_patch(found, queue(row, 10.0, overtakers=np.array([0]))) == patch
