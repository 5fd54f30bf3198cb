# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of requests in memory."""

from __future__ import annotations

from kcensus.results.charts import ChartSpec

CHARTS = (
    ChartSpec(
        "request_ages",
        "request_ages",
        "Requests by age",
        ("requests",),
        "age",
        is_ordered=True,
        parts="state",
        measure="requests",
    ),
)
