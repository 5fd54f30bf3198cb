# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about slab caches, and their remedies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcensus.analyses.remedies import at_boot, written
from kcensus.analyses.slab.census import Controller
from kcensus.analyses.slab.figures import Figures
from kcensus.engine.memory import Numbers
from kcensus.human import human_bytes, human_ratio, of_ram
from kcensus.results import Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.severity import severity_of
from kcensus.text import printable

_LARGE_SHARE = 0.25
"""Share of RAM in slab caches from which on they are a warning on any machine, and unreclaimable
ones are critical."""
_MAX_FINDINGS = 5
_WORTH_SHRINKING = 0.1
"""Least share of the excess bytes in empty slabs; with less, shrinking does not help."""
_MAX_NAMED = 3
_ANALYSES = {"dentry": "dentries", "kcopyd_job": "kcopyd"}
"""Analyses that explain the objects of a cache, by its name."""
_SAFE_NAME = re.compile(r"[\w.:+-]+", re.ASCII)
"""Names of caches that can be pasted into a path."""
_LARGE_KMALLOC = "kmalloc pages"
"""Place of kmalloc() pages beyond the slab caches."""
_NOT_WORTH = (
    "Leave it: without this accounting (cgroup.memory=nokmem), containers use kernel memory "
    "without a limit, which so little memory is not worth"
)


def findings(figures: Figures) -> list[Finding]:
    return [
        *_size_finding(figures),
        *_waste_findings(figures),
        *_vector_finding(figures),
        *_child_cache_finding(figures),
    ]


def _places(figures: Figures, size: Numbers) -> dict[str, int]:
    return {f"slab:{figures.caches[at].name}": int(size[at]) for at in np.flatnonzero(size > 0)}


def _largest(figures: Figures, size: Numbers) -> list[int]:
    ids: list[int] = np.argsort(-size, kind="stable")[:_MAX_NAMED].tolist()
    return [id_ for id_ in ids if size[id_] > 0]


def _bytes(**values: int) -> dict[str, Figure]:
    return {name: Figure(value, Unit.BYTES) for name, value in values.items()}


def _counts(**values: int) -> dict[str, Figure]:
    return {name: Figure(value) for name, value in values.items()}


def _size_finding(figures: Figures) -> Iterator[Finding]:
    total, ram = int(figures.bytes.sum()), figures.kernel.ram_bytes
    fixed = int(figures.bytes[~figures.reclaimable].sum())
    if ratio(total, ram) < _LARGE_SHARE:
        return
    named = []
    for id_ in _largest(figures, figures.bytes):
        name = figures.caches[id_].name
        notes = []
        if analysis := _ANALYSES.get(name):
            notes = [f"see `kcensus {analysis} TARGET`"]
        elif name.startswith("kmalloc-"):
            notes = ["see `kcensus slab TARGET --table kmalloc`"]
        if sharers := figures.shared_with(id_):
            notes.append(f"shared with {sharers}")
        note = f" ({'; '.join(notes)})" if notes else ""
        named.append(f"{printable(name)} {human_bytes(figures.bytes[id_])}{note}")
    yield Finding(
        id="slab-size",
        severity=Severity.CRITICAL if ratio(fixed, ram) >= _LARGE_SHARE else Severity.WARNING,
        title=f"slab caches use {of_ram(total, ram)}, {human_bytes(fixed)} of it unreclaimable",
        evidence=f"largest: {', '.join(named)}",
        figures=_bytes(slab_bytes=total, unreclaimable_bytes=fixed, ram_bytes=ram),
        memory=_places(figures, figures.bytes),
        is_generic=True,
        remedies=tuple(_tracing(figures)),
        no_remedy="Find the largest users: `kcensus slab TARGET --table kmalloc`, `kcensus slab "
        "TARGET --table memcgs`",
    )


def _tracing(figures: Figures) -> Iterator[Remedy]:
    """Yield a command to count the allocations of the largest unexplained cache by function."""
    if figures.slab_map.is_slab:
        return  # slub_debug is of SLUB
    size = np.where(figures.reclaimable, 0, figures.bytes)
    for id_ in _largest(figures, size)[:1]:
        name, severity = figures.caches[id_].name, severity_of(size[id_], figures.kernel.ram_bytes)
        is_small = severity is None or severity < Severity.WARNING
        if is_small or name in _ANALYSES or not _SAFE_NAME.fullmatch(name):
            return
        yield Remedy(
            effect=(
                f"Boot with slub_debug=U,{name}, then show the functions that allocate the objects "
                f"of {name}"
            ),
            # Since Linux kernel commit 64dd68497be7 ("mm: slub: move sysfs slab alloc/free
            # interfaces to debugfs") (in v5.14), they are below debugfs.
            command=f"cat /sys/kernel/debug/slab/{name}/alloc_traces "
            f"/sys/kernel/slab/{name}/alloc_calls 2>/dev/null | sort -rn | head",
            risk="objects of this cache get larger, and slower to allocate",
            until="the parameter is removed, and the machine rebooted",
        )


def _waste_findings(figures: Figures) -> Iterator[Finding]:
    """Yield caches whose objects would fit in far fewer slabs.

    Only free slots in slabs that are less than half full count: every cache has a few in each slab,
    and slabs of a smaller order, allocated under pressure, can be full and yet larger than needed.
    """
    excess = np.clip(figures.bytes - figures.packed, 0, figures.sparse_free_bytes)
    ram = figures.kernel.ram_bytes
    for id_ in np.argsort(-excess, kind="stable")[:_MAX_FINDINGS].tolist():
        size = int(excess[id_])
        severity = severity_of(size, ram)
        if severity is None or severity < Severity.NOTICE:
            return
        name, fill = figures.caches[id_].name, figures.fill[id_]
        sparse, slabs, empty = int(fill[:3].sum()), int(fill.sum()), int(fill[0])
        shrinkable = min(int(figures.empty_bytes[id_]), size)
        is_worth = shrinkable >= _WORTH_SHRINKING * size
        if figures.slab_map.is_slab or not is_worth:
            shrinkable = 0
            severity = Severity(severity - 1)  # nothing to do about it
        used, total = int(figures.active_bytes[id_]), int(figures.bytes[id_])
        sharers = figures.shared_with(id_)
        remedies: tuple[Remedy, ...] = ()
        if shrinkable and _SAFE_NAME.fullmatch(name):
            file = f"/sys/kernel/slab/{name}/shrink"
            risk = "CPUs lose their cached free objects: allocations are slower for a moment"
            effect = f"Free the empty slabs of {name}"
            remedies = (written(effect, file, 1, risk=risk, returns=shrinkable, knobs=(file,)),)
        title = (
            f"slab cache {printable(name)} uses {of_ram(size, ram)} more than its objects need: "
            f"objects fill {human_ratio(ratio(used, total))} of its pages"
        )
        yield Finding(
            id=f"slab-waste:{name}",
            severity=severity,
            title=title,
            evidence=(
                f"{human_bytes(total)} of slab pages for {human_bytes(used)} of objects; "
                f"{sparse:,} of {slabs:,} slabs are less than half full, {empty:,} of them empty"
            )
            + (f"; the cache is shared with {sharers}" if sharers else ""),
            figures=_bytes(
                slab_bytes=total, active_bytes=used, excess_bytes=size, empty_bytes=shrinkable
            )
            | _counts(slabs=slabs, slabs_less_than_half_full=sparse, slabs_empty=empty)
            | {
                "share_of_ram": Figure(ratio(size, ram), Unit.RATIO),
                "utilization": Figure(ratio(used, total), Unit.RATIO),
            },
            memory={f"slab:{name}": size},
            is_generic=True,
            remedies=remedies,
            no_remedy=""
            if remedies
            else _no_shrinking(figures, id_, has_empty=is_worth)
            + f"; {empty:,} of {slabs:,} slabs are empty, and a slab is freed only with its last "
            "object",
        )


def _no_shrinking(figures: Figures, cache: int, *, has_empty: bool) -> str:
    if has_empty and figures.slab_map.is_slab:
        return "Wait: SLAB frees empty slabs by itself, some every few seconds"
    if figures.reclaimable[cache]:
        return (
            "Expect little from reclaim: it frees these objects in the order of their last use, so "
            "it empties few slabs"
        )
    return (
        "End the users of the objects (unmount, close files, end processes): only that returns the "
        "pages"
    )


def _no_accounting(figures: Figures, severity: Severity, returns: int) -> dict[str, Any]:
    """Return the remedies and the lack of them of a finding about the price of accounting.

    Containers then use kernel memory without bound: too dear for less than a warning.
    """
    if severity < Severity.WARNING:
        return {"no_remedy": _NOT_WORTH}
    remedy = at_boot(
        figures.kernel.prog,
        "Turn off kernel memory accounting",
        "cgroup.memory=nokmem",
        risk="limits of memory cgroups no longer cover kernel memory, which containers can then "
        "use without bound; memory.stat no longer shows kernel memory",
        returns=returns,
        is_upper_bound=True,
    )
    return {"remedies": (remedy,)}


def _vector_finding(figures: Figures) -> Iterator[Finding]:
    census = figures.census
    total, ram = int(census.idle_vector_bytes.sum()), figures.kernel.ram_bytes
    if (severity := severity_of(total, ram)) is None:
        return
    vectors, idle = int(census.vectors_of.sum()), int(census.idle_vectors_of.sum())
    charged = int(figures.owners["objects"].sum())
    memory = _places(figures, figures.by_root(census.idle_vector_bytes[:-1]))
    if census.idle_vector_bytes[-1]:
        memory[_LARGE_KMALLOC] = int(census.idle_vector_bytes[-1])
    idle_of = figures.by_root(census.idle_vectors_of)
    served = ", ".join(
        f"{printable(figures.caches[id_].name)} {idle_of[id_]:,}"
        for id_ in _largest(figures, idle_of)
    )
    placed = {"stride", "in_object"} & set(figures.slab_map.layout.fields)
    yield Finding(
        id="slab-vectors",
        severity=severity,
        title=f"obj_cgroup vectors without a charged object use {of_ram(total, ram)}",
        evidence=(
            f"{idle:,} of {vectors:,} vectors belong to slabs without a charged object ({served}); "
            f"all slabs have {charged:,} charged objects. A slab gets its vector with its first "
            "charged object, or right away in caches that are always accounted (SLAB_ACCOUNT), and "
            "keeps the vector until the slab is freed"
        ),
        figures=_bytes(idle_vector_bytes=total)
        | _counts(vectors=vectors, vectors_idle=idle, objects_charged=charged),
        memory=memory,
        **_no_accounting(figures, severity, total),
        patch="" if placed else "slab-obj-exts-placement",
    )


def _child_cache_finding(figures: Figures) -> Iterator[Finding]:
    if figures.slab_census.controller is not Controller.PER_CACHE:
        return
    waste, ram = figures.child_bytes - figures.child_active_bytes, figures.kernel.ram_bytes
    total, severity = int(waste.sum()), severity_of(int(waste.sum()), ram)
    if severity is None:
        return
    pages, used = int(figures.child_bytes.sum()), int(figures.child_active_bytes.sum())
    largest = ", ".join(
        f"{printable(figures.caches[id_].name)} {human_bytes(waste[id_])}"
        for id_ in _largest(figures, waste)
    )
    yield Finding(
        id="slab-child-caches",
        severity=severity,
        title=f"child caches of memory cgroups use {human_bytes(pages)} of slab pages for "
        f"{human_bytes(used)} of objects: {human_ratio(ratio(total, ram))} of RAM is unused there",
        evidence=f"{figures.children:,} child caches share no slab pages; most unused bytes: "
        f"{largest}",
        figures=_bytes(child_bytes=pages, child_active_bytes=used, unused_bytes=total)
        | _counts(child_caches=figures.children),
        memory=_places(figures, waste),
        **_no_accounting(figures, severity, total),
        patch="slab-objcg-controller",
    )
