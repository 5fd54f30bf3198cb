# SPDX-License-Identifier: LGPL-2.1-or-later
"""Gather: many addresses become columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.engine.layout import Field, Layout, native, word_dtype
from kcensus.engine.memory import Bytes, Faults, Guess, Mask, Memory, Numbers, Words
from kcensus.engine.rows import factorized, spread
from kcensus.engine.tags import untagged
from kcensus.sources.capsule.uses import Use
from kcensus.sources.faults import ZEROED

_SHORT = 16
"""Elements of an array that are read one after the other, each of all arrays."""
IMPOSSIBLE_COUNT = "a count that exceeds RAM"
LEAST = 1 << 16
"""Lower addresses are NULL, or small numbers in place of a pointer."""
STRAY = "a pointer to no memory of the kernel"
"""Reason of :class:`Faults` for an address below the kernel's."""


@dataclass(frozen=True)
class Gathered:
    """Columns in the order of the addresses; rows that could not be read are zero."""

    columns: Mapping[str, npt.NDArray[Any]]
    readable: Mask
    possible: Mask
    """Rows whose counts of objects fit into memory; impossible counts are zero."""

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def rows(self, wanted: Mask | Numbers) -> Gathered:
        """Return some of the rows."""
        columns = {name: column[wanted] for name, column in self.columns.items()}
        return Gathered(columns, self.readable[wanted], self.possible[wanted])


def gather(
    memory: Memory, addresses: Words, layout: Layout, faults: Faults, *, may_be_zero: bool = False
) -> Gathered:
    """Read one struct at each virtual address, in any order, repeated or not.

    A running kernel may reuse the memory of a structure before its counts are read, and damage can
    give any: counts that exceed RAM are zero, and noted in ``faults``. A page that is all zero
    cannot hold a live struct: it is lost, as if it could not be read.

    :param may_be_zero: whether zeros are plausible, as in tables of counters or of bits
    """
    columns = {
        name: np.zeros(len(addresses), native(field.dtype)) for name, field in layout.fields.items()
    }
    addresses = untagged(addresses, memory.tag)
    readable = np.ones(len(addresses), np.bool_)
    for group in _groups(memory, layout):
        start = min((field.offset for field in group.values()), default=0)
        end = max((field.offset + field.dtype.itemsize for field in group.values()), default=1)
        found = np.zeros(len(addresses), np.bool_)
        at = addresses + np.uint64(start)
        for rows, offsets, buffer, ok in _blocks(memory, at, end - start, faults, may_be_zero):
            found[rows] = ok
            for name, field in group.items():
                values = _take(buffer, offsets + (field.offset - start), field.dtype)
                columns[name][rows[ok]] = values[ok]
        readable &= found
    if memory.uses is not None:
        for field in layout.fields.values():
            at = addresses[readable] + np.uint64(field.offset)
            memory.note(at, field.dtype.itemsize, use_of(field.dtype, faults))
    if not readable.all():
        for column in columns.values():
            column[~readable] = column.dtype.type()
    possible = np.ones(len(addresses), np.bool_)
    for name, field in layout.fields.items():
        if field.least_bytes:
            fits = possible_counts(memory, columns[name], faults, field.least_bytes)
            columns[name][~fits] = 0
            possible &= fits
    decoded = {name: layout.decode(name, column) for name, column in columns.items()}
    return Gathered(decoded, readable, possible)


def possible_counts(
    memory: Memory, counts: npt.NDArray[Any], faults: Faults, least_bytes: int
) -> Mask:
    """Return which counts of objects fit into RAM, of the same shape; negative ones by their size.

    :param counts: integers; unsigned ones are taken as signed, since counters of a CPU can be
        negative
    :param faults: gets the number of impossible counts
    :param least_bytes: size of the smallest counted object
    """
    most = memory.end // least_bytes
    signed = counts.view(counts.dtype.str.replace("u", "i"))
    # The magnitude of the least integer is itself.
    fits: Mask = (signed <= most) & (signed >= -most)
    faults.add(IMPOSSIBLE_COUNT, (~fits).sum())
    return fits


def use_of(dtype: np.dtype[Any], faults: Faults | None = None) -> Use:
    """Return the use of a member; ``faults`` of the type :class:`Guess` make it unknown."""
    if dtype.kind == "S":
        return Use.TEXT
    return Use.UNKNOWN if isinstance(faults, Guess) else Use.NUMBER


def _groups(memory: Memory, layout: Layout) -> list[dict[str, Field]]:
    """Return the fields in groups of at most a page, so that pages between them are not read."""
    groups: list[dict[str, Field]] = []
    start = 0
    for name, field in sorted(layout.fields.items(), key=lambda item: item[1].offset):
        end = field.offset + field.dtype.itemsize
        if not groups or end - start > memory.page_size:
            groups.append({})
            start = field.offset
        groups[-1][name] = field
    return groups or [{}]


def gather_arrays(
    memory: Memory,
    addresses: Words,
    length: int,
    dtype: npt.DTypeLike,
    faults: Faults,
    use: Use | None = Use.NUMBER,
) -> tuple[npt.NDArray[Any], Mask]:
    """Read an array of ``length`` elements at each address; unreadable ones are zero.

    :param use: of the elements; None if the caller notes what it uses
    :return: shape ``(len(addresses), length)``, and a mask of the readable rows
    """
    element, addresses = np.dtype(dtype), untagged(addresses, memory.tag)
    values = np.zeros((len(addresses), length), native(element))
    readable = np.zeros(len(addresses), np.bool_)
    span = max(length * element.itemsize, 1)
    for rows, offsets, buffer, ok in _blocks(memory, addresses, span, faults, True):
        readable[rows] = ok
        if not ok.all():
            rows, offsets = rows[ok], offsets[ok]
        if length <= _SHORT:
            # The same element of all arrays at a time: half of the time of an index of all.
            for column in range(length):
                values[rows, column] = _take(buffer, offsets + column * element.itemsize, element)
        else:
            places = offsets[:, None] + np.arange(length) * element.itemsize
            values[rows] = _take(buffer, places, element)
    if use is Use.NUMBER:
        use = use_of(element, faults)
    memory.note(addresses[readable], length * element.itemsize, use)
    return values, readable


def gather_pointers(
    memory: Memory, arrays: Words, counts: npt.NDArray[np.integer[Any]], faults: Faults
) -> tuple[Numbers, Words, Mask]:
    """Read arrays of ``counts`` pointers; unreadable ones are zero.

    :return: row of the array of each element, pointers, and a mask of the readable ones
    """
    word = word_dtype(memory.prog)
    row, index = spread(counts)
    places = arrays[row] + np.uint64(word.itemsize) * index.astype(np.uint64)
    pointers, readable = gather_words(memory, places, word, faults)
    # Words are aligned; an unaligned pointer to them is damaged.
    readable &= (arrays[row] != 0) & (arrays[row] % np.uint64(word.itemsize) == 0)
    return row, untagged(np.where(readable, pointers, np.uint64(0)), memory.tag), readable


@dataclass(frozen=True)
class PageIndex:
    """Addresses of pages, in the order of first mention, and the index of each address's page."""

    page: Words
    code: Numbers

    @staticmethod
    def of(memory: Memory, addresses: Words) -> PageIndex:
        """Index ``addresses`` by hashing, in a third of the time of sorting."""
        shift = np.uint64(memory.page_shift)
        number = addresses >> shift
        # Most addresses are in one stretch of the direct map, at most as long as RAM.
        span = int(number.max() - number.min()) + 1 if len(number) else 0
        code, page = factorized(number, span)
        return PageIndex(page << shift, code)


def gather_words(
    memory: Memory,
    addresses: Words,
    dtype: npt.DTypeLike,
    faults: Faults,
    index: PageIndex | None = None,
    use: Use = Use.NUMBER,
) -> tuple[npt.NDArray[Any], Mask]:
    """Read one aligned word at each address.

    It is twice as fast as :func:`gather` if many words share a page: it hashes pages instead of
    sorting addresses.

    :return: the words, zero if unreadable, and a mask of the readable ones
    """
    word, addresses = np.dtype(dtype), untagged(addresses, memory.tag)
    values = np.zeros(len(addresses), native(word))
    _note_strays(memory, addresses, faults)
    index = index or PageIndex.of(memory, addresses)
    # An aligned word lies on one page, so it is enough to check pages.
    good = plausible(memory, index.page, memory.page_size)
    order = np.argsort(index.page[good])
    pages = index.page[good][order]
    rank = np.full(len(index.page), -1)
    rank[np.flatnonzero(good)[order]] = np.arange(len(pages))
    place = rank[index.code]
    within = (addresses & np.uint64(memory.page_size - 1)).astype(np.int64)
    readable = np.zeros(len(addresses), np.bool_)
    size = max(memory.chunk_pages, 1)
    for start in range(0, len(pages), size):
        buffer, ok = memory.pages(pages[start : start + size], faults)
        here: slice | Numbers = slice(None)
        if len(pages) > size or not good.all():
            here = np.flatnonzero((place >= start) & (place < start + size))
        own = place[here] - start
        found = buffer.view(word)[((own << memory.page_shift) + within[here]) // word.itemsize]
        if ok is None:
            readable[here] = True
        else:
            readable[here] = ok[own]
            found[~ok[own]] = 0
        values[here] = found
    if memory.uses is not None:
        used = use_of(word, faults) if use is Use.NUMBER else use
        memory.note(addresses[readable], word.itemsize, used)
    return values, readable


def _blocks(
    memory: Memory, addresses: Words, span: int, faults: Faults, may_be_zero: bool
) -> Iterator[tuple[Numbers, Numbers, Bytes, Mask]]:
    """Yield (rows of ``addresses``, their offsets in the buffer, buffer, whether readable)."""
    shift = np.uint64(memory.page_shift)
    _note_strays(memory, addresses, faults)
    order = np.flatnonzero(plausible(memory, addresses, span))
    if not len(order):
        return
    ascending = addresses[order]
    if np.any(ascending[1:] < ascending[:-1]):
        order = order[np.argsort(ascending, kind="stable")]
        ascending = addresses[order]
    first = ascending >> shift
    # Number of further pages that a span can reach.
    more = (span + memory.page_size - 2) >> memory.page_shift
    rank = np.concatenate([[0], np.cumsum(first[1:] != first[:-1])])
    per_block = max(memory.chunk_pages // (more + 1), 1)
    cuts = np.flatnonzero(np.diff(rank // per_block)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        begin = first[start:end]
        last = (ascending[start:end] + np.uint64(span - 1)) >> shift
        touched = [np.minimum(begin + np.uint64(step), last) for step in range(1, more + 1)]
        pages = np.unique(np.concatenate([begin, *touched]))
        buffer, pages_ok = memory.pages(pages << shift, faults)
        if not may_be_zero:
            pages_ok = _lost(buffer, len(pages), pages_ok, faults)
        at = np.searchsorted(pages, begin)
        offsets = (at << memory.page_shift) + (
            ascending[start:end] & np.uint64(memory.page_size - 1)
        ).astype(np.int64)
        if pages_ok is None:
            ok = np.ones(end - start, np.bool_)
        else:
            bad = np.concatenate([[0], np.cumsum(~pages_ok)])
            beyond = ((offsets + span - 1) >> memory.page_shift) + 1
            ok = bad[beyond] == bad[at]
        yield order[start:end], offsets, buffer, ok


def _lost(buffer: Bytes, pages: int, readable: Mask | None, faults: Faults) -> Mask | None:
    """Return the mask of readable pages without those that are all zero, which are counted."""
    words = buffer.view(np.uint64).reshape(pages, -1)
    # A look at every 64th word finds nearly all pages that are in use.
    empty = np.flatnonzero(~words[:, ::64].any(axis=1))
    empty = empty[~words[empty].any(axis=1)]
    if readable is not None:
        empty = empty[readable[empty]]
    if not len(empty):
        return readable
    faults[ZEROED] += len(empty)
    kept = np.ones(pages, np.bool_) if readable is None else readable.copy()
    kept[empty] = False
    return kept


def plausible(memory: Memory, addresses: Words, span: int) -> Mask:
    """Return which addresses can be the kernel's, and do not reach beyond the last one.

    A dump may serve low addresses as if they were physical, so following a damaged pointer there
    would give plausible nonsense instead of a fault.
    """
    return within(addresses, plausible_range(memory, span))


def within(addresses: Words, places: range) -> Mask:
    """Return which addresses are in a range, which may reach to the end of all addresses."""
    return (addresses >= np.uint64(places.start)) & (addresses <= np.uint64(places.stop - 1))


def plausible_range(memory: Memory, span: int) -> range:
    """Return the addresses for which :func:`plausible` holds."""
    places = memory.places
    return range(max(places.start, LEAST), places.stop - (span + 65535))


def _note_strays(memory: Memory, addresses: Words, faults: Faults) -> None:
    """Note pointers to no memory of the kernel, but NULL and small numbers in place of one."""
    outside = ~within(addresses, memory.places)
    faults.add(STRAY, (outside & (addresses >= np.uint64(LEAST))).sum())


def _take(buffer: Bytes, offsets: Numbers, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Cut one element of ``dtype`` from each offset of a buffer."""
    size = dtype.itemsize
    if dtype.kind in "iuf" and not (offsets & (size - 1)).any():
        return buffer.view(dtype)[offsets // size]
    cut = buffer[offsets[..., None] + np.arange(size)]
    return np.ascontiguousarray(cut).view(dtype)[..., 0]
