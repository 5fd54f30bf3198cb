# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of symbols, which stay compressed until they are used.

A name is found by the sum of the weights of its characters. Anagrams have the same sum, so that
candidates are compared as strings, and any split of a name into tokens gives the same sum.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.sources.debuginfo.names import Names

Array = npt.NDArray[Any]

TOKENS = 256
MAX_TEXT_BYTES = 1 << 27
_CHUNK = 1 << 18
_ROWS = 1 << 13
"""Symbols whose codes are weighed together, as far as caches have room."""
_MAX_OPENING = 8
"""Codes at the start of a name, as many as fit in a number."""
_LOWER = (1 << 20) - 1
_MAX_ALTERED = 64
_LINE, _NOTHING = TOKENS, TOKENS + 1
"""Codes of a new line and of an empty string, behind those of the tokens."""


class BadKallsyms(ValueError):
    """A symbol table is missing, damaged or of another kernel; the text is one sentence's end."""


def _weights() -> npt.NDArray[np.uint32]:
    mixed = np.arange(1, TOKENS + 1, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    return (mixed >> np.uint64(32)).astype(np.uint32)


WEIGHTS = _weights()
"""Weight of each character, uint32."""


def key_of(name: str) -> int:
    """Return the sum of weights of a name; names beyond ASCII have sums of their UTF-8."""
    data = name.encode("utf-8", "surrogateescape")
    return int(WEIGHTS[np.frombuffer(data, np.uint8)].sum(dtype=np.uint32))


class SymbolNames:
    """The types and names of symbols, in the table's order.

    :param stream: strings of codes, one per symbol, with other bytes between them
    :param first: place of the first other byte before each symbol, ascending
    :param start: place of the first code of each symbol, of one or two more
    :param end: place behind the last code of the last symbol
    :param tokens: the string of each code; the first character of a symbol is its type
    :raises BadKallsyms: a symbol has no name, or a code has no string
    """

    def __init__(
        self, stream: bytes, first: Array, start: Array, end: int, tokens: list[bytes]
    ) -> None:
        self._stream, self._tokens = stream, tokens
        self._first, self._start, self._end = first, start, end
        codes = np.frombuffer(stream, np.uint8, end)
        lengths = np.array([len(token) for token in tokens])
        count = np.append(first[1:], end) - start
        opening = codes.take(start, mode="clip")  # the last symbol may have no code
        if bool((count < 1).any() or ((count < 2) & (lengths[opening] < 2)).any()):
            raise BadKallsyms("kallsyms_names has a symbol without a name")
        if not lengths.all():
            # The other bytes can be codes of empty strings.
            is_used = np.bincount(codes, minlength=TOKENS)
            is_used -= np.bincount(codes[first], minlength=TOKENS)
            is_used -= np.bincount(codes[first + 1][start - first > 1], minlength=TOKENS)
            if bool((is_used[lengths == 0] > 0).any()):
                raise BadKallsyms("kallsyms_names has a code without a string")
        letters = np.frombuffer(b"".join(token[:1] or b"\0" for token in tokens), np.uint8)
        self.types: str = letters[opening].tobytes().decode("ascii")
        """Type of each symbol, as of nm(1)."""

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, row: int) -> str:
        """Return the name of a symbol."""
        return b"".join([self._tokens[code] for code in self._codes(row)])[1:].decode("ascii")

    def _codes(self, row: int) -> bytes:
        end = int(self._first[row + 1]) if row + 1 < len(self._first) else self._end
        return self._stream[self._start[row] : end]

    def named(self, name: str) -> list[int]:
        """Return the rows of a name, ascending."""
        return [row for row in self._index.candidates(key_of(name)) if self[row] == name]

    def count_without(self, prefix: str, rows: Array) -> int:
        """Return how many names of these rows do not begin with ``prefix``.

        Names that begin with the same codes are decided together.
        """
        codes = np.frombuffer(self._stream, np.uint8, self._end)
        opening = np.zeros(len(rows), np.uint64)
        count = 0
        for size in range(1, _MAX_OPENING + 1):
            places = np.minimum(self._start[rows] + (size - 1), self._end - 1)
            opening = (opening << np.uint64(8)) | codes[places]
            unique, inverse = np.unique(opening, return_inverse=True)
            starts = [
                b"".join([self._tokens[code] for code in each.to_bytes(size, "big")])[1:]
                for each in unique.tolist()
            ]
            is_long = np.array([len(each) >= len(prefix) for each in starts])[inverse]
            is_other = [not each.startswith(prefix.encode("ascii")) for each in starts]
            count += int(np.count_nonzero(np.array(is_other)[inverse] & is_long))
            rows, opening = rows[~is_long], opening[~is_long]
            if not len(rows):
                break
        return count + len(rows)

    @functools.cached_property
    def keys(self) -> npt.NDArray[np.uint32]:
        """The sum of the weights of each name, without its type; shape (n,)."""
        weights = self._weights
        codes = np.frombuffer(self._stream, np.uint8, self._end)
        result = np.empty(len(self), np.uint32)
        for row in range(0, len(self), _ROWS):
            starts = self._start[row : row + _ROWS]
            end = int(self._start[row + _ROWS]) if row + _ROWS < len(self) else self._end
            part = weights.take(codes[starts[0] : end])
            result[row : row + _ROWS] = np.add.reduceat(part, starts - starts[0], dtype=np.uint32)
        # Each sum has also what is between a symbol and the next one.
        result[:-1] -= weights[codes[self._first[1:]]]
        is_two = self._start[1:] - self._first[1:] > 1
        result[:-1][is_two] -= weights[codes[self._first[1:][is_two] + 1]]
        letters = np.frombuffer(self.types.encode("ascii"), np.uint8)
        result -= WEIGHTS[letters]
        return result

    @functools.cached_property
    def _weights(self) -> npt.NDArray[np.uint32]:
        """The sum of the weights of each token."""
        sums = [WEIGHTS[np.frombuffer(token, np.uint8)].sum() for token in self._tokens]
        return np.array(sums).astype(np.uint32)

    @functools.cached_property
    def _index(self) -> Names:
        return Names(self.keys)

    def altered(self, name: str) -> list[int]:
        """Return the rows whose names are ``name`` but for one flipped bit of a code."""
        changes, is_lower = self._changes
        change = self.keys - np.uint32(key_of(name))
        rows = np.flatnonzero(is_lower.take(change & np.uint32(_LOWER)))
        change = change[rows]
        place = np.minimum(np.searchsorted(changes, change), len(changes) - 1)
        rows = rows[changes[place] == change]
        return [row for row in rows[:_MAX_ALTERED].tolist() if self._is_altered(row, name)]

    @functools.cached_property
    def _changes(self) -> tuple[Array, Array]:
        """The changes of a key by a flipped bit, ascending; and which lower bits one of them has.

        The first code of a symbol also has its type, which is not in the key.
        """
        letters = np.array([token[0] if token else 0 for token in self._tokens])
        flipped = np.arange(TOKENS)[:, None] ^ (1 << np.arange(8))
        weights = np.stack([self._weights, self._weights - WEIGHTS[letters]])
        changes = np.unique(weights[:, flipped] - weights[:, :, None])
        is_lower = np.zeros(_LOWER + 1, np.bool_)
        is_lower[changes & np.uint32(_LOWER)] = True
        return changes, is_lower

    def _is_altered(self, row: int, name: str) -> bool:
        codes = self._codes(row)
        # A code has at least one character, and the type comes on top.
        if len(codes) > len(name) + 1:
            return False
        for nth, code in enumerate(codes):
            before = b"".join([self._tokens[each] for each in codes[:nth]])
            after = b"".join([self._tokens[each] for each in codes[nth + 1 :]])
            for bit in range(8):
                whole = before + self._tokens[code ^ 1 << bit] + after
                if whole[1:] == name.encode("utf-8", "surrogateescape"):
                    return True
        return False

    def tokens_of(self, rows: Array) -> frozenset[int]:
        """Return the codes in the names of some symbols."""
        return frozenset(b"".join([self._codes(row) for row in rows.tolist()]))

    def misspelled(self, name: str, sound: frozenset[int]) -> list[int]:
        """Return the rows whose names are ``name`` but for one flipped bit of a token.

        :param sound: codes of tokens that are right
        """
        found: list[int] = []
        for code in {*range(len(self._tokens))} - sound:
            wrong = self._tokens[code].decode("ascii")
            for right in _flipped(wrong):
                if right in name:
                    found += self.named(name.replace(right, wrong))
                # The first token also has the type.
                if len(right) > 1 and name.startswith(right[1:]):
                    found += self.named(wrong[1:] + name[len(right) - 1 :])
        return found

    def all(self) -> list[str]:
        """Return all names."""
        codes = np.frombuffer(self._stream, np.uint8, self._end).astype(np.uint16)
        codes[self._start - 1] = _NOTHING
        codes[self._first] = _LINE
        text = _expanded(codes, [*self._tokens, b"\n", b""])
        return [line[1:] for line in text.decode("ascii").split("\n")[1:]]


@functools.cache
def _flipped(token: str) -> tuple[str, ...]:
    """Return a token with each of its bits flipped, as far as that is a token."""
    flipped = (
        token[:nth] + chr(ord(letter) ^ 1 << bit) + token[nth + 1 :]
        for nth, letter in enumerate(token)
        for bit in range(7)
    )
    return tuple(each for each in flipped if each.isprintable())


def of_text(text: bytes) -> SymbolNames:
    """Return the names in a text; per symbol a newline, the type and the name."""
    lines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    return SymbolNames(text, lines, lines + 1, len(text), [b"%c" % code for code in range(TOKENS)])


def _expanded(codes: npt.NDArray[np.uint16], strings: list[bytes]) -> bytes:
    """Return the string of each code, joined."""
    letters = np.frombuffer(b"".join(strings), np.uint8)
    lengths = np.array([len(each) for each in strings], np.int32)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    parts, left = list[bytes](), MAX_TEXT_BYTES
    for first in range(0, len(codes), _CHUNK):
        chunk = codes[first : first + _CHUNK]
        length = lengths[chunk]
        ends = np.cumsum(length, dtype=np.int64)
        left -= int(ends[-1])
        if left < 0:
            raise BadKallsyms("the names of kallsyms are too long")
        ends = ends.astype(np.int32)
        places = np.repeat(starts[chunk] - (ends - length), length)
        parts.append(letters[places + np.arange(len(places), dtype=np.int32)].tobytes())
    return b"".join(parts)
