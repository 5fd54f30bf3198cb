# SPDX-License-Identifier: LGPL-2.1-or-later
"""The limits of growing figures, and the severity of reaching them soon.

Bytes of memory can at most fill RAM. Amounts under a patch or another setting, and space on disks,
are not memory and have no limit.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kcensus.results import Danger, Severity, Unit

_DAY = 86400.0
DEADLINES: Mapping[Severity, float] = MappingProxyType(
    {Severity.CRITICAL: _DAY, Severity.WARNING: 7 * _DAY, Severity.NOTICE: 30 * _DAY}
)
"""Most seconds to the limit, by severity; growth to a later time is not a finding.

For memory, this implies a share of RAM, too: growth that fills it within a day, a week or 30 days
is 100 %, 14 % or 3 % of it per day.
"""
MAX_EXTRAPOLATION = 10
"""Multiple of the span of a series; there is no forecast of a limit farther ahead. Caches after a
boot, and batch jobs, grow for a short time."""
URGENT_POINTS = 16
"""Least points of a trend for a critical finding about a limit farther ahead than its records reach
back: fewer cannot show that growth slows, as a regime has 8 or more."""
STALE_INTERVALS, STALE_SECONDS = 5, 3600.0
"""Usual intervals of its records, and seconds, after which a host has no recent record."""
REACHED = 0.98
"""Least share of its limit at which a series has reached it."""

MAX_MEMCG_ID = 65535
"""MEM_CGROUP_ID_MAX of mm/memcontrol.c."""
_MEMCG_IDS = {
    ("list-lru", "ids_in_use"): "number of memory cgroup ids in use",
    ("list-lru", "nr_cache_ids"): "memcg_nr_cache_ids",
    ("memcgs", "memcgs_online"): "number of online memory cgroups",
}
"""Series with that limit, and their names in sentences."""
_MEMCGS = ("memcgs", "memcgs_online", "memcgs_offline")
"""Counts of memory cgroups, in any analysis."""
MACHINE = "machine"
"""Name in the place of an analysis, of RAM by use, and of memory that is counted together."""
USED, TOGETHER = (MACHINE, "used_bytes"), (MACHINE, "together_bytes")
"""RAM without :data:`AVAILABLE`; and memory of all analyses, each byte once."""
AVAILABLE = ("free", "page_cache", "slab_reclaimable")
"""Uses of RAM that the kernel can give to others."""
_MIRROR = (MACHINE, "available_bytes")
_WITHOUT_LIMIT = {_MIRROR, *((MACHINE, f"{use}_bytes") for use in AVAILABLE)}
_WHOLES = {
    USED: 3, TOGETHER: 2, ("slab", "slab_bytes"): 1, ("memcgs", "offline_bytes"): 1,
    ("memcgs", "memcgs_offline"): 1, ("kcopyd", "total_bytes"): 1,
}  # fmt: skip
"""Amounts that stand for a growth; a higher number contains lower ones."""
_IN_USE, _ALL_KERNEL = "memory in use", "kernel memory together"
_OFFLINE, _MEMCG_COUNT, _KCOPYD = "offline memory cgroups", "number of memory cgroups", "kcopyd"
_NOUNS = {
    USED: _IN_USE,
    TOGETHER: _ALL_KERNEL,
    (MACHINE, "free_bytes"): "free memory",
    (MACHINE, "page_cache_bytes"): "page cache",
    (MACHINE, "shmem_bytes"): "shmem (tmpfs)",
    (MACHINE, "slab_reclaimable_bytes"): "reclaimable slab memory",
    (MACHINE, "slab_unreclaimable_bytes"): "unreclaimable slab memory",
    (MACHINE, "page_tables_bytes"): "page tables",
    (MACHINE, "kernel_stacks_bytes"): "kernel stacks",
    (MACHINE, "per_cpu_bytes"): "per-CPU memory",
    (MACHINE, "huge_pages_bytes"): "huge pages",
    ("memcgs", "offline_bytes"): "memory of offline memory cgroups",
    ("memcgs", "memcgs_offline"): "number of offline memory cgroups",
    ("memcgs", "structure_bytes"): "structures",
    ("memcgs", "per_cpu_bytes"): "per-CPU areas",
    ("memcgs", "shrinker_map_bytes"): "shrinker maps",
    ("memcgs", "file_bytes"): "page cache",
    ("memcgs", "shmem_bytes"): "shmem",
    ("kcopyd", "total_bytes"): "memory of kcopyd",
}
"""Names of series in sentences that their keys do not make."""
_CONTAINERS = {
    "slab memory": _ALL_KERNEL, _OFFLINE: _ALL_KERNEL, _KCOPYD: _ALL_KERNEL, _ALL_KERNEL: _IN_USE,
}  # fmt: skip
"""Growths with all bytes, or nearly all, of another growth."""
_SLABS = ("slab", "dentries", "list-lru")
"""Analyses of slab memory and its objects."""
_COPIES = {("kcopyd", "in_flight"): "number of copies in flight"}
_HYPOTHETICAL = (
    "projected_*", "patched_*", "formula_*", "bytes_if_*", "old_controller_*", "packed_*", "*_if_*",
)  # fmt: skip
"""Amounts under a patch, another memory controller or none."""
_NOT_MEMORY = (*_HYPOTHETICAL, "used_bytes", "*_size")
_SETTINGS = {
    ("kcopyd", "cow_threshold"), ("kcopyd", "bound_per_snapshot"), ("kcopyd", "limit"),
    ("kcopyd", "log_lines"), ("dentries", "buckets"), ("list-lru", "nodes"), _MIRROR,
}  # fmt: skip
_RECLAIMABLE = {
    ("slab", "reclaimable_bytes"), ("slab", "empty_slab_bytes"), ("memcgs", "file_bytes"),
}  # fmt: skip
_SLAB_SHARE = 0.5
"""Least reclaimable share of growth at which the growth of slab memory counts as reclaimable."""


@dataclass(frozen=True)
class Limit:
    """A value that a series cannot exceed."""

    name: str
    """Name in identifiers and tables."""
    value: float
    danger: Danger
    words: str = ""
    """Name in sentences, if it is another one."""
    is_throttle: bool = False
    """Whether tasks only wait at the limit, as they are meant to."""


def limit_of(
    analysis: str, metric: str, unit: str, ram_bytes: float | None, copies: float | None
) -> Limit | None:
    """Return the limit of a series; None without one, and if unknown.

    :param copies: most copies in flight of the series's snapshot
    """
    if (analysis, metric) in _MEMCG_IDS:
        words = "the limit of memory cgroup ids"
        return Limit("memory cgroup ids", MAX_MEMCG_ID, Danger.NONE, words)
    if (analysis, metric) in _COPIES:
        return _threshold(copies) if copies else None
    is_memory = (analysis, metric) not in _WITHOUT_LIMIT and unit == Unit.BYTES.value
    is_memory &= (analysis, metric) == USED or not _matches(metric, _NOT_MEMORY)
    return Limit("RAM", ram_bytes, Danger.OOM, "all of RAM") if is_memory and ram_bytes else None


def _threshold(copies: float) -> Limit:
    return Limit("snapshot_cow_threshold", copies, Danger.NONE, is_throttle=True)


def noun_of(analysis: str, metric: str, unit: str) -> str:
    """Return the name of a series in sentences: ``slab memory``."""
    if noun := (_MEMCG_IDS | _COPIES | _NOUNS).get((analysis, metric)):
        return noun
    if unit != Unit.BYTES.value:
        return metric.replace("_", " ")
    return f"{metric.removesuffix('bytes')}memory".replace("_", " ")


def growth_of(analysis: str, metric: str, unit: str) -> str:
    """Return the name of the growth that a series is a part of.

    Caches, objects, dentries, lists and structures are parts of slab memory, in bytes or as counts;
    so are the amounts of offline memory cgroups, in bytes, and the numbers of memory cgroups and of
    what pins them; and all uses of RAM that the kernel cannot give to others. What is no part of
    another amount is a growth of its own.
    """
    if (analysis, metric) in _MEMCG_IDS or metric in _MEMCGS:
        return _MEMCG_COUNT
    is_bytes = unit == Unit.BYTES.value
    if analysis == MACHINE:
        is_own = (analysis, metric) == TOGETHER or (analysis, metric) in _WITHOUT_LIMIT
        return noun_of(analysis, metric, unit) if is_own else _IN_USE
    if analysis == "memcgs" and not metric.startswith("online_"):
        return _OFFLINE if is_bytes else _MEMCG_COUNT
    if analysis == "kcopyd" and is_bytes and not _matches(metric, _NOT_MEMORY):
        return _KCOPYD
    is_slab = analysis in _SLABS or metric.endswith("structure_bytes")
    return "slab memory" if is_slab else noun_of(analysis, metric, unit)


def container_of(growth: str) -> str:
    """Return the name of the growth that has nearly all bytes of another one; empty without one."""
    return _CONTAINERS.get(growth, "")


def is_available(analysis: str, metric: str) -> bool:
    """Return whether a summary figure is memory that the kernel can give to others."""
    return (analysis, metric) in _WITHOUT_LIMIT


def scope_of(analysis: str, metric: str) -> int:
    """Return how much a summary figure contains: 0 for a part of a growth, 3 for all of RAM."""
    return _WHOLES.get((analysis, metric), 0)


def is_setting(analysis: str, metric: str) -> bool:
    """Return whether a metric is a setting instead of an amount."""
    return (analysis, metric) in _SETTINGS


def is_reclaimable(analysis: str, metric: str, rate: float, reclaimable_rate: float) -> bool:
    """Return whether the kernel can reclaim most of the growth of a series.

    :param reclaimable_rate: growth of the reclaimable slab memory of the host
    """
    if (analysis, metric) in _RECLAIMABLE or analysis == "dentries":
        return True
    is_slab = analysis == "slab" or (analysis, metric) in (TOGETHER, ("memcgs", "kernel_bytes"))
    of_both = is_slab and metric != "unreclaimable_bytes"
    return of_both and reclaimable_rate > 0 and reclaimable_rate >= _SLAB_SHARE * rate


def is_hypothetical(metric: str) -> bool:
    """Return whether a metric is an amount that does not exist."""
    return _matches(metric, _HYPOTHETICAL)


def _matches(metric: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(metric, pattern) for pattern in patterns)


def severity_of(seconds: float) -> Severity | None:
    """Return the severity of reaching a limit in ``seconds``; None if it is not a finding."""
    return next((each for each, latest in DEADLINES.items() if seconds <= latest), None)
