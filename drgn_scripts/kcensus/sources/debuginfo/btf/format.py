# SPDX-License-Identifier: LGPL-2.1-or-later
"""The BTF format: header, records of types and strings, as NumPy columns.

A record is ``struct btf_type`` (three words: name, kind and number of elements, size or type) and a
part that depends on its kind. Layouts: ``include/uapi/linux/btf.h``; since Linux kernel commit
69b693f0aefa ("bpf: btf: Introduce BPF Type Format (BTF)") (in v4.18).

The 16 bits of the number of elements became 24, and the 5 bits of the kind 7, of bits that had to
be 0 (by v7.3, commit not verified). Since Linux kernel commit 222edc843c15 ("btf: Add BTF kind
layout encoding to UAPI") (by v7.3), a section can contain the length of each kind, so that records
of unknown kinds can be skipped. LOC_PARAM and what follows are newer than v7.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAGIC = b"\x9f\xeb"
HEADER = struct.Struct("<HBBIIIII")
_LAYOUT = struct.Struct("<II")
"""Offset and bytes of the lengths of kinds, behind the header."""
MAX_BYTES = 64 << 20
"""Most bytes of types and strings; a kernel has 6 MiB, and refuses more than 16 MiB of strings."""
MAX_NAME = 1 << 10
"""Most bytes of a name; the names of symbols have at most 512."""
MAX_TYPES = 1 << 21
"""Most types; a kernel has 0.12 million, and refuses more than a million."""


class BadBtf(ValueError):
    """BTF is malformed or unreadable; the message is one sentence."""


class Kind(IntEnum):
    """``BTF_KIND_…``; VOID is the type with ID 0, which has no record."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19
    LOC_PARAM = 20
    LOC_PROTO = 21
    LOCSEC = 22


_RECORD = 3
"""Words of ``struct btf_type``."""
_FIXED: dict[int, int] = {
    Kind.INT: 1, Kind.ARRAY: 3, Kind.VAR: 1, Kind.DECL_TAG: 1, Kind.LOC_PARAM: 1,
}  # fmt: skip
"""Further words, by kind."""
ELEMENT: dict[int, int] = {
    Kind.STRUCT: 3, Kind.UNION: 3, Kind.ENUM: 2, Kind.FUNC_PROTO: 2, Kind.DATASEC: 3,
    Kind.ENUM64: 3, Kind.LOC_PARAM: 1, Kind.LOC_PROTO: 1, Kind.LOCSEC: 3,
}  # fmt: skip
"""Words of each element, by kind."""
_MAX_KIND = max(Kind)
KINDS = 128
"""Values that a record can hold as its kind."""
_UNKNOWN = 1 << 30
"""Words of a record of a kind of unknown length: beyond the end."""


def among(column: Array, kinds: Iterable[int]) -> Array:
    """Return whether each kind of a column is one of ``kinds``; faster than :func:`numpy.isin`."""
    is_meant = np.zeros(KINDS, np.bool_)
    is_meant[[*kinds]] = True
    return is_meant.take(column)


@dataclass(frozen=True)
class Columns:
    """The types of one BTF section; row 0 has the ID that follows the IDs of the base.

    All columns have one row per type.
    """

    data: bytes
    text_start: int
    """Offset of the strings in ``data``."""
    words: Array
    """The type section, uint32."""
    text: Array
    """The string section, uint8."""
    ends: Array
    """Offset of the zero byte behind each string."""
    start: Array
    """Index of the first word of the record."""
    name: Array
    """Offset of the name in the strings, those of the base first; 0 if there is none."""
    kind: Array
    """:class:`Kind`, uint8."""
    count: Array
    """Number of elements (``vlen``)."""
    flag: Array
    """``kind_flag``, bool."""
    value: Array
    """Size in bytes, or ID of a type."""

    def elements(self, kinds: tuple[Kind, ...]) -> tuple[Array, Array]:
        """Return row and first word of all elements of the types of these kinds, in order."""
        rows = np.flatnonzero(among(self.kind, kinds)).astype(np.int32)
        counts = self.count[rows]
        owner = np.repeat(rows, counts)
        size = np.array([ELEMENT.get(kind, 0) for kind in range(KINDS)], np.int32)
        size = size[self.kind[rows]]
        before = np.cumsum(counts, dtype=np.int32) - counts
        first = np.arange(len(owner), dtype=np.int32)
        first *= np.repeat(size, counts)
        first += np.repeat((self.start[rows] + _RECORD - before * size).astype(np.int32), counts)
        return owner, first


def read_columns(data: bytes, has_base: bool = False) -> Columns:
    """Return the columns of a BTF section.

    :param has_base: whether strings and IDs follow those of another section
    :raises BadBtf: the header, or the length of a record, is wrong
    """
    if len(data) < HEADER.size:
        raise BadBtf("it is shorter than the header of BTF")
    magic, version, _, length, types, types_size, strings, strings_size = HEADER.unpack_from(data)
    if magic != int.from_bytes(MAGIC, "little"):
        is_big = magic == int.from_bytes(MAGIC, "big")
        raise BadBtf("it is big-endian" if is_big else "it does not begin with the magic of BTF")
    if version != 1:
        raise BadBtf(f"its version is {version}, not 1")
    types, strings = types + length, strings + length
    if length < HEADER.size or types % 4 or types_size % 4:
        raise BadBtf("its header is corrupt")
    if max(types + types_size, strings + strings_size) > len(data):
        raise BadBtf("it ends before its types and strings do")
    if max(types_size, strings_size) > MAX_BYTES:
        raise BadBtf("its types or strings are larger than those of any kernel")
    text = np.frombuffer(data, np.uint8, strings_size, strings)
    # The empty string of a module is that of the kernel.
    if len(text) and text[-1]:
        raise BadBtf("its last string does not end")
    if not has_base and not (len(text) and text[0] == 0):
        raise BadBtf("its strings do not begin with an empty one")
    ends = np.flatnonzero(text == 0).astype(np.int32)
    # In bytes, 0 - 0x20 is 0xE0: the zeros are among those beyond 0x7E.
    if np.count_nonzero(text - np.uint8(0x20) > 0x7E - 0x20) != len(ends):
        raise BadBtf("a name has unprintable characters")
    if len(ends) and int(np.diff(ends, prepend=-1).max()) > MAX_NAME:
        raise BadBtf("a name is longer than those of any kernel")
    words = np.frombuffer(data, "<u4", types_size // 4, types)
    start = _starts(words, *_lengths(data, length))
    info = words[start + 1]
    return Columns(
        data=data,
        text_start=strings,
        words=words,
        text=text,
        ends=ends,
        start=start,
        name=words[start],
        kind=(info >> 24 & 0x7F).astype(np.uint8),
        count=(info & 0xFFFFFF).astype(np.int32),
        flag=info >> 31 > 0,
        value=words[start + 2],
    )


def _lengths(data: bytes, header: int) -> tuple[Array, Array]:
    """Return the words of a record without elements, and those of each element, by kind."""
    fixed, element = np.full(KINDS, _UNKNOWN, np.int32), np.zeros(KINDS, np.int32)
    if header >= HEADER.size + _LAYOUT.size and len(data) >= header:
        offset, size = _LAYOUT.unpack_from(data, HEADER.size)
        rows = data[header + offset : header + offset + min(size, 4 * KINDS)]
        for kind, (info, each, _) in enumerate(struct.iter_unpack("<BBH", rows[: len(rows) & ~3])):
            if kind > _MAX_KIND and info % 4 == each % 4 == 0:
                fixed[kind], element[kind] = _RECORD + info // 4, each // 4
    for known in range(1, _MAX_KIND + 1):
        fixed[known] = _RECORD + _FIXED.get(known, 0)
        element[known] = ELEMENT.get(known, 0)
    return fixed, element


def _starts(words: Array, fixed: Array, element: Array) -> Array:
    """Return the index of the first word of each record.

    The lengths of the records that would begin at each word are computed all together, so that the
    loop over the records only adds.
    """
    if len(words) == 0:
        return np.zeros(0, np.int32)
    info = words[1:]
    kind = (info >> 24).astype(np.uint8) & 0x7F
    following = element.take(kind)
    following *= (info & 0xFFFFFF).astype(np.int32)
    following += fixed.take(kind)
    following += np.arange(len(info), dtype=np.int32)
    # Not a list, because most words are not the first of a record. To compute the second record
    # from each word, for half as many steps, takes as long as these.
    steps = following.data
    starts: list[int] = []
    place, end = 0, len(steps)
    while place < end:
        starts.append(place)
        place = steps[place]
    if place != len(words):
        last = (int(words[starts[-1] + 1]) >> 24 & 0x7F) if starts else 1
        if fixed[last] == _UNKNOWN:
            raise BadBtf(f"type {len(starts)} has the unknown kind {last}")
        raise BadBtf(f"type {len(starts)} does not end with the types")
    if len(starts) > MAX_TYPES:
        raise BadBtf("it has more types than any kernel")
    return np.array(starts, np.int32)
