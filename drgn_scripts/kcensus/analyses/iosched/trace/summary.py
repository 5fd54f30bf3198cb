# SPDX-License-Identifier: LGPL-2.1-or-later
"""The totals of a trace."""

from __future__ import annotations

import numpy as np

from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, Figures
from kcensus.analyses.iosched.trace.turns import lost_turns
from kcensus.human import shown_time
from kcensus.results import Bound, Figure, Unit
from kcensus.trace.bios import NEVER
from kcensus.trace.events import Integers, Mask

_MIN_TORN, _MIN_PAIRED = 10, 1000
"""If more than every 10th event of at least 1,000 has no bio, the file of a CPU may be missing."""


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals, without those that the trace does not show."""
    bios, trace, losses = figures.bios, figures.trace, figures.trace.losses
    is_async = figures.kind == ASYNC_WRITE
    requests = figures.is_request
    skipped = sum(losses.skipped.values())
    damaged = losses.unreadable + losses.unwritten + losses.abandoned + losses.cut
    damaged += losses.early + losses.short
    paired = bios.insertions + bios.completions
    is_torn = (bios.orphans + int(bios.is_lost.sum())) * _MIN_TORN > paired >= _MIN_PAIRED
    is_whole = not (skipped or losses.dropped or damaged or losses.displaced or is_torn)
    is_whole &= not (losses.missing or losses.failed)
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
        # What had not ended when the trace did took longer.
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
        "trace_dropped_events": Figure(
            losses.dropped, Unit.COUNT, "trace: dropped, by blktrace's log"
        ),
        "trace_offline_cpus": Figure(len(losses.offline), Unit.COUNT, "trace: CPUs without a file"),
        "trace_start": Figure(start, Unit.TEXT, "trace: start"),
    }
    return {key: figure for key, figure in found.items() if figure.value is not None}
