# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hung tasks that the kernel log reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import Told
from kcensus.human import counted, human_seconds, listed
from kcensus.results import Danger, Figure, Finding, Severity, Unit
from kcensus.text import task_name


def hung_tasks(figures: Figures, others: Sequence[Told]) -> Iterator[Told]:
    """Yield the finding about all hung tasks of the log, each counted once.

    It names no cause: where other findings are about all of its tasks, it is a part of the one
    about most of them.
    """
    hung, tasks, known = figures.log.hung, figures.waiting.tasks, figures.reported
    if not hung:
        return
    about = {told.finding.id: told.finding.tasks & known for told in others}
    owner = max(about, key=lambda name: len(about[name]), default="")
    is_told = frozenset().union(*about.values()) == known and len(known) == len(hung)
    longest = max(hung.values())
    blocked = known & {*tasks.pid[np.flatnonzero(tasks.is_blocked)].tolist()}
    # Of two tasks with the same PID, the log reports the present one last.
    still = {(pid, figures.log.names[pid]) for pid in blocked}
    over = sorted(hung.keys() - still)
    gone = listed([task_name(name, pid) for pid, name in over])
    finding = Finding(
        id="log-hung-task",
        tasks=figures.tasks.pids(figures.task_nodes) & known,
        is_generic=True,
        is_vague=True,
        severity=Severity.WARNING,
        danger=Danger.STALL,
        title=f"the log reports {counted(len(hung), 'hung task')}, the longest blocked for more "
        f"than {human_seconds(longest)}",
        evidence=f"no longer in state D: {gone}" if gone else "",
        figures={"seconds": Figure(longest, Unit.SECONDS), "tasks": Figure(len(hung))},
        part_of=owner if is_told else "",
        no_remedy="" if is_told else _next_step(len(still)),
    )
    yield Told(finding, [])


def _next_step(still: int) -> str:
    if not still:
        return (
            "Read the stack after each message in the log: its functions name the lock, driver or "
            "file system"
        )
    return (
        f"{counted(still, 'task is', plural='tasks are')} still in state D: `kcensus waits TARGET "
        "--table tasks` shows the awaited objects and their holders"
    )
