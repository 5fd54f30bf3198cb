# SPDX-License-Identifier: LGPL-2.1-or-later
"""IDRs: what is registered under a number."""

from __future__ import annotations

import numpy as np
from drgn import Object
from drgn.helpers.linux.idr import idr_for_each

from kcensus.engine.memory import Faults, Memory
from kcensus.engine.xarray import XArrayWalk


def idr_entries(memory: Memory, idr: Object) -> tuple[list[int], int]:
    """The pointers in a ``struct idr``, in the order of their numbers.

    drgn's ``idr_for_each()`` never comes back from a tree that leads into itself, which memory that
    is damaged may have; so it is used only up to 4.19, whose IDRs are no XArrays.

    :return: also how many nodes were unreadable or torn
    :raises drgn.FaultError: the head cannot be read
    """
    tree = getattr(idr, "idr_rt", None)
    if tree is None or not hasattr(tree, "xa_head"):
        return [int(entry) for _, entry in idr_for_each(idr.address_of_())], 0
    walk = XArrayWalk(memory, Faults())
    head = memory.word(int(tree.xa_head.address_of_()))
    found: list[tuple[int, int]] = []
    for block in walk.blocks(np.array([head], np.uint64)):
        found += zip(block.index.tolist(), block.entry.tolist(), strict=True)
    return [entry for _, entry in sorted(found)], walk.damage.unreadable + walk.damage.torn
