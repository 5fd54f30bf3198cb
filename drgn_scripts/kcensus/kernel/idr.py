# SPDX-License-Identifier: LGPL-2.1-or-later
"""IDRs and XArrays: pointers by number."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
from drgn import FaultError, Object, offsetof
from drgn.helpers.linux.idr import idr_for_each

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.engine.xarray import XArrayWalk
from kcensus.sources.capsule import NotRecorded

_MAX_LEVELS = 11
"""Levels of a radix tree with 64 slots in a node and indexes of 64 bits."""
_MAX_ENTRIES = 1 << 20
"""Minors of device mapper are up to 2^20; memory cgroups have 2^16 ids."""


def xarray_entries(memory: Memory, array: Object, faults: Faults) -> tuple[Words, Words, int]:
    """Return the indexes of a ``struct xarray``, ascending, their entries, and the damaged nodes.

    :raises LookupError: the kernel has no XArray
    :raises AttributeError: the object is not an XArray
    :raises drgn.FaultError: the head is unreadable
    """
    walk = XArrayWalk(memory, faults)
    blocks = list(walk.blocks(np.array([array.xa_head.value_()], np.uint64)))
    none = np.empty(0, np.uint64)
    index = np.concatenate([none, *(block.index for block in blocks)])
    entry = np.concatenate([none, *(block.entry for block in blocks)])
    order = np.argsort(index)
    return index[order], entry[order], walk.damage.unreadable + walk.damage.torn


def _lost_nodes(memory: Memory, head: int) -> int:
    """Return the unreadable nodes of a radix tree, up to v4.19; a page of zeros ends no walk."""
    type_ = memory.prog.type("struct radix_tree_node")
    members, word = layout(memory.prog, type_, ["count"]), word_dtype(memory.prog)
    start, length = np.uint64(offsetof(type_, "slots")), type_.member("slots").type.length or 0
    level, lost, faults = np.array([head], np.uint64), 0, Faults()
    for _ in range(_MAX_LEVELS):
        # Bit 0 without bit 1 marks a node, RADIX_TREE_INTERNAL_NODE.
        nodes = np.unique(level[level & np.uint64(3) == 1]) - np.uint64(1)
        if not len(nodes):
            break
        lost += int((~gather(memory, nodes, members, faults).readable).sum())
        level = gather_arrays(memory, nodes + start, length, word, faults)[0].ravel()
    return lost


def idr_entries(memory: Memory, idr: Object) -> tuple[list[int], int]:
    """Return the pointers in a ``struct idr``, by number, and the number of damaged nodes.

    :raises drgn.FaultError: the head is unreadable, or all that is below
    """
    # Since Linux kernel commit f8d5d0cc145c ("xarray: Add definition of struct xarray") (in v4.20),
    # an IDR is an XArray. drgn's idr_for_each() follows a tree with a cycle as deep as Python goes,
    # so it is used for older kernels only.
    tree = getattr(idr, "idr_rt", None)
    if tree is None or not hasattr(tree, "xa_head"):
        known: list[int] = []
        try:
            for _, entry in itertools.islice(idr_for_each(idr.address_of_()), _MAX_ENTRIES):
                known.append(int(entry))
        except RecursionError:
            return known, 1
        except FaultError:
            if not known:
                raise
            return known, 1
        lost = 0
        with contextlib.suppress(NotRecorded):  # in capsules of older versions
            lost = 0 if tree is None else _lost_nodes(memory, int(tree.rnode))
        return known, lost + int(len(known) == _MAX_ENTRIES)
    _, words, damaged = xarray_entries(memory, tree, Faults())
    return words.tolist(), damaged
