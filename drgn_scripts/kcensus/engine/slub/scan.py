# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scan: the allocated objects of a slab cache as columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.chase import Damage, Lanes, chase
from kcensus.engine.gather import use_of
from kcensus.engine.layout import Field, Layout, native
from kcensus.engine.memory import Bytes, Mask, Memory, Numbers, Words
from kcensus.engine.slub.free_indexes import free_slots
from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.parked import Parked, parked
from kcensus.engine.slub.slabs import ScanReport, SlabMap, Slabs
from kcensus.engine.workers import Columns
from kcensus.text import printable

T = TypeVar("T")
_SHARES, _MOST_MERGED = 64, 8
"""Least tasks of a worker process, so that all end at nearly the same time, and most batches of
slabs in one, where their results are merged."""
_CACHED_BYTES = 1 << 19
"""Of slabs from which all members are cut before the next ones."""
_ADDRESS = ""
"""Name of the column of addresses; no member has an empty name."""


class DoesNotFit(ValueError, LookupError):
    """A type is larger than the objects of a cache: the cache is not the type's."""


def allocated(
    slab_map: SlabMap,
    wanted: Sequence[SlabCache],
    columns: Layout,
    report: ScanReport,
    frames: Mask | None = None,
) -> tuple[Words, dict[str, npt.NDArray[Any]]]:
    """Return all allocated objects of some caches.

    :param columns: members to read, offsets counting from the start of an object
    :param frames: only those of slabs that lie partly on these page frames
    :return: addresses of the objects, and the columns
    :raises DoesNotFit: a member lies beyond the end of the objects of a cache
    """
    _check_fit(wanted, columns)
    slabs = slab_map.index(wanted, report, in_use=True)
    if frames is not None:
        slabs = slabs[lie_on(slab_map, slabs, frames)]
    out = Columns(
        {_ADDRESS: np.dtype(np.uint64)} | {name: f.dtype for name, f in columns.fields.items()},
        int(slabs.objects.sum()),
        shared=slab_map.memory.fills_elsewhere,
    )

    def extract(view: View, _report: ScanReport) -> tuple[int, int]:
        kept = view.kept
        count = math.prod(view.shape) if kept is None else int(np.count_nonzero(kept))
        rows = slice(view.start, view.start + count)
        if kept is None:
            view.address(out[_ADDRESS][rows].reshape(view.shape))
        else:
            out[_ADDRESS][rows] = view.address()[kept]
        for name in columns.fields:
            values = view.stored(name)
            if kept is None:
                out[name][rows].reshape(values.shape)[...] = values
            else:
                out[name][rows] = values[kept]
        return view.start, count

    pieces = list(visit(slab_map, slabs, columns, extract, report))
    out.compact(pieces)
    return out[_ADDRESS], {name: columns.decode(name, out[name]) for name in columns.fields}


def selected(
    slab_map: SlabMap,
    wanted: Sequence[SlabCache],
    columns: Layout,
    select: Callable[[View], Mask],
    report: ScanReport,
) -> tuple[Words, dict[str, npt.NDArray[Any]]]:
    """Return some of the allocated objects of caches, in the form of :func:`allocated`.

    :param select: returns a mask of slots, shape (slabs, slots); called in worker processes
    :raises DoesNotFit: a member lies beyond the end of the objects of a cache
    """
    _check_fit(wanted, columns)
    slabs = slab_map.index(wanted, report, in_use=True)

    def extract(view: View, _report: ScanReport) -> tuple[Words, dict[str, npt.NDArray[Any]]]:
        taken = view.allocated & select(view)
        return view.address()[taken], {name: view.column(name)[taken] for name in columns.fields}

    pieces = list(visit(slab_map, slabs, columns, extract, report))
    address = np.concatenate([np.empty(0, np.uint64), *(each for each, _ in pieces)])
    none = {name: columns.decode(name, np.empty(0, f.dtype)) for name, f in columns.fields.items()}
    return address, {
        name: np.concatenate([empty, *(piece[name] for _, piece in pieces)])
        for name, empty in none.items()
    }


def lie_on(slab_map: SlabMap, slabs: Slabs, frames: Mask) -> Mask:
    """Return which slabs lie partly on some page frames."""
    first = np.minimum(slab_map.pages.pfn(slabs.address), len(frames))
    last = np.minimum(first + slab_map.slab_pages(slabs), len(frames))
    wanted = np.concatenate([[0], np.cumsum(frames)])
    lies: Mask = wanted[last] != wanted[first]
    return lies


def _check_fit(caches: Sequence[SlabCache], columns: Layout) -> None:
    # Objects may be smaller than their type: the unused end of every task_struct is cut off.
    smallest = min(caches, key=lambda cache: cache.object_size, default=None)
    end = max((f.offset + f.dtype.itemsize for f in columns.fields.values()), default=0)
    if smallest is not None and end > smallest.object_size:
        raise DoesNotFit(
            f"{columns.type_name} has {columns.size} bytes, "
            f"but the objects of {printable(smallest.name)} only {smallest.object_size}"
        )


@dataclass
class View:
    """Slabs of one cache with equally many slots and pad, in memory, as passed by :func:`visit`."""

    rows: slice | Numbers
    """Rows among the slabs given to :func:`visit`."""
    start: int
    """Number of slots in the views before this one."""
    memory: Memory
    slabs: Slabs
    cache: SlabCache
    columns: Layout
    pad: int
    """Bytes before the first object of each slab."""
    buffer: Bytes
    page_readable: Mask | None
    """Mask over pages; None: all are readable."""
    kept: Mask | None = None
    """Mask of the slots with a readable allocated object, shape (slabs, slots); None: all."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of slabs, and of slots in each."""
        return len(self.slabs), int(self.slabs.objects[0])

    @property
    def slab_bytes(self) -> int:
        """Bytes of the pages of a slab."""
        return len(self.buffer) // len(self.slabs)

    @cached_property
    def allocated(self) -> Mask:
        """:attr:`kept` as an array, even if all slots are kept."""
        return np.ones(self.shape, np.bool_) if self.kept is None else self.kept

    @property
    def readable(self) -> Mask:
        """Mask of the completely readable slabs."""
        if self.page_readable is None:
            return np.ones(len(self.slabs), np.bool_)
        return np.asarray(self.page_readable.reshape(len(self.slabs), -1).all(axis=1))

    def address(self, out: Words | None = None) -> Words:
        """Return addresses of the slots, shape (slabs, slots), in ``out`` if given."""
        first = self.slabs.address + np.uint64(self.pad)
        slots = np.arange(self.shape[1], dtype=np.uint64) * np.uint64(self.cache.slot_size)
        return np.asarray(np.add(first[:, None], slots[None, :], out=out))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a member of all slots, allocated or not, shape (slabs, slots)."""
        return self.columns.decode(name, self.stored(name))

    def stored(self, name: str) -> npt.NDArray[Any]:
        """Return a member as of :meth:`column`, with bit fields still inside their words."""
        f = self.columns.fields[name]
        self._note(f)
        return self._cut(f.dtype, f.offset, self.shape, ())

    def members(self, names: Iterable[str], words: str = "") -> dict[str, npt.NDArray[Any]]:
        """Return members as of :meth:`column`, contiguous in memory, in a third of the time.

        :param words: a further member, as of :meth:`words`, but of shape (words, slabs, slots)
        """
        sources = {name: self.stored(name) for name in names}
        copies = {name: np.empty(source.shape, source.dtype) for name, source in sources.items()}
        pairs = [(copies[name], source) for name, source in sources.items()]
        if words:
            each = self.words(words).transpose(2, 0, 1)
            copies[words] = np.empty(each.shape, each.dtype)
            pairs += zip(copies[words], each, strict=True)
        # All are cut from some slabs that stay in the processor's cache, then from the next ones.
        rows = max(_CACHED_BYTES // self.slab_bytes, 1)
        for start in range(0, len(self.slabs), rows):
            for copy, source in pairs:
                copy[start : start + rows] = source[start : start + rows]
        return {
            name: column if name == words else self.columns.decode(name, column)
            for name, column in copies.items()
        }

    def matching(self, name: str, is_wanted: Callable[[npt.NDArray[Any]], Mask]) -> Words:
        """Return the addresses of allocated objects whose member is wanted; no other is used.

        :param is_wanted: takes the member of several objects
        """
        f = self.columns.fields[name]
        values = self.columns.decode(name, self._cut(f.dtype, f.offset, self.shape, ()))
        found = self.address()[self.allocated][is_wanted(values[self.allocated])]
        self.memory.note(found + np.uint64(f.offset), f.dtype.itemsize, use_of(f.dtype))
        return found

    def words(self, name: str) -> npt.NDArray[np.uint64]:
        """Return a member of several bytes as little-endian words, shape (slabs, slots, words)."""
        f = self.columns.fields[name]
        self._note(f)
        return self._cut(np.dtype("<u8"), f.offset, (*self.shape, -(-f.dtype.itemsize // 8)), (8,))

    def _note(self, field: Field) -> None:
        if self.memory.uses is not None:
            at = (self.address() + np.uint64(field.offset)).ravel()
            self.memory.note(at, field.dtype.itemsize, use_of(field.dtype))

    def _cut(
        self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], inner: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        strides = self.slab_bytes, self.cache.slot_size, *inner
        cut = np.ndarray(shape, dtype, self.buffer, self.pad + offset, strides)
        return cut if dtype.isnative else cut.astype(native(dtype))


def visit(
    slab_map: SlabMap,
    slabs: Slabs,
    columns: Layout,
    work: Callable[[View, ScanReport], T],
    report: ScanReport,
    merge: Callable[[list[T]], T] | None = None,
) -> Iterator[T]:
    """Yield the results of ``work`` for slabs of :meth:`SlabMap.index`, a few megabytes at a time.

    :param work: called in :attr:`Memory.jobs` worker processes; its result must be picklable, and
        memory that it writes must be shared
    :param merge: makes one result of several, so that worker processes send fewer
    """
    memory = slab_map.memory
    batches = list(_batches(slab_map, slabs))
    starts = np.cumsum([0, *(int(slabs.objects[rows].sum()) for rows in batches)]).tolist()
    caches = [slab_map.caches[id_] for id_ in np.unique(slabs.cache).tolist()]
    stores = parked(slab_map, caches)
    report.lists_lost += stores.lost

    def show(batch: int, part: ScanReport) -> T:
        own = slabs[batches[batch]]
        pages = int(slab_map.slab_pages(own[:1])[0])
        step = np.arange(pages, dtype=np.uint64) << np.uint64(memory.page_shift)
        addresses = (own.address[:, None] + step[None, :]).ravel()
        buffer, readable = memory.pages(addresses, part.slabs)
        cache = slab_map.caches[own.cache[0]]
        pad = int(slab_map.pad(own[:1])[0])
        view = View(
            batches[batch], starts[batch], memory, own, cache, columns, pad, buffer, readable
        )
        view.kept = _kept(slab_map, view, stores, part)
        return work(view, part)

    together = 1
    if merge is not None and memory.jobs > 1:
        together = min(max(len(batches) // (memory.jobs * _SHARES), 1), _MOST_MERGED)

    def do(task: int) -> tuple[T, ScanReport]:
        part = ScanReport()
        some = range(len(batches))[task * together : (task + 1) * together]
        results = [show(batch, part) for batch in some]
        return results[0] if len(results) == 1 or merge is None else merge(results), part

    # Computed once here rather than in each worker process.
    _ = slab_map.freelist_code
    for result, part in memory.each("slab objects", do, -(-len(batches) // together)):
        report.add(part)
        yield result


def _batches(slab_map: SlabMap, slabs: Slabs) -> Iterator[slice | Numbers]:
    """Yield rows of slabs to read together: alike in all of a :class:`View`, a chunk at a time."""
    kinds = slabs.cache.astype(np.int64) << 16 | slabs.objects
    if slab_map.is_slab:
        kinds |= slabs.extra["pad"].astype(np.int64) << 36
    # pd.unique() hashes where NumPy's sorts; there are as many slabs as memory, and few kinds.
    for kind in sorted(pd.unique(kinds).tolist()):
        rows = np.flatnonzero(kinds == kind)
        pages = int(slab_map.slab_pages(slabs[rows[:1]])[0])
        count = max(slab_map.memory.chunk_pages // pages, 1)
        for start in range(0, len(rows), count):
            batch = rows[start : start + count]
            together = batch[-1] - batch[0] == len(batch) - 1
            yield slice(int(batch[0]), int(batch[-1]) + 1) if together else batch


def _kept(slab_map: SlabMap, view: View, stores: Parked, report: ScanReport) -> Mask | None:
    """Return :attr:`View.kept`: slots neither on the slab's list, nor parked, nor unreadable."""
    slabs, cache = view.slabs, view.cache
    has_free = slabs.inuse < slabs.objects
    rows = np.flatnonzero(has_free if slab_map.is_slab else has_free | (slabs.freelist != 0))
    parked_slots = stores.slots(slab_map, slabs)
    if not len(rows) and not len(parked_slots[0]) and view.page_readable is None:
        return None
    kept = np.ones(view.shape, np.bool_)
    if len(rows):
        torn = (_drop_indexed if slab_map.is_slab else _drop_listed)(slab_map, view, rows, kept)
        _note_torn(view, rows, kept, torn, report)
    kept[parked_slots] = False
    if view.page_readable is not None:
        slots = np.arange(view.shape[1]) * cache.slot_size + view.pad
        first = slots >> slab_map.memory.page_shift
        last = (slots + cache.object_size - 1) >> slab_map.memory.page_shift
        missing = np.cumsum(~view.page_readable.reshape(len(slabs), -1), axis=1)
        missing = np.pad(missing, ((0, 0), (1, 0)))
        bad = missing[:, last + 1] != missing[:, first]
        report.objects_unreadable += int((kept & bad).sum())
        kept &= ~bad
    return kept


def _drop_indexed(slab_map: SlabMap, view: View, rows: Numbers, kept: Mask) -> Mask:
    """Do what :func:`_drop_listed` does with SLUB, with SLAB."""
    found = free_slots(slab_map.memory, view.slabs[rows])
    kept[rows] = ~found.is_free
    return found.is_torn


def _drop_listed(slab_map: SlabMap, view: View, rows: Numbers, kept: Mask) -> Mask:
    """Clear the slots on the freelists of the slabs ``rows`` in ``kept``.

    :return: mask over ``rows`` of the slabs with a torn freelist
    """
    cache, slabs, readable = view.cache, view.slabs, view.page_readable
    code, shift = slab_map.freelist_code, slab_map.memory.page_shift
    words = view.buffer.view(slab_map.word.fields["word"].dtype)
    base = slabs.address[rows] + np.uint64(view.pad)
    starts = rows * view.slab_bytes + view.pad + cache.free_offset
    size, offset = np.uint64(cache.slot_size), np.uint64(cache.free_offset)
    secret = np.uint64(cache.secret)

    def slot(nodes: Words, lanes: Lanes) -> tuple[Numbers, Mask]:
        distance = nodes - base[lanes]
        number = distance // size
        fits = (number < slabs.objects[rows[lanes]]) & (number * size == distance)
        return np.where(fits, number, np.uint64(0)).astype(np.int64), fits

    def step(nodes: Words, lanes: Lanes) -> tuple[Words, Mask]:
        number, ok = slot(nodes, lanes)
        place = starts[lanes] + number * cache.slot_size
        if readable is not None:
            ok &= readable[place >> shift]
        return code.decode(words[place >> 3], nodes + offset, secret), ok

    damage = Damage()
    heads = slabs.freelist[rows]
    for lanes, nodes in chase(heads, step, limit=view.shape[1] + 1, damage=damage):
        number, fits = slot(nodes, lanes)
        kept[rows[lanes[fits]], number[fits]] = False
    torn = np.zeros(len(rows), np.bool_)
    torn[damage.lanes()] = True
    return torn


def _note_torn(view: View, rows: Numbers, kept: Mask, torn: Mask, report: ScanReport) -> None:
    """Note the slabs ``rows`` with another number of free slots than they count."""
    slabs, readable = view.slabs, view.page_readable
    expected = slabs.objects[rows].astype(np.int64) - slabs.inuse[rows]
    listed = (~kept[rows]).sum(axis=1)
    torn |= listed != expected
    if readable is not None:
        # In a completely unreadable slab, no object counts as allocated.
        torn &= readable.reshape(len(slabs), -1)[rows].any(axis=1)
        expected = np.where(torn, expected, listed)
    report.slabs_torn += int(torn.sum())
    report.objects_uncertain += int(np.maximum(expected - listed, 0).sum())
