# SPDX-License-Identifier: LGPL-2.1-or-later
"""Assemble the answer about waiting tasks."""

from __future__ import annotations

from collections.abc import Sequence

from kcensus.analyses.waits.checks import checks, gaps
from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings import findings
from kcensus.analyses.waits.tables import tables
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Bound, Figure, Gap, Unit


def run(kernel: Kernel) -> Answer:
    """Return the graph of waits, its cycles, and the findings about them.

    :raises LookupError: the debug info lacks tasks
    """
    figures = Figures(kernel)
    found_gaps, told = gaps(figures), findings(figures)
    return Answer(
        summary=summary(figures, found_gaps),
        tables=tables(figures, told),
        checks=checks(figures),
        findings=[each.finding for each in told],
        gaps=found_gaps,
    )


def summary(figures: Figures, found_gaps: Sequence[Gap] = ()) -> dict[str, Figure]:
    """Return the numbers of waiting tasks, deadlocks and roots.

    :param found_gaps: gaps of the graph: with any, there may be more deadlocks
    """
    graph, count = figures.graph, Unit.COUNT
    bound = Bound.AT_LEAST if found_gaps else Bound.EXACT
    sure = [cycle for cycle in figures.cycles if figures.is_sure(cycle)]
    inside = {node for cycle in figures.cycles for node in cycle.nodes if graph.is_task[node]}
    undetermined = figures.waiting.blocked.undetermined
    behind = figures.waiters(*(cycle.nodes[0] for cycle in figures.cycles))
    return {
        "deadlocks": Figure(
            len(sure) if figures.could_look or sure else None, count, "deadlocks", bound
        ),
        "tasks_blocked": Figure(figures.blocked, count, "tasks in state D"),
        "longest_wait": Figure(figures.longest, Unit.SECONDS, "longest in state D"),
        "deadlocks_possible": Figure(len(figures.cycles) - len(sure), count, "possible deadlocks"),
        "tasks_in_deadlocks": Figure(len(inside), count, "tasks in cycles"),
        "tasks_behind_deadlocks": Figure(len(behind - inside), count, "tasks stuck behind cycles"),
        "roots": Figure(len(figures.roots), count, "roots of the wait graph"),
        "tasks_undetermined": Figure(undetermined, count, "tasks, object undetermined"),
    }
