# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom in real guests with old kernels, against drgn's helpers and what they printed.

The capsules have no debug info: see ``record.py``.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from drgn import Object
from drgn.helpers.linux.locking import mutex_owner

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.results import Result
from kcensus.sources import Target, open_target
from tests.unit.kernel.waiting.record import DATA
from tests.vm.oracles import waits as oracle

_CFQ, _OOPS = "cfq-waits", "oops-waits"
_NAMES = (_CFQ, _OOPS)
_SERVED = [(EdgeKind.SERVED, NodeKind.REQUEST, 0), (EdgeKind.SERVED, NodeKind.DISK, 0)]
_TASK = re.compile(r"^DTASK (\d+)", re.MULTILINE)


@cache
def opened(name: str) -> tuple[Target, Waiting]:
    target = open_target(str(DATA / f"{name}.capsule"))
    return target, waiting(Kernel(target.prog))


@cache
def answer(name: str) -> Result:
    return Context.of(opened(name)[0]).run(analyses()["waits"])


def following(found: Waiting, pid: int) -> list[tuple[EdgeKind, NodeKind, int]]:
    """What a task waits for, what that is held by, and so on: PIDs of tasks, else 0."""
    graph, chain = found.graph, []
    (row,) = (found.tasks.pid == pid).nonzero()[0].tolist()
    node = graph.index[NodeKind.TASK, int(found.tasks.address[row])]
    while graph.following[node]:
        (edge,) = graph.following[node]
        node = int(graph.target[edge])
        row = int(found.tasks.rows(graph.address[[node]])[0])
        own = int(found.tasks.pid[row]) if row >= 0 else 0
        chain.append((graph.edge[edge], graph.kind[node], own))
    return chain


@pytest.mark.parametrize("name", _NAMES)
def test_each_task_in_state_d_waits_for_what_has_it_as_a_waiter(name: str) -> None:
    target, found = opened(name)
    sleepers = oracle.sleepers(target.prog)
    rows = {pid: row for row, pid in enumerate(found.waits.pid.tolist())}
    blocked = found.tasks.pid[found.tasks.is_blocked].tolist()
    assert sorted(sleepers) == sorted(blocked)
    without = []
    for pid, task in sleepers.items():
        row = rows[pid]
        if not found.objects[row]:
            without.append(found.waits.function[row])
            continue
        type_, object_ = found.waits.type[row], int(found.objects[row])
        assert oracle.is_waiter(target.prog, type_, object_, task), pid
    assert set(without) <= ON_TIMERS
    assert (found.missing, found.faults.total(), found.unreadable_code) == ([], 0, 0)


@pytest.mark.parametrize("name", _NAMES)
def test_owners_are_drgns(name: str) -> None:
    target, found = opened(name)
    graph = found.graph
    mutexes = [node for node, kind in enumerate(graph.kind) if kind is NodeKind.MUTEX]
    assert len(mutexes) == 1
    for node in mutexes:
        lock = Object(target.prog, "struct mutex", address=int(graph.address[node]))
        (edge,) = graph.following[node]
        owner = int(graph.address[int(graph.target[edge])])
        assert owner == int(mutex_owner(lock.address_of_()))


def test_the_tasks_are_those_that_the_guest_printed() -> None:
    text = (DATA / "cfq-sleepers.txt").read_text()
    frame = answer(_CFQ).tables["tasks"].frame
    assert set(frame["pid"][frame["state"] == "D"]) == {int(pid) for pid in _TASK.findall(text)}


def test_a_chain_to_a_request() -> None:
    """Inodes are reclaimed under a mutex, whose owner writes a cluster of them."""
    found = opened(_CFQ)[1]
    assert following(found, 1049) == [
        (EdgeKind.WAITS, NodeKind.MUTEX, 0),
        (EdgeKind.HELD, NodeKind.TASK, 1048),
        (EdgeKind.WAITS, NodeKind.BUFFER_IO, 0),
        *_SERVED,
    ]
    direct = [(EdgeKind.WAITS, NodeKind.IO, 0), *_SERVED]
    for pid in range(1036, 1044):
        assert following(found, pid) == direct
    assert following(found, 7) == [(EdgeKind.WAITS, NodeKind.TAGS, 0)]


def test_a_mutex_whose_owner_died_in_an_oops() -> None:
    found = opened(_OOPS)[1]
    assert following(found, 999) == [
        (EdgeKind.WAITS, NodeKind.MUTEX, 0),
        (EdgeKind.HELD, NodeKind.TASK, 0),
    ]
    assert following(found, 280) == [(EdgeKind.WAITS, NodeKind.SEMAPHORE, 0)]
    gaps = {gap.what: gap.count for gap in answer(_OOPS).gaps}
    # The semaphore of kcopyd's throttle has none either.
    assert gaps == {"tasks": 1, "holders of locks": 1}


@pytest.mark.parametrize("name", _NAMES)
def test_no_deadlock(name: str) -> None:
    assert cycles(opened(name)[1].graph) == []
    result = answer(name)
    assert result.amount("deadlocks") == result.amount("deadlocks_possible") == 0
    assert result.amount("tasks_undetermined") == 0
    assert all(not check.difference for check in result.checks)


def test_what_most_wait_for() -> None:
    result = answer(_CFQ)
    assert result.gaps == []
    (finding,) = result.findings
    assert (finding.id, finding.figures["tasks"].value) == ("waits-io", 12)
