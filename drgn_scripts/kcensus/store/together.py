# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory of all analyses together, each byte once: a series that follows from others.

Slab pages hold the objects of all analyses. Outside of them are copy pages of kcopyd, large
structures of list_lrus, and per-CPU areas and charged pages of offline memory cgroups. Their page
cache is left out, because reclaim takes it back.
"""

from __future__ import annotations

import pandas as pd

from kcensus.results import Unit
from kcensus.store.ceilings import TOGETHER

_SLABS = ("slab", "slab_bytes")
_MEASURED = {
    "slab": "slab_bytes", "memcgs": "offline_bytes", "kcopyd": "total_bytes",
    "list-lru": "structural_bytes",
}  # fmt: skip
"""A figure that each analysis has in every record."""
OUTSIDE = {
    ("memcgs", "per_cpu_bytes"), ("memcgs", "shmem_bytes"), ("memcgs", "anon_bytes"),
    ("memcgs", "kernel_bytes"), ("kcopyd", "page_bytes"),
}  # fmt: skip
"""Analysis and figure of memory outside of slab pages."""
LARGE = ("list-lru", "structures", "bytes")
"""Analysis, part and metric of structures, of which the large ones are outside of slab pages."""
_PLACES = (": pages", ": vmalloc")
"""Ends of the names of structures outside of slab pages."""
INPUTS = {metric for _, metric in OUTSIDE} | {*_MEASURED.values()}
"""Metrics that the series follows from, besides :data:`LARGE`."""


def together(history: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :data:`~kcensus.store.ceilings.TOGETHER`, one for each complete record.

    A record is complete if it has the analyses that most records of its host have. Empty if a host
    has slab memory alone.
    """
    some = history[
        (history["unit"] == Unit.BYTES.value) & history["metric"].isin({*INPUTS, LARGE[2]})
    ]
    some = some[some["value"].notna()]
    kinds = pd.MultiIndex.from_frame(some[["analysis", "metric"]])
    is_total = (some["part"] == "summary").to_numpy(bool)
    is_large = [(some[name] == value).to_numpy(bool) for name, value in zip(
        ("analysis", "part", "metric"), LARGE, strict=True)]  # fmt: skip
    large = some[is_large[0] & is_large[1] & is_large[2]]
    large = large[large["subject"].astype(str).str.endswith(_PLACES)]
    slabs = some[is_total & kinds.isin([_SLABS])].drop_duplicates("record").set_index("record")
    measured = some[is_total & kinds.isin([*_MEASURED.items()])]
    measured = measured[measured["record"].isin(slabs.index)]
    has = measured.groupby(["record", "analysis"]).size().unstack(fill_value=0).gt(0)
    hosts = slabs["host"].reindex(has.index)
    wanted = has.groupby(hosts).transform("mean") >= 1 / 2
    is_complete = (has | ~wanted).all(axis=1) & (wanted.sum(axis=1) > 1)
    rows = slabs[is_complete.reindex(slabs.index, fill_value=False)]
    outside = pd.concat([some[is_total & kinds.isin(OUTSIDE)], large])
    added = outside.groupby("record")["value"].sum().reindex(rows.index, fill_value=0.0)
    analysis, metric = TOGETHER
    made = rows.assign(
        analysis=analysis, part="summary", metric=metric, subject="", value=rows["value"] + added
    )
    made = made.reset_index()[[*history.columns]]
    return made.drop(columns="exact") if "exact" in made else made
