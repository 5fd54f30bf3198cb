# SPDX-License-Identifier: LGPL-2.1-or-later
"""What keeps the I/O of COW devices, and the tasks that wait for copies of snapshots."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.dm.snapshots import Snapshot
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.copied.copies import COPIES, LIMIT
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.results import Finding
from kcensus.text import printable


@dataclass(frozen=True)
class Keeper:
    """What keeps the I/O of a COW device, such as a delay target."""

    name: str
    finding: Finding
    """That of `waits`, with the commands that release the I/O."""


def keepers(kernel: Kernel, snapshots: Collection[Snapshot]) -> list[Keeper]:
    """Return what keeps the I/O of the COW devices of some snapshots; empty if unknown."""
    try:
        return [*_keepers(waiting(kernel), kernel, {each.cow for each in snapshots})]
    except DAMAGED:
        return []


def _keepers(graph: Waiting, kernel: Kernel, cows: set[str]) -> Iterator[Keeper]:
    disks = [disk.address for disk in block_devices(kernel).disks if disk.device in cows]
    found = dict.fromkeys(each for disk in disks for each in graph.keepers.get(disk, ()))
    for kind, address in found:
        if (finding := _finding(graph, kind, address)) is not None:
            name = printable(graph.names.get((kind, address), ""))
            yield Keeper(f"{kind.value} {name}".rstrip(), finding)


def waits(kernel: Kernel, snapshot: Snapshot | None = None) -> list[Finding]:
    """Return the findings of `waits` about copies, or about the copy limit of a snapshot."""
    try:
        graph = waiting(kernel)
        nodes = [(kind, int(address)) for kind, address in graph.graph.index if kind is COPIES]
        if snapshot is not None:
            nodes = [(LIMIT, snapshot.address)]
        found = [_finding(graph, *node) for node in nodes if node in graph.graph.index]
    except DAMAGED:
        return []
    return [each for each in found if each is not None]


def _finding(graph: Waiting, kind: NodeKind, address: int) -> Finding | None:
    """Return the finding about an object, with the tasks behind it."""
    stall = _stall(graph, kind, address)
    for finder in graph.finders:
        if kind in finder.kinds and (found := finder.finding(kind, address, stall)) is not None:
            return found
    return None


def _stall(graph: Waiting, kind: NodeKind, address: int) -> Stall:
    node = graph.graph.index.get((kind, address))
    if node is None:
        return Stall(frozenset(), 0, -1.0)
    sure = graph.graph.sure
    behind = np.flatnonzero(sure.reached([node], back=True) & sure.is_task).tolist()
    rows = [row for row in map(graph.row, behind) if row >= 0]
    pids = frozenset(graph.waits.pid[rows].tolist())
    longest = int(graph.waits.since_ns[rows].max(initial=-1)) if rows else -1
    return Stall(pids, len(pids), max(longest / 1e9, -1.0))
