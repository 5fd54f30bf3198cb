# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about list_lrus, with remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import LRUS_PER_MOUNT, Stage, memcgs_at_once
from kcensus.analyses.list_lru.slots import EMPTY, LISTS, NODE_ARRAYS, POINTERS, XA_NODES
from kcensus.human import human_bytes, of_ram
from kcensus.results import Figure, Finding, Remedy, Unit
from kcensus.results.severity import severity_of
from kcensus.text import printable

_MAX_UNMOUNTS = 10
"""Most unmounts to free all the memory; with more, unmounting is the second remedy."""


def findings(figures: Figures) -> list[Finding]:
    return [*_arrays(figures), *_empty(figures)]


def _places(figures: Figures, *kinds: str) -> Counter[str]:
    return figures.tally.places(figures.kernel.slab_map, "list_lru arrays", *kinds)


def _arrays(figures: Figures) -> Iterator[Finding]:
    ids, slots, ram = figures.ids, figures.slots, figures.kernel.ram_bytes
    total, needed = figures.measured.total, figures.costs[Stage.XARRAY].total
    severity = severity_of(total - needed, ram)
    if ids.cache_ids is None or severity is None:
        return
    owners: Counter[str] = Counter()
    for owner, size in zip(figures.lrus.owner, figures.bytes.tolist(), strict=True):
        owners[owner] += size
    largest, most = min(owners.items(), key=lambda item: (-item[1], item[0]))
    aware = int(figures.lrus.aware.sum())
    per_block = total // max(aware, 1) * LRUS_PER_MOUNT
    in_use, busy = int(ids.in_use.sum()), sum(map(len, slots.pairs))
    at_once = max(memcgs_at_once(ids.cache_ids), in_use)
    size = Unit.BYTES
    yield Finding(
        id="list-lru-arrays",
        severity=severity,
        title=(
            f"list_lrus use {of_ram(total, ram)}: {busy:,} of "
            f"{int(slots.slots.sum()):,} per-memcg lists are non-empty, and "
            f"{human_bytes(figures.unused_bytes)} belong to ids that no online memcg uses"
        ),
        evidence=(
            f"memcg_nr_cache_ids is {ids.cache_ids:,}: at least {at_once:,} memory cgroups have "
            f"had an id at the same time, {in_use:,} have an id now; {len(figures.blocks):,} super "
            f"blocks have lists for every id, {human_bytes(per_block)} each; largest owner: "
            f"{printable(largest)} ({human_bytes(most)}); allocated on demand, as since 5.18, the "
            f"same lists would use {human_bytes(needed)}"
        ),
        figures={
            "bytes": Figure(total, size),
            "lists": Figure(int(slots.slots.sum())),
            "lists_in_use": Figure(busy),
            "unused_id_bytes": Figure(figures.unused_bytes, size),
            "nr_cache_ids": Figure(ids.cache_ids),
            "memcgs_at_once": Figure(at_once),
            "ids_in_use": Figure(in_use),
            "super_blocks": Figure(len(figures.blocks)),
            "bytes_per_super_block": Figure(per_block, size),
            "bytes_on_demand": Figure(needed, size),
        },
        memory=_places(figures, NODE_ARRAYS, POINTERS, LISTS, XA_NODES),
        remedies=tuple(_remedies(figures, total, per_block)),
        no_remedy="Dropping caches or removing cgroups returns nothing",
        patch=Stage.XARRAY.patch,
    )


def _remedies(figures: Figures, total: int, per_block: int) -> list[Remedy]:
    remedies = [*_unmount(figures, per_block), *_reboot(figures, total)]
    return remedies if per_block * _MAX_UNMOUNTS >= total else remedies[::-1]


def _unmount(figures: Figures, per_block: int) -> Iterator[Remedy]:
    if per_block:
        yield Remedy(
            effect=(
                f"Unmount unneeded file systems ({len(figures.blocks):,} have such lists): the "
                f"last unmount of each returns {human_bytes(per_block)}; `kcensus list-lru TARGET "
                "--table super_blocks` lists the mounts"
            ),
            risk="the files of these file systems are inaccessible until the next mount",
            returns=per_block,
        )


def _reboot(figures: Figures, total: int) -> Iterator[Remedy]:
    ids, shrunk = figures.needed
    if ids is None or shrunk is None:
        return
    if (returns := total - shrunk - figures.measured.node_arrays) <= 0:
        return
    yield Remedy(
        effect=(
            f"Reboot: memcg_nr_cache_ids starts at 0; with at most {ids:,} memory cgroups at the "
            f"same time, the same mounts need {human_bytes(total - returns)}"
        ),
        risk="downtime",
        until="more memory cgroups exist at once",
        returns=returns,
        is_upper_bound=True,
    )


def _empty(figures: Figures) -> Iterator[Finding]:
    slots, size = figures.slots.slots, figures.empty_bytes
    severity = severity_of(size, figures.kernel.ram_bytes)
    if not figures.lrus.has_xarray or severity is None:
        return
    places = _places(figures, LISTS)
    yield Finding(
        id="list-lru-empty",
        severity=severity,
        title=f"empty per-memcg lists use {of_ram(size, figures.kernel.ram_bytes)}",
        evidence=(
            f"{int(slots[:, EMPTY].sum()):,} of {int(slots.sum()):,} lists are empty: their "
            "memory cgroups, or descendants, used the file system earlier"
        ),
        figures={
            "bytes": Figure(size, Unit.BYTES),
            "lists": Figure(int(slots.sum())),
            "lists_empty": Figure(int(slots[:, EMPTY].sum())),
        },
        # Nearly always they are all of one cache.
        memory={places.most_common(1)[0][0]: size},
        no_remedy=(
            "Remove unneeded cgroups or unmount unneeded file systems: only that frees the lists, "
            "dropping caches does not. `kcensus list-lru TARGET --table super_blocks` lists the "
            "mounts"
        ),
    )
