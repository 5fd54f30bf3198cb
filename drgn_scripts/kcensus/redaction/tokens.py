# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds known names in memory, wherever they stand by themselves.

A *token* is a maximal stretch without separators, of :data:`SHORTEST` bytes or more. Three sets of
separators are tried: control characters and ``/``, as around strings and in paths; besides blanks,
quotes, brackets, and the like, as in a message or in options; or all that is not ASCII, as where a
string follows a pointer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kcensus.redaction.pseudonyms import Bytes, Mask, Words, mix

SHORTEST = 4
"""Bytes; what is shorter occurs by chance everywhere."""
LONGEST = 255
"""Bytes; no name is longer."""

_Places = npt.NDArray[np.int64]


def _separators(more: bytes) -> Mask:
    table = np.zeros(256, np.bool_)
    table[:32] = True
    table[[127, ord("/")]] = True
    table[list(more)] = True
    return table


_KINDS = (
    _separators(b""),
    _separators(b" \"'`()[]{}<>,;:=@"),
    _separators(bytes(range(128, 256))),
)
_KEEP = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)


def _stretches(inside: Mask) -> tuple[_Places, _Places]:
    """Where tokens begin, and how long they are."""
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    if inside[0]:
        edges = np.concatenate([[0], edges])
    if inside[-1]:
        edges = np.concatenate([edges, [len(inside)]])
    starts, ends = edges[::2], edges[1::2]
    fits = (ends - starts >= SHORTEST) & (ends - starts <= LONGEST)
    return starts[fits], (ends - starts)[fits]


def _counted(buffer: Bytes, starts: _Places, lengths: _Places) -> tuple[_Places, _Places]:
    """The names in tokens of one byte more, two bytes behind the number of their bytes.

    So do names stand in the small directories that XFS keeps in memory: behind their length and
    an offset of two bytes, the second of which may be any character.
    """
    rows = np.flatnonzero((starts >= 2) & (lengths > SHORTEST))
    rows = rows[buffer[starts[rows] - 2] == lengths[rows] - 1]
    return starts[rows] + 1, lengths[rows] - 1


def _hashes(padded: Bytes, starts: _Places, lengths: _Places) -> Words:
    """64-bit hashes of tokens.

    :param padded: with 8 more bytes than the tokens reach
    """
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    hashes = mix(lengths.astype(np.uint64))
    rows = np.arange(len(starts))
    offset = 0
    while len(rows):
        left = lengths[rows] - offset
        word = words[starts[rows] + offset] & _KEEP[np.minimum(left, 8)]
        hashes[rows] = mix(hashes[rows] ^ word) + np.uint64(1)
        offset += 8
        rows = rows[left > 8]
    return hashes


class TokenSet:
    """The hashes of some tokens."""

    def __init__(self, hashes: Words) -> None:
        # np.unique() takes several times as long.
        ascending = np.sort(hashes)
        fresh = np.ones(len(ascending), np.bool_)
        fresh[1:] = ascending[1:] != ascending[:-1]
        self._hashes = ascending[fresh]
        bits = max(16, min(27, len(self._hashes).bit_length() + 4))
        self._shift = np.uint64(64 - bits)
        # A glance at this table spares the search for nearly all that are not in the set.
        self._table = np.zeros(1 << bits, np.bool_)
        self._table[self._hashes >> self._shift] = True

    def __len__(self) -> int:
        return len(self._hashes)

    def without(self, hashes: Words) -> TokenSet:
        """The set without some tokens."""
        unwanted = TokenSet(hashes)._contains(self._hashes)
        return TokenSet(self._hashes[~unwanted])

    def _contains(self, hashes: Words) -> Mask:
        found: Mask = self._table[hashes >> self._shift]
        maybe = np.flatnonzero(found)
        if len(maybe):
            at = np.searchsorted(self._hashes, hashes[maybe])
            at[at == len(self._hashes)] = 0
            found[maybe] = self._hashes[at] == hashes[maybe]
        return found

    def find(self, buffer: Bytes) -> Mask:
        """Which bytes of a buffer belong to tokens of this set."""
        marks = np.zeros(len(buffer) + 1, np.int8)
        if not len(self._hashes) or not len(buffer):
            return marks[:-1].astype(np.bool_)
        padded = np.concatenate([buffer, np.zeros(8, np.uint8)])
        for kind in _KINDS:
            starts, lengths = _stretches(~kind[buffer])
            for places in ((starts, lengths), _counted(buffer, starts, lengths)):
                found = self._contains(_hashes(padded, *places))
                np.add.at(marks, places[0][found], 1)
                np.add.at(marks, (places[0] + places[1])[found], -1)
        found_bytes: Mask = np.cumsum(marks[:-1], dtype=np.int8) > 0
        return found_bytes


def token_hashes(buffer: Bytes) -> Words:
    """Hashes of all tokens in a buffer, repeated or not, for a :class:`TokenSet`; separators are
    the fewest.

    Numbers of less than 8 digits are left out: random bytes happen to be such.
    """
    if not len(buffer):
        return np.empty(0, np.uint64)
    starts, lengths = _stretches(~_KINDS[0][buffer])
    letters = np.concatenate([[0], np.cumsum((buffer < ord("0")) | (buffer > ord("9")))])
    telling = (letters[starts + lengths] > letters[starts]) | (lengths >= 8)
    starts, lengths = starts[telling], lengths[telling]
    return _hashes(np.concatenate([buffer, np.zeros(8, np.uint8)]), starts, lengths)
