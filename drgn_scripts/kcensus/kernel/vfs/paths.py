# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dentries and all their ancestors, with their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.engine.strings import c_strings
from kcensus.kernel.names import decode

_MAX_DEPTH = 4096

_MEMBERS = {
    "parent": "d_parent",
    # Since Linux kernel commit 180a9cc3fd6a ("make it easier to catch those who try to modify
    # ->d_name") (in v6.18), d_name is in an anonymous union with __d_name; the path stays.
    "name": "d_name.name",
    "pprev": "d_hash.pprev",
}


@dataclass(frozen=True)
class Ancestry(Addressed):
    """Some dentries and all their ancestors as columns, in ascending order of address."""

    address: Words
    parent: Numbers
    """Row of the parent: its own for a root, -1 if the dentry or its parent is unreadable."""
    name: list[str]
    """Unicode, not safe to print."""
    hashed: Mask
    """Whether it is in the hash table, where lookups find it."""

    def up(self, row: int) -> Iterator[int]:
        """Yield rows from one dentry up to its root, or to the last readable one."""
        seen: set[int] = set()
        while row >= 0 and row not in seen:
            seen.add(row)
            yield row
            row = int(self.parent[row])

    def is_root(self, row: int) -> bool:
        """Return whether a dentry is its own parent: a root of a super block, or disconnected."""
        return bool(self.parent[row] == row)


@dataclass(frozen=True)
class Path:
    """Path of a dentry."""

    text: str
    """From the root of init's mount namespace, or the topmost known ancestor; not safe to print."""
    unhashed: bool
    """Whether it or an ancestor is not in a hash chain: removed, so lookups do not find it."""
    root: int
    """Address of the topmost ancestor."""
    mounted: bool
    complete: bool
    """Whether the topmost ancestor is a root; if not, its parent could not be read."""


def resolve(above: Ancestry, dentries: Words, mount_roots: Mapping[int, str]) -> list[Path]:
    """Return the paths of dentries, through mounts.

    :param above: these dentries and all their ancestors
    :param mount_roots: paths of mounts, by the dentry at the root of each
    """
    paths = []
    for start in above.rows(dentries).tolist():
        text, below, root = "", "", 0
        unhashed = mounted = complete = False
        for row in above.up(start):
            root, complete = int(above.address[row]), above.is_root(row)
            if root in mount_roots:
                # The topmost mount counts: a whole file system before a part of it.
                text, mounted = mount_roots[root].rstrip("/") + below, True
            if not complete and above.parent[row] >= 0:
                unhashed |= not above.hashed[row]
                below = f"/{above.name[row]}{below}"
        if not mounted:
            text = below if complete else "?" + below
        paths.append(Path(text or "/", unhashed, root, mounted, complete))
    return paths


def ancestry(memory: Memory, dentries: Words, faults: Faults) -> Ancestry:
    """Read dentries, except 0, and all their ancestors, each once, level by level."""
    members = layout(memory.prog, "struct dentry", _MEMBERS)
    level = np.unique(dentries[dentries != 0])
    seen = level[:0]
    parts = [(level[:0], gather(memory, level[:0], members, faults))]
    for _ in range(_MAX_DEPTH):
        if not len(level):
            break
        read = gather(memory, level, members, faults)
        parts.append((level, read))
        seen = np.union1d(seen, level)
        parents = np.unique(read["parent"][read.readable])
        level = parents[(rows_of(seen, parents) < 0) & (parents != 0)]
    address = np.concatenate([level for level, _ in parts])
    order = np.argsort(address)
    address = address[order]
    parent, name, pprev = (
        np.concatenate([read[column] for _, read in parts])[order] for column in _MEMBERS
    )
    readable = np.concatenate([read.readable for _, read in parts])[order]
    rows = np.where(readable, rows_of(address, parent), -1)
    return Ancestry(address, rows, texts(memory, name, faults), pprev != 0)


def texts(memory: Memory, addresses: Words, faults: Faults) -> list[str]:
    """Return the C string at each address, not safe to print; ? if unreadable."""
    return ["?" if raw is None else decode(raw) for raw in c_strings(memory, addresses, faults)]
