# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pseudonyms for names: other words of the same shape.

A name is cut into *words*, maximal runs of letters and digits; what stands between them stays.
Each word is replaced by one of the same length, in which digits stand for digits, ``a`` to ``f``
for ``a`` to ``f``, ``g`` to ``z`` for ``g`` to ``z``, and capitals likewise, so that
``tmp.d41d8cd9`` may become ``qvk.b80c3fa2``: whoever groups names by their shapes finds the same
groups. Bytes that are not ASCII become ``g`` to ``z``.

A word's pseudonym depends on the word and a secret key, and on nothing else: equal words are
replaced equally wherever they stand, and different ASCII words differently (within one shape this
is a permutation). The first byte always changes.

What this hides, and from whom: who reads the result without the key cannot read the names off it.
It does not hide lengths, punctuation, which names and words are equal, and what kinds of
characters stand where; so a word of which somebody knows where it stands (``proc``) is known
wherever it stands. Short words have few pseudonyms: a single digit has nine. This is disguise, not
encryption: the mixing is made for speed and has not been studied by cryptanalysts.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
_BLOCK = 1 << 18
"""Bytes to replace at once; they take some hundred bytes each meanwhile."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


def new_key() -> bytes:
    """A random key."""
    return secrets.token_bytes(KEY_BYTES)


def _alphabets() -> tuple[Bytes, Bytes, Bytes]:
    """Per byte: the first character of its alphabet, its place in there, the alphabet's size; all
    zero for what stays as it is."""
    first, place, size = (np.zeros(256, np.uint8) for _ in range(3))
    for start, end in ("09", "af", "gz", "AF", "GZ"):
        low, high = ord(start), ord(end) + 1
        first[low:high] = low
        place[low:high] = np.arange(high - low)
        size[low:high] = high - low
    first[128:] = ord("g")
    size[128:] = 20
    place[128:] = np.arange(128) % 20
    return first, place, size


_FIRST, _PLACE, _SIZE = _alphabets()
_IN_WORD = _SIZE != 0


def mix(values: Words) -> Words:
    """Spread the bits of 64-bit numbers; one to one (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = values ^ (values >> np.uint64(31))
    return mixed


class Pseudonyms:
    """Replaces words, in place.

    :param key: secret; the same key gives the same pseudonyms
    """

    def __init__(self, key: bytes) -> None:
        drawn = hashlib.shake_256(b"kcensus pseudonyms\0" + key).digest(8 * (2 * 65536 + 8))
        numbers = np.frombuffer(drawn, "<u8").astype(np.uint64)
        # Tabulation hashing: the hash of a word is the sum of one random number for each byte.
        self._value = numbers[:65536]
        self._shape = numbers[65536 : 2 * 65536]
        self._rounds = numbers[2 * 65536 :]

    def numbers(self, values: Words) -> Words:
        """Secret random numbers for numbers: equal ones for equal ones."""
        return mix(mix(values ^ self._rounds[6]) ^ self._rounds[7])

    def replace(self, buffer: Bytes, wanted: Mask) -> None:
        """Replace the words that lie where ``wanted`` is true.

        :param buffer: is changed; of one dimension
        :param wanted: as long; a stretch of true begins and ends where a name does
        """
        at = np.flatnonzero(wanted & _IN_WORD[buffer])
        # A word is replaced as a whole, so blocks end between words.
        start = 0
        while start < len(at):
            end = min(start + _BLOCK, len(at))
            while end < len(at) and at[end] == at[end - 1] + 1:
                end += 1
            self._replace(buffer, at[start:end])
            start = end

    def _replace(self, buffer: Bytes, at: npt.NDArray[np.int64]) -> None:
        """The same for the bytes ``at``, all of which are parts of words."""
        begins = np.concatenate([[True], np.diff(at) != 1])
        first = np.flatnonzero(begins)
        word = np.cumsum(begins) - 1
        position = np.arange(len(at)) - first[word]
        text = buffer[at]
        place, size = _PLACE[text].astype(np.uint64), _SIZE[text].astype(np.uint64)
        cell = (position & 255) << 8
        # Of bytes beyond ASCII, which lose what they were, all of it counts; of others only what
        # stays as it is.
        kind = np.where(text < 128, _FIRST[text], text)
        shape = np.add.reduceat(self._shape[cell | kind], first)
        halves = [np.flatnonzero((position > 0) & (position & 1 == parity)) for parity in (0, 1)]
        # A Feistel network: each step shifts some bytes by amounts that follow from the others,
        # which could be undone, so different words stay different.
        for number in range(4):
            moved = halves[(number + 1) & 1]
            terms = self._value[cell | place.astype(np.int64)]
            terms[moved] = 0
            hashes = mix(shape + np.add.reduceat(terms, first) + self._rounds[number])
            amount = mix(hashes[word[moved]] + position[moved].astype(np.uint64) * _GOLDEN)
            place[moved] = (place[moved] + (amount >> np.uint64(32))) % size[moved]
        terms = self._value[cell | place.astype(np.int64)]
        terms[first] = 0
        hashes = mix(shape + np.add.reduceat(terms, first) + self._rounds[4])
        # The first byte comes last and by itself, so that it surely moves.
        amount = (hashes >> np.uint64(32)) % (size[first] - np.uint64(1)) + np.uint64(1)
        place[first] = (place[first] + amount) % size[first]
        buffer[at] = _FIRST[text] + place.astype(np.uint8)
