# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is in the slab caches of kmalloc(): objects by user."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.analyses.slab.census import Counts
from kcensus.engine.memory import Words
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.engine.slub.slots import Slots
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.kmalloc_users import CONTRIBUTORS
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.faults import reason

VECTORS = "obj_cgroup vectors"
_BLOCK = 1 << 14
"""Slabs to sum up together."""


@dataclass
class Attribution:
    """Objects of the slab caches of kmalloc() by user."""

    users: list[str]
    objects: Counts
    """Shape (caches, users)."""
    failed: list[str] = field(default_factory=list)
    """Why a contributor could not yield its objects."""
    report: ScanReport = field(default_factory=ScanReport)
    """Of the slabs whose objects point to those of kmalloc()."""


def kmalloc_caches(slab_map: SlabMap) -> npt.NDArray[np.bool_]:
    """Return which caches are kmalloc()'s, or children of these, shape (caches,)."""
    names = [cache.name.startswith(("kmalloc-", "dma-kmalloc-")) for cache in slab_map.caches]
    roots, _ = slab_map.lineage
    return np.array(names, np.bool_)[roots]


def attribute(kernel: Kernel, vectors: Words) -> Attribution:
    """Find the users of the objects of kmalloc(); no object has two.

    :param vectors: addresses of obj_cgroup vectors
    """
    slab_map = kernel.slab_map
    slabs = slab_map.survey.slabs
    is_wanted = np.append(kmalloc_caches(slab_map), False)
    slots = Slots(slab_map, slabs[is_wanted[slabs.cache]])
    numbers: dict[str, int] = {}
    user = np.zeros(len(slots), np.uint8)
    failed, report = [], ScanReport()

    def note(name: str, addresses: Words) -> None:
        slot = slots.of(addresses)
        slot = slot[slot >= 0]
        # The first one to name an object has it.
        user[slot[user[slot] == 0]] = numbers.setdefault(name, len(numbers) + 1)

    note(VECTORS, vectors)
    for contributor in CONTRIBUTORS:
        try:
            for name, addresses in contributor(kernel, report):
                note(name, addresses)
        except LookupError:
            continue  # this kernel has no such objects, or no debug info of them
        except drgn.FaultError as error:
            failed.append(reason(error))
        except NotRecorded:
            failed.append("not in the capsule")
    shape = len(slab_map.caches), len(numbers) + 1
    counts = np.zeros(shape, np.int64).ravel()
    for start in range(0, len(slots.slabs), _BLOCK):
        block = slots.slabs[start : start + _BLOCK]
        low, high = slots.first[start], slots.first[start + len(block)]
        cache = np.repeat(block.cache.astype(np.int64), block.objects)
        counts += np.bincount(cache * shape[1] + user[low:high], minlength=len(counts))
    return Attribution(list(numbers), counts.reshape(shape)[:, 1:], failed, report)
