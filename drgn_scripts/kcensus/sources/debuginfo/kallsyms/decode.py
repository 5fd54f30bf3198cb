# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decode the compressed symbol table of a kernel's image, as scripts/kallsyms.c wrote it.

A symbol is its length and that many bytes, and each byte is a token of up to some ten characters;
the first character of all is the type, as nm(1) prints it. Since Linux kernel commit 73bbb94466fd
("kallsyms: support "big" kernel symbols") (in v6.1), a length above 127 takes two bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kcensus.sources.debuginfo.kallsyms.symbol_names import TOKENS, BadKallsyms, SymbolNames
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols

Read = Callable[[int, int], bytes]
"""Function that returns memory of the kernel: (address, size); raises :class:`BadKallsyms`."""

MIN_SYMBOLS, MAX_SYMBOLS = 1 << 10, 1 << 21
MAX_TOKEN_BYTES = 1 << 14
# 7.3 has 3.2 MB.
MAX_NAMES_BYTES = 1 << 25
_PER_MARKER = 256
_PAGE_BYTES = 4096
# A piece of a page that is shorter may be zeros by itself.
_MIN_PIECE_BYTES = 64
# 7.3 has 196 names of one Rust function, because equal functions are folded. A page of offsets is
# 1,024. Up to 5.x, all empty strings with the namespaces of exported symbols are one string.
_MAX_ALIASES = 512
_NAMESPACE = "__kstrtabns_"
_MAX_PADDING = 64
# Letters of nm(1) that a linked kernel has, see is_ignored_symbol() of scripts/mksysmap. Of symbols
# in a section of an unknown kind, it is a question mark.
_TYPES = np.frombuffer(b"AaBbCcDdGgIiNnRrSsTtuVvWw?", np.uint8)


class Lengths(NamedTuple):
    """The places of all symbols in the compressed names."""

    first: npt.NDArray[np.int64]
    bytes: int
    """Length of the compressed names."""

    @property
    def marks(self) -> npt.NDArray[np.int64]:
        """Place of each 256th symbol."""
        return self.first[::_PER_MARKER]


def tokens(table: bytes, index: bytes) -> list[bytes]:
    """Return the 256 tokens.

    :param table: strings that end with NUL; bytes after the last one are ignored
    :param index: 256 offsets into ``table``, of 2 bytes
    :raises BadKallsyms: the tables do not fit together
    """
    starts = np.frombuffer(index, "<u2", TOKENS).astype(np.int64)
    end = table.find(b"\0", int(starts[-1]))
    ends = np.append(starts[1:] - 1, end)
    if starts[0] or end < 0 or (np.diff(starts) < 1).any():
        raise BadKallsyms("the offsets in kallsyms_token_index do not increase")
    if any(table[place] for place in ends.tolist()):
        raise BadKallsyms("kallsyms_token_index does not fit kallsyms_token_table")
    found = [table[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    if not all(33 <= byte < 127 for byte in b"".join(found)):
        raise BadKallsyms("kallsyms_token_table has a character that no symbol has")
    _check_pairs(found)
    return found


def _check_pairs(table: list[bytes]) -> None:
    """Raise :class:`BadKallsyms` unless each token is a character, or a pair of other tokens.

    A character is its own code. The other codes stand for the most frequent pairs, and
    scripts/kallsyms.c finds these from the highest code on, each time in what is left to compress.
    """
    codes = {token: bytes([code]) for code, token in enumerate(table) if len(token) == 1}
    if any(token != code for token, code in codes.items()):
        raise BadKallsyms("kallsyms_token_table has a character at a wrong place")
    pairs: dict[bytes, bytes] = {}
    for code in range(TOKENS - 1, -1, -1):
        token = left = table[code]
        if len(token) < 2:
            continue
        if not all(token[n : n + 1] in codes for n in range(len(token))):
            raise BadKallsyms("kallsyms_token_table has a character that no symbol has")
        for pair, short in pairs.items():
            left = left.replace(pair, short)
        if len(left) != 2:
            raise BadKallsyms("kallsyms_token_table has a token that is not a pair of others")
        pairs[left] = bytes([code])


def lengths(stream: bytes, count: int, markers: npt.NDArray[np.int64] | None = None) -> Lengths:
    """Return the places of ``count`` symbols at the start of ``stream``.

    :param markers: the place of each 256th symbol, if known; otherwise they may follow the names
    :raises BadKallsyms: a length is impossible
    """
    for marks in _marks(stream, count) if markers is None else [markers]:
        if found := _parallel(stream, count, marks):
            return found
    return _lengths(stream, count)


def _marks(stream: bytes, count: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield what may be kallsyms_markers, the places of each 256th symbol, at the end of the names.

    They end at the next table, or some bytes before, so that this is aligned.
    """
    number = -(-count // _PER_MARKER)
    for dtype in ("<u4", "<u8"):
        for padding in range(0, _MAX_PADDING, 4):
            start = len(stream) - padding - number * np.dtype(dtype).itemsize
            if start > 0:
                marks = np.frombuffer(stream, dtype, number, start)
                if marks[0] == 0 and marks[-1] < start and (marks[1:] > marks[:-1]).all():
                    yield marks.astype(np.int64)


def _parallel(stream: bytes, count: int, marks: npt.NDArray[np.int64]) -> Lengths | None:
    """Return the places of symbols, following them from all marks at once; None if that fails."""
    if len(marks) > 1 and not _reaches(stream, int(marks[1])):
        return None
    data, last = np.frombuffer(stream, np.uint8), len(stream) - 1
    first = np.empty((len(marks), _PER_MARKER), np.int64)
    place, end = marks, 0
    for column in range(_PER_MARKER):
        first[:, column] = place
        length = data[np.minimum(place, last)].astype(np.int64)
        is_long = length >= 128
        if is_long.any():
            high = data[np.minimum(place + 1, last)].astype(np.int64) << 7
            length = np.where(is_long, 1 + high + length - 128, length)
        place = place + 1 + length
        if column == (count - 1) % _PER_MARKER:
            end = int(place[-1])
    starts = first.reshape(-1)[:count]
    fits = (place[:-1] == marks[1:]).all() and (np.diff(starts) > 1).all() and end <= last + 1
    return Lengths(starts, end) if fits else None


def _reaches(stream: bytes, mark: int) -> bool:
    """Return whether the first symbols end at the second mark."""
    place = 0
    for _ in range(_PER_MARKER):
        if place + 1 >= len(stream):
            return False
        length = stream[place]
        place += 1 + length if length < 128 else 2 + length - 128 + (stream[place + 1] << 7)
    return place == mark


def _lengths(stream: bytes, count: int) -> Lengths:
    """Return the places of symbols, one after another."""
    starts = array("q")
    place = 0
    try:
        for _ in range(count):
            starts.append(place)
            length = stream[place]
            if length >= 128:
                place += 1
                length += (stream[place] << 7) - 128
            if not length:
                raise BadKallsyms("kallsyms_names has a symbol without a name")
            place += 1 + length
    except IndexError:
        place = len(stream) + 1
    if place > len(stream):
        raise BadKallsyms(f"kallsyms_names ends before its {count} symbols do")
    return Lengths(np.frombuffer(starts, np.int64), place)


def names(stream: bytes, places: Lengths, table: list[bytes]) -> SymbolNames:
    """Return the names of symbols.

    :param stream: the compressed names
    :param table: the 256 tokens
    :raises BadKallsyms: a symbol is impossible
    """
    first = places.first
    is_long = np.frombuffer(stream, np.uint8, places.bytes)[first] >= 128
    found = SymbolNames(stream, first, first + 1 + is_long, places.bytes, table)
    if not np.isin(np.frombuffer(found.types.encode("ascii"), np.uint8), _TYPES).all():
        raise BadKallsyms("kallsyms_names has a symbol of an unknown type")
    return found


def has_markers(stream: bytes, found: Lengths) -> bool:
    """Return whether the places of each 256th symbol follow the names, as they do in all kernels.

    Since Linux kernel commit 80ffbaa5b1bd ("kallsyms: reduce size a little on 64-bit") (in
    v4.20), they have 4 bytes in place of 8. The alignment is 8, or 4 in newer kernels.
    """
    for dtype, alignment in (("<u4", 4), ("<u4", 8), ("<u8", 8)):
        start = -(-found.bytes // alignment) * alignment
        if start + len(found.marks) * np.dtype(dtype).itemsize <= len(stream):
            marks = np.frombuffer(stream, dtype, len(found.marks), start)
            if bool((marks == found.marks.astype(np.uint64)).all()):
                return True
    return False


def check_pages(data: bytes, address: int, what: str) -> None:
    """Raise :class:`BadKallsyms` if a page, or the part of it in ``data``, has only zeros."""
    start = 0
    while start < len(data):
        end = min(start + _PAGE_BYTES - (address + start) % _PAGE_BYTES, len(data))
        if end - start >= _MIN_PIECE_BYTES and not data[start:end].strip(b"\0"):
            raise BadKallsyms(
                f"the page at 0x{address + start:x}, a part of {what}, has only zeros"
            )
        start = end


class Offsets(NamedTuple):
    """The table of addresses of a kernel, of whatever form."""

    data: bytes
    place: int
    """Address of the table."""
    base: int | None
    """kallsyms_relative_base, if the kernel has it."""

    def forms(self, count: int) -> Iterator[npt.NDArray[np.uint64]]:
        """Yield the addresses in each form that the table may have.

        Since Linux kernel commit 2213e9a66bb8 ("kallsyms: add support for relative offsets in
        kallsyms address table") (in v4.6), there are offsets from a base in place of addresses; on
        x86 with SMP up to 6.14, negative ones are of symbols, and others are places in a CPU's
        area. Since commit a081b5789255 ("kallsyms: Get rid of kallsyms relative base") (in v7.0),
        an offset is from its own place.
        """
        if len(self.data) >= 8 * count:
            yield np.frombuffer(self.data, "<u8", count)
            return
        signed = np.frombuffer(self.data, "<i4", count).astype(np.int64)
        if self.base is None:
            places = np.uint64(self.place) + np.arange(count, dtype=np.uint64) * np.uint64(4)
            yield places + signed.astype(np.uint64)
            return
        base = np.uint64(self.base)
        relative = base - np.uint64(1) - signed.astype(np.uint64)
        yield np.where(signed < 0, relative, signed.astype(np.uint64))
        yield base + np.frombuffer(self.data, "<u4", count)


def symbols(found: SymbolNames, offsets: Offsets, known: dict[str, int]) -> Symbols:
    """Return the table whose addresses are those of VMCOREINFO.

    :param known: SYMBOL lines of VMCOREINFO, with ``_stext``
    :raises BadKallsyms: no form of addresses fits
    """
    error: BadKallsyms | None = None
    for addresses in offsets.forms(len(found)):
        table = Symbols(found, addresses)
        try:
            check_order(table)
            check_known(table, known)
        except BadKallsyms as why:
            # Of several forms, the reason of the nearest to fit.
            error = error if error is not None and "_stext" not in str(error) else why
        else:
            return table
    raise error or BadKallsyms("kallsyms has no addresses")


def check_order(table: Symbols) -> None:
    """Raise :class:`BadKallsyms` unless addresses ascend, with some aliases at each."""
    addresses = table.address_column
    if (addresses[1:] < addresses[:-1]).any():
        raise BadKallsyms("the addresses of kallsyms do not ascend")
    many = np.flatnonzero(addresses[_MAX_ALIASES:] == addresses[:-_MAX_ALIASES])
    for place in np.unique(addresses[many]).tolist():
        rows = np.flatnonzero(addresses == place)
        if table.name_column.count_without(_NAMESPACE, rows) > _MAX_ALIASES:
            raise BadKallsyms(f"kallsyms has more than {_MAX_ALIASES} symbols at one address")


def check_known(table: Symbols, known: dict[str, int], source: str = "kallsyms") -> None:
    """Raise :class:`BadKallsyms` unless symbols are where VMCOREINFO says they are.

    ``_stext`` must be in the table; data symbols are in it only with CONFIG_KALLSYMS_ALL.

    :param source: where the symbols come from
    """
    if "_stext" not in known:
        raise BadKallsyms("VMCOREINFO lacks SYMBOL(_stext), which verifies kallsyms")
    for name in ("_stext", *known):
        places = table.addresses(name)
        if known[name] not in places and (places or name == "_stext"):
            where = f"at 0x{places[0]:x}" if places else "missing"
            raise BadKallsyms(
                f"{name} is {where} in {source}, but at 0x{known[name]:x} in VMCOREINFO"
            )


def number(data: bytes) -> int:
    """Return a little-endian unsigned integer."""
    return int.from_bytes(data, "little")
