# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for tasks that do not run, and what lets these go on: against the guest's own account.

The guest has tried the remedies that findings give.
"""

from __future__ import annotations

import re

import pytest

from kcensus.kernel.waiting.finders.events.userfaults import USERFAULTS
from kcensus.kernel.waiting.finders.locks.file_locks import FILE_LOCK
from kcensus.kernel.waiting.finders.locks.futexes import FUTEX
from kcensus.kernel.waiting.finders.locks.locks import RWSEM, RWSEM_QUEUE
from kcensus.kernel.waiting.graph import PROCESS, NodeKind
from kcensus.results import Danger, Severity
from tests.lab.truth import waits as truth_of
from tests.vm.cases import analyzed
from tests.vm.waits.scenarios import FOUND, params
from tests.vm.waits.test_graph import Case, open_case

_KINDS = {
    "flock": FILE_LOCK,
    "posix": FILE_LOCK,
    "ofd": FILE_LOCK,
    "shared": FUTEX,
    "uffd": USERFAULTS,
}
"""What tasks wait for, by the guest's word for it."""
_ROOTS = {
    "flock-waiter": "flock-holder",
    "heir-waiter": "flock-heir",
    "fuse-waiter": "/cgroup1/jail",
    "make-directory": "/cgroup1/jail",
    "look-up": "/cgroup1/jail",
    "posix-waiter": "/cgroup2/jail",
    "ofd-waiter": "tracer",
    "robust-waiter": "robust-owner",
    "uffd-fault": "uffd-server",
    "uffd-peek": "uffd-server",
}
"""Task or cgroup behind each waiter, by name. The owner of a usual mutex is only possible."""
_RELEASED = ("flock-waiter", "heir-waiter", "posix-waiter", "ofd-waiter", "robust-waiter")


@pytest.fixture(
    scope="module", params=params({"waits-stopped": FOUND["waits-stopped"]}), name="case"
)
def _case(kernel: str, request: pytest.FixtureRequest) -> Case:
    return open_case(kernel, request.param)


def _ends(case: Case, pid: int) -> set[str]:
    """Return the tasks and cgroups that end the chains of a task, by name."""
    graph = case.found.graph.sure
    (start,) = (node for node in range(len(graph)) if graph.is_task[node] and case.pid(node) == pid)
    reached = [node for node, is_in in enumerate(graph.reached([start])) if is_in]
    ends = [node for node in reached if not graph.following[node]]
    return {_name(case, node) for node in ends}


def _name(case: Case, node: int) -> str:
    graph = case.found.graph
    if graph.is_task[node]:
        return case.comm(node)
    return case.found.names.get((graph.kind[node], int(graph.address[node])), "")


def _holders(case: Case, kind: NodeKind, address: int) -> set[int]:
    """Return the PIDs of the tasks that hold an object, or whose process does."""
    graph = case.found.graph.sure
    targets = [int(graph.target[edge]) for edge in graph.following[graph.index[kind, address]]]
    for node in [node for node in targets if graph.kind[node] is PROCESS]:
        targets += [int(graph.target[edge]) for edge in graph.following[node]]
    return {case.pid(node) for node in targets if graph.is_task[node]}


def test_each_waiter_and_its_holder(case: Case) -> None:
    waits, seen = case.waits(), set()
    for claim in case.truth.claims:
        if not claim.is_wait or claim.comm == "normal-waiter":
            continue
        kind, address = waits[claim.pid]
        assert kind is _KINDS[claim.kind], claim
        said = {
            each.pid
            for each in case.truth.claims
            if not each.is_wait and (each.kind, each.address) == (claim.kind, claim.address)
        }
        assert _holders(case, kind, address) == said, claim
        seen.add(claim.kind)
    assert seen == set(_KINDS)


def test_locks_of_files_are_those_of_the_kernels_list(case: Case) -> None:
    """A lock, and the requests that it blocks, in /proc/locks."""
    wanted, holder = set(), 0
    for line in case.dump.truth["locks"].splitlines():
        found = re.match(r"\d+: +(-> )?.*? (-?\d+) \w+:\w+:\d+ ", line)
        assert found, line
        pid = int(found[2])
        if not found[1]:
            holder = pid
        elif pid >= 0:  # not of an open file
            wanted.add((pid, holder))
    assert len(wanted) >= 4
    held = {
        waiter: _holders(case, kind, address)
        for waiter, (kind, address) in case.waits().items()
        if kind is FILE_LOCK
    }
    for waiter, holder in wanted:
        # A child has inherited the file of a process that has exited since.
        is_dead = case.truth.tasks[holder].state == "Z"
        comms = {case.truth.tasks[pid].comm for pid in held[waiter]}
        assert comms == {"flock-heir"} if is_dead else held[waiter] == {holder}


def test_chains_end_at_what_can_be_continued(case: Case) -> None:
    tasks = [task for task in case.truth.tasks.values() if task.comm in _ROOTS]
    assert {task.comm for task in tasks} == set(_ROOTS)
    for task in tasks:
        assert _ends(case, task.pid) == {_ROOTS[task.comm]}, task
    # These are all tasks in state D but the frozen ones.
    blocked = {task.comm for task in case.truth.tasks.values() if task.state == "D"}
    assert blocked - {"serve"} <= set(_ROOTS)


def test_the_only_reader_of_a_directorys_lock(case: Case) -> None:
    """A task that makes a directory waits for it, and a third one behind that."""
    graph = case.found.graph.sure
    (queue,) = (node for node, kind in enumerate(graph.kind) if kind is RWSEM_QUEUE)
    address = int(graph.address[queue])
    assert case.found.readers[address] == 1
    edges = graph.following[graph.index[RWSEM, address]]
    holders = [_name(case, int(graph.target[edge])) for edge in edges]
    assert holders == ["look-up"]
    waits = case.waits()
    behind = {case.truth.tasks[pid].comm for pid, end in waits.items() if end[1] == address}
    assert behind == {"make-directory", "look-up"}


def test_names(case: Case) -> None:
    names = {text for (kind, _), text in case.found.names.items() if kind in (FILE_LOCK, FUTEX)}
    assert {"(flock) on /srv/backup.lock", "(fcntl) on /srv/my data.db"} <= names
    assert any(text.startswith("in /srv/robust of robust-waiter") for text in names)


def test_findings(case: Case) -> None:
    result = analyzed(case.target, "waits")
    findings = {each.id: each for each in result.findings}
    pids = {task.comm: task.pid for task in case.truth.tasks.values()}
    first = findings["waits-frozen-cgroup:/cgroup1/jail"]
    assert (first.severity, first.danger) == (Severity.WARNING, Danger.STALL)
    waiting = ("make-directory", "fuse-client", "fuse-waiter")
    assert {pids[comm] for comm in waiting} <= first.tasks
    (remedy,) = first.remedies
    assert remedy.command == "echo THAWED > /cgroup1/jail/freezer.state"
    second = findings["waits-frozen-cgroup:/cgroup2/jail"]
    # No task in state D is behind it.
    assert second.severity is Severity.NOTICE
    assert [each.command for each in second.remedies] == ["echo 0 > /cgroup2/jail/cgroup.freeze"]
    server = findings[f"waits-behind:{pids['uffd-server']}"]
    assert server.severity is Severity.WARNING
    assert [each.command for each in server.remedies] == [f"kill -CONT {pids['uffd-server']}"]
    tracer = findings[f"waits-behind:{pids['tracer']}"]
    (remedy,) = tracer.remedies
    assert remedy.command == f"kill {pids['tracer']}; sleep 1; kill -CONT {pids['ofd-holder']}"
    assert result.amount("deadlocks") == result.amount("tasks_undetermined") == 0
    assert result.gaps == []


def test_the_remedies_end_the_stalls(case: Case) -> None:
    before = case.truth
    after = truth_of.read(case.dump.truth, "continued")
    for comm in _RELEASED:
        waiters = [pid for pid, task in before.tasks.items() if task.comm == comm]
        on = [pid for pid in waiters if pid not in after.tasks or _moved(before, after, pid)]
        assert on, comm
    for comm in ("uffd-fault", "uffd-peek", "serve"):
        pids = [pid for pid, task in before.tasks.items() if task.comm == comm]
        assert all(_moved(before, after, pid) for pid in pids), comm


def _moved(before: truth_of.Truth, after: truth_of.Truth, pid: int) -> bool:
    return before.tasks[pid].stack != after.tasks[pid].stack
