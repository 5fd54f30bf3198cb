# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the tables of kallsyms in the read-only data of a kernel's image.

scripts/kallsyms.c writes, in this order: the addresses, the number of symbols, their names, the
place of each 256th one (markers), the tokens, and the index of the tokens. Linux 6.2 and 6.3 have
the order of names between markers and tokens. Since Linux kernel commit 404bad70fcf7
("scripts/kallsyms: change the output order") (in v6.4), the addresses are last.

A character that a symbol has is a token of its own, with its own code, so digits follow each other
in the table of tokens. From there on, each table says where the one before it is. All of them must
fit together, and the symbols of VMCOREINFO must be at its addresses; see decode.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kcensus.sources.debuginfo.kallsyms import decode
from kcensus.sources.debuginfo.kallsyms.symbol_names import TOKENS, BadKallsyms, SymbolNames
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols
from kcensus.sources.vmcoreinfo.search import stretches

_DIGITS = b"".join(b"%c\0" % digit for digit in b"0123456789")
# The next code is not a character of a symbol; tables of Unicode have it after the digits. A
# regular expression is found in half the time of bytes.
_START = re.compile(re.escape(_DIGITS) + rb"(?!:\0)")
_FIRST_DIGIT = ord("0")
_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
# The largest images of distributions are a quarter of this.
_MAX_IMAGE_BYTES = 256 << 20
# Sections begin at multiples of 2 MiB, and the memory between them is freed and unmapped.
_MAX_HOLE_BYTES = 16 << 20
_MAX_TABLES = 4
_MAX_NUMBERS = 8
_ALIGNMENTS = (4, 8)
# Compressed bytes of 256 symbols with their lengths.
_MIN_STEP, _MAX_STEP = 256 * 2, 256 * 512
_MIN_MARKERS = decode.MIN_SYMBOLS // TOKENS
# The header of an image may be before _stext.
_MAX_BASE_BYTES = 16 << 20
_NEAR_BYTES = 1 << 17
# Linux 6.2 and 6.3 have 3 bytes per symbol between markers and tokens.
_FAR_BYTES = _NEAR_BYTES + 3 * decode.MAX_SYMBOLS


class _Tokens(NamedTuple):
    start: int
    """Address of kallsyms_token_table."""
    end: int
    """Address after kallsyms_token_index."""
    strings: list[bytes]


class _Markers(NamedTuple):
    start: int
    number: int
    width: int
    """Bytes of each."""
    last: int
    """Place of the last marked symbol in the names."""


class _Place(NamedTuple):
    """A table of addresses; bytes of each, and the base if they are relative to one."""

    start: int
    width: int
    base: int | None


def find(read: decode.Read, known: dict[str, int]) -> Symbols:
    """Return the symbols of a kernel from its image.

    :param known: SYMBOL lines of VMCOREINFO, with ``_stext``
    :raises BadKallsyms: the tables are not found, damaged, or contradict VMCOREINFO
    """
    if not known.get("_stext"):
        raise BadKallsyms("VMCOREINFO lacks SYMBOL(_stext), where the search for kallsyms begins")
    lost: list[int] = []
    problems: list[BadKallsyms] = []
    for digits in itertools.islice(_digits(read, known["_stext"], lost), _MAX_TABLES):
        try:
            return _symbols(read, _tokens(read, digits), known)
        except BadKallsyms as error:
            problems.append(error)
    if problems:
        raise problems[0]
    missing = f"; {len(lost)} pages of it are not in the dump" if lost else ""
    raise BadKallsyms(f"the kernel's image has no kallsyms_token_table{missing}")


def _chunks(read: decode.Read, start: int, lost: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (address, bytes) of the stretches of memory from ``start`` on that can be read.

    :param lost: gets the addresses of pages before the end that cannot be read
    """
    hole: list[int] = []
    for base in range(start, min(start + _MAX_IMAGE_BYTES, 1 << 64), _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, (1 << 64) - base)
        for address, data in stretches(read, base, size, BadKallsyms):
            if data:
                lost += hole
                hole.clear()
                yield address, data
            else:
                hole.append(address)
                if len(hole) * _PAGE_BYTES >= _MAX_HOLE_BYTES:
                    return


def _digits(read: decode.Read, start: int, lost: list[int]) -> Iterator[int]:
    """Yield the addresses of tokens of digits in the image."""
    before, end = b"", 0
    for address, data in _chunks(read, start, lost):
        joined = before + data if end == address else data
        end = address + len(data)
        for match in _START.finditer(joined):
            yield end - len(joined) + match.start()
        before = joined[1 - len(_DIGITS) :]


def _tokens(read: decode.Read, digits: int) -> _Tokens:
    """Return the tables that have the tokens of digits at ``digits``."""
    data = _readable(read, digits, decode.MAX_TOKEN_BYTES)
    place = 0
    for _ in range(_FIRST_DIGIT, TOKENS):
        place = data.find(b"\0", place) + 1
        if not place:
            raise BadKallsyms("kallsyms_token_table has no end")
    problem = BadKallsyms("kallsyms_token_index does not follow kallsyms_token_table")
    for alignment in _ALIGNMENTS:
        index_at = -(-(digits + place) // alignment) * alignment
        index = data[index_at - digits :][: 2 * TOKENS]
        if len(index) < 2 * TOKENS:
            continue
        start = digits - int.from_bytes(index[2 * _FIRST_DIGIT :][:2], "little")
        try:
            table = read(start, digits + place - start)
            strings = decode.tokens(table, index)
        except BadKallsyms as error:
            problem = error
        else:
            return _Tokens(start, index_at + len(index), strings)
    raise problem


def _readable(read: decode.Read, address: int, size: int) -> bytes:
    """Return up to ``size`` bytes, fewer if a later page cannot be read."""
    data = b""
    while len(data) < size:
        place = address + len(data)
        try:
            data += read(place, min(_PAGE_BYTES - place % _PAGE_BYTES, size - len(data)))
        except BadKallsyms:
            if not data:
                raise
            break
    return data


def _before(read: decode.Read, address: int, size: int) -> bytes:
    """Return up to ``size`` bytes that end at ``address``, fewer if an earlier page is missing."""
    parts: list[bytes] = []
    end, least = address, max(address - size, 0)
    try:
        return read(least, end - least)
    except BadKallsyms:
        pass  # Some page is missing.
    while end > least:
        start = max((end - 1) // _PAGE_BYTES * _PAGE_BYTES, least)
        try:
            parts.append(read(start, end - start))
        except BadKallsyms:
            if not parts:
                raise
            break
        end = start
    return b"".join(reversed(parts))


def _symbols(read: decode.Read, tokens: _Tokens, known: dict[str, int]) -> Symbols:
    problem: BadKallsyms | None = None
    for bytes_before in (_NEAR_BYTES, _FAR_BYTES):
        data = _before(read, tokens.start, bytes_before)
        for dtype in ("<u4", "<u8"):
            markers = _markers(data, tokens.start, dtype)
            if markers is None:
                continue
            for number_at, names in _names(read, markers, tokens.strings):
                for place in _places(read, tokens.end, number_at, names, known["_stext"]):
                    try:
                        return decode.symbols(names, _offsets(read, place, names), known)
                    except BadKallsyms as error:
                        problem = problem or error
    raise problem or BadKallsyms("kallsyms_markers and kallsyms_names do not fit together")


def _markers(data: bytes, end: int, dtype: str) -> _Markers | None:
    """Return the longest run of numbers that begins with 0 and ascends as markers do.

    :param data: memory before the address ``end``
    """
    width = np.dtype(dtype).itemsize
    # Its places are multiples of the width in memory.
    skip, cut = -(end - len(data)) % width, end % width
    count = (len(data) - skip - cut) // width
    if count < _MIN_MARKERS:
        return None
    numbers = np.frombuffer(data, dtype, count, skip).astype(np.int64)
    is_step = np.diff(numbers)
    is_step = (is_step >= _MIN_STEP) & (is_step <= _MAX_STEP)
    starts = np.flatnonzero(numbers == 0)
    breaks = np.append(np.flatnonzero(~is_step), count - 1)
    lengths = breaks[np.searchsorted(breaks, starts)] - starts + 1
    best = len(starts) - 1 - int(np.argmax(lengths[::-1])) if len(starts) else -1
    if best < 0:
        return None
    first, length = int(starts[best]), int(lengths[best])
    if length < _MIN_MARKERS:
        return None
    start = end - len(data) + skip + first * width
    return _Markers(start, length, width, int(numbers[first + length - 1]))


def _names(
    read: decode.Read, markers: _Markers, tokens: list[bytes]
) -> Iterator[tuple[int, SymbolNames]]:
    """Yield the names that fit the markers, and the address of their number."""
    if not 0 <= markers.last <= decode.MAX_NAMES_BYTES:
        return
    data = _before(read, markers.start, markers.last + _MAX_STEP + 8)
    start = markers.start - len(data)
    stretch = len(data) - markers.last - 8
    if stretch < 4:
        page = start - 1
        raise BadKallsyms(f"the page at 0x{page:x}, a part of kallsyms_names, is not in the dump")
    skip = -start % 4
    numbers = np.frombuffer(data, "<u4", max(stretch - skip, 0) // 4 + 1, skip)
    least, most = TOKENS * (markers.number - 1), TOKENS * markers.number
    rows = np.flatnonzero((numbers > least) & (numbers <= most))
    table = read(markers.start, 8 * markers.number)
    dtype = f"<u{markers.width}"
    marks = np.frombuffer(table, dtype, markers.number).astype(np.int64)
    # The names, of bytes that are seldom 0, hardly ever have such a number.
    for place in (rows * 4 + skip).tolist()[: -_MAX_NUMBERS - 1 : -1]:
        count = int(numbers[(place - skip) // 4])
        if not decode.MIN_SYMBOLS <= count <= decode.MAX_SYMBOLS:
            continue
        for width in _ALIGNMENTS:
            stream = data[place + width :]
            try:
                lengths = decode.lengths(stream, count, marks)
            except BadKallsyms:
                continue
            padding = len(stream) - lengths.bytes
            is_right = 0 <= padding < max(_ALIGNMENTS) and lengths.marks[-1] == markers.last
            if is_right and decode.has_markers(stream + table, lengths):
                decode.check_pages(stream, start + place + width, "kallsyms_names")
                yield start + place, decode.names(stream, lengths, tokens)


def _places(
    read: decode.Read, after: int, number: int, names: SymbolNames, stext: int
) -> Iterator[_Place]:
    """Yield the possible places of the addresses: one, unless they are after the tokens.

    :param after: address after the tokens
    :param number: address of the number of symbols
    """
    count = len(names)
    # Before the number, there is the base of offsets, or else the last of the addresses.
    last = decode.number(read(number - 8, 8))
    if _is_base(last, stext):
        yield _Place(number - 8 - -(-4 * count // 8) * 8, 4, last)
    elif last >= stext:
        yield _Place(number - 8 * count, 8, None)
    else:
        base = decode.number(read(-(-(after + 4 * count) // 8) * 8, 8))
        yield _Place(after, 4, base if _is_base(base, stext) else None)
        yield _Place(after, 8, None)


def _is_base(value: int, stext: int) -> bool:
    """Return whether ``value`` can be kallsyms_relative_base, the lowest address of a symbol."""
    return 0 <= stext - value < _MAX_BASE_BYTES


def _offsets(read: decode.Read, place: _Place, names: SymbolNames) -> decode.Offsets:
    data = read(place.start, place.width * len(names))
    decode.check_pages(data, place.start, "kallsyms_offsets")
    return decode.Offsets(data, place.start, place.base)
