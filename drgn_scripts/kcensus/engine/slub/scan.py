# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scan: the allocated objects of a slab cache as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.chase import Damage, Lanes, chase
from kcensus.engine.layout import Layout
from kcensus.engine.memory import Bytes, Mask, Words
from kcensus.engine.slub.parked import Parked, parked
from kcensus.engine.slub.slabs import ScanReport, SlabCache, SlabMap, Slabs
from kcensus.engine.workers import Columns

T = TypeVar("T")
_ADDRESS = ""
"""The column of addresses; no member can be called that."""


def allocated(
    slab_map: SlabMap,
    wanted: Sequence[SlabCache],
    columns: Layout,
    report: ScanReport,
) -> tuple[Words, dict[str, npt.NDArray[Any]]]:
    """Return all allocated objects of some caches.

    Every page is read once: the slab's free list is decoded, for all slabs of a chunk together,
    while the chunk is in the processor's cache, and the columns are cut from it right after.

    :param columns: members to read, offsets counting from the start of an object
    :param report: takes note of what could not be read
    :return: addresses of the objects, and the columns
    """
    slabs = slab_map.index(wanted, report)
    slabs = slabs[slabs.inuse > 0]
    batches = list(_batches(slab_map, slabs))
    room = np.concatenate(
        [[0], np.cumsum([int(slabs.objects[rows].sum()) for rows in batches])]
    ).astype(np.int64)
    out = Columns(
        {_ADDRESS: np.dtype(np.uint64)} | {name: f.dtype for name, f in columns.fields.items()},
        int(room[-1]),
        shared=slab_map.memory.jobs > 1,
    )
    reader = _Reader(slab_map, parked(slab_map, wanted))
    extractor = _Extractor(reader, columns, out)
    report.lists_lost += reader.parked.lost

    def work(task: int) -> tuple[int, ScanReport]:
        part = ScanReport()
        return extractor.extract(slabs[batches[task]], int(room[task]), part), part

    counts = np.zeros(len(batches), np.int64)
    results = slab_map.memory.each("slab objects", work, len(batches))
    for task, (count, part) in enumerate(results):
        counts[task] = count
        report.add(part)
    out.compact(room[:-1], counts)
    return out[_ADDRESS], {name: columns.decode(name, out[name]) for name in columns.fields}


@dataclass(frozen=True)
class View:
    """Slabs of one cache with equally many slots, in memory: what :func:`visit` shows."""

    rows: slice | npt.NDArray[np.int64]
    """Which of the slabs given to :func:`visit` these are."""
    slabs: Slabs
    allocated: Mask
    """Shape (slabs, slots): which slots hold an allocated object that could be read."""
    _columns: Layout
    _block: _Block

    @property
    def readable(self) -> Mask:
        """Which of the slabs could be read completely."""
        if self._block.readable is None:
            return np.ones(len(self.slabs), np.bool_)
        pages = self._block.readable.reshape(len(self.slabs), -1)
        return np.asarray(pages.all(axis=1))

    @property
    def cache(self) -> SlabCache:
        """What all of the slabs belong to."""
        return self._block.cache

    def address(self) -> Words:
        """Return addresses of the slots, shape (slabs, slots)."""
        cache = self._block.cache
        slots = np.arange(self._block.width, dtype=np.uint64) * np.uint64(cache.slot_size)
        return (self.slabs.address + np.uint64(cache.left_pad))[:, None] + slots[None, :]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a member of all slots, allocated or not, shape (slabs, slots); not a copy."""
        f = self._columns.fields[name]
        return self._columns.decode(name, self._cut(f.dtype, f.offset, self.allocated.shape, ()))

    def words(self, name: str) -> npt.NDArray[np.uint64]:
        """Return a member of several bytes as little-endian words, shape (slabs, slots, words)."""
        f = self._columns.fields[name]
        count = -(-f.dtype.itemsize // 8)
        return self._cut(np.dtype("<u8"), f.offset, (*self.allocated.shape, count), (8,))

    def _cut(
        self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], inner: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        block = self._block
        strides = block.slab_bytes, block.cache.slot_size, *inner
        return np.ndarray(shape, dtype, block.buffer, block.cache.left_pad + offset, strides)


def visit(
    slab_map: SlabMap,
    slabs: Slabs,
    columns: Layout,
    work: Callable[[View, ScanReport], T],
    report: ScanReport,
) -> Iterator[T]:
    """Show ``work`` all slabs, a few megabytes at a time: for what need not be kept as columns.

    :param slabs: from :meth:`SlabMap.index`
    :param work: called in :attr:`Memory.jobs` worker processes; what it returns must be
        picklable, what it writes to must be shared
    :return: an iterator of what ``work`` returned, in a fixed order
    """
    batches = list(_batches(slab_map, slabs))
    caches = [slab_map.caches[id_] for id_ in np.unique(slabs.cache).tolist()]
    reader = _Reader(slab_map, parked(slab_map, caches))
    report.lists_lost += reader.parked.lost

    def show(task: int) -> tuple[T, ScanReport]:
        part = ScanReport()
        block = reader.read(slabs[batches[task]], part)
        keep = reader.keep(block, part)
        if keep is None:
            keep = np.ones((len(block.slabs), block.width), np.bool_)
        return work(View(batches[task], block.slabs, keep, columns, block), part), part

    for result, part in slab_map.memory.each("slab objects", show, len(batches)):
        report.add(part)
        yield result


def _batches(slab_map: SlabMap, slabs: Slabs) -> Iterator[slice | npt.NDArray[np.int64]]:
    """Yield rows of slabs to read together: of one cache and one size, a chunk at a time."""
    kinds = slabs.cache.astype(np.int64) << 32 | slabs.objects
    # pd.unique() hashes where NumPy's sorts; there are as many slabs as memory, and few kinds.
    for kind in sorted(pd.unique(kinds).tolist()):
        rows = np.flatnonzero(kinds == kind)
        pages = int(slab_map.slab_pages(slabs[rows[:1]])[0])
        count = max(slab_map.memory.chunk_pages // pages, 1)
        for start in range(0, len(rows), count):
            batch = rows[start : start + count]
            together = batch[-1] - batch[0] == len(batch) - 1
            yield slice(int(batch[0]), int(batch[-1]) + 1) if together else batch


@dataclass(frozen=True)
class _Block:
    """Slabs of one cache with equally many slots, and their bytes."""

    slabs: Slabs
    cache: SlabCache
    buffer: Bytes
    slab_bytes: int
    readable: Mask | None
    """Per page; None: all."""

    @property
    def width(self) -> int:
        """Slots of a slab."""
        return int(self.slabs.objects[0])


class _Extractor:
    """Turns slabs into rows of columns."""

    def __init__(self, reader: _Reader, columns: Layout, out: Columns) -> None:
        self.reader = reader
        self.columns = columns
        self.out = out

    def extract(self, slabs: Slabs, position: int, report: ScanReport) -> int:
        """Write the columns of slabs of one cache and one size.

        :return: how many rows were written from ``position`` on
        """
        block = self.reader.read(slabs, report)
        cache, width = block.cache, block.width
        keep = self.reader.keep(block, report)
        count = len(slabs) * width if keep is None else int(np.count_nonzero(keep))
        shape, strides = (len(slabs), width), (block.slab_bytes, cache.slot_size)
        slots = np.arange(width, dtype=np.uint64) * np.uint64(cache.slot_size)
        first = slabs.address + np.uint64(cache.left_pad)
        rows = slice(position, position + count)
        if keep is None:
            np.add(first[:, None], slots[None, :], out=self.out[_ADDRESS][rows].reshape(shape))
        else:
            self.out[_ADDRESS][rows] = (first[:, None] + slots[None, :])[keep]
        for name, f in self.columns.fields.items():
            start = cache.left_pad + f.offset
            view = np.ndarray(shape, f.dtype, block.buffer, start, strides)
            if keep is None:
                self.out[name][rows].reshape(shape)[...] = view
            else:
                self.out[name][rows] = view[keep]
        return count


class _Reader:
    """Reads slabs, and finds the slots that hold an allocated object."""

    def __init__(self, slab_map: SlabMap, parked_objects: Parked) -> None:
        self.memory = slab_map.memory
        self.slab_map = slab_map
        self.parked = parked_objects
        self.code = slab_map.freelist_code
        self.word = slab_map.word.fields["word"].dtype

    def read(self, slabs: Slabs, report: ScanReport) -> _Block:
        pages = int(self.slab_map.slab_pages(slabs[:1])[0])
        step = np.arange(pages, dtype=np.uint64) << np.uint64(self.memory.page_shift)
        addresses = (slabs.address[:, None] + step[None, :]).ravel()
        buffer, readable = self.memory.pages(addresses, report.slabs)
        cache = self.slab_map.caches[slabs.cache[0]]
        return _Block(slabs, cache, buffer, pages << self.memory.page_shift, readable)

    def keep(self, block: _Block, report: ScanReport) -> Mask | None:
        """Return which slots hold an allocated object that could be read; None for all of them."""
        free = self._free(block, report)
        width = block.width
        if free is None and block.readable is None:
            return None
        shape = len(block.slabs), width
        keep = np.ones(shape, np.bool_) if free is None else ~free
        if block.readable is not None:
            slots = np.arange(width) * block.cache.slot_size + block.cache.left_pad
            first = slots >> self.memory.page_shift
            last = (slots + block.cache.object_size - 1) >> self.memory.page_shift
            missing = np.cumsum(~block.readable.reshape(len(block.slabs), -1), axis=1)
            missing = np.pad(missing, ((0, 0), (1, 0)))
            bad = missing[:, last + 1] != missing[:, first]
            report.objects_unreadable += int((keep & bad).sum())
            keep &= ~bad
        return keep

    def _free(self, block: _Block, report: ScanReport) -> Mask | None:
        """Return which slots are free: on the slab's list, or parked; None for none."""
        slabs = block.slabs
        rows = np.flatnonzero((slabs.freelist != 0) | (slabs.inuse < slabs.objects))
        parked_slots = self.parked.slots(self.slab_map, block.slabs)
        if not len(rows) and not len(parked_slots[0]):
            return None
        free = np.zeros((len(slabs), block.width), np.bool_)
        if len(rows):
            self._listed(block, rows, free, report)
        free[parked_slots] = True
        return free

    def _listed(
        self, block: _Block, rows: npt.NDArray[np.int64], free: Mask, report: ScanReport
    ) -> None:
        """Mark in ``free`` what is on the freelists of the slabs ``rows``."""
        cache, slabs, shift = block.cache, block.slabs, self.memory.page_shift
        words = block.buffer.view(self.word)
        base = slabs.address[rows] + np.uint64(cache.left_pad)
        starts = rows * block.slab_bytes + cache.left_pad + cache.free_offset
        size, offset = np.uint64(cache.slot_size), np.uint64(cache.free_offset)
        secret = np.uint64(cache.secret)

        def slot(nodes: Words, lanes: Lanes) -> tuple[npt.NDArray[np.int64], Mask]:
            distance = nodes - base[lanes]
            number = distance // size
            fits = (number < slabs.objects[rows[lanes]]) & (number * size == distance)
            return np.where(fits, number, np.uint64(0)).astype(np.int64), fits

        def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
            number, ok = slot(nodes, lanes)
            at = starts[lanes] + number * cache.slot_size
            if block.readable is not None:
                ok &= block.readable[at >> shift]
            return self.code.decode(words[at >> 3], nodes + offset, secret), ok

        damage = Damage()
        heads = slabs.freelist[rows]
        for lanes, nodes in chase(heads, step, limit=block.width + 1, damage=damage):
            number, fits = slot(nodes, lanes)
            free[rows[lanes[fits]], number[fits]] = True
        expected = slabs.objects[rows].astype(np.int64) - slabs.inuse[rows]
        found = free[rows].sum(axis=1)
        torn = found != expected
        torn[damage.lanes()] = True
        if block.readable is not None:
            # Where nothing of a slab could be read, no object of it is taken for allocated.
            torn &= block.readable.reshape(len(slabs), -1)[rows].any(axis=1)
            expected = np.where(torn, expected, found)
        report.slabs_torn += int(torn.sum())
        report.objects_uncertain += int(np.maximum(expected - found, 0).sum())
