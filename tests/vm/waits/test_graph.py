# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who waits for whom on real kernels, against what our module, the guest and drgn say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pytest
from drgn import Object
from drgn.helpers.linux.locking import mutex_owner

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import ON_TIMERS
from kcensus.kernel.waiting.cycles import Cycle, cycles, roots
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.results import Danger, Severity
from kcensus.sources import Target, open_target
from tests.lab import Dump, build
from tests.lab.truth import waits as truth_of
from tests.vm.waits.scenarios import FOUND, MADE, params

_MODULES = ("xfs", "fuse", "dm_mod")


@dataclass
class Case:
    """A dump, what was read of it, and what is true."""

    dump: Dump

    @cached_property
    def target(self) -> Target:
        target = open_target(str(self.dump.formats["elf"]), self.dump.debug)
        target.need_modules(*_MODULES)
        return target

    @cached_property
    def found(self) -> Waiting:
        return waiting(Kernel(self.target.prog))

    @cached_property
    def truth(self) -> truth_of.Truth:
        return truth_of.read(self.dump.truth)

    @cached_property
    def cycles(self) -> list[Cycle]:
        return cycles(self.found.graph)

    def pid(self, node: int) -> int:
        row = int(self.found.tasks.rows(self.found.graph.address[[node]])[0])
        return int(self.found.tasks.pid[row])

    def comm(self, node: int) -> str:
        row = int(self.found.tasks.rows(self.found.graph.address[[node]])[0])
        return self.found.tasks.comm[row]

    def pids(self, cycle: Cycle) -> frozenset[int]:
        is_task = self.found.graph.is_task
        return frozenset(self.pid(node) for node in cycle.nodes if is_task[node])

    def waits(self) -> dict[int, tuple[NodeKind, int]]:
        """What each task waits for, by PID."""
        graph = self.found.graph
        return {
            self.pid(source): (graph.kind[target], int(graph.address[target]))
            for source, target, edge in zip(
                graph.source.tolist(), graph.target.tolist(), graph.edge, strict=True
            )
            if edge is EdgeKind.WAITS
        }

    def holders(self, address: int) -> dict[int, Strength]:
        """The PIDs of who holds what is at an address, whichever way."""
        graph = self.found.graph
        return {
            self.pid(target): Strength(strength)
            for source, target, strength, edge in zip(
                graph.source.tolist(),
                graph.target.tolist(),
                graph.strength.tolist(),
                graph.edge,
                strict=True,
            )
            if int(graph.address[source]) == address
            and graph.is_task[target]
            and edge not in (EdgeKind.WAITS, EdgeKind.QUEUED)
        }


@pytest.fixture(scope="module", params=params(MADE))
def made(kernel: str, request: pytest.FixtureRequest) -> Case:
    """A guest in which our module made tasks that wait."""
    return Case(build(kernel, request.param))


@pytest.fixture(scope="module", params=params(FOUND))
def other(kernel: str, request: pytest.FixtureRequest) -> Case:
    """A guest in which tasks wait without our module."""
    return Case(build(kernel, request.param))


def test_each_task_waits_for_what_the_module_says(made: Case) -> None:
    waits, claims = made.waits(), made.truth.waits()
    assert claims
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
    found = {made.pids(cycle) for cycle in made.cycles}
    assert found == wanted
    assert len(made.cycles) == len(wanted)
    sure = [cycle for cycle in made.cycles if cycle.strength >= Strength.DERIVED]
    assert len(sure) == len(wanted)


def test_owners_are_drgns(made: Case) -> None:
    graph, prog = made.found.graph, made.target.prog
    mutexes = [node for node, kind in enumerate(graph.kind) if kind is NodeKind.MUTEX]
    assert bool(mutexes) == (made.dump.scenario != "waits-rwsem")
    for node in mutexes:
        lock = Object(prog, "struct mutex", address=int(graph.address[node])).address_of_()
        owner = mutex_owner(lock)
        assert set(made.holders(int(graph.address[node]))) == {int(owner.pid)}


def test_every_task_in_state_d_has_its_object(made: Case) -> None:
    assert _undetermined(made) == []


def test_so_has_every_other_one(other: Case) -> None:
    assert _undetermined(other) == []


def _undetermined(case: Case) -> list[str]:
    waits, tasks = case.found.waits, case.found.tasks
    blocked = tasks.is_blocked[tasks.rows(waits.task)]
    return [
        f"{waits.comm[row]} in {waits.function[row]}"
        for row in range(len(waits))
        if blocked[row] and not case.found.objects[row] and waits.function[row] not in ON_TIMERS
    ]


def test_only_servers_of_fuse_are_in_a_cycle(other: Case) -> None:
    found = [{other.comm(n) for n in c.nodes if other.found.graph.is_task[n]} for c in other.cycles]
    wanted = [{"serve", "make-directory"}] if other.dump.scenario == "waits-fuse" else []
    assert found == wanted


_ROOTS = {
    "waits-freeze": (NodeKind.FREEZER, "", 7),
    "waits-coredump": (NodeKind.TASK, "core-sleeper", 4),
    "waits-fuse": (NodeKind.TASK, "serve", 5),
}
"""By scenario: what all wait for, and how many tasks do."""

_LEAST_ROOTS = {"waits-healthy": 1, "waits-futex": 1, "waits-log": 2}
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
        tasks = graph.reached([node], back=True) & graph.is_task
        found[graph.kind[node], other.comm(node) if graph.is_task[node] else ""] = int(
            tasks.sum()
        ) - int(graph.is_task[node])
    assert found[kind, comm] == behind


def test_the_analysis(made: Case) -> None:
    result = Context.of(made.target).run(analyses()["waits"])
    sure = [cycle for cycle in made.cycles if cycle.strength >= Strength.DERIVED]
    assert result.amount("deadlocks") == len(sure)
    assert result.amount("tasks_undetermined") == 0
    deadlocks = [each for each in result.findings if each.kind == "waits-deadlock"]
    assert len(deadlocks) == len(sure)
    for finding in deadlocks:
        assert finding.severity is Severity.CRITICAL
        assert finding.danger is Danger.DEADLOCK
    convoys = [each for each in result.findings if each.kind == "waits-behind"]
    if made.dump.scenario == "waits-rcu":
        # Those that hold up a grace period; it may not have lasted long enough for a finding.
        readers = {claim.pid for claim in made.truth.claims if claim.mode == "read"}
        assert {int(each.id.partition(":")[2]) for each in convoys} <= readers
    else:
        assert len(convoys) == (made.dump.scenario == "waits-convoy")
    by_name = {check.name: check for check in result.checks}
    assert by_name["tasks in state D"].difference == 0
    assert by_name["tasks"].difference == 0
    if "owners of locks" in by_name:
        assert by_name["owners of locks"].difference == 0
    frame = result.tables["edges"].frame
    nodes = result.tables["nodes"].frame
    assert set(frame["source"]) | set(frame["target"]) <= set(nodes["node"])
    assert (frame["evidence"] != "").all()
    assert result.gaps == []
