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
    inserted = int((bios.inserted != NEVER).sum())
    completed = int((figures.is_unmerged & (bios.completed != NEVER)).sum())
    return [
        Check(
            "requests inserted, by trace",
            inserted,
            bios.insertions,
            source="events I with data in the trace",
            note="requeued requests are inserted again; some were queued before the trace began",
            at_most=int(bios.requeues.sum()) + bios.orphans,
        ),
        Check(
            "requests completed, by trace",
            completed,
            bios.completions,
            source="events C with data in the trace",
            note="the other events are of requests that were queued before the trace began, or of "
            "requests that complete in parts",
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
            f"{_names(losses.skipped)} skips sequence numbers of the kernel",
            sum(losses.skipped.values()),
            effect,
        ),
        Gap(
            "files of CPUs",
            f"there is no {_listed(losses.missing)}",
            len(losses.missing),
            f"events on these CPUs are not there; {effect}",
        ),
        Gap(
            "events dropped by blktrace",
            "its log says so: its buffers were full",
            losses.dropped or 0,
            effect,
        ),
        Gap(
            "files that end too early",
            f"those of other CPUs go on: {_listed(_early(losses.early))}",
            len(losses.early),
            "what happened later is left out",
        ),
        Gap(
            "bytes of files",
            f"by the log of blktrace, they lack the end: {_names(losses.short)}",
            sum(losses.short.values()),
            effect,
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
            "times of events",
            "they are minutes before or after those of the events around them",
            losses.displaced,
            "these events are not counted",
        ),
        Gap(
            "completions of bios",
            "the trace shows the next bio at the same sector, but not their completion",
            int(bios.is_lost.sum()),
            "waits of these bios end with their last event",
        ),
        Gap(
            "insertions, dispatches and completions",
            "their bios were queued before the trace began, or the event is lost",
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
            "links of events to requests",
            "sectors or devices are impossible, or too many requests overlap",
            bios.unpaired,
            "these events count for no request",
        ),
    )
    found += [
        Gap("file of the trace", f"{printable(name)}: {printable(why)}", 1, effect)
        for name, why in losses.failed.items()
    ]
    return found


def _early(ends: Counter[str]) -> list[str]:
    return [f"{name} by {ms / 1000:.1f} s" for name, ms in ends.most_common()]


def _names(counts: Counter[str]) -> str:
    return _listed([name for name, count in counts.most_common() if count])


def _listed(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
