# SPDX-License-Identifier: LGPL-2.1-or-later
"""Totals of a trace, cross-checks of its bios against its events, and its gaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, Figures
from kcensus.analyses.iosched.trace.turns import lost_turns
from kcensus.human import listed, shown_time
from kcensus.results import Bound, Check, Figure, Gap, Unit, nonzero_gaps
from kcensus.sources.blktrace.bios import NEVER
from kcensus.sources.blktrace.events import Integers, Loss, Mask
from kcensus.text import printable

_MAX_NAMES = 4
_LOWER = "figures are lower bounds; some requests shown as waiting may have completed"
_EFFECTS = {
    "events": ("events of blktrace", _LOWER),
    "files": ("files of the trace", f"events of their CPUs are missing: {_LOWER}"),
    "bytes": ("bytes of the trace", f"events in them are missing: {_LOWER}"),
    "records": ("events or lines", "they are not counted"),
}
"""Subject and effect of a gap, by the unit of a :class:`Loss`."""

_MIN_TORN, _MIN_PAIRED = 10, 1000
"""If more than every 10th event of at least 1,000 has no bio, the file of a CPU may be missing."""


def summary(figures: Figures) -> dict[str, Figure]:
    bios, trace, losses = figures.bios, figures.trace, figures.trace.losses
    is_async = figures.kind == ASYNC_WRITE
    requests = figures.is_request
    skipped = sum(losses.of(Loss.SKIPPED).values())
    dropped = next((count for (kind, _), count in losses.items() if kind is Loss.DROPPED), None)
    paired = bios.insertions + bios.completions
    is_torn = (bios.orphans + int(bios.is_lost.sum())) * _MIN_TORN > paired >= _MIN_PAIRED
    is_whole = not is_torn and not any(losses.of(kind) for kind in {*Loss} - {Loss.UNKNOWN})
    start = None if trace.start is None else shown_time(trace.start)

    def count(value: int, label: str) -> Figure:
        bound = Bound.EXACT if is_whole else Bound.AT_LEAST
        return Figure(value, Unit.COUNT, f"trace: {label}", bound)

    def left(mask: Mask, label: str) -> Figure:
        bound = Bound.EXACT if is_whole else Bound.ABOUT
        return Figure(int(mask.sum()), Unit.COUNT, f"trace: {label} at end", bound)

    def worst(waits: Integers, chosen: Mask, waiting: Mask, label: str) -> Figure:
        rows = np.flatnonzero(chosen & (waits != NEVER))
        if not len(rows):
            return Figure(None)
        row = int(rows[np.argmax(waits[rows])])
        # A wait that goes on at the end of the trace took longer.
        is_shown = is_whole and not waiting[row]
        bound = Bound.EXACT if is_shown else Bound.AT_LEAST
        return Figure(int(waits[row]) / 1e9, Unit.SECONDS, f"trace: longest {label}", bound)

    waiting = figures.is_waiting
    found = {
        "trace_requests": count(int(requests.sum()), "requests"),
        "trace_worst_async_write_wait": worst(figures.wait, is_async, waiting, "async write wait"),
        "trace_worst_sync_wait": worst(figures.wait, figures.is_sync, waiting, "sync wait"),
        "trace_worst_in_driver": worst(
            figures.in_driver, requests, figures.is_in_driver, "in driver"
        ),
        "trace_async_writes": count(int((is_async & requests).sum()), "async writes"),
        "trace_sync_requests": count(int((figures.is_sync & requests).sum()), "sync requests"),
        "trace_cfq_turns_lost": Figure(lost_turns(figures), Unit.COUNT, "trace: CFQ's lost turns"),
        "trace_waiting": left(waiting, "in scheduler"),
        "trace_in_driver": left(figures.is_in_driver, "in driver"),
        "trace_requeued_waiting": left(figures.is_requeued, "requeued"),
        "trace_without_request": left(figures.is_without_request, "without request"),
        "trace_bios": count(len(bios), "bios"),
        "trace_merged": count(int((~figures.is_unmerged).sum()), "merged bios"),
        "trace_requeued": count(int(bios.requeues.sum()), "requeues"),
        "trace_errors": count(int((bios.error != 0).sum()), "completed with error"),
        "trace_flushes": count(bios.flushes, "flushes without data"),
        "trace_duration": Figure(figures.end / 1e9, Unit.SECONDS, "trace: duration"),
        "trace_events": count(len(trace), "events"),
        "trace_messages": count(len(trace.messages["time"]), "messages of schedulers"),
        "trace_devices": Figure(len(figures.devices), Unit.COUNT, "trace: devices"),
        "trace_lost_events": Figure(skipped, Unit.COUNT, "trace: events lost"),
        "trace_dropped_events": Figure(dropped, Unit.COUNT, "trace: dropped, by blktrace's log"),
        "trace_offline_cpus": Figure(trace.offline, Unit.COUNT, "trace: CPUs without a file"),
        "trace_start": Figure(start, Unit.TEXT, "trace: start"),
    }
    return {key: figure for key, figure in found.items() if figure.value is not None}


def checks(figures: Figures) -> list[Check]:
    """Compare the requests with the events of requests."""
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
            note=(
                "the other events belong to requests queued before the trace began, or completed "
                "in parts"
            ),
            at_most=bios.orphans,
        ),
    ]


def gaps(figures: Figures) -> list[Gap]:
    """Return the missing and unreadable parts of a trace."""
    losses, bios = figures.trace.losses, figures.bios
    found = []
    for unit, (what, effect) in _EFFECTS.items():
        amounts = {kind.value[1]: losses.of(kind) for kind in Loss if kind.value[0] == unit}
        reasons = [f"{why}: {_listed(names)}" for why, names in amounts.items() if names]
        total = sum(sum(names.values()) for names in amounts.values())
        found.append(Gap(what, "; ".join(reasons), total, effect))
    unpaired = {
        "bios were queued before the trace began, or events of bios are missing": bios.orphans,
        "passthrough requests have no sector": bios.passthrough,
        "impossible sectors or devices, or too many overlapping requests": bios.unpaired,
        "completions of bios are missing, as the next bio at their sector follows": (
            int(bios.is_lost.sum())
        ),
    }
    return nonzero_gaps(
        *found,
        Gap(
            "unpaired events of requests",
            "; ".join(f"{count:,}: {why}" for why, count in unpaired.items() if count),
            sum(unpaired.values()),
            "the waits of their requests are unknown, or end with the last event",
        ),
    )


def _listed(names: Iterable[str]) -> str:
    return listed([printable(name) or "messages" for name in names], _MAX_NAMES)
