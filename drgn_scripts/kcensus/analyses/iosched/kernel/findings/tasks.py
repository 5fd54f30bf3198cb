# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about tasks in state D that no request keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.analyses.iosched.kernel.findings.device import severity
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
    WaitKind.OTHER: "something else",
}


def blocked(figures: Figures, sleepers: Sleepers) -> Iterator[Finding]:
    """Yield that tasks have been in state D for long, by what they wait for, and its disk."""
    waits = sleepers.waits
    linked = np.zeros(len(waits), np.bool_)
    linked[sleepers.joins.wait] = True
    disks = disk_names(figures, sleepers)
    groups = defaultdict(list)
    for row in np.flatnonzero(~linked & (waits.since_ns >= _STEPS[-1][0] * 1e9)).tolist():
        kind = waits.kind[row]
        if kind is not WaitKind.TIMER and waits.function[row] not in ON_TIMERS:
            groups[kind, printable(disks[row])].append(row)
    for (kind, disk), rows in groups.items():
        longest = int(waits.since_ns[rows].max()) / 1e9
        how = severity(longest, _STEPS)
        if how is None:
            continue
        count = (
            f"{len(rows):,} tasks in state D wait" if len(rows) > 1 else "1 task in state D waits"
        )
        where = f" of {disk}" if disk else ""
        yield Finding(
            id=f"tasks-blocked:{kind.value}" + (f"-{disk}" if disk else ""),
            severity=how,
            danger=Danger.STALL,
            title=f"{count} for {_OBJECTS[kind]}{where}, for up to {human_seconds(longest)}",
            evidence=f"No request in memory leads to them: {named(sleepers, np.array(rows))}",
            figures={
                "sleepers": Figure(len(rows)),
                "longest": Figure(longest, Unit.SECONDS),
            },
            no_remedy="The table of sleepers shows each object, and who holds it if that is known",
        )
