# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of a trace."""

from __future__ import annotations

from kcensus.results.charts import ChartSpec

CHARTS = (
    ChartSpec(
        "trace_over_time",
        "trace_over_time",
        "Waits in the scheduler by when requests were inserted, by task",
        ("waited",),
        "time",
        is_ordered=True,
        parts="task",
        measure="sum of waits",
    ),
    ChartSpec(
        "trace_histogram",
        "trace_histogram",
        "Waits in the scheduler by length",
        ("sync_reads", "sync_writes", "async_writes", "discards"),
        "waited",
        is_ordered=True,
        measure="requests that waited up to this",
    ),
    ChartSpec(
        "trace_timeline",
        "trace_waits",
        "The longest waits: when requests were inserted, dispatched and completed",
        ("waited", "served"),
        "label",
        offset="inserted",
        first_color=1,
        measure="time of the trace",
    ),
)
