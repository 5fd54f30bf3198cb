# SPDX-License-Identifier: LGPL-2.1-or-later
"""What growing figures run into, and from when on that is a finding.

Bytes of memory can at most fill RAM; other users of memory make the time until then shorter.
Amounts under a patch or another setting, and space on disks, are not memory and have no limit here.
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
"""Seconds to the limit up to which growth is this severe; later is not a finding.

For memory, this is a share of RAM, too: what fills it within a day, a week or 30 days grows by
100 %, 14 % or 3 % of it per day.
"""
MAX_EXTRAPOLATION = 10
"""Times the span of a series; a limit farther ahead is a finding for information only. Caches that
fill after a boot, and what a batch job needs, grow for a short time."""
REACHED = 0.98
"""Share of its limit from which on a series has reached it."""

MAX_MEMCG_ID = 65535
"""MEM_CGROUP_ID_MAX of mm/memcontrol.c."""
_MEMCG_IDS = {("list-lru", "ids_in_use"), ("list-lru", "nr_cache_ids"), ("memcgs", "memcgs_online")}
_HYPOTHETICAL = (
    "projected_*", "patched_*", "formula_*", "bytes_if_*", "old_controller_*", "packed_*", "*_if_*",
)  # fmt: skip
"""What there would be under a patch, another memory controller or none."""
_NOT_MEMORY = (*_HYPOTHETICAL, "used_bytes", "*_size")


_SETTINGS = {
    ("kcopyd", "cow_threshold"), ("kcopyd", "bound_per_snapshot"), ("kcopyd", "limit"),
    ("kcopyd", "log_lines"), ("dentries", "buckets"), ("list-lru", "nodes"),
}  # fmt: skip
_RECLAIMABLE = {
    ("slab", "reclaimable_bytes"), ("slab", "empty_slab_bytes"), ("memcgs", "file_bytes"),
}  # fmt: skip
_SLAB_SHARE = 0.5
"""Of the growth of slab memory that reclaimable one must be, for it to be reclaimable, too."""


@dataclass(frozen=True)
class Limit:
    """A value that a series cannot exceed."""

    name: str
    value: float
    danger: Danger


def limit_of(
    analysis: str, metric: str, unit: str, ram_bytes: float | None, copies: float | None
) -> Limit | None:
    """Return the limit of a series; None if it has none, or that is unknown.

    :param copies: the copies that the snapshot of the series may have in flight
    """
    if (analysis, metric) in _MEMCG_IDS:
        return Limit("memory cgroup ids", MAX_MEMCG_ID, Danger.NONE)
    if (analysis, metric) == ("kcopyd", "in_flight"):
        return Limit("snapshot_cow_threshold", copies, Danger.STALL) if copies else None
    is_memory = unit == Unit.BYTES.value and not _matches(metric, _NOT_MEMORY)
    return Limit("RAM", ram_bytes, Danger.OOM) if is_memory and ram_bytes else None


def is_setting(analysis: str, metric: str) -> bool:
    """Return whether a metric is not an amount of what exists, but set by someone."""
    return (analysis, metric) in _SETTINGS


def is_reclaimable(analysis: str, metric: str, rate: float, reclaimable_rate: float) -> bool:
    """Return whether the kernel can take back most of what a series grows by.

    :param reclaimable_rate: of the reclaimable slab memory of the host
    """
    if (analysis, metric) in _RECLAIMABLE or analysis == "dentries":
        return True
    is_slab = analysis == "slab" or (analysis, metric) == ("memcgs", "kernel_bytes")
    of_both = is_slab and metric != "unreclaimable_bytes"
    return of_both and reclaimable_rate > 0 and reclaimable_rate >= _SLAB_SHARE * rate


def is_hypothetical(metric: str) -> bool:
    """Return whether a metric is an amount that does not exist."""
    return _matches(metric, _HYPOTHETICAL)


def _matches(metric: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(metric, pattern) for pattern in patterns)


def severity_of(seconds: float, span: float) -> Severity | None:
    """Return how severe it is that a limit is reached so soon; None if it is not a finding.

    :param seconds: until the limit
    :param span: seconds that the trend was observed
    """
    severity = next((each for each, latest in DEADLINES.items() if seconds <= latest), None)
    is_far = seconds > MAX_EXTRAPOLATION * span
    return Severity.INFO if severity is not None and is_far else severity
