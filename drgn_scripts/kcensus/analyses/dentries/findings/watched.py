# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about watched directories, whose children the kernel visits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import drgn

from kcensus.analyses.dentries.figures import Figures
from kcensus.results import Danger, Figure, Finding, Remedy, Severity
from kcensus.text import pasteable

WALKS = {Severity.CRITICAL: 10_000_000, Severity.WARNING: 1_000_000, Severity.NOTICE: 100_000}
"""Least number of children of a watched directory, by severity of visiting them all.

A visit takes 50 to 100 ns a child, under the spinlock of the directory: from 5 ms on lookups there
wait noticeably, from 50 ms on so do other CPUs, and from 0.5 s on soft lockups and RCU stalls come
into reach where several CPUs queue up for the lock.
"""


def watches(figures: Figures, main: Finding | None) -> Iterator[Finding]:
    """Yield a finding for each watched directory whose children take long to visit."""
    if figures.walk_cost is None:
        return
    frame = figures.walk_cost
    frame = frame[frame["watched"] & (frame["negative"] * 2 >= frame["children"])]
    seen: Counter[str] = Counter()
    row: Any
    for row in frame.itertuples(index=False):
        severity = next((each for each, least in WALKS.items() if row.children >= least), None)
        if severity is None:
            continue
        seen[row.directory] += 1
        # The same path in two mount namespaces is two directories.
        again = f"@{seen[row.directory]}" if seen[row.directory] > 1 else ""
        lazily = _clears_lazily(figures.kernel.prog)
        yield Finding(
            id=f"dentries-watch:{row.directory}{again}",
            severity=severity,
            title=(
                f"{row.directory} is watched: the kernel visits {row.children:,} children "
                f"({row.negative:,} negative) under a spinlock whenever "
                f"{'its first watch is added' if lazily else 'a watch is added or removed'}"
            ),
            evidence=_order(row),
            figures={
                "children": Figure(row.children, label="children"),
                "negative": Figure(row.negative, label="negative children"),
            },
            danger=Danger.STALL,
            remedies=tuple(_watchers(row.directory, lazily)),
            patch="" if lazily else "fsnotify-lazy-parent-watched",
            # A danger is not folded into a less severe finding.
            part_of=main.id if main is not None and main.severity >= severity else "",
        )


def _clears_lazily(prog: drgn.Program) -> bool:
    """Return whether the kernel visits children only when a directory is first watched.

    Since Linux kernel commit 172e422ffea2 ("fsnotify: clear PARENT_WATCHED flags lazily")
    (in v6.11), the function that sets their flags has this name.
    """
    try:
        prog.symbol("fsnotify_set_children_dentry_flags")
    except LookupError:
        return False
    return True


def _order(row: Any) -> str:
    if row.damaged:
        return "the list of children is damaged: their order is unknown"
    if row.at_tail:
        return "all negative children are at the tail of the list"
    return f"{row.sweeps:,} runs of negative children precede positive ones"


def _watchers(directory: str, lazily: bool) -> Iterator[Remedy]:
    if path := pasteable(directory, "/"):
        yield Remedy(
            effect=(
                "Find the processes that watch the directory (their PIDs are in the printed "
                "paths); stop them, or let them watch another directory"
            ),
            command=(f'grep -s "ino:$(printf %x "$(stat -c %i {path})") " /proc/[0-9]*/fdinfo/*'),
            risk="" if lazily else "removing the watch visits all children once more",
        )
    yield Remedy(
        effect="Drop the negative children before the next watch is added or removed, and move the "
        "lookups of missing names to another directory"
    )
