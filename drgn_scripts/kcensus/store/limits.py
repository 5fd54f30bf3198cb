# SPDX-License-Identifier: LGPL-2.1-or-later
"""What growing figures run into, and from when on that is a finding.

A series of bytes can at most have all RAM; other users of memory make its time shorter. Figures of
what a patch or another setting would need are not memory, and have no limit.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kcensus.results import Danger, Severity, Unit

_HOUR = 3600.0
_DAY = 24 * _HOUR
DEADLINES: Mapping[Severity, float] = MappingProxyType(
    {Severity.CRITICAL: _DAY, Severity.WARNING: 7 * _DAY, Severity.NOTICE: 30 * _DAY}
)
"""Seconds to the limit up to which growth is this severe; later is not a finding.

For memory, this is a share of RAM, too: what fills it within a day, a week or 30 days grows by
100 %, 14 % or 3 % of it per day.
"""
MAX_EXTRAPOLATION = 100
"""Times the span of a series; a limit farther ahead is a finding for information only."""

MAX_MEMCG_ID = 65535
"""MEM_CGROUP_ID_MAX of mm/memcontrol.c."""
_UNLIMITED = 1 << 31
"""snapshot_cow_threshold from which on it does not limit: 0 and -1 are "unlimited", too."""


@dataclass(frozen=True)
class Limit:
    """A value that a series cannot exceed."""

    name: str
    value: float
    danger: Danger


def limit_of(
    analysis: str, part: str, metric: str, unit: str, others: Mapping[tuple[str, str], float]
) -> Limit | None:
    """Return the limit of a series; None if it has none, or that is unknown.

    :param others: the latest figures of the summaries of the host, by analysis and key; its RAM is
        ``("", "ram_bytes")``
    """
    if (analysis, metric) in _MEMCG_IDS:
        return Limit("memory cgroup ids", MAX_MEMCG_ID, Danger.NONE)
    if (analysis, part, metric) == ("kcopyd", "snapshots", "in_flight"):
        threshold = others.get(("kcopyd", "cow_threshold"), 0)
        bounded = 0 < threshold < _UNLIMITED
        return Limit("snapshot_cow_threshold", threshold, Danger.STALL) if bounded else None
    ram = others.get(("", "ram_bytes"), 0)
    is_memory = unit == Unit.BYTES.value and not any(
        fnmatch.fnmatchcase(metric, pattern) for pattern in _NOT_MEMORY
    )
    return Limit("RAM", ram, Danger.OOM) if is_memory and ram else None


_MEMCG_IDS = {("list-lru", "ids_in_use"), ("list-lru", "nr_cache_ids"), ("memcgs", "memcgs_online")}
_NOT_MEMORY = (
    "projected_*", "patched_*", "formula_*", "bytes_if_*", "old_controller_*", "packed_*",
    "saved_*", "*_size",
)  # fmt: skip
"""Amounts under a patch, another memory controller or none, and sizes of one object."""


def severity_of(seconds: float, span: float) -> Severity | None:
    """Return how severe it is that a limit is reached so soon; None if it is not a finding.

    :param seconds: until the limit
    :param span: seconds that the trend was observed
    """
    severity = next((each for each, latest in DEADLINES.items() if seconds <= latest), None)
    is_far = seconds > MAX_EXTRAPOLATION * span
    return Severity.INFO if severity is not None and is_far else severity
