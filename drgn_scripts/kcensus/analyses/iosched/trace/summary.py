# SPDX-License-Identifier: LGPL-2.1-or-later
"""The totals of a trace."""

from __future__ import annotations

import numpy as np

from kcensus.analyses.iosched.trace.figures import ASYNC_WRITE, Figures
from kcensus.analyses.iosched.trace.turns import lost_turns
from kcensus.human import shown_time
from kcensus.results import Bound, Figure, Scalar, Unit
from kcensus.trace.bios import NEVER


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals; None for what no request shows."""
    bios, trace, losses = figures.bios, figures.trace, figures.trace.losses
    is_async = figures.kind == ASYNC_WRITE
    skipped = sum(losses.skipped.values())
    damaged = losses.unreadable + losses.unwritten + losses.abandoned + losses.cut
    is_whole = not (skipped or damaged or losses.displaced or losses.missing or losses.failed)
    start = None if trace.start is None else shown_time(trace.start)

    def count(value: int, label: str) -> Figure:
        return Figure(value, Unit.COUNT, label, Bound.EXACT if is_whole else Bound.AT_LEAST)

    def seconds(value: Scalar, label: str) -> Figure:
        return Figure(value, Unit.SECONDS, label)

    return {
        "trace_requests": count(int(figures.is_request.sum()), "requests in the trace"),
        "trace_worst_async_write_wait": seconds(
            _worst(figures, is_async), "longest wait, async write"
        ),
        "trace_worst_sync_wait": seconds(
            _worst(figures, figures.is_sync), "longest wait, sync request"
        ),
        "trace_async_writes": count(int((is_async & figures.is_request).sum()), "async writes"),
        "trace_sync_requests": count(
            int((figures.is_sync & figures.is_request).sum()), "sync requests"
        ),
        "trace_cfq_turns_lost": Figure(lost_turns(figures), Unit.COUNT, "turns lost, async, cfq"),
        "trace_waiting": Figure(
            int(figures.is_waiting.sum()),
            Unit.COUNT,
            "in the scheduler at end",
            Bound.EXACT if is_whole else Bound.ABOUT,
        ),
        "trace_in_driver": Figure(
            int(figures.is_in_driver.sum()),
            Unit.COUNT,
            "in the driver at end",
            Bound.EXACT if is_whole else Bound.ABOUT,
        ),
        "trace_bios": count(len(bios), "bios"),
        "trace_merged": count(int((bios.merged != NEVER).sum()), "merged bios"),
        "trace_requeued": count(int(bios.requeues.sum()), "requeues"),
        "trace_errors": count(int((bios.error != 0).sum()), "completed with an error"),
        "trace_flushes": count(bios.flushes, "flushes without data"),
        "trace_duration": seconds(figures.end / 1e9, "duration"),
        "trace_events": count(len(trace), "events"),
        "trace_messages": count(len(trace.messages["time"]), "messages of schedulers"),
        "trace_devices": Figure(len(figures.devices), Unit.COUNT, "devices in the trace"),
        "trace_lost_events": Figure(skipped, Unit.COUNT, "events lost"),
        "trace_offline_cpus": Figure(len(losses.offline), Unit.COUNT, "CPUs without a file"),
        "trace_start": Figure(start, Unit.TEXT, "start of the trace"),
    }


def _worst(figures: Figures, chosen: np.typing.NDArray[np.bool_]) -> float | None:
    waits = figures.wait[chosen]
    worst = int(waits.max(initial=NEVER))
    return None if worst == NEVER else worst / 1e9
