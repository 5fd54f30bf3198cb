# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dentries and all that stand above them, with their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.strings import c_strings

_DEEPEST = 4096
"""No path is that deep: a longer chain of parents is damage."""

_MEMBERS = {
    "parent": "d_parent",
    # 7.0 put a const d_name and a __d_name into an anonymous union.
    "name": "d_name.name",
    "pprev": "d_hash.pprev",
}


@dataclass(frozen=True)
class Ancestry:
    """Some dentries and all their ancestors as columns, in ascending order of address."""

    address: Words
    parent: npt.NDArray[np.int64]
    """Row of the parent: its own for a root, -1 where the dentry or its parent is unreadable."""
    name: list[str]
    """Valid Unicode but not safe to print: bytes that are no UTF-8 stand as ``\\xff``."""
    hashed: Mask
    """In the hash table, where lookups find it; a removed directory is not."""

    def rows(self, addresses: Words) -> npt.NDArray[np.int64]:
        """Rows of ``struct dentry`` pointers, -1 for unknown ones."""
        return rows_of(self.address, addresses)

    def up(self, row: int) -> Iterator[int]:
        """Rows from one dentry up to its root, or as far as could be read; a cycle ends it."""
        seen: set[int] = set()
        while row >= 0 and row not in seen:
            seen.add(row)
            yield row
            row = int(self.parent[row])

    def is_root(self, row: int) -> bool:
        """Whether a dentry is its own parent: the root of a super block, or disconnected."""
        return bool(self.parent[row] == row)


@dataclass(frozen=True)
class Path:
    """Where a dentry is."""

    text: str
    """From the root of init's namespace; where that does not lead there, from as far up as is
    known. Valid Unicode but not safe to print."""
    unhashed: bool
    """It or one above it is in no hash chain: no lookup finds it, it has been removed."""
    root: int
    """Address of the topmost dentry."""
    mounted: bool
    """Whether the path begins at a mount."""
    complete: bool
    """Whether the topmost is a root; if not, what is above it could not be read."""


def resolve(found: Ancestry, dentries: Words, mount_roots: Mapping[int, str]) -> list[Path]:
    """Paths of dentries, through mounts.

    :param found: with these dentries and all above them
    :param mount_roots: paths of mounts, by the dentry that each shows at its root
    """
    paths = []
    for row in found.rows(dentries).tolist():
        names: list[str] = []
        prefix, below = "", -1
        unhashed, root, complete = False, 0, False
        for at in found.up(row):
            root = int(found.address[at])
            mount = mount_roots.get(root)
            if mount is not None:
                # The topmost counts: of a whole file system rather than of a part of it.
                prefix, below = mount, len(names)
            complete = found.is_root(at)
            if not complete and found.parent[at] >= 0:
                unhashed |= not found.hashed[at]
                names.append(found.name[at])
        mounted = below >= 0
        shown = names[:below] if mounted else names
        text = prefix.rstrip("/") + "".join(f"/{name}" for name in reversed(shown))
        lost = "" if complete or mounted else "?"
        paths.append(Path(lost + text or "/", unhashed, root, mounted, complete))
    return paths


def rows_of(ascending: Words, addresses: Words) -> npt.NDArray[np.int64]:
    """Where addresses stand in an ascending array, -1 for those that do not."""
    if not len(ascending):
        return np.full(len(addresses), -1)
    at = np.searchsorted(ascending, addresses)
    at[at == len(ascending)] = 0
    return np.where(ascending[at] == addresses, at, -1)


def ancestry(memory: Memory, dentries: Words, faults: Faults) -> Ancestry:
    """Read dentries and all that stand above them, each once, level by level.

    :param dentries: ``struct dentry`` pointers, in any order, repeated or 0 or not
    """
    members = layout(memory.prog, "struct dentry", _MEMBERS)
    level = np.unique(dentries[dentries != 0])
    seen = level[:0]
    parts: list[tuple[Words, Words, Words, Words, Mask]] = []
    for _ in range(_DEEPEST):
        if not len(level):
            break
        read = gather(memory, level, members, faults)
        parts.append((level, read["parent"], read["name"], read["pprev"], read.readable))
        seen = np.union1d(seen, level)
        above = np.unique(read["parent"][read.readable])
        level = above[(rows_of(seen, above) < 0) & (above != 0)]
    if not parts:
        none = np.empty(0, np.int64)
        return Ancestry(seen, none, [], none.astype(np.bool_))
    address, parent, name, pprev, readable = (
        np.concatenate([part[column] for part in parts]) for column in range(5)
    )
    order = np.argsort(address)
    texts = c_strings(memory, name[order], faults)
    rows = np.where(readable[order], rows_of(address[order], parent[order]), -1)
    return Ancestry(
        address[order],
        rows,
        ["?" if text is None else text.decode(errors="backslashreplace") for text in texts],
        pprev[order] != 0,
    )
