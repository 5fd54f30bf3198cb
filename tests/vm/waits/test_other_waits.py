# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who holds what is not a lock of the kernel: grace periods of RCU, futexes, logs.

The account of a guest's own tasks is the truth; of XFS, what each task sleeps in.
"""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.finders.cpus.occupied import RUNS
from kcensus.kernel.waiting.finders.events.rcu import GRACE_PERIOD, HELD_UP
from kcensus.kernel.waiting.finders.io.journals import TRANSACTION
from kcensus.kernel.waiting.finders.io.requests import REQUEST
from kcensus.kernel.waiting.finders.io.xfs_logs import LOG_SPACE
from kcensus.kernel.waiting.finders.locks.futexes import FUTEX
from kcensus.kernel.waiting.finders.locks.locks import MUTEX, RT_MUTEX
from kcensus.kernel.waiting.finders.mapped.suspended import SUSPENDED
from kcensus.kernel.waiting.graph import HELD, SERVED, WAITS, EdgeKind, NodeKind
from kcensus.kernel.waiting.reader import waiting
from tests.lab.truth.waits import Claim
from tests.sample.block.poked import Poked
from tests.vm.cases import opened
from tests.vm.waits.scenarios import cases
from tests.vm.waits.test_graph import Case

_STRENGTHS = {"pi": Strength.PROVEN, "robust": Strength.DERIVED, "normal": Strength.POSSIBLE}
"""How sure the owner of a futex is, by the kind of mutex."""


_PICKUP_AND_WAITERS = 5
"""Bits of the owner of a mutex."""


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
        if graph.edge[edge] is WAITS
    }


@cases("waits-convoy")
def test_no_task_waits_for_itself_as_it_is_given_a_mutex(case: Case) -> None:
    """A mutex that is just handed over, by a change of one word."""
    graph = case.found.graph
    waiting_for = np.bincount(graph.target, minlength=len(graph))
    mutex = int(np.argmax(waiting_for))
    assert graph.kind[mutex] is MUTEX
    given = next(edge for edge in graph.preceding[mutex] if graph.edge[edge] is WAITS)
    prog = opened(case.dump).prog
    place = int(graph.address[mutex]) + drgn.offsetof(prog.type("struct mutex"), "owner")
    Poked(prog).word(place, int(graph.address[graph.source[given]]) | _PICKUP_AND_WAITERS)
    changed = waiting(Kernel(prog)).graph
    assert cycles(changed) == []
    lock = changed.address.tolist().index(int(graph.address[mutex]))
    assert changed.following[lock] == []
    assert len(changed.preceding[lock]) == waiting_for[mutex]


@cases("waits-rcu")
def test_readers_hold_up_a_grace_period(case: Case) -> None:
    (node,) = _nodes(case, GRACE_PERIOD)
    assert {each.pid for each in _claims(case, "rcu", is_wait=True)} <= _waiters(case, node)
    graph = case.found.graph
    held = _after(case, node, HELD_UP)
    tasks = {each for each in held if graph.is_task[each]}
    cpus = held - tasks
    tasks |= {task for cpu in cpus for task in _after(case, cpu, RUNS)}
    assert {case.pid(task) for task in tasks} == {
        each.pid for each in _claims(case, "rcu", is_wait=False)
    }
    comms = sorted(each.comm for each in _claims(case, "rcu", is_wait=False))
    # Readers of 5.10 cannot be preempted.
    assert comms == ["rcu-preempted"] * (case.dump.kernel != "5.10") + ["rcu-reader"]
    # The warnings of RCU itself name the same.
    assert {case.pid(each) for each in held if graph.is_task[each]} >= case.truth.stalled
    names = {case.found.names[graph.kind[cpu], int(graph.address[cpu])] for cpu in cpus}
    assert names >= {str(cpu) for cpu in case.truth.stalled_cpus}
    assert case.truth.stalled or case.truth.stalled_cpus


@cases("waits-futex")
def test_owners_of_futexes(case: Case) -> None:
    graph, waits = case.found.graph, case.waits()
    wanted = _claims(case, "futex", is_wait=True)
    assert {each.mode for each in wanted} == set(_STRENGTHS)
    for claim in wanted:
        kind, address = waits[claim.pid]
        assert kind is (RT_MUTEX if claim.mode == "pi" else FUTEX)
        assert f"0x{claim.address:x} of futexes" in case.found.names[kind, address]
        holders = case.holders(address)
        assert set(holders) == case.truth.holders(claim.address)
        assert set(holders.values()) == {_STRENGTHS[claim.mode]}
        node = graph.index[kind, address]
        others = {each.pid for each in wanted if each.address == claim.address}
        assert _waiters(case, node) == others
    gaps = [gap for finder in case.found.finders for gap in finder.gaps(case.found.graph)]
    assert {gap.count for gap in gaps if gap.what == "futexes"} == {0}
    assert case.cycles == []


@cases("waits-healthy")
def test_futexes_that_no_thread_owns(case: Case) -> None:
    assert sum(task.comm == "sleepers" for task in case.truth.tasks.values()) == 1167
    assert _nodes(case, FUTEX) == []
    functions = case.found.waits.function
    assert sum(name.startswith("futex_") for name in functions) > 100


@cases("waits-log")
def test_handles_keep_a_journal(case: Case) -> None:
    graph = case.found.graph
    (claim,) = _claims(case, "journal", is_wait=False)
    tasks = np.flatnonzero(graph.is_task).tolist()
    (thread,) = (task for task in tasks if case.comm(task).startswith("jbd2/"))
    transactions = _nodes(case, TRANSACTION)
    if claim.pid in case.truth.blocked:
        (transaction,) = transactions
        assert {case.pid(task) for task in _after(case, transaction, HELD)} == {claim.pid}
        assert _after(case, thread, WAITS) == {transaction}
    else:
        # It could go on, and closed its handle: now the others wait for the commit.
        assert transactions == []
    waiters = _claims(case, "journal", is_wait=True)
    assert len(waiters) == 4
    for wait in waiters:
        kind, address = case.waits()[wait.pid]
        assert graph.reached([graph.index[kind, address]])[thread]


@cases("waits-log")
def test_transactions_keep_the_space_of_a_log(case: Case) -> None:
    tasks = {pid: task for pid, task in case.truth.tasks.items() if task.comm == "reserve-log"}
    asleep = {pid for pid, task in tasks.items() if task.state == "D"}
    short = {pid for pid in asleep if "xlog_grant_head_wait" in case.truth.blocked[pid].stack}
    (space,) = _nodes(case, LOG_SPACE)
    assert len(asleep) == 60
    assert len(short) >= 30
    # One that still reserved it while the guest was read may wait for it since.
    later = _waiters(case, space) - short
    assert len(later) <= 1
    assert short | later == _waiters(case, space)
    assert {case.pid(task) for task in _after(case, space, HELD)} == asleep - short - later
    (thread,) = _after(case, space, SERVED)
    assert case.comm(thread).startswith("xfsaild/")


@cases("waits-suspended")
def test_suspended_devices_keep_all_io(case: Case) -> None:
    info = case.dump.truth["dmsetup-info"].split("\n\n")
    suspended = {each.split("\n")[0].split(maxsplit=1)[1] for each in info if "SUSPENDED" in each}
    assert len(suspended) == 2
    graph, behind = case.found.graph, dict[str, set[int]]()
    for node in _nodes(case, SUSPENDED):
        name = case.found.names[SUSPENDED, int(graph.address[node])]
        nodes = np.flatnonzero(graph.sure.reached([node], back=True) & graph.is_task)
        # The kernel has blanks of names as the tool gives them.
        plain = name.split("(")[1].rstrip(")").replace("\\x20", " ")
        behind[plain] = {case.pid(each) for each in nodes.tolist()}
    assert behind.keys() == suspended
    tasks = {pid: task.comm for pid, task in case.truth.tasks.items() if task.state == "D"}
    assert set().union(*behind.values()) == tasks.keys()
    assert {tasks[pid] for pid in behind["home"]} == {"init", "direct-read"}
    # Without a snapshot, there is nothing of dm_snapshot to miss.
    assert case.found.missing == []


@cases("waits-log")
def test_a_buffer_of_the_log_leads_to_its_request(case: Case) -> None:
    graph, waits = case.found.graph, case.waits()
    (claim,) = _claims(case, "log", is_wait=True)
    kind, address = waits[claim.pid]
    assert case.found.types[kind, address] == "struct xlog_in_core"
    served = _after(case, graph.index[kind, address], SERVED)
    assert {graph.kind[node] for node in served} == {REQUEST}
