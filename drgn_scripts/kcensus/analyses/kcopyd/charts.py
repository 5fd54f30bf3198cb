# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of kcopyd, and the memory that it accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.results import Result
from kcensus.results.charts import ChartSpec, RamUse

CHARTS = (
    ChartSpec(
        "jobs",
        "clients",
        "kcopyd jobs by client and state",
        ("callback_jobs", "complete_jobs", "io_jobs", "pages_jobs", "in_flight"),
        "device",
        measure="jobs",
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield the slabs of jobs and the pages of copies; bios and exceptions share their slabs."""
    yield RamUse("kcopyd jobs and pages", result.amount("job_bytes"), in_slabs=True)
    yield RamUse("kcopyd jobs and pages", result.amount("page_bytes"), in_slabs=False)
