# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of growths: series that share their bytes or things among each other, each once."""

from __future__ import annotations

from kcensus.results import MEMORY_USES
from kcensus.store.ceilings import (
    AVAILABLE,
    MACHINE,
    TOGETHER,
    USED,
    container_of,
    growth_of,
    is_available,
)
from kcensus.store.together import OUTSIDE
from kcensus.store.trends import State, Trend, Trends

_CACHES = ("slab", "caches", "bytes")
"""Analysis, part and metric of slab pages by cache: each page is of one cache."""
_PARTS = {
    ("slab", "slab_bytes"): {_CACHES},
    ("memcgs", "offline_bytes"): {
        ("memcgs", "summary", f"{name}_bytes")
        for name in ("structure", "per_cpu", "shrinker_map", "file", "shmem")
    },
    ("memcgs", "memcgs_offline"): {("memcgs", "pins", "memcgs")},
    ("kcopyd", "total_bytes"): {
        ("kcopyd", "summary", f"{name}_bytes") for name in ("job", "page", "bio", "exception")
    },
    TOGETHER: {_CACHES, *((analysis, "summary", metric) for analysis, metric in OUTSIDE)},
    USED: {(MACHINE, "summary", f"{use}_bytes") for use in MEMORY_USES if use not in AVAILABLE},
}
"""Analysis, part and metric of the parts of each whole."""


def parts_of(whole: Trend, found: Trends) -> list[Trend]:
    """Return the growing parts of a growth, the fastest first; empty for a part."""
    kinds = _PARTS.get((whole.analysis, whole.metric), set()) if whole.is_whole else set()
    parts = [
        each
        for each in found.of(State.GROWING)
        if each.is_current
        and each.host == whole.host
        and (each.analysis, each.part, each.metric) in kinds
    ]
    return sorted(parts, key=lambda each: -each.rate)


def growths(found: Trends) -> dict[tuple[str, str], list[Trend]]:
    """Return the growing series of running boots by host and growth, the most urgent first.

    Of each growth, the series with a limit come first; among them the one that contains most.
    """
    groups: dict[tuple[str, str], list[Trend]] = {}
    for trend in found.of(State.GROWING):
        is_asked = not is_available(trend.analysis, trend.metric)
        if trend.is_current and not trend.is_over and is_asked:
            name = growth_of(trend.analysis, trend.metric, trend.unit)
            groups.setdefault((trend.host, name), []).append(trend)
    for each in groups.values():
        each.sort(key=lambda trend: (trend.limit is None, -trend.scope))
    return groups


def container(part: Trend, groups: dict[tuple[str, str], list[Trend]]) -> Trend | None:
    """Return the leading series of the least growth that has nearly all bytes of a part.

    A part that grows faster is of memory that the kernel can give to others, and has none.
    """
    growth = growth_of(part.analysis, part.metric, part.unit)
    while growth := container_of(growth):
        if trends := groups.get((part.host, growth)):
            return None if _is_faster(part, trends[0]) else trends[0]
    return None


def _is_faster(part: Trend, whole: Trend) -> bool:
    if part.slope is None or whole.slope is None or part.unit != whole.unit:
        return False
    return part.slope.low > whole.slope.high
