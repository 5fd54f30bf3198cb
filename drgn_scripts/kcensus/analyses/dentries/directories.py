# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories by the number, kind and order of their children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.dentries.census import DentryCensus
from kcensus.analyses.dentries.columns.bits import KIN_BITS, KIN_NEGATIVE, KIN_POSITIVE
from kcensus.analyses.dentries.columns.tally import Sums
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import rows_of
from kcensus.engine.workers import Columns, each
from kcensus.kernel.vfs.dcache import watched
from kcensus.kernel.vfs.files import OpenPaths
from kcensus.kernel.vfs.paths import ancestry, resolve
from kcensus.kernel.vfs.super_blocks import MountState, SuperBlocks
from kcensus.results.tables import ratios

ORPHANS = "(parents that are not in the dump)"
_MAX_WALKS = 100
"""Numbers of the table of directories by children: the longest walks and watched directories."""
_MAX_DEPTH = 4096
"""A longer chain of parents is damage."""
_MAX_USED = 20
_USED_SHARE, _USED_LEAST = 0.01, 100
"""Least share and number of negative dentries of a directory whose processes are looked for."""
_MANY = 1 << 24
"""Slots from which on worker processes pay: a look takes 10 ns per slot."""
_BLOCK = 1 << 17
"""Slots to look at together: their columns stay in the processor's cache."""


class Directories:
    """Dentries that have children in the dentry cache, as columns by ascending slot."""

    def __init__(self, census: DentryCensus, super_blocks: SuperBlocks, limit: int) -> None:
        self.census = census
        self.super_blocks = super_blocks
        self.limit = limit
        sums = census.sums("directory")
        self.sums = sums[sums.key >= 0]
        """Children: names, readdir cursors, and dentries in lookup."""
        self.orphans = sums[sums.key < 0]
        """Dentries whose parent is not a dentry of the census: one row or none."""
        self.slot: Numbers = self.sums.key.astype(np.int64)
        self.faults = Faults()

    def _places(self, rows: Numbers, more: Sequence[str] = ()) -> pd.DataFrame:
        """Return path, state and address of directories, followed by the rows named in ``more``."""
        address = self.census.slots.address(self.slot[rows])
        above = ancestry(self.census.memory, address, self.faults)
        paths = resolve(above, address, self.super_blocks.mount_roots)
        roots = dict(zip(self.super_blocks.root.tolist(), self.super_blocks.state, strict=True))
        states = []
        for path in paths:
            state = MountState.MOUNTED.value if path.mounted else "disconnected"
            if not path.complete and not path.mounted:
                state = "unreadable"
            elif path.unhashed:
                state = "unhashed"
            elif path.root in roots:
                state = roots[path.root].value
            states.append(state)
        return pd.DataFrame(
            {
                "directory": [*(path.text for path in paths), *more],
                "state": states + [""] * len(more),
                "address": np.append(address, np.zeros(len(more), np.uint64)),
            }
        )

    def most_negative(self) -> pd.DataFrame:
        """Return the directories with most negative children; the last rows sum the others."""
        order = np.argsort(-self.sums.values[1], kind="stable")
        order = order[: np.count_nonzero(self.sums.values[1])]
        rows, rest = order[: self.limit], order[self.limit :]
        remainders = {f"({len(rest)} more directories)": self.sums[rest], ORPHANS: self.orphans}
        more = {name: part.values.sum(axis=1) for name, part in remainders.items()}
        more = {name: values for name, values in more.items() if values[1]}
        values = np.column_stack([self.sums.values[:, rows], *more.values()])
        columns = Sums(np.arange(values.shape[1]), values).columns(self.census.slot_size)
        return self._places(rows, list(more)).assign(
            **columns,
            others=columns["dentries"] - columns["negative"],
            share=ratios(columns["negative"], columns["negative"].sum()),
        )

    def walk_cost(self) -> pd.DataFrame:
        """Return the directories whose children take longest to visit.

        Watched directories come first; directories on super blocks without a path come last.
        """
        children, negative = self.sums.values[:2]
        address = self.census.slots.address(self.slot)
        marked = watched(self.census.memory, address, self.faults)
        hidden = self._hidden(address)
        rows = np.lexsort((self.slot, -children, hidden, ~marked))[: min(self.limit, _MAX_WALKS)]
        sweeps, damaged = (column[rows] for column in self.order)
        at_tail = pd.Series((sweeps == 0) & ~damaged).where(negative[rows] > 0, None)
        return self._places(rows).assign(
            watched=marked[rows],
            children=children[rows],
            others=(children - negative)[rows],
            negative=negative[rows],
            at_tail=at_tail,
            sweeps=sweeps,
            damaged=damaged,
        )

    def processes(self, directories: pd.DataFrame, paths: OpenPaths) -> pd.DataFrame:
        """Return the processes that use directories or descendants, and may look up names there.

        A use counts for the nearest of ``directories``, a table of :meth:`most_negative`, except
        the root of the tree, which is above every process.
        """
        listed = directories[
            (directories["share"] >= _USED_SHARE)
            & (directories["negative"] >= _USED_LEAST)
            & (directories["address"] != 0)
            & (directories["directory"] != "/")
        ].head(_MAX_USED)
        address = listed["address"].to_numpy(np.uint64)
        dentry, use = np.unique(paths.dentry, return_inverse=True)
        above = ancestry(self.census.memory, dentry, self.faults)
        own = rows_of(address, above.address, np.argsort(address))
        nearest, row = np.full(len(dentry), -1), above.rows(dentry)
        for _ in range(_MAX_DEPTH):
            alive = (row >= 0) & (nearest < 0)
            if not alive.any():
                break
            nearest[alive] = own[row[alive]]
            parent = above.parent[row]
            row = np.where(alive & (parent != row), parent, -1)
        uses = pd.DataFrame(
            {
                "row": nearest[use],
                "process": paths.process,
                "cwd": ~paths.is_file,
                "open_files": paths.is_file.astype(np.int64),
            }
        )
        groups = uses[uses["row"] >= 0].groupby(["row", "process"], as_index=False)
        frame: pd.DataFrame = groups.agg({"cwd": "any", "open_files": "sum"})
        process = frame["process"].to_numpy(np.int64)
        frame = frame.assign(
            directory=listed["directory"].to_numpy()[frame["row"]],
            pid=paths.pid[process],
            comm=[paths.comm[each] for each in process.tolist()],
            address=paths.task[process],
        )
        order = ["row", "cwd", "open_files", "pid"]
        frame = frame.sort_values(order, ascending=[True, False, False, True])
        return frame.head(self.limit)

    def _hidden(self, address: Words) -> Mask:
        member = layout(self.census.memory.prog, "struct dentry", {"super_block": "d_sb"})
        read = gather(self.census.memory, address, member, self.faults)
        reached = (MountState.MOUNTED, MountState.ELSEWHERE)
        # The last element is for an unknown super block.
        hidden = np.array([state not in reached for state in self.super_blocks.state] + [True])
        return hidden[self.super_blocks.rows(read["super_block"])]

    @cached_property
    def order(self) -> tuple[Numbers, Mask]:
        """Order of the children on the list of each directory; needs the census's siblings.

        First how often a positive dentry follows a negative one: 0 means that all negatives are at
        the tail. Then whether the list is damaged: a list is sound if each child but one has a
        successor of the same parent, and no two children the same one.
        """
        census = self.census
        slots = len(census.slots)
        sweeps, ends, bad = (np.zeros(len(self.slot), np.int64) for _ in range(3))
        jobs = census.memory.jobs if slots >= _MANY else 1
        reached = Columns({"": np.dtype(np.bool_)}, slots, shared=jobs > 1)[""]
        reached[:] = False

        def look(task: int) -> list[npt.NDArray[Any]]:
            children = self._successors(task * _BLOCK)
            reached[children.successor] = True
            swept = (children.kin & KIN_NEGATIVE) != 0
            swept &= (children.beyond & KIN_POSITIVE) != 0
            parents = children.kin[swept] >> KIN_BITS
            return [np.array([len(swept)]), children.last, children.astray, parents]

        visited = 0
        for (count,), last, astray, swept in each(look, -(-slots // _BLOCK), jobs):
            visited += int(count)
            for counts, parents in ((ends, last), (bad, astray), (sweeps, swept)):
                self._tally(counts, parents)
        if visited != np.count_nonzero(reached):
            self._tally(bad, self._repeated())
        return sweeps, (ends != 1) | (bad > 0)

    def _successors(self, start: int) -> _Children:
        block = slice(start, start + _BLOCK)
        kin, successor = self.census.kin[block], self.census.sibling[block]
        # A list of list_heads ends in its head, which is in the parent, not where a dentry starts.
        is_last, listed = successor < 0, kin >= 0
        last = kin[listed & is_last] >> KIN_BITS
        listed &= ~is_last
        if not listed.all():
            kin, successor = kin[listed], successor[listed]
        beyond = self.census.kin[successor]
        astray = (beyond >> KIN_BITS) != (kin >> KIN_BITS)
        strays = kin[astray] >> KIN_BITS
        if len(strays):
            kin, successor, beyond = kin[~astray], successor[~astray], beyond[~astray]
        return _Children(kin, successor, beyond, last, strays)

    def _repeated(self) -> Numbers:
        """Return the parents of children whose successor is that of another one, too."""
        counts = np.zeros(len(self.census.slots), np.uint8)
        starts = range(0, len(counts), _BLOCK)
        for start in starts:
            slots, number = np.unique(self._successors(start).successor, return_counts=True)
            counts[slots] = np.minimum(counts[slots] + np.minimum(number, 2), 2)
        parts = [self._successors(start) for start in starts]
        return np.concatenate([each.kin[counts[each.successor] > 1] for each in parts]) >> KIN_BITS

    def _tally(self, counts: Numbers, parents: npt.NDArray[Any]) -> None:
        if len(parents):
            slots, number = np.unique(parents, return_counts=True)
            counts[np.searchsorted(self.slot, slots)] += number


@dataclass(frozen=True)
class _Children:
    """Children whose next sibling is one, too."""

    kin: npt.NDArray[Any]
    successor: npt.NDArray[Any]
    """Slot of the next sibling."""
    beyond: npt.NDArray[Any]
    """Kin of the next sibling."""
    last: npt.NDArray[Any]
    """Parents of the last children of their lists."""
    astray: npt.NDArray[Any]
    """Parents of children that lead to no child of the same parent."""
