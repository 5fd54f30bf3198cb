# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find patterns of many file names: ``tmp.XXXXXX``, ``<hex>.lock``, ``event-<digits>.json``.

Names are grouped by the kind of each character: names of one directory are a *family* if they have
letters and digits in the same places and all other bytes are equal. (Words of up to four letters at
the start and the end must be equal, too, so that ``*.lock`` and ``*.json`` are different families.)
Pseudonyms with digits for digits and letters for letters therefore have the same families.

Within a family, constant bytes are literal. Digits become ``<digits>``; a varying stretch becomes
``<hex>`` if it has only hexadecimal digits of one case, or else an ``X`` for each byte. Families of
all directories that then look alike are one pattern.

All is in columns: a name is a row of words of eight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.engine.memory import Bytes, Mask, Numbers, Words
from kcensus.engine.rows import coded, factorized

_DIGIT, _LOWER_HEX, _LOWER, _UPPER_HEX, _UPPER, _BEYOND, _NONE = 1, 2, 4, 8, 16, 32, 64
_CLASSES = np.full(256, _NONE, np.uint8)
_CLASSES[ord("0") : ord("9") + 1] = _DIGIT
_CLASSES[ord("a") : ord("z") + 1] = _LOWER
_CLASSES[ord("a") : ord("f") + 1] = _LOWER_HEX
_CLASSES[ord("A") : ord("Z") + 1] = _UPPER
_CLASSES[ord("A") : ord("F") + 1] = _UPPER_HEX
_CLASSES[128:] = _BEYOND  # parts of letters, if the name is UTF-8
_CLASS_TABLE = _CLASSES.tobytes()
WORD, _HALF = np.dtype("<u8"), np.dtype("<u4")
"""Little-endian on any machine: the first byte of a name is the lowest."""


def trimmed(columns: npt.NDArray[Any], lengths: Numbers) -> Words:
    """Return names as columns of words, zero after their end.

    :param columns: shape (words, names): the first eight bytes of all names, the second eight, …,
        with all their ends; may be written to
    :return: same shape, so that equal words of all names are adjacent in memory
    """
    words = np.ascontiguousarray(columns, WORD)
    if (lengths == lengths[0]).all():
        lengths = lengths[:1]
    words[-1] &= _KEEP[lengths - 8 * (len(words) - 1)]
    return words


_KEEP = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)


@dataclass(frozen=True)
class Families:
    """Families of names of equally many words, as columns."""

    key: Words
    """Hash of directory and shape."""
    parent: Numbers
    """The directory, as a number given by the caller."""
    sample: Words
    """One of the names; shape (words, families)."""
    differs: Words
    """Bits that differ between the sample and other names; same shape."""
    classes: Words
    """For each byte, the classes of all characters at its place; same shape."""
    sums: Numbers
    """Shape (sums, families): number of names, and sums of the caller's columns."""

    def __len__(self) -> int:
        return len(self.key)


def families(
    words: Words, lengths: Numbers, parent: npt.NDArray[Any], sums: Sequence[npt.NDArray[Any]]
) -> Families:
    """Group names, given as by :func:`trimmed`, into families.

    :param sums: columns to add up in addition to the number of names
    """
    classes = _classes(words)
    code, groups = coded(parent)
    if (lengths != lengths[0]).any():
        code, groups = coded(code << 8 | lengths)
    order, starts, first = _sorted_by(code, len(groups))
    differs, union = _united(words, classes, order, starts)
    keys = _keys(words[:, first], classes[:, first], lengths[first], parent[first])
    alike = _are_alike(words[:, first], differs, union, lengths[first])
    if not alike.all():
        # Rare: names of one length in a directory nearly always come from one program.
        each, rows = keys[code], np.flatnonzero(~alike[code])
        each[rows] = _keys(words[:, rows], classes[:, rows], lengths[rows], parent[rows])
        code, keys = factorized(each)
        order, starts, first = _sorted_by(code, len(keys))
        differs, union = _united(words, classes, order, starts)
    if len(keys) == 1:
        totals = [np.array([len(parent)]), *(np.array([column.sum()]) for column in sums)]
    else:
        # Sums of integers below 2^53 are exact in the doubles of bincount().
        totals = [np.bincount(code, minlength=len(keys))]
        totals += [np.bincount(code, column, len(keys)).astype(np.int64) for column in sums]
    return Families(
        keys,
        parent[first].astype(np.int64),
        words[:, first],
        differs,
        union & ~_NONES,
        np.stack(totals),
    )


def _classes(words: Words) -> Words:
    """Return the classes of all bytes of names."""
    halves = words.view(_HALF).reshape(*words.shape, 2)
    classes = np.empty_like(halves)
    for half, out in zip(halves.transpose(0, 2, 1), classes.transpose(0, 2, 1), strict=True):
        for column, classified in zip(half, out, strict=True):
            # Much of the names is the same in all of them. Python's own table lookup takes a
            # quarter of the time of NumPy's, which widens the indexes.
            varying = column[:1] if (column == column[0]).all() else column
            classified[:] = np.frombuffer(varying.tobytes().translate(_CLASS_TABLE), _HALF)
    return classes.reshape(len(words), -1).view(WORD)


def _united(
    words: Words, classes: Words, order: Numbers | None, starts: Numbers
) -> tuple[Words, Words]:
    """Return the bits that differ between the names of each group, and their classes."""
    if order is not None:
        words, classes = words[:, order], classes[:, order]
    some, every = (_reduced(np.bitwise_or, words, starts), _reduced(np.bitwise_and, words, starts))
    return some ^ every, _reduced(np.bitwise_or, classes, starts)


def _keys(words: Words, classes: Words, lengths: Numbers, parent: npt.NDArray[Any]) -> Words:
    """Return the hash of the directory and the shape of each name."""
    # Digits and letters become A, the rest stays.
    others = _others(classes)
    shape = (words & (others * np.uint64(0xFF))) | ((others ^ _LOW_BITS) * np.uint64(ord("A")))
    key = _mix(parent.astype(np.int64).view(np.uint64) + np.uint64(1))
    for column in shape:
        key ^= column
        key = _mix(key)
    ends, kinds = _ends(words, lengths), _ends(classes, lengths)
    letters = _short_word(ends, kinds)
    # A word with digits is none.
    letters *= (kinds & letters & _LOW_BITS) == 0
    for end in ends & letters:
        key = _mix(key ^ end)
    return key


def _are_alike(words: Words, differs: Words, union: Words, lengths: Numbers) -> Mask:
    """Return which groups of equally long names have one shape each.

    :param words: one name of each
    :param differs: bits that differ between the names
    :param union: the classes of all names
    """
    fixed = _others(union) * np.uint64(0xFF)
    short = _short_word(_ends(words, lengths), _ends(union, lengths))
    strange = np.concatenate([differs & fixed, _ends(differs, lengths) & short])
    return np.asarray((strange == 0).all(axis=0))


def _others(classes: Words) -> Words:
    """Return words with the lowest bit of each byte that is neither a letter nor a digit."""
    return (classes & _NONES) >> np.uint64(6)


def _ends(words: Words, lengths: Numbers) -> Words:
    """Return the first eight bytes of each name, and the last eight in reverse order.

    :return: shape (2, names)
    """
    return np.stack([words[0], _last_word(words, lengths)])


def _mix(hashes: Words) -> Words:
    """Spread the bits of 64-bit hashes (the constant is 2^64 divided by the golden ratio)."""
    hashes = hashes * np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(32)
    return hashes


_LOW_BITS = np.uint64(0x0101010101010101)
_NONES = np.uint64(_NONE * 0x0101010101010101)


def _short_word(name: Words, classes: Words) -> Words:
    """Return a mask of the word at the start of each name if it has one to four bytes, else 0."""
    others = _others(classes)
    end = others & (~others + np.uint64(1))
    short = (end > np.uint64(1)) & (end <= np.uint64(1 << 32))
    # A name that ends within the word has no separate first word.
    short &= (name & (end * np.uint64(0xFF))) != 0
    return (end - np.uint64(1)) * short


def _last_word(words: Words, lengths: Numbers) -> Words:
    """Return the last eight bytes of each name in reverse order."""
    used = (lengths - 8 * (len(words) - 1)).astype(np.uint64) * np.uint64(8)
    last: Words = words[-1] << (np.uint64(64) - used)
    if len(words) > 1:
        # NumPy shifts by 64 to 0, which is right where the last word is full.
        last |= words[-2] >> used
    last.byteswap(inplace=True)
    return last


def _sorted_by(code: Numbers, count: int) -> tuple[Numbers | None, Numbers, Numbers]:
    """Return the order that sorts codes, and the start and first row of each code.

    The order is None if the codes are sorted.
    """
    if count == 1:
        return None, np.zeros(1, np.int64), np.zeros(1, np.int64)
    if (code[1:] >= code[:-1]).all():
        starts = np.searchsorted(code, np.arange(count))
        return None, starts, starts
    # NumPy sorts one or two bytes by radix.
    order = np.argsort(code.astype(np.min_scalar_type(count)), kind="stable")
    starts = np.searchsorted(code[order], np.arange(count))
    return order, starts, order[starts]


def _reduced(operation: np.ufunc, columns: npt.NDArray[Any], starts: Numbers) -> npt.NDArray[Any]:
    """Reduce each stretch of the columns; stretches begin at ``starts``."""
    whole: npt.NDArray[Any]
    if len(starts) == 1:
        whole = operation.reduce(columns, axis=1, keepdims=True)
    else:
        whole = operation.reduceat(columns, starts, axis=1)
    return whole


def merged(parts: Sequence[Families]) -> Families:
    """Merge families of several parts of the names; all have equally many words."""
    if len(parts) == 1:
        return parts[0]
    code, keys = factorized(np.concatenate([part.key for part in parts]))
    order, starts, first = _sorted_by(code, len(keys))
    samples, differs, classes, sums = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("sample", "differs", "classes", "sums")
    )
    sample = samples[:, first]
    differs |= samples ^ sample[:, code]
    if order is not None:
        differs, classes, sums = (columns[:, order] for columns in (differs, classes, sums))
    return Families(
        keys,
        np.concatenate([part.parent for part in parts])[first],
        sample,
        _reduced(np.bitwise_or, differs, starts),
        _reduced(np.bitwise_or, classes, starts),
        _reduced(np.add, sums, starts),
    )


@dataclass(frozen=True)
class Patterns:
    """Patterns of most names, most frequent first."""

    texts: list[str]
    """Valid Unicode but not safe to print; names may have ``<`` and ``X``, too."""
    sums: Numbers
    """Shape (patterns, sums); as in :class:`Families`."""
    directories: Numbers
    """Number of directories with such names."""
    others: int
    """Number of further patterns."""
    other_sums: Numbers
    """Sums over these patterns."""


_GONE, _DIGITS, _HEX, _ANY = -1, 256, 257, 258
_WRITTEN = {_DIGITS: b"<digits>", _HEX: b"<hex>", _ANY: b"X"}
_LEAST_HEX = 8
"""Least length of a hexadecimal stretch with letters; a shorter one may be a word and a number."""


def patterns(parts: Sequence[Families], limit: int) -> Patterns:
    """Return the most frequent patterns of the merged families, and the sums of the others."""
    if not parts:
        none = np.empty((0, 3), np.int64)
        return Patterns([], none, none[:, 0], 0, none.sum(axis=0))
    forms = [_form(part) for part in parts]
    hashes = []
    for form in forms:
        key = np.zeros(form.shape[1], np.uint64)
        for codes in form:
            key = np.where(codes == _GONE, key, _mix(key ^ codes.astype(np.uint64)))
        hashes.append(key)
    code, keys = factorized(np.concatenate(hashes))
    columns = np.concatenate([part.sums for part in parts], axis=1)
    sums = np.stack([np.bincount(code, column, len(keys)) for column in columns], axis=1)
    sums = sums.astype(np.int64)
    parent = np.concatenate([part.parent for part in parts])
    places = np.unique(np.stack([code, parent], axis=1), axis=0)[:, 0]
    directories = np.bincount(places, minlength=len(keys))
    # The family that gives a pattern its text.
    _, first = np.unique(code, return_index=True)
    starts = np.cumsum([0, *(len(part) for part in parts)])

    def text(row: int) -> str:
        part = int(np.searchsorted(starts, first[row], side="right")) - 1
        codes = forms[part][:, first[row] - starts[part]].tolist()
        written = (_WRITTEN.get(code) or bytes([code]) for code in codes if code != _GONE)
        return b"".join(written).decode(errors="backslashreplace")

    count = sums[:, 0]
    # Take more than are returned, so that equally frequent patterns are in the order of their text.
    edge = np.partition(count, -limit)[-limit] if len(count) > limit else 0
    chosen = np.flatnonzero(count >= max(int(edge), 1))
    if len(chosen) > 4 * limit:
        chosen = chosen[np.lexsort((keys[chosen], -count[chosen]))[: 4 * limit]]
    texts = {row: text(row) for row in chosen.tolist()}
    rows = sorted(texts, key=lambda row: (-int(count[row]), texts[row]))[:limit]
    rest = np.ones(len(count), np.bool_)
    rest[rows] = False
    return Patterns(
        [texts[row] for row in rows],
        sums[rows],
        directories[rows],
        int(rest.sum()),
        sums[rest].sum(axis=0),
    )


def _form(part: Families) -> npt.NDArray[np.int16]:
    """Return codes of how each byte is written, shape (bytes, families)."""
    sample, differs, classes = (
        np.ascontiguousarray(words)
        .view(np.uint8)
        .reshape(len(words), -1, 8)
        .transpose(0, 2, 1)
        .reshape(-1, len(part))
        for words in (part.sample, part.differs, part.classes)
    )
    word = classes != 0
    varies = (differs != 0) | ((classes & _DIGIT) != 0)
    all_of_run, length = _spread(classes, word)
    hexadecimal = _is_hex(all_of_run) & (length >= _LEAST_HEX)
    inside = word & (hexadecimal | (_since(varies, word) & _since(varies[::-1], word[::-1])[::-1]))
    union, _ = _spread(classes, inside)
    code = sample.astype(np.int16)
    kind = np.where(union == _DIGIT, _DIGITS, np.where(_is_hex(union), _HEX, _ANY))
    code[inside] = kind[inside]
    # A run of digits becomes one mark, whatever its length.
    again = np.zeros_like(inside)
    again[1:] = inside[1:] & inside[:-1] & (code[1:] != _ANY)
    code[again | (sample == 0)] = _GONE
    return code


def _is_hex(classes: Bytes) -> Mask:
    lower, upper = _DIGIT | _LOWER_HEX, _DIGIT | _UPPER_HEX
    return np.asarray((classes == lower) | (classes == upper))


def _since(marks: Mask, run: Mask) -> Mask:
    """Return where there is a mark since the start of a run, down the rows."""
    since = marks & run
    for row in range(1, len(since)):
        since[row] |= since[row - 1] & run[row]
    return since


def _spread(classes: Bytes, run: Mask) -> tuple[Bytes, npt.NDArray[np.uint8]]:
    """Return, for each byte, the classes of its run, and the length of the run."""
    union = np.where(run, classes, np.uint8(0))
    length = run.astype(np.uint8)
    for row in range(1, len(run)):
        union[row] |= np.where(run[row], union[row - 1], np.uint8(0))
        length[row] += np.where(run[row], length[row - 1], np.uint8(0))
    for row in range(len(run) - 2, -1, -1):
        same = run[row] & run[row + 1]
        union[row] = np.where(same, union[row + 1], union[row])
        length[row] = np.where(same, length[row + 1], length[row])
    return union, length
