# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of the census of dentries, and the memory that it accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.results import Result
from kcensus.results.charts import ChartSpec, RamUse

CHARTS = (
    ChartSpec(
        "directories",
        "directories",
        "Directories with most negative dentries",
        ("negative",),
        "directory",
        measure="negative dentries",
    ),
    ChartSpec(
        "patterns",
        "patterns",
        "Names with most negative dentries",
        ("negative",),
        "pattern",
        measure="negative dentries",
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield the slab pages of dentries; external names are in slabs of others."""
    yield RamUse("dentries", result.amount("slab_bytes"), in_slabs=True)
