# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of the census of slabs, and the memory that it accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.results import Result
from kcensus.results.charts import ChartSpec, RamUse

CHARTS = (
    ChartSpec(
        "caches",
        "caches",
        "Largest slab caches",
        ("active_bytes", "free_bytes", "padding_bytes", "tail_bytes"),
        "cache",
    ),
    ChartSpec(
        "waste",
        "waste",
        "Waste by cache",
        ("free_bytes", "padding_bytes", "tail_bytes"),
        "cache",
        first_color=1,
    ),
    ChartSpec(
        "fill", "fill", "Slabs by share of slots in use", ("slabs",), "fill", is_ordered=True
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield all slab pages; what other analyses know in them is taken out."""
    yield RamUse("slabs", result.amount("slab_bytes"), in_slabs=True, is_total=True)
