# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pseudonyms for names: other words of the same shape.

A *word* is a maximal run of letters, digits and bytes that are not ASCII; the rest of a name
stays. Each word is replaced by one of the same length, digits by digits, ``a`` to ``f`` by ``a``
to ``f``, ``g`` to ``z`` by ``g`` to ``z``, and capitals likewise: ``tmp.d41d8cd9`` may become
``qvk.b80c3fa2``, so that patterns of names still group. Bytes that are not ASCII become ``g`` to
``z``. An escape such as ``\\x20`` stays one.

Within one shape, the replacement is a permutation that depends on a secret key: a Feistel network
with keyed BLAKE2 as round function. So equal words get equal pseudonyms, and different ASCII words
never collide; words with bytes that are not ASCII may. The first letter always changes.

Without the key, a pseudonym does not reveal its word. It does reveal the length, the kinds of
letters, and where the same word occurs again: a word known at one place (``proc``) is known
everywhere. Short words have few pseudonyms; a single digit has nine.
"""

from __future__ import annotations

import hashlib
import re
import secrets

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Bytes, Mask, Words
from kcensus.engine.rows import spread

KEY_BYTES = 32
_BATCH = 1 << 14
"""Words to replace at once, which takes up to 100 bytes for each letter."""
_AMOUNTS = hashlib.blake2b.MAX_DIGEST_SIZE // 2
"""16-bit numbers in a digest."""

# In names of device-mapper and systemd, \x and two hexadecimal digits are a character; those of
# blanks and punctuation tell nothing, the digits of others are a part of the next word.
_BLANKS = rb"[01][0-9a-f]|2[0-9a-f]|3[a-f]|40|5[b-f]|60|7[b-f]"
_KEPT = re.compile(_BLANKS)
_ESCAPE = rb"\\x(?:%b|(?=[0-9a-fA-F]{2}))" % _BLANKS
_WORD = re.compile(rb"(%b)|[0-9A-Za-z\x80-\xff]+" % _ESCAPE)
_PART = re.compile(rb"\\x([0-9A-Fa-f]{2})([0-9A-Za-z\x80-\xff]*)|[0-9A-Za-z\x80-\xff]+")
"""A word of a pseudonym, or an escape and what may be a part of its word."""
# The first letter of each letter's alphabet, and the length of the alphabet.
_FIRST, _SIZE = np.full(256, ord("g"), np.uint8), np.full(256, 20, np.uint16)
for _start, _end in (b"09", b"af", b"gz", b"AF", b"GZ"):
    _FIRST[_start : _end + 1] = _start
    _SIZE[_start : _end + 1] = _end + 1 - _start


def new_key() -> bytes:
    """Return a random key."""
    return secrets.token_bytes(KEY_BYTES)


class Pseudonyms:
    """Replaces words and numbers by pseudonyms, always the same ones for the same secret key."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, person=b"kcensus names").digest()

    def _digest(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._key).digest()

    def secret(self, purpose: str) -> bytes:
        """Return 64 bytes that the key alone decides, other ones for each purpose."""
        return self._digest(b"secret " + purpose.encode())

    def numbers(self, values: Words) -> npt.NDArray[np.uint32]:
        """Return a secret 32-bit number for each number, equal for equal ones."""
        distinct, positions = np.unique(values, return_inverse=True)
        digests = [self._digest(b"%d" % value)[:4] for value in distinct.tolist()]
        return np.frombuffer(b"".join(digests), "<u4")[positions]

    def of(self, name: bytes) -> bytes:
        """Return the pseudonym of a name."""
        buffer = np.frombuffer(name, np.uint8).copy()
        self.replace(buffer, np.ones(len(buffer), np.bool_))
        return buffer.tobytes()

    def original(self, text: bytes) -> bytes | None:
        """Return the name of a pseudonym, None if no name has it with this key.

        Letters that were not ASCII come back as other ones, and words that were not replaced, as
        those of the kernel are not, too. The digits of an escape may be kept ones, or a pseudonym
        that looks like those: they are what makes the name UTF-8.
        """
        name, end, missing = b"", 0, 0
        for part in _PART.finditer(text):
            name += text[end : part.start()]
            missing = missing if part.start() == end else 0
            end = part.end()
            original, missing = self._part(part, missing)
            name += original
        name += text[end:]
        return name if self.of(name) == text else None

    def _part(self, part: re.Match[bytes], missing: int) -> tuple[bytes, int]:
        """Return the original of a part, and the bytes of UTF-8 that are missing after it.

        :param missing: as before the part
        """
        if part[1] is None:
            return self._back(part[0]), 0
        readings = [rb"\x" + self._back(part[1] + part[2])]
        byte = int(readings[0][2:4], 16)
        if _KEPT.fullmatch(part[1]):
            kept = rb"\x" + part[1] + self._back(part[2])
            readings.insert(int(missing > 0 and 0x80 <= byte < 0xC0), kept)
        name = next((each for each in readings if self.of(each) == part[0]), readings[0])
        byte = int(name[2:4], 16)
        if part[2] or byte < 0x80:
            return name, 0
        return name, max(missing - 1, 0) if byte < 0xC0 else 1 + (byte >= 0xE0) + (byte >= 0xF0)

    def _back(self, word: bytes) -> bytes:
        return self._permuted([word], is_back=True)[0] if word else b""

    def replace(self, buffer: Bytes, wanted: Mask) -> None:
        """Replace the words at the places of ``wanted``.

        :param buffer: of one dimension; is changed in place
        :param wanted: mask of the same shape; a stretch of true begins and ends where a name does
        """
        names = np.where(wanted, buffer, np.uint8(0)).tobytes()
        words = list({word[0] for word in _WORD.finditer(names) if word[1] is None})
        pseudonyms: dict[bytes, bytes] = {}
        for start in range(0, len(words), _BATCH):
            batch = words[start : start + _BATCH]
            pseudonyms.update(zip(batch, self._permuted(batch), strict=True))
        replaced = _WORD.sub(lambda word: word[1] or pseudonyms[word[0]], names)
        np.copyto(buffer, np.frombuffer(replaced, np.uint8), where=wanted)

    def _permuted(self, words: list[bytes], *, is_back: bool = False) -> list[bytes]:
        """Return the pseudonyms of words, or the words of pseudonyms."""
        text = np.frombuffer(b"".join(words), np.uint8)
        lengths = np.array([len(word) for word in words], np.int64)
        ends = np.cumsum(lengths)
        spans = [
            slice(*span) for span in zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        ]
        word, index = spread(lengths)
        # A digest shifts two letters for each of its numbers; a longer word has several digests.
        digests = -(-lengths // (2 * _AMOUNTS))
        row = (np.cumsum(digests) - digests)[word] + index // (2 * _AMOUNTS)
        column = index // 2 % _AMOUNTS
        first, size = _FIRST[text], _SIZE[text]
        rank = (text - first) % size
        # Each round adds to some letters an amount computed from the others. That is reversible, so
        # different words stay different. The first letter moves once, last, and never by 0, so
        # that it changes.
        odd, even = index % 2 == 1, (index % 2 == 0) & (index > 0)
        rounds = [*enumerate([(odd, 0), (even, 0), (odd, 0), (index == 0, 1)])]
        for number, (moved, least) in reversed(rounds) if is_back else rounds:
            others = (first + np.where(moved, 0, rank)).astype(np.uint8).tobytes()
            stream = b"".join(
                [
                    self._digest(b"%d %d %b" % (number, part, others[span]))
                    for span, count in zip(spans, digests.tolist(), strict=True)
                    for part in range(count)
                ]
            )
            amounts = np.frombuffer(stream, "<u2").reshape(-1, _AMOUNTS)[row[moved], column[moved]]
            amounts = least + amounts % (size[moved] - least)
            amounts = size[moved] - amounts if is_back else amounts
            rank[moved] = (rank[moved] + amounts) % size[moved]
        new = (first + rank).astype(np.uint8).tobytes()
        return [new[span] for span in spans]
