# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find known names in memory where they are separate tokens.

A *token* is a maximal run of :data:`MIN_TOKEN_BYTES` to :data:`MAX_TOKEN_BYTES` bytes without a
separator. Memory is searched with three sets of separators:

* control characters and ``/``, as around strings and in paths;
* blanks, quotes, brackets and punctuation as well, as in messages and options;
* all bytes that are not ASCII as well, as where a string follows a pointer.
"""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Bytes, Mask, Numbers, Words
from kcensus.engine.rows import covered

MIN_TOKEN_BYTES = 4
"""Least bytes of a token: shorter ones occur everywhere by chance."""
MAX_TOKEN_BYTES = 255
"""NAME_MAX."""
_MIN_DIGITS = 8
"""Least digits of a number, for the same reason."""


def _inside(more_separators: bytes) -> Mask:
    table = np.ones(256, np.bool_)
    table[:32] = False
    table[[127, ord("/"), *more_separators]] = False
    return table


_INSIDE = (_inside(b""), _inside(b" \"'`()[]{}<>,;:=@"), _inside(bytes(range(128, 256))))
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)


def _runs(inside: Mask) -> tuple[Numbers, Numbers]:
    """Return the start and the length of each token, given the bytes other than separators."""
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    fits = (lengths >= MIN_TOKEN_BYTES) & (lengths <= MAX_TOKEN_BYTES)
    return starts[fits], lengths[fits]


def _xfs_names(buffer: Bytes, starts: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
    """Return tokens less their first byte, if they may be entries of an XFS directory.

    Short directories that XFS keeps in memory store a name after its length (1 byte) and an offset
    (2 bytes, ``struct xfs_dir2_sf_entry``), whose second byte may be any character.
    """
    rows = np.flatnonzero((starts >= 2) & (lengths > MIN_TOKEN_BYTES))
    rows = rows[buffer[starts[rows] - 2] == lengths[rows] - 1]
    return starts[rows] + 1, lengths[rows] - 1


def _mix(values: Words) -> Words:
    """Spread the bits of 64-bit numbers (the finalizer of splitmix64, which is one to one)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _hashes(buffer: Bytes, starts: Numbers, lengths: Numbers) -> Words:
    padded = np.pad(buffer, (0, 8))
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    hashes = _mix(lengths.astype(np.uint64))
    rows = np.arange(len(starts))
    offset = 0
    while len(rows):
        left = lengths[rows] - offset
        word = words[starts[rows] + offset] & _LOW_BYTES[np.minimum(left, 8)]
        hashes[rows] = _mix(hashes[rows] ^ word) + np.uint64(1)
        offset += 8
        rows = rows[left > 8]
    return hashes


class TokenSet:
    """A set of tokens, by their hashes."""

    def __init__(self, hashes: Words) -> None:
        # np.unique() takes several times as long.
        ascending = np.sort(hashes)
        self._hashes = ascending[np.diff(ascending, prepend=~ascending[:1]) != 0]
        bits = max(16, min(27, len(self._hashes).bit_length() + 4))
        self._shift = np.uint64(64 - bits)
        # Rules out nearly all tokens that are not in the set without a binary search.
        self._table = np.zeros(1 << bits, np.bool_)
        self._table[self._hashes >> self._shift] = True

    def __len__(self) -> int:
        return len(self._hashes)

    def without(self, hashes: Words) -> TokenSet:
        """Return the set without some tokens."""
        return TokenSet(self._hashes[~TokenSet(hashes)._contains(self._hashes)])

    def _contains(self, hashes: Words) -> Mask:
        contained: Mask = self._table[hashes >> self._shift]
        maybe = np.flatnonzero(contained)
        if len(maybe):
            rows = np.searchsorted(self._hashes, hashes[maybe])
            rows[rows == len(self._hashes)] = 0
            contained[maybe] = self._hashes[rows] == hashes[maybe]
        return contained

    def find(self, buffer: Bytes) -> Mask:
        """Return which bytes of a buffer belong to tokens of this set."""
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for inside in _INSIDE if len(self) else ():
            tokens = _runs(inside[buffer])
            for starts, lengths in (tokens, _xfs_names(buffer, *tokens)):
                known = self._contains(_hashes(buffer, starts, lengths))
                found.append((starts[known], lengths[known]))
        starts, lengths = map(np.concatenate, zip(*found, strict=True))
        return covered(starts, lengths, len(buffer))


def token_hashes(buffer: Bytes) -> Words:
    """Return the hashes of all tokens between the smallest set of separators, with repetitions."""
    starts, lengths = _runs(_INSIDE[0][buffer])
    letters = np.concatenate([[0], np.cumsum((buffer < ord("0")) | (buffer > ord("9")))])
    telling = (letters[starts + lengths] > letters[starts]) | (lengths >= _MIN_DIGITS)
    return _hashes(buffer, starts[telling], lengths[telling])
