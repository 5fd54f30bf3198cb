# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list of slab caches, of either allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import circular
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory
from kcensus.engine.slub.pages import MAX_ORDER
from kcensus.engine.strings import c_strings


@dataclass(frozen=True)
class SlabCache:
    """The members of one ``struct kmem_cache`` needed by scans."""

    id: int
    """Index in :attr:`SlabMap.caches`."""
    object: drgn.Object
    """``struct kmem_cache *``"""
    name: str
    """Name as in the kernel; not safe to print."""
    object_size: int
    """Bytes requested by the user of the cache."""
    slot_size: int
    """Distance of two objects, bytes."""
    objects_per_slab: int
    """Slots in a slab of the usual order."""
    most_objects: int
    """Most slots in a slab of any order. Before Linux kernel commit 32a6f409b693 ("mm, slub: remove
    runtime allocation order changes") (in v5.9), the order could be changed at run time."""
    order: int
    """Usual order of a slab; under pressure SLUB falls back to a smaller one."""
    free_offset: int
    """Offset of the pointer to the next free object in a free object, with SLUB; 0 with SLAB."""
    secret: int
    """``kmem_cache.random``, 0 if free list pointers are not obfuscated."""
    left_pad: int
    """Bytes before the first object of a slab (``red_left_pad``), with SLUB; with SLAB, bytes
    before each object (``obj_offset``), which its slot includes."""
    flags: int
    refcount: int
    """Users of the cache: more than one if caches of other names were merged into it."""

    @property
    def address(self) -> int:
        """Address of the ``struct kmem_cache``."""
        return int(self.object.value_())

    @property
    def is_kmalloc(self) -> bool:
        """Whether it is one of the caches of kmalloc(), of any kind."""
        return self.name.startswith("kmalloc-")

    @property
    def merged(self) -> bool:
        """Whether the cache serves users of several names."""
        return self.refcount > 1


_COMMON = {
    "object_size": "object_size",
    "slot_size": "size",
    "name": "name",
    "flags": "flags",
    "refcount": "refcount",
}
_SLUB = {"oo": "oo.x", "free_offset": "offset"}
_SLUB_OPTIONAL = {
    # With CONFIG_SLAB_FREELIST_HARDENED, since Linux kernel commit 2482ddec670f ("mm: add SLUB free
    # list pointer obfuscation") (in v4.14).
    "secret": "random",
    # Since Linux kernel commit d86bd1bece6f ("mm/slub: support left redzone") (in v4.6).
    "left_pad": "red_left_pad",
    # Until Linux kernel commit 23587f7c5daa ("mm/slub: remove unused kmem_cache_order_objects max")
    # (in v5.19).
    "max": "max.x",
}
_SLAB = {"order": "gfporder", "objects_per_slab": "num"}
_SLAB_OPTIONAL = {"left_pad": "obj_offset"}  # with CONFIG_DEBUG_SLAB


def slab_caches(memory: Memory, faults: Faults) -> tuple[list[SlabCache], int, int]:
    """Return all caches, and the numbers of torn ends of their list and of unusable caches.

    drgn's ``for_each_slab_cache()`` ends in an exception at a torn end, and never on a cycle.
    """
    prog = memory.prog
    type_ = prog.type("struct kmem_cache")
    if type_.has_member("oo"):
        members = layout(prog, type_, _COMMON | _SLUB, _SLUB_OPTIONAL)
    else:
        members = layout(prog, type_, _COMMON | _SLAB, _SLAB_OPTIONAL)
    head = prog["slab_caches"].address_of_().value_()
    addresses, torn = circular(memory, head, faults, limit=_MAX_CACHES)
    addresses -= np.uint64(drgn.offsetof(type_, "list"))
    read = gather(memory, addresses, members, faults)
    none = np.zeros(len(addresses), np.uint64)
    unless = ("secret", "left_pad", "free_offset")
    numbers: dict[str, npt.NDArray[Any]] = dict.fromkeys(unless, none) | dict(read.columns)
    if "oo" in numbers:
        oo = numbers.pop("oo")
        numbers["order"], numbers["objects_per_slab"] = oo >> 16, oo & 0xFFFF
        numbers["most_objects"] = np.maximum(oo & 0xFFFF, numbers.pop("max", oo) & 0xFFFF)
    else:
        numbers["most_objects"] = numbers["objects_per_slab"]
    names = c_strings(memory, numbers.pop("name"), faults)
    rows = np.flatnonzero(read.readable & _has_possible_geometry(memory, numbers)).tolist()
    values: dict[str, list[Any]] = {name: column.tolist() for name, column in numbers.items()}
    caches = [
        SlabCache(
            id=id_,
            object=drgn.Object(prog, prog.pointer_type(type_), value=int(addresses[row])),
            name=(names[row] or b"?").decode(errors="backslashreplace"),
            **{name: column[row] for name, column in values.items()},
        )
        for id_, row in enumerate(rows)
    ]
    # What a cache without its name is for is unknown, such as whether it is one of kmalloc().
    nameless = sum(not names[row] for row in rows)
    return caches, torn, len(addresses) - len(rows) + nameless


def _has_possible_geometry(memory: Memory, numbers: Mapping[str, npt.NDArray[Any]]) -> Mask:
    """Return which caches can exist: their numbers determine all bounds of a scan."""
    names = ("object_size", "slot_size", "free_offset", "left_pad", "order", "objects_per_slab")
    size, slot, free, pad, order, objects = (numbers[name].astype(np.int64) for name in names)
    slab = memory.page_size << np.minimum(order, MAX_ORDER)
    possible: Mask = (order <= MAX_ORDER) & (objects > 0) & (objects <= _MAX_OBJECTS)
    possible &= objects * slot <= slab
    possible &= (size > 0) & (size <= slot) & (free % 8 == 0) & (free >= 0) & (free <= slot - 8)
    return possible & (pad >= 0) & (pad < slot)


_MAX_CACHES = 1 << 20
"""Most caches, child caches of memory cgroups included; more are damage."""
_MAX_OBJECTS = 0xFFFF
"""Most objects of a slab: SLUB counts them in 16 bits, SLAB numbers them in 8 or 16."""
