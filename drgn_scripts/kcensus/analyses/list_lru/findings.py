# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the census of list_lrus means, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import LRUS_PER_MOUNT, Stage, memcgs_at_once
from kcensus.analyses.list_lru.slots import EMPTY
from kcensus.human import human_bytes, human_ratio
from kcensus.results import Finding, Remedy, Severity, ratio

_NOTABLE_BYTES = 1 << 20
_NOTABLE_SHARE = 0.001
_NOTABLE_OFFLINE = 10
_LARGE_SHARE, _HUGE_SHARE = 0.01, 0.05
"""Of RAM."""


def _remedies(text: str) -> tuple[Remedy, ...]:
    return (Remedy(effect=text),) if text else ()


def _memory(size: int | None) -> dict[str, int]:
    return {"list_lru": size} if size else {}


def findings(figures: Figures) -> list[Finding]:
    """Return what is worth acting on."""
    return [
        *_waste_finding(figures),
        *_empty_finding(figures),
        *_offline_finding(figures),
        *_map_finding(figures),
        *_saved_finding(figures),
    ]


def _severity(figures: Figures, size: int) -> Severity:
    share = ratio(size, figures.kernel.ram_bytes)
    if share >= _LARGE_SHARE:
        return Severity.CRITICAL if share >= _HUGE_SHARE else Severity.WARNING
    return Severity.NOTICE if share >= _NOTABLE_SHARE else Severity.INFO


def _of_ram(figures: Figures, size: int) -> str:
    return f"{human_bytes(size)} ({human_ratio(ratio(size, figures.kernel.ram_bytes))} of RAM)"


def _waste_finding(figures: Figures) -> Iterator[Finding]:
    """Up to v5.17: lists for ids that are not in use, on super blocks that need none."""
    ids, slots = figures.ids, figures.slots
    total, needed = figures.measured.total, figures.costs[Stage.XARRAY].total
    if ids.cache_ids is None or total - needed < _NOTABLE_BYTES:
        return
    owners: Counter[str] = Counter()
    for owner, size in zip(figures.lrus.owner, figures.bytes.tolist(), strict=True):
        owners[owner] += size
    largest, most = min(owners.items(), key=lambda item: (-item[1], item[0]))
    per_block = human_bytes(total // max(int(figures.lrus.aware.sum()), 1) * LRUS_PER_MOUNT)
    in_use = int(ids.in_use.sum())
    at_once = max(memcgs_at_once(ids.cache_ids), in_use)
    yield Finding(
        id="list-lru-arrays",
        severity=_severity(figures, total),
        title=(
            f"list_lrus use {_of_ram(figures, total)}: only {sum(map(len, slots.pairs)):,} of "
            f"{int(slots.slots.sum()):,} per-memcg lists are non-empty, and "
            f"{human_bytes(figures.unused_bytes)} belong to ids that no online memcg uses"
        ),
        evidence=(
            f"memcg_nr_cache_ids is {ids.cache_ids:,}: at least {at_once:,} memory cgroups have had an "  # noqa: E501
            f"id at the same time, {in_use:,} have one now. {len(figures.blocks):,} super blocks have "  # noqa: E501
            f"lists for every id, {per_block} per super block; largest owner: {largest} "
            f"({human_bytes(most)})"
        ),
        remedies=_remedies(
            "Unmount file systems that are not needed (umount MOUNTPOINT): the last unmount of each "  # noqa: E501
            f"frees {per_block}. Removing cgroups or dropping caches frees nothing: only a reboot "
            "resets memcg_nr_cache_ids. Update to a kernel that allocates the lists on demand (5.18, "  # noqa: E501
            f"RHEL 9.2, UEK7): there the same load needs {human_bytes(needed)}, or somewhat more"
        ),
        patch=Stage.XARRAY.patch,
        memory=_memory(total - needed),
    )


def _empty_finding(figures: Figures) -> Iterator[Finding]:
    """Since v5.18: lists that were used once and are empty now."""
    slots, size = figures.slots.slots, figures.empty_bytes
    if not figures.lrus.has_xarray or size < _NOTABLE_BYTES:
        return
    yield Finding(
        id="list-lru-empty",
        severity=_severity(figures, size),
        title=f"empty per-memcg lists use {_of_ram(figures, size)}",
        evidence=(
            f"{int(slots[:, EMPTY].sum()):,} of {int(slots.sum()):,} lists are empty: the memory "
            "cgroup, or one below it, has used the file system before"
        ),
        remedies=_remedies(
            "Remove memory cgroups or unmount file systems that are not needed: the lists are freed "  # noqa: E501
            "with either. Dropping caches does not free them"
        ),
        memory=_memory(size),
    )


def _offline_finding(figures: Figures) -> Iterator[Finding]:
    groups = figures.groups
    online = int(groups.online.sum())
    offline = len(groups) - online
    if offline < max(_NOTABLE_OFFLINE, online // 2):
        return
    evidence = "each pins its mem_cgroup and per-CPU counters, which are not measured here"
    maps = int(figures.shrinker_maps.bytes[~groups.online].sum())
    if maps:
        evidence += f"; their shrinker maps use {human_bytes(maps)}"
    if figures.newer is not None:
        evidence += f"; {figures.newer:,} online ones are newer than the oldest offline one"
    yield Finding(
        id="memcgs-offline",
        severity=Severity.NOTICE,
        title=(
            f"{offline:,} of {len(groups):,} memory cgroups are offline (dying): removed, but pinned "  # noqa: E501
            "by what is still charged to them"
        ),
        evidence=evidence,
        remedies=_remedies(
            "Trigger reclaim or delete tmpfs files: dying memcgs are usually pinned by page cache or "  # noqa: E501
            "tmpfs pages. `echo 1 > /proc/sys/vm/drop_caches` drops all clean page cache once, which "  # noqa: E501
            "then has to be read from disk again"
        ),
        memory=_memory(maps),
    )


def _map_finding(figures: Figures) -> Iterator[Finding]:
    size, shrinkers = figures.map_bytes, figures.shrinker_maps.shrinkers
    severity = _severity(figures, size)
    if size < _NOTABLE_BYTES or severity is Severity.INFO:
        return
    room = "" if shrinkers is None else f", with room for {shrinkers:,} shrinkers"
    yield Finding(
        id="memcg-shrinker-maps",
        severity=severity,
        title=f"shrinker maps of memory cgroups use {_of_ram(figures, size)}",
        evidence=(
            f"{len(figures.groups):,} memory cgroups, offline ones included, have a map on each "
            f"of {figures.nodes} nodes{room}; every super block has a shrinker"
        ),
        remedies=_remedies(
            "Remove memory cgroups that are not needed: their maps are freed with them. Unmounting "
            "does not shrink the maps"
        ),
        memory=_memory(size),
    )


def _saved_finding(figures: Figures) -> Iterator[Finding]:
    """Since v5.18: what the arrays before would cost."""
    total, arrays = figures.measured.total, figures.costs[Stage.ARRAYS].total
    if not figures.lrus.has_xarray or arrays - total < _NOTABLE_BYTES:
        return
    yield Finding(
        id="list-lru-saved",
        severity=Severity.INFO,
        title=(
            f"list_lrus use {human_bytes(total)}; with the arrays of kernels up to 5.17, the same "
            f"mounts and memory cgroups would use {human_bytes(arrays)}"
        ),
        evidence=(
            f"memcg_nr_cache_ids would be at least {figures.nr_cache_ids:,}, estimated from the "
            "highest id in use"
        ),
    )
