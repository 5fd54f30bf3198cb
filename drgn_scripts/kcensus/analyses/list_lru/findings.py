# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a census of list_lrus means, in sentences."""

from __future__ import annotations

from collections import Counter

from kcensus.analyses.list_lru.census import ListLruCensus
from kcensus.analyses.list_lru.model import LRUS_PER_MOUNT, PATCH, Stage, memcgs_at_once
from kcensus.human import human_bytes, human_ratio
from kcensus.results import Finding, Severity

_NOTABLE_BYTES = 1 << 20
_NOTABLE_SHARE = 0.001
_NOTABLE_DYING = 10
_LARGE_SHARE, _HUGE_SHARE = 0.01, 0.05


def list_lru_findings(census: ListLruCensus, ram: int) -> list[Finding]:
    """All findings.

    :param ram: bytes of it
    """
    return _Findings(census, ram).all()


def _severity(share: float) -> Severity:
    """By the share of RAM."""
    if share >= _HUGE_SHARE:
        return Severity.CRITICAL
    if share >= _LARGE_SHARE:
        return Severity.WARNING
    return Severity.NOTICE if share >= _NOTABLE_SHARE else Severity.INFO


class _Findings:
    def __init__(self, census: ListLruCensus, ram: int) -> None:
        self.census = census
        self.ram = max(ram, 1)
        self.costs = census.projection.costs
        self.now = census.projection.now.total
        self.dead = int(census.slots.dead_bytes.sum())
        self.empty = int(census.slots.empty_bytes.sum())
        self.maps = int(census.shrinker_maps.bytes.sum())
        self.found: list[Finding] = []

    def all(self) -> list[Finding]:
        self._waste_finding()
        self._slots_finding()
        self._dying_finding()
        self._maps_finding()
        self._saved_finding()
        return self.found

    def _share(self, part: int) -> float:
        return part / self.ram

    def _largest_owner(self) -> tuple[str, int]:
        """Of super blocks by type, and others; and the bytes that its list_lrus take."""
        sums: Counter[str] = Counter()
        for owner, size in zip(self.census.lrus.owner, self.census.bytes.tolist(), strict=True):
            sums[owner] += size
        return min(sums.items(), key=lambda item: (-item[1], item[0]))

    def _waste_finding(self) -> None:
        census, ids = self.census, self.census.ids
        total, slots = self.now, int(self.census.slots.slots.sum())
        waste = total - self.costs[Stage.XARRAY].total
        if census.lrus.has_xarray or ids.cache_ids is None or waste < _NOTABLE_BYTES:
            return
        share = self._share(total)
        owner, most = self._largest_owner()
        per_block = total // max(int(census.lrus.aware.sum()), 1) * LRUS_PER_MOUNT
        self.found.append(
            Finding(
                _severity(share),
                f"list_lrus take {human_bytes(total)}, {human_ratio(share)} of RAM; "
                f"{census.slots.holding:,} of {slots:,} lists for memory cgroups hold anything, "
                f"and {human_bytes(self.dead)} are for ids that no online one has",
                f"memcg_nr_cache_ids is {ids.cache_ids:,}: at least "
                f"{memcgs_at_once(ids.cache_ids):,} memory cgroups have had an id at the same "
                f"time, {int(ids.live.sum()):,} have one now. {len(census.blocks):,} super blocks "
                f"have lists for each id, {human_bytes(per_block)} per super block; largest owner: "
                f"{owner} ({human_bytes(most)})",
                "5.18 (RHEL 9.2, UEK7) allocates lists on demand, which leaves "
                f"{human_bytes(self.costs[Stage.XARRAY].total)} or somewhat more. Until then "
                "unmount file systems that are not needed: the last mount of each gives "
                f"{human_bytes(per_block)} back. Removing cgroups and dropping caches gives "
                "nothing back: memcg_nr_cache_ids shrinks only with a reboot",
                patch=PATCH[Stage.XARRAY],
                cost_bytes=waste,
            )
        )

    def _slots_finding(self) -> None:
        """With the XArray, lists that stay behind when they are empty."""
        slots = self.census.slots
        if not self.census.lrus.has_xarray or self.empty < _NOTABLE_BYTES:
            return
        self.found.append(
            Finding(
                _severity(self._share(self.empty)),
                f"empty lists of memory cgroups take {human_bytes(self.empty)}, "
                f"{human_ratio(self._share(self.empty))} of RAM",
                f"{int(slots.empty.sum()):,} of {int(slots.slots.sum()):,}: each is for a file "
                "system that its cgroup, or one below, has used once",
                "they go with their memory cgroup or their mount",
                cost_bytes=self.empty,
            )
        )

    def _dying_finding(self) -> None:
        groups = self.census.groups
        alive = int(groups.alive.sum())
        dying = len(groups) - alive
        if dying < max(_NOTABLE_DYING, alive // 2):
            return
        evidence = "each keeps its mem_cgroup with its per-CPU counters"
        maps = int(self.census.shrinker_maps.bytes[~groups.alive].sum())
        if maps:
            evidence += f", and shrinker maps, {human_bytes(maps)} altogether"
        newer = self.census.newer
        if newer is not None:
            evidence += f"; {newer:,} of those online were created after the oldest dying one"
        self.found.append(
            Finding(
                Severity.NOTICE,
                f"{dying:,} of {len(groups):,} memory cgroups are dying: removed, but kept by "
                "what is charged to them",
                evidence,
                "reclaim, which releases page cache, or removing files from tmpfs: these are most "
                "often what keeps them (up to 5.8 slab objects, too)",
                cost_bytes=maps,
            )
        )

    def _maps_finding(self) -> None:
        share = self._share(self.maps)
        if self.maps < _NOTABLE_BYTES or share < _NOTABLE_SHARE:
            return
        room = self.census.shrinker_maps.shrinkers
        each = "" if room is None else f", with room for {room:,} shrinkers: one a super block"
        self.found.append(
            Finding(
                _severity(share),
                f"shrinker maps of memory cgroups take {human_bytes(self.maps)}, "
                f"{human_ratio(share)} of RAM",
                f"{len(self.census.groups):,} memory cgroups, dying ones included, have one for "
                f"each of {self.census.nodes} nodes{each}",
                "they go with their memory cgroups; unmounting does not shrink them",
                cost_bytes=self.maps,
            )
        )

    def _saved_finding(self) -> None:
        saved = self.costs[Stage.ARRAYS].total - self.now
        if not self.census.lrus.has_xarray or saved < _NOTABLE_BYTES:
            return
        self.found.append(
            Finding(
                Severity.INFO,
                f"list_lrus take {human_bytes(self.now)}; the arrays of kernels up to 5.17 "
                f"would take {human_bytes(self.costs[Stage.ARRAYS].total)} for the same mounts "
                "and memory cgroups",
                f"memcg_nr_cache_ids would be at least {self.census.ids_now:,}, from the highest "
                "id in use now",
            )
        )
