# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every scan of slabs may have missed, in the same words for all analyses."""

from __future__ import annotations

from collections.abc import Mapping

from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.results import Gap, nonzero_gaps


def reasons(*faults: Mapping[str, int]) -> str:
    """Return why pages could not be read, each reason once."""
    return ", ".join(sorted({reason for each in faults for reason in each})) or "unreadable"


def scan_gaps(slab_map: SlabMap, report: ScanReport, objects: str = "objects") -> list[Gap]:
    """Return what a scan of slabs could not read or make sense of.

    :param report: of the scan
    :param objects: what the slabs hold, in the plural
    """
    return nonzero_gaps(
        *(
            Gap(
                "struct page array: pages",
                reason,
                count,
                f"slabs described there, and the {objects} in them, are not counted",
            )
            for reason, count in sorted(report.memmap.items())
        ),
        *(
            Gap("slab pages", reason, count, f"{objects} on them are not counted")
            for reason, count in sorted(report.slabs.items())
        ),
        Gap(
            "slab_caches list",
            "torn or unreadable",
            slab_map.caches_torn,
            f"caches behind the tear, and the {objects} in them, are not counted",
        ),
        Gap(
            "slab caches",
            "unreadable, or of an impossible geometry",
            slab_map.caches_damaged,
            f"{objects} in them are not counted",
        ),
        Gap(
            "slabs",
            "their counters are impossible",
            report.slabs_invalid,
            f"{objects} in them are not counted",
        ),
        Gap(
            "slabs",
            "their freelists are torn, or contradict their counters",
            report.slabs_torn,
            f"{report.objects_uncertain:,} free slots are counted as {objects}"
            if report.objects_uncertain
            else f"their share of the {objects} may be wrong",
        ),
        Gap(
            "freelists of CPUs, or sheaves",
            "torn or unreadable",
            report.lists_lost,
            f"free slots on them are counted as {objects}",
        ),
    )
