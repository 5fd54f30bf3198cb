# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom on real kernels, against what our module, the guest and drgn say."""

from __future__ import annotations

from functools import cache

import pytest
from drgn import Object
from drgn.helpers.linux.locking import mutex_owner

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.waiting.cycles import Cycle, cycles, roots
from kcensus.kernel.waiting.finders.locks.frozen import FREEZER
from kcensus.kernel.waiting.finders.locks.locks import MUTEX
from kcensus.kernel.waiting.graph import QUEUED, TASK, WAITS, NodeKind
from kcensus.kernel.waiting.reader import waiting
from kcensus.results import Danger, Severity
from tests.lab import Dump, build
from tests.lab.truth import waits as truth_of
from tests.vm.cases import analyzed, opened
from tests.vm.oracles.waits import sleepers
from tests.vm.waits.scenarios import CYCLES, FOUND, MADE, MODULES, params

pytestmark = pytest.mark.machines

_WAITING = {
    "waits-abba": 6,
    "waits-four": 4,
    "waits-rwsem": 6,
    "waits-self": 5,
    "waits-completion": 4,
    "waits-kinds": 8,
    "waits-convoy": 201,
    "waits-rcu": 4,
}


class Case:
    """A dump, what was read of it, and what is true."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.target = opened(dump, *MODULES)
        self.found = waiting(Kernel(self.target.prog))
        self.truth = truth_of.read(dump.truth)
        self.cycles = cycles(self.found.graph)

    def _row(self, node: int) -> int:
        return int(self.found.tasks.rows(self.found.graph.address[[node]])[0])

    def pid(self, node: int) -> int:
        return int(self.found.tasks.pid[self._row(node)])

    def comm(self, node: int) -> str:
        return self.found.tasks.comm[self._row(node)]

    def tasks(self, cycle: Cycle) -> list[int]:
        return [node for node in cycle.nodes if self.found.graph.is_task[node]]

    def waits(self) -> dict[int, tuple[NodeKind, int]]:
        graph = self.found.graph
        return {
            self.pid(int(graph.source[edge])): (graph.kind[target], int(graph.address[target]))
            for edge, target in enumerate(graph.target.tolist())
            if graph.edge[edge] is WAITS
        }

    def holders(self, address: int) -> dict[int, Strength]:
        """The PIDs of who holds what is at an address, whichever way."""
        graph = self.found.graph
        return {
            self.pid(int(graph.target[edge])): Strength(graph.strength[edge])
            for edge in range(len(graph.edge))
            if int(graph.address[graph.source[edge]]) == address
            and graph.is_task[graph.target[edge]]
            and graph.edge[edge] not in (WAITS, QUEUED)
        }


@cache
def open_case(kernel: str, scenario: str) -> Case:
    return Case(build(kernel, scenario))


@pytest.fixture(scope="module", params=params(MADE))
def made(kernel: str, request: pytest.FixtureRequest) -> Case:
    return open_case(kernel, request.param)


@pytest.fixture(scope="module", params=params(FOUND))
def other(kernel: str, request: pytest.FixtureRequest) -> Case:
    return open_case(kernel, request.param)


@pytest.fixture(scope="module", params=params({**MADE, **FOUND}))
def case(kernel: str, request: pytest.FixtureRequest) -> Case:
    return open_case(kernel, request.param)


def test_each_task_waits_for_what_the_module_says(made: Case) -> None:
    waits, claims = made.waits(), made.truth.waits()
    assert len(claims) == _WAITING[made.dump.scenario]
    for pid, claim in claims.items():
        kind, address = waits[pid]
        if claim.address:
            assert address == claim.address, claim
            assert claim.kind in kind.value, claim
    assert made.found.missing == []
    assert not made.found.faults


def test_holders_are_those_of_the_module(made: Case) -> None:
    wanted = {claim.address: claim.kind for claim in made.truth.waits().values() if claim.address}
    right = extra = 0
    for address, kind in wanted.items():
        found, said = made.holders(address), made.truth.holders(address)
        sure = {pid for pid, strength in found.items() if strength >= Strength.DERIVED}
        # A writer that waits keeps new readers out, which the module does not count as holding.
        draining = {
            claim.pid
            for claim in made.truth.waits().values()
            if claim.address == address and claim.kind == "percpu_rwsem" and claim.mode == "write"
        }
        assert sure <= said | draining, (kind, hex(address))
        if kind == "pipe":
            continue  # the process that has it open
        assert said <= set(found), (kind, hex(address))
        right += len(said)
        extra += len(set(found) - said - draining)
    assert right >= len(wanted) - 2
    assert extra == 0


def test_the_cycles_are_those_of_the_module(made: Case) -> None:
    wanted = made.truth.cycles()
    names = sorted(made.truth.comms(cycle) for cycle in wanted)
    assert names == sorted(map(sorted, CYCLES[made.dump.scenario]))
    found = {frozenset(map(made.pid, made.tasks(cycle))) for cycle in made.cycles}
    assert found == wanted
    assert len(made.cycles) == len(wanted)
    sure = [cycle for cycle in made.cycles if cycle.strength >= Strength.DERIVED]
    assert len(sure) == len(wanted)


def test_the_dump_has_the_tasks_of_the_guest(made: Case) -> None:
    prog, claims = opened(made.dump, "kcensus_waits").prog, made.truth.waits()
    still = truth_of.still(made.dump.truth)
    blocked = {pid for pid, task in still.items() if task.state == "D"}
    assert blocked == {pid for pid, claim in claims.items() if claim.kind != "pipe"}
    assert blocked == set(sleepers(prog))
    # Ours, too, has debug info.
    in_module = len(claims) - (2 if made.dump.scenario == "waits-four" else 0)
    assert prog.variable("waits", "kcensus_waits.c").counter == in_module


def test_owners_are_drgns(made: Case) -> None:
    graph, prog = made.found.graph, made.target.prog
    mutexes = [node for node, kind in enumerate(graph.kind) if kind is MUTEX]
    assert bool(mutexes) == (made.dump.scenario != "waits-rwsem")
    for node in mutexes:
        lock = Object(prog, "struct mutex", address=int(graph.address[node])).address_of_()
        owner = mutex_owner(lock)
        assert set(made.holders(int(graph.address[node]))) == {int(owner.pid)}


def test_every_task_in_state_d_has_its_object(case: Case) -> None:
    waits, tasks = case.found.waits, case.found.tasks
    blocked = tasks.is_blocked[tasks.rows(waits.task)]
    undetermined = [
        f"{waits.comm[row]} in {waits.function[row]}"
        for row in range(len(waits))
        if blocked[row] and not waits.object[row] and waits.function[row] not in ON_TIMERS
    ]
    assert undetermined == []


def test_only_servers_of_fuse_are_in_a_cycle(other: Case) -> None:
    found = [{*map(other.comm, other.tasks(cycle))} for cycle in other.cycles]
    wanted = [{"serve", "make-directory"}] if other.dump.scenario == "waits-fuse" else []
    assert found == wanted


_ROOTS = {
    "waits-freeze": (FREEZER, "", 11),
    "waits-coredump": (TASK, "core-sleeper", 4),
    "waits-fuse": (TASK, "serve", 5),
}
"""By scenario: what all wait for, and how many tasks do."""

_LEAST_ROOTS = {
    "waits-healthy": 1,
    "waits-futex": 1,
    "waits-log": 2,
    "waits-suspended": 2,
    "waits-stopped": 8,
    "waits-servers": 5,
    "waits-scsi": 2,
    "waits-stacked": 10,
    "waits-stacked-disk": 1,
    "waits-mirror": 6,
    "waits-memory": 1,
    "waits-cpu": 1,
    "waits-writeback": 4,
    "waits-dirty": 1,
}
"""How many roots the others have at least; a busy guest has some by chance."""


def test_roots(other: Case) -> None:
    graph = other.found.graph
    known = roots(graph, other.cycles)
    if other.dump.scenario in _LEAST_ROOTS:
        assert len(known) >= _LEAST_ROOTS[other.dump.scenario]
        return
    kind, comm, behind = _ROOTS[other.dump.scenario]
    found = {}
    for node in known:
        is_task = bool(graph.is_task[node])
        tasks = int((graph.reached([node], back=True) & graph.is_task).sum())
        found[graph.kind[node], other.comm(node) if is_task else ""] = tasks - is_task
    assert found[kind, comm] == behind


def test_the_analysis(made: Case) -> None:
    result = analyzed(made.target, "waits")
    sure = [cycle for cycle in made.cycles if cycle.strength >= Strength.DERIVED]
    assert result.amount("deadlocks") == len(sure)
    assert result.amount("tasks_undetermined") == 0
    deadlocks = [
        (each.severity, each.danger) for each in result.findings if each.kind == "waits-deadlock"
    ]
    assert deadlocks == [(Severity.CRITICAL, Danger.DEADLOCK)] * len(sure)
    convoys = [each for each in result.findings if each.kind == "waits-behind"]
    if made.dump.scenario == "waits-rcu":
        # Those that hold up a grace period, or keep the CPU from one of them; it may not have
        # lasted long enough for a finding.
        readers = {claim.pid for claim in made.truth.claims if claim.mode == "read"}
        readers |= {pid for pid, task in made.truth.tasks.items() if task.comm == "rcu-above"}
        assert {int(each.id.partition(":")[2]) for each in convoys} <= readers
    else:
        assert len(convoys) == (made.dump.scenario == "waits-convoy")
    differences = {check.name: check.difference for check in result.checks}
    assert differences["tasks in state D"] == differences["tasks"] == 0
    assert differences.get("owners of locks", 0) == 0
    frame = result.tables["edges"].frame
    nodes = result.tables["nodes"].frame
    assert set(frame["source"]) | set(frame["target"]) <= set(nodes["node"])
    assert (frame["evidence"] != "").all()
    # A CPU that is dumped at the vectors of exceptions, as chance has it.
    assert [gap for gap in result.gaps if gap.what != "interrupted functions"] == []
