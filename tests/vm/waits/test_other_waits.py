# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds what is not a lock of the kernel: grace periods of RCU, futexes, logs.

The account of a guest's own tasks is the truth; of XFS, what each task sleeps in.
"""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from tests.lab import build
from tests.lab.truth.waits import Claim
from tests.vm.waits.scenarios import FOUND, MADE, params
from tests.vm.waits.test_graph import Case

_STRENGTHS = {
    "pi": Strength.PROVEN,
    "robust": Strength.DERIVED,
    "normal": Strength.POSSIBLE,
}
"""How sure the owner of a futex is, by the kind of mutex."""


def _cases(scenario: str) -> pytest.MarkDecorator:
    kernels = {**MADE, **FOUND}[scenario]
    return pytest.mark.parametrize("case", params({scenario: kernels}), indirect=True)


@pytest.fixture(scope="module")
def case(kernel: str, request: pytest.FixtureRequest) -> Case:
    """A dump of a scenario."""
    return Case(build(kernel, request.param))


def _claims(case: Case, kind: str, *, is_wait: bool) -> list[Claim]:
    return [each for each in case.truth.claims if each.kind == kind and each.is_wait is is_wait]


def _nodes(case: Case, kind: NodeKind) -> list[int]:
    return [node for node, each in enumerate(case.found.graph.kind) if each is kind]


def _after(case: Case, node: int, *edges: EdgeKind) -> set[int]:
    graph = case.found.graph
    return {int(graph.target[edge]) for edge in graph.following[node] if graph.edge[edge] in edges}


def _waiters(case: Case, node: int) -> set[int]:
    graph = case.found.graph
    return {
        case.pid(int(graph.source[edge]))
        for edge in graph.preceding[node]
        if graph.edge[edge] is EdgeKind.WAITS
    }


@_cases("waits-rcu")
def test_readers_hold_up_a_grace_period(case: Case) -> None:
    (node,) = _nodes(case, NodeKind.GRACE_PERIOD)
    assert {each.pid for each in _claims(case, "rcu", is_wait=True)} <= _waiters(case, node)
    graph = case.found.graph
    held = _after(case, node, EdgeKind.HELD_UP)
    tasks = {each for each in held if graph.is_task[each]}
    cpus = held - tasks
    tasks |= {task for cpu in cpus for task in _after(case, cpu, EdgeKind.RUNS)}
    assert {case.pid(task) for task in tasks} == {
        each.pid for each in _claims(case, "rcu", is_wait=False)
    }
    # The warnings of RCU itself name the same.
    assert {case.pid(each) for each in held if graph.is_task[each]} >= case.truth.stalled
    names = {case.found.names[graph.kind[cpu], int(graph.address[cpu])] for cpu in cpus}
    assert names >= {str(cpu) for cpu in case.truth.stalled_cpus}
    assert case.truth.stalled or case.truth.stalled_cpus


@_cases("waits-futex")
def test_owners_of_futexes(case: Case) -> None:
    graph, waits = case.found.graph, case.waits()
    wanted = _claims(case, "futex", is_wait=True)
    assert {each.mode for each in wanted} == set(_STRENGTHS)
    for claim in wanted:
        kind, address = waits[claim.pid]
        assert kind is (NodeKind.RT_MUTEX if claim.mode == "pi" else NodeKind.FUTEX)
        assert f"0x{claim.address:x} of futexes" in case.found.names[kind, address]
        holders = case.holders(address)
        assert set(holders) == case.truth.holders(claim.address)
        assert set(holders.values()) == {_STRENGTHS[claim.mode]}
        node = graph.index[kind, address]
        others = {each.pid for each in wanted if each.address == claim.address}
        assert _waiters(case, node) == others
    assert case.found.unread_futexes == 0
    assert case.cycles == []


@_cases("waits-healthy")
def test_futexes_that_no_thread_owns(case: Case) -> None:
    assert _nodes(case, NodeKind.FUTEX) == []
    functions = case.found.waits.function
    assert sum(name.startswith("futex_") for name in functions) > 100


@_cases("waits-log")
def test_handles_keep_a_journal(case: Case) -> None:
    graph = case.found.graph
    (claim,) = _claims(case, "journal", is_wait=False)
    (thread,) = (task for task in np.flatnonzero(graph.is_task) if _commits(case, int(task)))
    transactions = _nodes(case, NodeKind.TRANSACTION)
    if claim.pid in case.truth.blocked:
        (transaction,) = transactions
        assert {case.pid(task) for task in _after(case, transaction, EdgeKind.HELD)} == {claim.pid}
        assert _after(case, int(thread), EdgeKind.WAITS) == {transaction}
    else:
        # It could go on, and closed its handle: now the others wait for the commit.
        assert transactions == []
    waiters = _claims(case, "journal", is_wait=True)
    assert len(waiters) == 4
    for wait in waiters:
        kind, address = case.waits()[wait.pid]
        assert graph.reached([graph.index[kind, address]])[thread]


def _commits(case: Case, task: int) -> bool:
    return case.comm(task).startswith("jbd2/")


@_cases("waits-log")
def test_transactions_keep_the_space_of_a_log(case: Case) -> None:
    tasks = {pid: task for pid, task in case.truth.tasks.items() if task.comm == "reserve-log"}
    asleep = {pid for pid, task in tasks.items() if task.state == "D"}
    short = {pid for pid in asleep if "xlog_grant_head_wait" in case.truth.blocked[pid].stack}
    (space,) = _nodes(case, NodeKind.LOG_SPACE)
    assert len(short) > 10
    assert _waiters(case, space) == short
    assert {case.pid(task) for task in _after(case, space, EdgeKind.HELD)} == asleep - short
    (thread,) = _after(case, space, EdgeKind.SERVED)
    assert case.comm(thread).startswith("xfsaild/")


@_cases("waits-log")
def test_a_buffer_of_the_log_leads_to_its_request(case: Case) -> None:
    graph, waits = case.found.graph, case.waits()
    (claim,) = _claims(case, "log", is_wait=True)
    kind, address = waits[claim.pid]
    assert case.found.types[kind, address] == "struct xlog_in_core"
    served = _after(case, graph.index[kind, address], EdgeKind.SERVED)
    assert {graph.kind[node] for node in served} == {NodeKind.REQUEST}
