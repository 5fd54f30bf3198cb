# SPDX-License-Identifier: LGPL-2.1-or-later
"""IDRs and XArrays: pointers by number."""

from __future__ import annotations

import itertools

import numpy as np
from drgn import Object
from drgn.helpers.linux.idr import idr_for_each

from kcensus.engine.memory import Faults, Memory, Words
from kcensus.engine.xarray import XArrayWalk

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


def idr_entries(memory: Memory, idr: Object) -> tuple[list[int], int]:
    """Return the pointers in a ``struct idr``, by number, and the number of damaged nodes.

    :raises drgn.FaultError: the head is unreadable
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
        return known, int(len(known) == _MAX_ENTRIES)
    _, words, damaged = xarray_entries(memory, tree, Faults())
    return words.tolist(), damaged
