# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of dentries as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.dentries.census import Census, Counts, Sums
from kcensus.analyses.dentries.chains import Chains
from kcensus.analyses.dentries.children import Children
from kcensus.analyses.dentries.name_patterns import Patterns
from kcensus.analyses.dentries.slabs import Pinning
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.memcg.memcgs import Memcgs
from kcensus.kernel.vfs.dcache import Limit, watched
from kcensus.kernel.vfs.paths import ancestry, resolve
from kcensus.kernel.vfs.super_blocks import MountState, SuperBlocks
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"
UNKNOWN_SUPER_BLOCK = "(unknown super block)"
ORPHANS = "(parents that are not in the dump)"
UNREADABLE_NAMES = "(names that could not be read)"

_TEXT, _COUNT, _BYTES, _RATIO = Unit.TEXT, Unit.COUNT, Unit.BYTES, Unit.RATIO
_NEGATIVE = Column(_COUNT, "negative", Show.ALWAYS)
_UNUSED = Column(_COUNT, "unused", Show.WIDE)
_NEGATIVE_BYTES = Column(_BYTES, "bytes", Show.ALWAYS)


def super_block_table(census: Census, super_blocks: SuperBlocks, slot_size: int) -> Table:
    """Dentries by super block; those that have none are left out, as no root is a dentry then."""
    size = len(super_blocks)
    row = super_blocks.rows(census.super_blocks.key.astype(np.uint64))
    all_of_them = _by_row(census.super_blocks, row + 1, size + 1)
    first = [UNKNOWN_SUPER_BLOCK] if all_of_them.dentries[0] else []
    blank = [""] * len(first)
    sums = Sums(*(column[1 - len(first) :] for column in (all_of_them.key, *all_of_them.columns())))
    negative_bytes = sums.negative * slot_size + sums.external_bytes
    table = Table.of(
        "Dentries by super block",
        {
            "mount": ([*first, *super_blocks.mount], Column(_TEXT, "mounted at", Show.ALWAYS)),
            "type": ([*blank, *super_blocks.type], Column(_TEXT, "type", Show.ALWAYS)),
            "id": ([*blank, *super_blocks.id], Column(_TEXT, "id", Show.WIDE)),
            "device": (
                [*blank, *(super_blocks.device_name(at) for at in range(size))],
                Column(_TEXT, "device", Show.DATA),
            ),
            "state": (
                [*blank, *(state.value for state in super_blocks.state)],
                Column(_TEXT, "state", Show.WIDE),
            ),
            "dentries": (sums.dentries, Column(_COUNT, "dentries", Show.ALWAYS)),
            "negative": (sums.negative, _NEGATIVE),
            "negative_unused": (sums.negative_unused, _UNUSED),
            "negative_bytes": (negative_bytes, _NEGATIVE_BYTES),
            "address": (
                np.concatenate([np.zeros(len(first), np.uint64), super_blocks.address]),
                Column(Unit.ADDRESS, "super_block", Show.DATA),
            ),
        },
    )
    order = ["negative", "dentries", "mount", "type", "id", "device", "address"]
    table.frame = table.frame.sort_values(
        order, ascending=[False, False, *[True] * 5], ignore_index=True
    )
    return table


def _by_row(sums: Sums, row: npt.NDArray[np.int64], size: int) -> Sums:
    """Sums of equal rows together, and zeros for rows that do not occur."""
    columns = (np.bincount(row, column, size).astype(np.int64) for column in sums.columns())
    return Sums(np.arange(size), *columns)


class Directories:
    """Tables of directories, with the paths of those that are shown."""

    def __init__(
        self,
        memory: Memory,
        census: Census,
        found: Children,
        super_blocks: SuperBlocks,
        limit: int,
        slot_size: int,
    ) -> None:
        self.memory = memory
        self.census = census
        self.found = found
        self.super_blocks = super_blocks
        self.limit = limit
        self.slot_size = slot_size
        self.faults = Faults()

    def _paths(self, rows: npt.NDArray[np.int64]) -> tuple[list[str], list[str], Words]:
        """Paths and states of directories, and their addresses."""
        addresses = self.census.slots.address(self.found.slot[rows])
        above = ancestry(self.memory, addresses, self.faults)
        paths = resolve(above, addresses, self.super_blocks.mount_roots)
        roots = dict(zip(self.super_blocks.root.tolist(), self.super_blocks.state, strict=True))
        states = []
        for path in paths:
            state = roots.get(path.root)
            if not path.complete and not path.mounted:
                states.append("unreadable")
            elif path.unhashed:
                states.append("unhashed")
            elif state is not None:
                states.append(state.value)
            else:
                states.append(MountState.MOUNTED.value if path.mounted else "disconnected")
        return [path.text for path in paths], states, addresses

    def most_negative(self) -> Table:
        """Directories by their negative children."""
        found = self.found
        rows = found.most(found.negative, self.limit)
        paths, states, addresses = self._paths(rows)
        negative_bytes = found.negative * self.slot_size + found.external_bytes
        values = [
            found.negative[rows],
            found.negative_unused[rows],
            found.children[rows] - found.negative[rows],
            negative_bytes[rows],
        ]
        rest = np.flatnonzero(found.negative > 0)
        rest = rest[~np.isin(rest, rows)]
        extra: list[tuple[str, list[int]]] = []
        if len(rest):
            sums = [
                found.negative[rest].sum(),
                found.negative_unused[rest].sum(),
                (found.children - found.negative)[rest].sum(),
                negative_bytes[rest].sum(),
            ]
            extra.append((f"({len(rest)} more directories)", [int(value) for value in sums]))
        lost = found.orphans
        if lost.negative.any():
            sums = [
                lost.negative.sum(),
                lost.negative_unused.sum(),
                (lost.dentries - lost.negative).sum(),
                (lost.negative * self.slot_size + lost.external_bytes).sum(),
            ]
            extra.append((ORPHANS, [int(value) for value in sums]))
        columns = [
            np.concatenate([column, [sums[at] for _, sums in extra]]).astype(np.int64)
            for at, column in enumerate(values)
        ]
        share = columns[0] / max(int(columns[0].sum()), 1)
        return Table.of(
            "Negative dentries by directory",
            {
                "directory": (
                    [*paths, *(name for name, _ in extra)],
                    Column(_TEXT, "dir", Show.ALWAYS),
                ),
                "state": ([*states, *[""] * len(extra)], Column(_TEXT, "state", Show.WIDE)),
                "negative": (columns[0], _NEGATIVE),
                "negative_unused": (columns[1], _UNUSED),
                "others": (columns[2], Column(_COUNT, "other children", Show.WIDE)),
                "negative_bytes": (columns[3], _NEGATIVE_BYTES),
                "share": (share, Column(_RATIO, "of all negative", Show.WIDE)),
                "address": (
                    np.concatenate([addresses, np.zeros(len(extra), np.uint64)]),
                    Column(Unit.ADDRESS, "dentry", Show.DATA),
                ),
            },
        )

    def walk_cost(self) -> Table:
        """Directories by what somebody must pass who visits all their children.

        Those with marks come first: that walk is the kernel's own, with a lock held, each time a
        mark on the directory comes or goes (up to kernels that have 172e422ffea2).
        """
        found = self.found
        marked = watched(self.memory, self.census.slots.address(found.slot), self.faults)
        order = np.lexsort((found.slot, -found.children, ~marked))[: self.limit]
        paths, states, addresses = self._paths(order)
        negative = found.negative[order]
        return Table.of(
            "Cost of walking a directory's children, watched directories first",
            {
                "directory": (paths, Column(_TEXT, "dir", Show.ALWAYS)),
                "state": (states, Column(_TEXT, "state", Show.WIDE)),
                "watched": (marked[order], Column(Unit.NONE, "watched", Show.ALWAYS)),
                "children": (found.children[order], Column(_COUNT, "children", Show.ALWAYS)),
                "others": (found.children[order] - negative, Column(_COUNT, "others", Show.WIDE)),
                "negative": (negative, _NEGATIVE),
                "at_tail": (
                    pd.Series((found.sweeps[order] == 0) & ~found.damaged[order]).where(
                        negative > 0, None
                    ),
                    Column(Unit.NONE, "at tail", Show.WIDE),
                ),
                "sweeps": (
                    found.sweeps[order],
                    Column(_COUNT, "stretches before positives", Show.DATA),
                ),
                "damaged": (found.damaged[order], Column(Unit.NONE, "list damaged", Show.DATA)),
                "address": (addresses, Column(Unit.ADDRESS, "dentry", Show.DATA)),
            },
        )


def pattern_table(found: Patterns, unreadable: Counts, limit: int, slot_size: int) -> Table:
    """Negative dentries by what their names have in common.

    :param unreadable: :attr:`Census.names_unreadable`
    """
    count = found.sums[:, 0]
    # More than are shown, so that equally many are in the order of their text.
    edge = np.partition(count, -limit)[-limit] if len(count) > limit else 0
    least = max(int(edge), 1)
    at = np.flatnonzero(count >= least)
    if len(at) > 4 * limit:
        order = np.lexsort((found.key[at], -count[at]))
        at = at[order[: 4 * limit]]
    texts = [found.text(row).decode(errors="backslashreplace") for row in at.tolist()]
    order_ = sorted(range(len(at)), key=lambda row: (-int(count[at[row]]), texts[row]))[:limit]
    rows = at[order_]
    names = [texts[row] for row in order_]
    sums = found.sums[rows]
    # Directories of several patterns are not to be added up: they may be the same.
    directories: list[int | None] = [int(count) for count in found.directories[rows]]
    rest = np.ones(len(count), np.bool_)
    rest[rows] = False
    if rest.any():
        names.append(f"({int(rest.sum())} more patterns)")
        directories.append(None)
        sums = np.concatenate([sums, [found.sums[rest].sum(axis=0)]])
    if unreadable[0]:
        names.append(UNREADABLE_NAMES)
        directories.append(None)
        sums = np.concatenate([sums, [unreadable]])
    share = sums[:, 0] / max(int(sums[:, 0].sum()), 1)
    return Table.of(
        "Negative dentries by name pattern",
        {
            "pattern": (names, Column(_TEXT, "pattern", Show.ALWAYS)),
            "negative": (sums[:, 0], _NEGATIVE),
            "negative_unused": (sums[:, 1], _UNUSED),
            "negative_bytes": (sums[:, 0] * slot_size + sums[:, 2], _NEGATIVE_BYTES),
            "directories": (
                pd.array(directories, dtype="Int64") if None in directories else directories,
                Column(_COUNT, "directories", Show.WIDE),
            ),
            "share": (share, Column(_RATIO, "of all negative", Show.WIDE)),
        },
    )


def memcg_table(census: Census, memcg: Words, groups: Memcgs, slot_size: int) -> Table:
    """Dentries by the memory cgroup they are charged to.

    :param memcg: the ``struct mem_cgroup`` of each row of :attr:`Census.owners`, 0 where unknown
    """
    size = len(groups)
    # Two rows more than there are cgroups: for the unknown, and for none.
    row = np.where(census.owners.key == 0, size + 1, groups.rows(memcg))
    row[row < 0] = size
    sums = _by_row(census.owners, row, size + 2)
    names = [*groups.path, UNKNOWN_MEMCG, NO_MEMCG]
    states = [*("alive" if alive else "dying" for alive in groups.online), "unknown", "none"]
    shown = np.flatnonzero(sums.dentries)
    return Table.of(
        "Dentries by memory cgroup",
        {
            "memcg": ([names[at] for at in shown], Column(_TEXT, "memory cgroup", Show.ALWAYS)),
            "state": ([states[at] for at in shown], Column(_TEXT, "state", Show.ALWAYS)),
            "dentries": (sums.dentries[shown], Column(_COUNT, "dentries", Show.WIDE)),
            "negative": (sums.negative[shown], _NEGATIVE),
            "negative_unused": (sums.negative_unused[shown], _UNUSED),
            "negative_bytes": (
                (sums.negative * slot_size + sums.external_bytes)[shown],
                _NEGATIVE_BYTES,
            ),
        },
    ).largest_first("negative", "memcg")


def chain_tables(found: Chains) -> dict[str, Table]:
    """Hash chains by length, by longest row, and the longest ones."""
    length = np.flatnonzero(found.lengths)
    row = np.flatnonzero(found.rows)
    top = found.longest_buckets
    return {
        "chains": Table.of(
            "Hash chains by length",
            {
                "length": (length, Column(_COUNT, "dentries in chain", Show.ALWAYS)),
                "buckets": (found.lengths[length], Column(_COUNT, "buckets", Show.ALWAYS)),
                "dentries": (
                    length * found.lengths[length],
                    Column(_COUNT, "dentries", Show.ALWAYS),
                ),
                "negative": (found.negative[length], _NEGATIVE),
            },
        ),
        "negative_runs": Table.of(
            "Buckets by their longest row of unreferenced negative dentries",
            {
                "row": (row, Column(_COUNT, "in a row", Show.ALWAYS)),
                "buckets": (found.rows[row], Column(_COUNT, "buckets", Show.ALWAYS)),
            },
        ),
        "longest_chains": Table.of(
            "Longest hash chains",
            {
                "bucket": (top["bucket"], Column(Unit.NONE, "bucket", Show.ALWAYS)),
                "length": (top["length"], Column(_COUNT, "dentries", Show.ALWAYS)),
                "negative": (top["negative"], _NEGATIVE),
                "row": (top["row"], Column(_COUNT, "longest row", Show.ALWAYS)),
            },
        ),
    }


def fragmentation_table(found: Pinning, page_size: int) -> Table:
    """Slabs by how many dentries keep them from being freed."""
    at = np.flatnonzero(found.slabs)
    pages: Counts = found.pages[at]
    return Table.of(
        "Slabs by how many dentries pin them",
        {
            "pinned_by": (at, Column(_COUNT, "pinned by", Show.ALWAYS)),
            "slabs": (found.slabs[at], Column(_COUNT, "slabs", Show.ALWAYS)),
            "pages": (pages, Column(Unit.PAGES, "pages", Show.DATA)),
            "bytes": (pages * page_size, Column(_BYTES, "bytes", Show.ALWAYS)),
            "dentries": (found.dentries[at], Column(_COUNT, "dentries", Show.WIDE)),
            "negative_unused": (
                found.negative_unused[at],
                Column(_COUNT, "unused negative", Show.ALWAYS),
            ),
            "free_slots": (found.free[at], Column(_COUNT, "free slots", Show.WIDE)),
        },
    )


def limit_table(found: Sequence[Limit]) -> Table:
    """The settings of this kernel that bear on how many dentries there are."""
    columns: dict[str, tuple[Any, Column]] = {
        "setting": ([limit.name for limit in found], Column(_TEXT, "setting", Show.ALWAYS)),
        "value": (
            pd.Series([limit.value for limit in found], dtype="int64"),
            Column(Unit.NONE, "value", Show.ALWAYS),
        ),
        "meaning": ([limit.meaning for limit in found], Column(_TEXT, "meaning", Show.WIDE)),
    }
    return Table.of("Limits and settings that this kernel has", columns)
