# SPDX-License-Identifier: LGPL-2.1-or-later
"""IDRs: pointers by number."""

from __future__ import annotations

import numpy as np
from drgn import Object
from drgn.helpers.linux.idr import idr_for_each

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.xarray import XArrayWalk


def idr_entries(memory: Memory, idr: Object) -> tuple[list[int], int]:
    """Return the pointers in a ``struct idr``, by number, and how many nodes are damaged.

    :raises drgn.FaultError: the head is unreadable
    """
    # Since Linux kernel commit f8d5d0cc145c ("xarray: Add definition of struct xarray") (in v4.20),
    # an IDR is an XArray. drgn's idr_for_each() does not end on a tree with a cycle, so it is used
    # for older kernels only.
    tree = getattr(idr, "idr_rt", None)
    if tree is None or not hasattr(tree, "xa_head"):
        return [int(entry) for _, entry in idr_for_each(idr.address_of_())], 0
    walk = XArrayWalk(memory, Faults())
    head = memory.word(int(tree.xa_head.address_of_()))
    entries: list[tuple[int, int]] = []
    for block in walk.blocks(np.array([head], np.uint64)):
        entries += zip(block.index.tolist(), block.entry.tolist(), strict=True)
    return [entry for _, entry in sorted(entries)], walk.damage.unreadable + walk.damage.torn
