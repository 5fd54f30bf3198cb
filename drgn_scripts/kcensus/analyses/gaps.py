# SPDX-License-Identifier: LGPL-2.1-or-later
"""Gaps of scans of slabs, in the same words for all analyses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.results import Gap, nonzero_gaps


def reasons(*faults: Mapping[str, int]) -> str:
    """Return the distinct reasons for unreadable pages, separated by commas."""
    return ", ".join(sorted({reason for each in faults for reason in each})) or "unreadable"


def scan_gaps(slab_map: SlabMap, report: ScanReport, objects: str = "objects") -> list[Gap]:
    """Return the unread parts of a scan of slabs that hold ``objects`` (a plural)."""
    return nonzero_gaps(*_scan_gaps(slab_map, report, objects))


def _scan_gaps(slab_map: SlabMap, report: ScanReport, objects: str) -> Iterator[Gap]:
    uncounted = f"{objects} in them are not counted"
    effect = f"slabs described there, and the {objects} in them, are not counted"
    for reason, count in sorted(report.memmap.items()):
        yield Gap("struct page array: pages", reason, count, effect)
    for reason, count in sorted(report.slabs.items()):
        yield Gap("slab pages", reason, count, f"{objects} on them are not counted")
    effect = f"caches beyond the tear, and the {objects} in them, are not counted"
    yield Gap("slab_caches list", "torn or unreadable", slab_map.caches_torn, effect)
    reason = "unreadable, or impossible geometry"
    yield Gap("slab caches", reason, slab_map.caches_damaged, uncounted)
    yield Gap("slabs", "impossible counters", report.slabs_invalid, uncounted)
    effect = f"their share of the {objects} may be wrong"
    if report.objects_uncertain:
        effect = f"{report.objects_uncertain:,} free slots are counted as {objects}"
    reason = "the freelist is torn, or contradicts the counters"
    yield Gap("slabs", reason, report.slabs_torn, effect)
    effect = f"free slots on them are counted as {objects}"
    yield Gap("freelists of CPUs, or sheaves", "torn or unreadable", report.lists_lost, effect)
