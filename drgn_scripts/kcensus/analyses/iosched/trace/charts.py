# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of a trace."""

from __future__ import annotations

from kcensus.results.charts import ChartSpec

CHARTS = (
    ChartSpec(
        "trace_over_time",
        "trace_over_time",
        "Requests in the scheduler by task",
        ("waiting",),
        "time",
        is_ordered=True,
        parts="task",
        measure="requests in the scheduler, average of each slice",
    ),
    ChartSpec(
        "trace_longest_over_time",
        "trace_slices",
        "Longest wait in the scheduler over time",
        ("longest",),
        "time",
        is_ordered=True,
        measure="longest wait so far of a request in the slice",
    ),
    ChartSpec(
        "trace_histogram",
        "trace_histogram",
        "Waits in the scheduler by length",
        ("sync_reads", "sync_writes", "async_writes", "discards"),
        "waited",
        is_ordered=True,
        measure="requests that waited so long",
    ),
    ChartSpec(
        "trace_timeline",
        "trace_tasks",
        "Longest wait of each task and operation",
        ("longest", "served"),
        "label",
        offset="inserted",
        first_color=1,
        measure="time of the trace",
    ),
)
