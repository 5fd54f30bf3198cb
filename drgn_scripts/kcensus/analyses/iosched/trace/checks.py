# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cross-checks of the bios against the events of a trace, and what of the trace is missing."""

from __future__ import annotations

from collections import Counter

from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.results import Check, Gap, nonzero_gaps
from kcensus.text import printable
from kcensus.trace.bios import NEVER

_MAX_NAMES = 4


def checks(figures: Figures) -> list[Check]:
    """Return the numbers of events of requests against those of the requests."""
    bios = figures.bios
    requests = figures.is_request
    inserted = int((bios.inserted != NEVER).sum())
    completed = int((requests & (bios.completed != NEVER)).sum())
    return [
        Check(
            "requests inserted",
            inserted,
            bios.insertions,
            source="I events with data",
            note="a requeued request is inserted again; others were queued before the trace",
            at_most=int(bios.requeues.sum()) + bios.orphans,
        ),
        Check(
            "requests completed",
            completed,
            bios.completions,
            source="C events with data",
            note="others were queued before the trace, or in parts",
            at_most=bios.orphans,
        ),
    ]


def gaps(figures: Figures) -> list[Gap]:
    """Return what of a trace is missing or unreadable."""
    losses, bios = figures.trace.losses, figures.bios
    effect = "any figure is a lower bound, and requests may seem to wait that do not"
    found = nonzero_gaps(
        Gap(
            "events of blktrace",
            f"numbers of the kernel are not in {_names(losses.skipped)}",
            sum(losses.skipped.values()),
            effect,
        ),
        Gap(
            "files of CPUs",
            f"files of CPUs with events are missing: {_listed(losses.missing)}",
            len(losses.missing),
            f"events on these CPUs are not there; {effect}",
        ),
        Gap(
            "bytes of the last event",
            f"{_names(losses.cut)} ends inside of it",
            sum(losses.cut.values()),
            "the trace ends too early; what happened then is not counted",
        ),
        Gap(
            "bytes of the trace",
            f"{_names(losses.unreadable)} has bytes that are not events",
            sum(losses.unreadable.values()),
            effect,
        ),
        Gap(
            "bytes of zeros at the end of files",
            f"blktrace was still writing {_names(losses.unwritten)}",
            sum(losses.unwritten.values()),
            "the last events are missing, and requests may seem to wait that do not",
        ),
        Gap(
            "bytes at the end of files",
            f"too much damage before them: {_names(losses.abandoned)}",
            sum(losses.abandoned.values()),
            effect,
        ),
        Gap(
            "events or lines",
            f"{_names(losses.unknown)} has unknown actions or formats",
            sum(losses.unknown.values()),
            "they are not counted",
        ),
        Gap(
            "events",
            "times are minutes before or after those of the events around them",
            losses.displaced,
            "they are not counted",
        ),
        Gap(
            "bios",
            "another one was queued at the same sector before they were completed, so that "
            "events of theirs are missing",
            int(bios.is_lost.sum()),
            "their waits are not counted beyond the events that are there",
        ),
        Gap(
            "insertions, dispatches and completions",
            "the trace does not show when their bios were queued: before it began, or lost",
            bios.orphans,
            "the waits of these requests are unknown",
        ),
        Gap(
            "events of requests of user space",
            "passthrough requests have no sector",
            bios.passthrough,
            "they are not paired",
        ),
        Gap(
            "events",
            "sectors or devices are impossible, or too many requests overlap",
            bios.unpaired,
            "they are not paired to requests",
        ),
    )
    found += [
        Gap("file of the trace", f"{printable(name)}: {printable(why)}", 1, effect)
        for name, why in losses.failed.items()
    ]
    return found


def _names(counts: Counter[str]) -> str:
    return _listed([name for name, count in counts.most_common() if count])


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
