# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of list_lrus, and the memory that it accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.results import Result
from kcensus.results.charts import ChartSpec, RamUse

_OUTSIDE = ("pages", "vmalloc")
"""Places of large structures; all others are slab caches, or unknown."""

CHARTS = (
    ChartSpec(
        "projection",
        "projection",
        "Memory by stage of the list_lru series",
        ("node_array_bytes", "pointer_bytes", "list_bytes", "shrinker_map_bytes"),
        "stage",
        is_ordered=True,
    ),
    ChartSpec("owners", "owners", "Memory by owner of the list_lrus", ("bytes",), "owner"),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield the structures of list_lrus: those in slabs, and the large ones outside."""
    if "structures" in result.tables:
        rows = result.tables["structures"].frame
        outside = rows["place"].isin(_OUTSIDE)
        inside = ~outside & (rows["place"] != "unknown")
        yield RamUse("list_lrus", int(rows["bytes"][inside].sum()), in_slabs=True)
        yield RamUse("list_lrus", int(rows["bytes"][outside].sum()), in_slabs=False)
