# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks of a kernel with PREEMPT_RT, whose mutexes and rwsems are rt_mutexes.

The tasks are those of our module, and its account is the truth.
"""

from __future__ import annotations

import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.results import Danger
from tests.vm.cases import analyzed
from tests.vm.waits.scenarios import CYCLES
from tests.vm.waits.test_graph import Case, open_case

# Usually on no kernel: it is fetched for these tests alone.
pytestmark = [pytest.mark.kernels("6.1-rt"), pytest.mark.usually()]
_SCENARIOS = ("waits-abba", "waits-kinds", "waits-rwsem", "waits-self", "waits-completion")


@pytest.fixture(scope="module", params=_SCENARIOS, name="made")
def _made(kernel: str, request: pytest.FixtureRequest) -> Case:
    return open_case(kernel, request.param)


def test_each_task_waits_for_what_the_module_says(made: Case) -> None:
    waits = made.waits()
    for pid, claim in made.truth.waits().items():
        kind, address = waits[pid]
        assert claim.kind in kind.value, claim
        if claim.address:
            assert address == claim.address, claim
    assert made.found.missing == []
    assert not made.found.faults


def test_the_cycles_are_those_of_the_module(made: Case) -> None:
    wanted = made.truth.cycles()
    names = sorted(made.truth.comms(cycle) for cycle in wanted)
    assert names == sorted(map(sorted, CYCLES[made.dump.scenario]))
    assert {frozenset(map(made.pid, made.tasks(cycle))) for cycle in made.cycles} == wanted
    assert all(cycle.strength >= Strength.DERIVED for cycle in made.cycles)


def test_holders_are_those_of_the_module(made: Case) -> None:
    for claim in made.truth.waits().values():
        found = made.holders(claim.address) if claim.address else {}
        sure = {pid for pid, strength in found.items() if strength >= Strength.DERIVED}
        # A writer that waits for readers keeps new ones out, which the module does not count.
        writers = {
            each.pid
            for each in made.truth.waits().values()
            if (each.address, each.mode) == (claim.address, "write")
        }
        assert sure <= made.truth.holders(claim.address) | writers, claim


def test_the_analysis(made: Case) -> None:
    result = analyzed(made.target, "waits")
    deadlocks = [each for each in result.findings if each.danger is Danger.DEADLOCK]
    assert len(deadlocks) == result.amount("deadlocks") == len(CYCLES[made.dump.scenario])
    assert result.amount("tasks_undetermined") == 0
    assert result.gaps == []
