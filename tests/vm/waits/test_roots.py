# SPDX-License-Identifier: LGPL-2.1-or-later
"""The chain of a task in state D ends in a root that one can act on.

That is a deadlock, a device, a subject with a finding of its own (a suspended device, a server, a
limit, a frozen file system), or a task that is not in state D itself.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.figures.tasks import State
from kcensus.analyses.waits.findings import findings
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import ON_TIMERS
from tests.lab import build
from tests.vm.cases import opened
from tests.vm.waits.scenarios import FOUND, MADE, MODULES, params

pytestmark = pytest.mark.machines

_LEAST_NS = 10**9
"""Shorter sleeps are no stalls."""
_OF_PROGRAMS = "waits-coredump", "waits-futex", "waits-healthy"
"""Scenarios without a task that is in state D for long."""
_VAGUE = "waits-unheld", "waits-alone"


def dead_ends(figures: Figures) -> tuple[int, Counter[str]]:
    """Return the number of stalled tasks, and those without such a root by where they end."""
    graph, tasks = figures.graph.sure, figures.waiting.tasks
    known = {node for cycle in figures.cycles for node in cycle.tangle}
    for told in findings(figures):
        if told.finding.kind not in _VAGUE:
            known |= {node for node in told.nodes if not graph.is_task[node]}
    stalled, lost = 0, Counter[str]()
    for node in figures.task_nodes:
        row = figures.task_rows[node]
        is_stalled = row >= 0 and tasks.is_blocked[row] and figures.ages[node] >= _LEAST_NS
        if not is_stalled or figures.tasks.function(node) in ON_TIMERS:
            continue
        stalled += 1
        reached = np.flatnonzero(graph.reached([node])).tolist()
        ends = [each for each in reached if not graph.following[each]]
        if not any(each in known or graph.kind[each].is_device for each in reached) and not any(
            each != node and graph.is_task[each] and figures.tasks.state(each) is not State.BLOCKED
            for each in ends
        ):
            kinds = ", ".join(sorted({graph.kind[each].value for each in ends}))
            lost[f"{figures.tasks.function(node)} ends at {kinds}"] += 1
    return stalled, lost


@pytest.mark.parametrize("scenario", params({**MADE, **FOUND}))
def test_stalls_have_a_root(kernel: str, scenario: str) -> None:
    dump = build(kernel, scenario)
    stalled, lost = dead_ends(Figures(Kernel(opened(dump, *MODULES).prog)))
    assert stalled or scenario in _OF_PROGRAMS
    assert lost.total() <= 0.02 * stalled, lost
