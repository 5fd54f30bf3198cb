# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find names in a section of strings without making Python strings of all."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_WORD = 8
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


class Text:
    """The strings of a section.

    :param text: uint8
    :param ends: the offset of the byte behind each string, ascending
    """

    def __init__(self, text: Array, ends: Array) -> None:
        self._ends = ends
        padded = np.concatenate([text, np.zeros(_WORD, np.uint8)])
        # A view of the eight bytes at each offset.
        self._windows = np.ndarray((len(text),), "<u8", padded, strides=(1,))

    def keys(self, offsets: Array) -> Array:
        """Return a number for the string at each offset: equal for equal strings only, mostly.

        :return: uint64, of the first and last eight bytes and the length
        """
        if not len(offsets):
            return np.zeros(0, np.uint64)
        length = self._ends[np.searchsorted(self._ends, offsets)] - offsets
        unused = (np.maximum(_WORD - length, 0) * 8).astype(np.uint64)
        # In two steps, because a shift by 64 bits is undefined.
        mask = np.uint64(2**64 - 1) >> (unused // 2) >> (unused - unused // 2)
        first = self._windows[offsets] & mask
        last = self._windows[offsets + np.maximum(length - _WORD, 0)] & mask
        mixed = (first ^ (last * _FACTOR)) + length.astype(np.uint64)
        result: Array = (mixed * _FACTOR) ^ (mixed >> np.uint64(29))
        return result


@functools.lru_cache(maxsize=4096)
def key_of(name: str) -> int:
    """Return the key of a name, as of :meth:`Text.keys`."""
    data = name.encode("utf-8", "surrogateescape")
    text = Text(np.frombuffer(data + b"\0", np.uint8), np.array([len(data)]))
    return int(text.keys(np.zeros(1, np.int64))[0])


class Names:
    """An index of names by key.

    :param keys: of the names, unsigned integers whose upper bits are as good as random
    :param rows: the row of each key, ascending; by default, all rows
    """

    def __init__(self, keys: Array, rows: Array | None = None) -> None:
        self._keys = keys
        self._shift = keys.itemsize * 8 - 16
        upper = (keys >> keys.dtype.type(self._shift)).astype(np.uint16)
        # NumPy sorts 16 bits in a tenth of the time of 64, and a few names share these.
        self._order = np.argsort(upper, kind="stable")
        self._sorted = upper[self._order]
        self._rows = rows

    def candidates(self, key: int) -> Iterator[int]:
        """Yield the rows that may have the name with a key, in order."""
        upper = np.uint16(key >> self._shift)
        first = int(np.searchsorted(self._sorted, upper))
        end = int(np.searchsorted(self._sorted, upper, "right"))
        for start in range(first, end, 1024):
            places = self._order[start : min(start + 1024, end)]
            places = places[self._keys[places] == self._keys.dtype.type(key)]
            yield from (places if self._rows is None else self._rows[places]).tolist()
