# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a census of slabs means, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.analyses.slab.census import Controller
from kcensus.analyses.slab.figures import Figures
from kcensus.human import human_bytes, human_ratio
from kcensus.results import Finding, Remedy, Severity, ratio

_LARGE_SHARE = 0.25
"""Share of RAM in slab caches that is worth a warning on any machine."""
_NOTABLE_SHARE = 0.05
"""Share of all slab bytes below which the waste of a cache is not a finding."""
_NOTABLE_BYTES = 1 << 20
_GOOD_UTILIZATION = 0.85
"""The best that was measured with memory cgroups before they shared slab pages."""
_MAX_FINDINGS = 5


def _remedies(text: str) -> tuple[Remedy, ...]:
    return (Remedy(effect=text),) if text else ()


def _memory(size: int | None) -> dict[str, int]:
    return {"slab pages": size} if size else {}


def findings(figures: Figures) -> list[Finding]:
    """Return what is worth acting on."""
    return [
        *_size_finding(figures),
        *_waste_findings(figures),
        *_controller_finding(figures),
    ]


def _size_finding(figures: Figures) -> Iterator[Finding]:
    total = int(figures.bytes.sum())
    share = ratio(total, figures.kernel.ram_bytes)
    if share < _LARGE_SHARE:
        return
    largest = np.argsort(figures.bytes)[::-1][:3]
    yield Finding(
        id="slab-size",
        severity=Severity.WARNING,
        title=f"slab caches use {human_bytes(total)} ({human_ratio(share)} of RAM)",
        evidence=(
            "largest: "
            + ", ".join(
                f"{figures.caches[at].name} {human_bytes(figures.bytes[at])}" for at in largest
            )
        ),
        remedies=_remedies(
            "Look up the owners of the objects: `kcensus slab --table memcgs --table memcg_caches`"
        ),
        memory=_memory(total),
    )


def _waste_findings(figures: Figures) -> Iterator[Finding]:
    waste = figures.bytes - figures.active_bytes
    least = max(_NOTABLE_SHARE * int(figures.bytes.sum()), _NOTABLE_BYTES)
    for id_ in np.argsort(waste)[::-1][:_MAX_FINDINGS]:
        utilization = ratio(int(figures.active_bytes[id_]), int(figures.bytes[id_]))
        if waste[id_] < least or utilization > _GOOD_UTILIZATION:
            continue
        name, fill = figures.caches[id_].name, figures.fill[id_]
        sparse, slabs, empty = int(fill[:3].sum()), int(fill.sum()), int(fill[0])
        remedy = (
            f"Run `echo 1 > /sys/kernel/slab/{name}/shrink`: it frees the {empty:,} empty slabs"
            if empty
            else "No safe remedy: no slab is empty, and a slab is freed only with its last object"
        )
        yield Finding(
            id=f"slab-waste:{name}",
            severity=Severity.NOTICE,
            title=(
                f"cache {name} is {human_ratio(utilization)} utilized: "
                f"{human_bytes(int(waste[id_]))} of {human_bytes(int(figures.bytes[id_]))} "
                "hold no object"
            ),
            evidence=f"{sparse:,} of its {slabs:,} slabs are less than half full, {empty:,} are empty",  # noqa: E501
            remedies=_remedies(remedy),
            memory=_memory(int(waste[id_])),
        )


def _controller_finding(figures: Figures) -> Iterator[Finding]:
    extra = figures.old_controller_bytes - figures.packed_bytes
    if extra < max(_NOTABLE_BYTES, _NOTABLE_SHARE * figures.packed_bytes):
        return
    need = (
        f"the objects of this dump need {human_bytes(figures.packed_bytes)} packed together, and "
        f"{human_bytes(figures.old_controller_bytes)} packed by memory cgroup"
    )
    if figures.slab_census.controller is Controller.PER_CACHE:
        yield Finding(
            id="slab-child-caches",
            severity=Severity.WARNING,
            title=(
                "each memory cgroup has slab pages of its own, which costs "
                f"{human_bytes(extra)} even with all slabs packed full"
            ),
            evidence=f"{len(figures.caches) - len(figures.roots)} child caches; {need}",
            remedies=_remedies(
                "Update to a kernel that shares slab pages between memory cgroups (5.9 and later)"
            ),
            patch="slab-objcg-controller",
            memory=_memory(extra),
        )
    elif figures.slab_census.controller is Controller.PER_OBJECT:
        vectors = human_bytes(int(figures.census.vector_bytes.sum()))
        yield Finding(
            id="slab-sharing",
            severity=Severity.INFO,
            title=(
                "sharing slab pages between memory cgroups, as this kernel does, saves "
                f"{human_bytes(extra)} with all slabs packed full"
            ),
            evidence=f"{need}; the obj_cgroup vectors for it use {vectors}",
        )
