# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory cgroup charged for each slab object.

Since Linux kernel commit 286e04b8ed7a ("mm: memcg/slab: allocate obj_cgroups for non-root slab
pages") (in v5.9), each slab has a vector with one ``obj_cgroup`` pointer per object; before, each
memory cgroup had its own child caches.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.slub.slabs import SlabMap, Slabs


@dataclass(frozen=True)
class Owners:
    """Charged objects of some slabs, as columns: one row per object."""

    slab: Numbers
    """Row of the slab."""
    slot: Numbers
    """Index of the object in its slab."""
    objcg: Words
    """``struct obj_cgroup`` pointers, never 0."""


@dataclass(frozen=True)
class Vectors:
    """Vectors of some slabs, one row per slab with a vector."""

    slab: Numbers
    address: Words
    stride: Numbers
    """Bytes from one element to the next."""


class OwnerVectors:
    """Reader of the vectors of a kernel, in any of their layouts.

    :raises LookupError: the kernel has no such vectors (before v5.9, or without CONFIG_MEMCG)
    """

    def __init__(self, slab_map: SlabMap) -> None:
        self.memory = slab_map.memory
        self.slab_map = slab_map
        prog = slab_map.prog
        if "vector" not in slab_map.layout:
            raise LookupError("struct slab has no vector of obj_cgroups")
        member = slab_map.layout.fields["vector"].path
        # enum page_memcg_data_flags has OBJCGS and KMEM.
        mask = {"obj_cgroups": 1, "memcg_data": 3}.get(member)
        if mask is None:
            mask = int(prog.constant("__NR_OBJEXTS_FLAGS")) - 1
        self.mask = np.uint64(mask)
        """Bits of the vector's word outside of the address."""
        self.tagged = member != "obj_exts"
        self.owner = layout(prog, "struct obj_cgroup", ["memcg"])
        self.element, self.offset = 8, 0
        """Bytes of an element, and offset of the objcg in it."""
        if member == "obj_exts":
            # Since Linux kernel commit f901ed647994 ("mm/slab: change struct slabobj_ext to a
            # union") (in v7.3), the member is _objcg.
            ext = layout(prog, "struct slabobj_ext", {}, {"objcg": ("objcg", "_objcg")})
            if "objcg" not in ext:
                raise LookupError("struct slabobj_ext has no objcg")
            self.element, self.offset = ext.size, ext.fields["objcg"].offset
        self.needs_objcg = "needs_objcg" in slab_map.layout
        if self.needs_objcg:
            # Since v7.3, as above: with allocation profiling an object has a second element, for
            # its codetag. The key came with Linux kernel commit 580258a19284 ("mm/slab: introduce
            # slab_obj_ext_has_codetag()") (in v7.3).
            with contextlib.suppress(KeyError, AttributeError):
                key = prog["slab_obj_ext_has_codetag_key"].key
                self.element *= 1 + (int(key.enabled.counter) > 0)

    def find(self, slabs: Slabs) -> Vectors:
        """Return the vectors of slabs."""
        word = slabs.extra["vector"]
        pointer = word & ~self.mask
        has_vector = np.not_equal(pointer, 0)
        if self.tagged:
            # The word can also be a mem_cgroup pointer, which has bit 0 clear.
            has_vector &= (word & np.uint64(1)) != 0
        stride = np.full(len(slabs), self.element)
        if self.needs_objcg:
            has_vector &= slabs.extra["needs_objcg"] != 0
            slot = self.slab_map.column("slot_size").astype(np.int64)[slabs.cache]
            stride = np.where(slabs.extra["in_object"] != 0, slot, self.element)
        elif "stride" in slabs.extra:
            stride = slabs.extra["stride"].astype(np.int64)
        rows = np.flatnonzero(has_vector)
        return Vectors(rows, pointer[rows], stride[rows])

    def read(self, slabs: Slabs, vectors: Vectors, faults: Faults) -> tuple[Owners, int]:
        """Return the owners of all charged objects, and the number of unreadable vectors.

        The kernel clears the element of a freed object.
        """
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))]
        unreadable = 0
        # Vectors of the same length and stride are read together: there are few such shapes.
        shapes = slabs.objects[vectors.slab].astype(np.int64) << 32 | vectors.stride
        word = self.slab_map.word.fields["word"].dtype
        for shape in np.unique(shapes).tolist():
            rows = np.flatnonzero(shapes == shape)
            count, stride = shape >> 32, shape & 0xFFFFFFFF
            start = vectors.address[rows] + np.uint64(self.offset)
            if stride == 8:
                values, ok = gather_arrays(self.memory, start, count, word, faults)
            else:
                steps = np.arange(count, dtype=np.uint64) * np.uint64(stride)
                places = (start[:, None] + steps).ravel()
                word_ = self.slab_map.word
                read = gather(self.memory, places, word_, faults, may_be_zero=True)
                values = read["word"].reshape(len(rows), count)
                ok = np.logical_and.reduce(read.readable.reshape(len(rows), count), axis=1)
            unreadable += int((~ok).sum())
            values[~ok] = 0
            row, slot = np.nonzero(values)
            parts.append((vectors.slab[rows[row]], slot, values[row, slot]))
        slab, slots, objcg = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Owners(slab, slots, objcg), unreadable

    def memcg(self, objcgs: Words, faults: Faults) -> Words:
        """Return the ``struct mem_cgroup`` of each ``obj_cgroup``, 0 if unreadable.

        An offline memory cgroup has handed its objcgs to its parent.
        """
        return gather(self.memory, objcgs, self.owner, faults)["memcg"]


class SlotOwners:
    """The memory cgroup charged for each slot of some slabs."""

    def __init__(self, slab_map: SlabMap) -> None:
        self.slab_map = slab_map
        self.vectors: OwnerVectors | None = None
        with contextlib.suppress(LookupError):
            self.vectors = OwnerVectors(slab_map)

    def read(self, slabs: Slabs, faults: Faults) -> tuple[Words, int]:
        """Return an ``obj_cgroup`` per slot, or a ``mem_cgroup`` up to 5.8; 0 for uncharged slots.

        :param slabs: with equally many slots
        :return: shape (slabs, slots); and the number of unreadable vectors
        """
        owner = np.zeros((len(slabs), int(slabs.objects[0]) if len(slabs) else 0), np.uint64)
        if self.vectors is None:
            _, child_owner = self.slab_map.lineage
            owner[:] = child_owner[slabs.cache][:, None]
            return owner, 0
        vectors = self.vectors.find(slabs)
        if not len(vectors.slab):
            return owner, 0
        charged, unreadable = self.vectors.read(slabs, vectors, faults)
        owner[charged.slab, charged.slot] = charged.objcg
        return owner, unreadable

    def memcg(self, owners: Words, faults: Faults) -> Words:
        """Return the ``struct mem_cgroup`` of each owner, 0 where it is unreadable."""
        return owners if self.vectors is None else self.vectors.memcg(owners, faults)
