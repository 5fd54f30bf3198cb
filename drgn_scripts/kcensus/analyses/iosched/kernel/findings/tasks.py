# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about tasks in state D that no request keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.iosched.degrees import severity, shortest_ns
from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.sleepers import Sleepers
from kcensus.analyses.iosched.kernel.tasks import disk_names, named
from kcensus.human import human_seconds
from kcensus.kernel.tasks.functions import ON_TIMERS, WaitKind
from kcensus.results import Danger, Figure, Finding, Severity, Unit
from kcensus.text import printable

_STEPS = ((120.0, Severity.WARNING), (10.0, Severity.NOTICE))
"""Seconds in state D: of hung_task_timeout_secs, and what a user notices."""
_OBJECTS = {
    WaitKind.TAG: "a free request",
    WaitKind.LOCK: "a lock",
    WaitKind.LOG: "the log of a file system",
    WaitKind.THROTTLE: "permission to write more",
    WaitKind.XFS_BUF: "a buffer of XFS",
    WaitKind.FOLIO: "a page",
    WaitKind.BIT: "a bit",
    WaitKind.REQUEST: "their own I/O",
    WaitKind.TIMER: "time",
    WaitKind.OTHER: "something else",
}


def blocked(figures: Figures, sleepers: Sleepers) -> Iterator[Finding]:
    """Yield that tasks have been in state D for long, and what for."""
    waits = sleepers.waits
    linked = np.zeros(len(waits), np.bool_)
    linked[sleepers.joins.wait] = True
    timed = np.array([function in ON_TIMERS for function in waits.function], np.bool_)
    rows = np.flatnonzero(~linked & ~timed & (waits.since_ns >= shortest_ns(_STEPS)))
    longest = int(waits.since_ns[rows].max(initial=0)) / 1e9
    how = severity(longest, _STEPS)
    if how is None:
        return
    disks = disk_names(figures, sleepers)
    causes = Counter((waits.kind[row], printable(disks[row])) for row in rows.tolist())
    what = ", ".join(
        f"{_OBJECTS[kind]}{f' of {disk}' if disk else ''} ({count:,})"
        for (kind, disk), count in causes.most_common()
    )
    function, count = Counter(waits.function[row] for row in rows.tolist()).most_common(1)[0]
    where = f" in {printable(function)}," if function and 2 * count > len(rows) else ""
    yield Finding(
        id="tasks-blocked",
        tasks=frozenset(waits.pid[rows].tolist()),
        is_generic=True,
        severity=how,
        danger=Danger.STALL,
        title=f"1 task has been in state D for {human_seconds(longest)},{where} behind no request"
        if len(rows) == 1
        else f"{len(rows):,} tasks have been in state D for up to {human_seconds(longest)},"
        f"{' most of them' if where else ''}{where} behind no request",
        evidence=f"Waited for: {what}. Longest: {named(sleepers, rows)}",
        figures={"sleepers": Figure(len(rows)), "longest": Figure(longest, Unit.SECONDS)},
        no_remedy="`kcensus waits` says who holds what they wait for",
    )
