# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which memory cgroup a slab object is charged to.

Since 5.9 each slab has a vector with one ``obj_cgroup`` pointer per object; before, each memory
cgroup had its own child caches. The vector moved and changed its shape five times.
"""

from __future__ import annotations

from dataclasses import dataclass

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import LayoutError, layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.slabs import SlabMap, Slabs

VECTOR_MEMBERS = {
    # 286e04b8ed7a (5.9): page.obj_cgroups; 87944e2992bd (5.11): page.memcg_data;
    # 21c690a349ba (6.10): slab.obj_exts.
    "vector": ("obj_exts", "memcg_data", "obj_cgroups"),
    # 7a8e71bc619d (7.0): elements lie this far apart.
    "stride": ("stride",),
    # 7.3: two flags tell what the vector is for and where it lies.
    "in_object": ("obj_exts_in_object",),
    "needs_objcg": ("obj_exts_needs_objcg",),
}
"""Members of a slab that :class:`OwnerVectors` needs; pass them to :class:`SlabMap`."""


@dataclass(frozen=True)
class Owners:
    """Charged objects of some slabs, as columns: one row per object."""

    slab: npt.NDArray[np.int64]
    """Row of the slab."""
    slot: npt.NDArray[np.int64]
    """Number of the object in its slab."""
    objcg: Words
    """``struct obj_cgroup`` pointers, never 0."""


@dataclass(frozen=True)
class Vectors:
    """Where the vectors of some slabs lie, one row per slab that has one."""

    slab: npt.NDArray[np.int64]
    address: Words
    stride: npt.NDArray[np.int64]
    """Bytes from one element to the next."""


class OwnerVectors:
    """Reads the vectors of a kernel, whatever their shape.

    :raises LookupError: the kernel has no such vectors (before 5.9, or without CONFIG_MEMCG)
    """

    def __init__(self, slab_map: SlabMap) -> None:
        self.memory = slab_map.memory
        self.slab_map = slab_map
        prog = slab_map.prog
        if "vector" not in slab_map.layout:
            raise LookupError("this kernel keeps no vector of obj_cgroups per slab")
        member = slab_map.layout.fields["vector"].path
        self.mask = np.uint64(_flags_mask(prog, member))
        self.tagged = member != "obj_exts"
        self.owner = layout(prog, "struct obj_cgroup", ["memcg"])
        self.element, self.offset = 8, 0
        """Bytes of an element, and where in it the objcg stands."""
        if member == "obj_exts":
            ext = prog.type("struct slabobj_ext")
            # 7.3 made the struct a union of the two things it can be.
            try:
                members = layout(prog, ext, {"objcg": ("objcg", "_objcg")})
            except LayoutError:
                raise LookupError("this kernel's slabobj_ext has no objcg") from None
            self.element, self.offset = drgn.sizeof(ext), members.fields["objcg"].offset
        self.needs_objcg = "needs_objcg" in slab_map.layout
        if self.needs_objcg:
            # Since 7.3 an object has one such element, or two: its tag stands beside.
            self.element *= 1 + _codetag_enabled(prog)

    def find(self, slabs: Slabs) -> Vectors:
        """Where the vectors of slabs lie."""
        word = slabs.extra["vector"]
        pointer = word & ~self.mask
        found: Mask = np.asarray(pointer != 0)
        if self.tagged:
            # The word can also be a mem_cgroup's address; bit 0 tells the two apart.
            found = found & ((word & np.uint64(1)) != 0)
        stride = np.full(len(slabs), self.element)
        if self.needs_objcg:
            needs = slabs.extra["needs_objcg"] != 0
            found = found & needs
            slot = self.slab_map.column("slot_size").astype(np.int64)[slabs.cache]
            stride = np.where(slabs.extra["in_object"] != 0, slot, self.element)
        elif "stride" in slabs.extra:
            stride = slabs.extra["stride"].astype(np.int64)
        rows = np.flatnonzero(found)
        return Vectors(rows, pointer[rows], stride[rows])

    def read(self, slabs: Slabs, vectors: Vectors, faults: Faults) -> tuple[Owners, int]:
        """The owners of all charged objects.

        An element is cleared when its object is freed, so free objects have none.

        :return: the owners, and how many vectors could not be read
        """
        rows: list[npt.NDArray[np.int64]] = []
        slots: list[npt.NDArray[np.int64]] = []
        owners: list[Words] = []
        unreadable = 0
        # Slabs with equally shaped vectors are read together: there are few shapes.
        shapes = slabs.objects[vectors.slab].astype(np.int64) << 32 | vectors.stride
        word = self.slab_map.word.fields["word"].dtype
        for shape in np.unique(shapes).tolist():
            at = np.flatnonzero(shapes == shape)
            count, stride = shape >> 32, shape & 0xFFFFFFFF
            start = vectors.address[at] + np.uint64(self.offset)
            if stride == 8:
                values, ok = gather_arrays(self.memory, start, count, word, faults)
            else:
                steps = np.arange(count, dtype=np.uint64) * np.uint64(stride)
                places = (start[:, None] + steps[None, :]).ravel()
                read = gather(self.memory, places, self.slab_map.word, faults)
                values = read["word"].reshape(len(at), count)
                ok = np.logical_and.reduce(read.readable.reshape(len(at), count), axis=1)
            unreadable += int((~ok).sum())
            values[~ok] = 0
            row, column = np.nonzero(values)
            rows.append(vectors.slab[at[row]])
            slots.append(column)
            owners.append(values[row, column])
        if not rows:
            none = np.empty(0, np.int64)
            return Owners(none, none, np.empty(0, np.uint64)), unreadable
        found = Owners(np.concatenate(rows), np.concatenate(slots), np.concatenate(owners))
        return found, unreadable

    def memcg(self, objcgs: Words, faults: Faults) -> Words:
        """The ``struct mem_cgroup`` that each ``obj_cgroup`` belongs to now.

        When a cgroup goes offline its objcg is handed to its parent, so this is never a dead one
        for long. 0 where it cannot be read.
        """
        return gather(self.memory, objcgs, self.owner, faults)["memcg"]


def _flags_mask(prog: drgn.Program, member: str) -> int:
    """Low bits of the vector's word that are no address."""
    if member == "obj_cgroups":
        return 1
    if member == "memcg_data":
        return 3  # enum page_memcg_data_flags: OBJCGS and KMEM
    return int(prog.constant("__NR_OBJEXTS_FLAGS")) - 1


def _codetag_enabled(prog: drgn.Program) -> bool:
    """Whether memory allocation profiling puts a tag beside each objcg."""
    try:
        return int(prog["slab_obj_ext_has_codetag_key"].key.enabled.counter) > 0
    except (KeyError, AttributeError):
        return False
