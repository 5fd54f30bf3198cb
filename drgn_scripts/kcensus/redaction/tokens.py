# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text in memory, and the words of the kernel in it.

A *token* is a maximal run of at most :data:`MAX_TOKEN_BYTES` bytes between control characters,
blanks, quotes, brackets, slashes and most punctuation: a word of a message, or a part of a path.
"""

from __future__ import annotations

import re

import numpy as np

from kcensus.engine.memory import Bytes, Mask, Numbers, Words
from kcensus.engine.rows import covered
from kcensus.sources.formats.banner import BUILDER

MAX_TOKEN_BYTES = 255
"""NAME_MAX."""
_MAX_DIGITS = 7
"""Most digits of a number that tells nothing."""
_MAX_GROUP, _MIN_GROUPS, _MIN_SHORTENED = 4, 4, 5
"""Most digits of a group of an address, least groups, and least digits of one with ``::``."""
_MIN_STRING = 6
"""Least length of a constant of the kernel: shorter ones occur in code and tables by chance."""

_INSIDE = np.ones(256, np.bool_)
_INSIDE[:33] = False
_INSIDE[[127, *b"/\"'`()[]{}<>,;:=@+!"]] = False
_PRINTABLE = np.zeros(256, np.bool_)
_PRINTABLE[32:127] = True
_HEX = np.zeros(256, np.bool_)
_HEX[[*b"0123456789abcdefABCDEF"]] = True
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)
_OF_TOKEN = b"[%b]" % re.escape(bytes(np.flatnonzero(_INSIDE).astype(np.uint8)))
_PLAIN = b"[0-9]{1,%d}" % _MAX_DIGITS
_NUMBER = re.compile(
    b"(?<!%b)(?:(?<=[+/=])0x[0-9a-f]{1,5}|%b|%b(?:[mu]?s|[kKMG]i?B?|%%)|[0-9]{1,5}[.][0-9]{3}s)"
    b"[.]?(?!%b)" % (_OF_TOKEN, _PLAIN, _PLAIN, _OF_TOKEN)
)
"""A token that is a number which tells nothing, perhaps with a unit or the end of a sentence."""
_LEVEL = re.compile(rb"\x01[0-7cd]")
"""Of a message of printk(): KERN_SOH, and a character that is no part of the first word."""
_SOURCE = re.compile(
    rb"(?<![0-9A-Za-z_.-])(?:\.\.)?/(?:[!-.0-~]+/)+(?=[!-.0-~]+\.[chS](?![0-9A-Za-z_]))"
    rb"|(?:/[!-.0-~]+)*/(?=[!-.0-~]+\.rs(?!t(?![0-9A-Za-z])))"
)
"""Directories in the absolute path of a file of the source, as __FILE__ has it; strings of Rust do
not end with NUL."""
_ENDS = np.zeros(256, np.bool_)
_ENDS[[*b"\0\t\n\r"]] = True
"""What follows the text of a string. In a certificate, the next length does."""
_CONVERSION = re.compile(rb"%[-+ #0-9.*]*(?:hh?|ll?|[zjtL])?[a-zA-Z%]")
"""Of a format of printk(); the letters after %p are left behind."""


def runs(inside: Mask) -> tuple[Numbers, Numbers]:
    """Return the start and the length of each run of true."""
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    return edges[::2], edges[1::2] - edges[::2]


def _tokens(buffer: Bytes) -> tuple[Numbers, Numbers]:
    starts, lengths = runs(_INSIDE[buffer])
    fits = lengths <= MAX_TOKEN_BYTES
    return starts[fits], lengths[fits]


def printable_lengths(buffer: Bytes, is_text: Mask) -> Numbers:
    """Return the length of the run of printable bytes around each byte, 0 for other bytes.

    :param is_text: where bytes that are not ASCII are printable, too
    """
    starts, lengths = runs(_PRINTABLE[buffer] | (is_text & (buffer >= 128)))
    around = np.zeros(len(buffer) + 1, np.int64)
    around[starts] = lengths
    around[starts + lengths] -= lengths
    return np.cumsum(around)[:-1]


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


def builders_own(constants: bytes) -> list[tuple[int, int]]:
    """Return the start and the end of each text in constants that is of one build of the source.

    That is user and host in the banners, and the directories of the source.
    """
    spans = [each.span(1) for each in BUILDER.finditer(constants)]
    return sorted(spans + [each.span() for each in _SOURCE.finditer(constants)])


class KernelText:
    """Tells the words of the kernel in text.

    :param names: names that the kernel chose
    :param constants: memory with strings of the kernel's source, such as formats of messages
    """

    def __init__(self, names: list[bytes], constants: bytes) -> None:
        buffer = np.frombuffer(_LEVEL.sub(b"\0\0", constants), np.uint8).copy()
        for start, end in builders_own(constants):
            buffer[start:end] = 0
        starts, lengths = runs(_PRINTABLE[buffer])
        is_string = (lengths >= _MIN_STRING) & _ENDS[np.append(buffer, 0)[starts + lengths]]
        buffer[~covered(starts[is_string], lengths[is_string], len(buffer))] = 0
        formats = _CONVERSION.sub(b"\n", buffer.tobytes())
        text = np.frombuffer(b"\0".join([*names, buffer.tobytes(), formats]), np.uint8)
        self._hashes = np.unique(_hashes(text, *_tokens(text)))

    def find(self, buffer: Bytes, around: Bytes | None = None) -> Mask:
        """Return which bytes belong to tokens of the kernel, or to short numbers.

        A builder's name is none, whatever it is.

        :param around: the same memory with the text around, which tells that a name is a builder's
        """
        starts, lengths = _tokens(buffer)
        hashes = _hashes(buffer, starts, lengths)
        known = np.zeros(len(hashes), np.bool_)
        if len(self._hashes):
            rows = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            known = self._hashes[rows] == hashes
        numbers = np.array([each.span() for each in _NUMBER.finditer(buffer.tobytes())], np.int64)
        first, last = numbers.reshape(-1, 2).T
        kept = covered(starts[known], lengths[known], len(buffer))
        kept |= covered(first, last - first, len(buffer))
        address = _in_addresses(buffer, starts, lengths)
        kept &= ~covered(starts[address], lengths[address], len(buffer))
        for builder in BUILDER.finditer((buffer if around is None else around).tobytes()):
            kept[slice(*builder.span(1))] = False
        return kept


def _in_addresses(buffer: Bytes, starts: Numbers, lengths: Numbers) -> Mask:
    """Return which tokens are groups of an address: of hardware, of IPv6, of a card.

    Addresses of SCSI (``2:0:0:1``) and PCI have fewer digits; a time has fewer groups.
    """
    digits = np.concatenate([[0], np.cumsum(_HEX[buffer])])
    is_group = (digits[starts + lengths] - digits[starts] == lengths) & (lengths <= _MAX_GROUP)
    gap, last = np.diff(starts) - lengths[:-1], buffer[starts[1:] - 1]
    is_short = (gap == 2) & (last == ord(":")) & (buffer[starts[1:] - 2] == ord(":"))
    found = np.zeros(len(starts), np.bool_)
    for separator in b":/ ":
        short = is_group[1:] & is_group[:-1] & is_short & (separator == ord(":"))
        joined = is_group[1:] & is_group[:-1] & (gap == 1) & (last == separator) | short
        chain = np.cumsum(~np.concatenate([[False], joined]))[: len(starts)]
        groups = np.bincount(chain)[chain]
        total = np.bincount(chain, lengths)[chain]
        shortened = np.bincount(chain[1:], short, int(chain.max(initial=0)) + 1)[chain] > 0
        found |= (groups >= _MIN_GROUPS) & (total > _MAX_DIGITS)
        found |= shortened & (total >= _MIN_SHORTENED)
    found &= is_group
    return found
