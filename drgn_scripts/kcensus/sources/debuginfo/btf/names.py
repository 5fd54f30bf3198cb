# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find names in a BTF string section without making Python strings of all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.sources.debuginfo.btf.format import Array

_WORD = 8
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


def keys(text: Array, offsets: Array) -> Array:
    """Return a number for the string at each offset: equal for equal strings, seldom for others.

    :param text: strings, each ended by a zero byte
    :return: uint64, of the first and last eight bytes and the length
    """
    zeros = np.flatnonzero(text == 0)
    length = zeros[np.searchsorted(zeros, offsets)] - offsets
    padded = np.concatenate([text, np.zeros(_WORD, np.uint8)])
    # A view of the eight bytes at each offset.
    windows = np.ndarray((len(text),), "<u8", padded, strides=(1,))
    unused = (np.maximum(_WORD - length, 0) * 8).astype(np.uint64)
    # In two steps, because a shift by 64 bits is undefined.
    mask = np.uint64(2**64 - 1) >> (unused // 2) >> (unused - unused // 2)
    first = windows[offsets] & mask
    last = windows[offsets + np.maximum(length - _WORD, 0)] & mask
    mixed = (first ^ (last * _FACTOR)) + length.astype(np.uint64)
    result: Array = (mixed * _FACTOR) ^ (mixed >> np.uint64(29))
    return result


class Names:
    """An index of names.

    :param keys: of the names, as of :func:`keys`
    """

    def __init__(self, keys: Array) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def candidates(self, name: bytes) -> Iterator[int]:
        """Yield the rows that may have a name, in order."""
        text = np.frombuffer(name + b"\0", np.uint8)
        key = keys(text, np.zeros(1, np.int64))[0]
        first = int(np.searchsorted(self._sorted, key))
        end = int(np.searchsorted(self._sorted, key, "right"))
        for start in range(first, end, 1024):
            yield from self._order[start : min(start + 1024, end)].tolist()
