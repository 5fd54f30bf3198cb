# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of I/O schedulers about their queues.

CFQ (``cfq_log_cfqq()`` in block/cfq-iosched.c, up to 4.20) prints ``cfq1618SN /path words``, BFQ
(``bfq_log_bfqq()`` in block/bfq-iosched.h) ``bfq1618S words``: the pid of the queue's first task, S
for synchronous or A for asynchronous requests, and in CFQ, N for queues without idling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.sources.blktrace.events import Integers

OTHER, INSERTED, SELECTED, DISPATCHED, EXPIRED, PREEMPTED, PREEMPTS, EMPTY = range(8)
"""Kinds of messages. ``PREEMPTED`` is an expiry for that reason (BFQ), ``PREEMPTS`` names the
preempting queue (CFQ then reports the expiry of the other queue), ``EMPTY`` is an expired slice
without a dispatch (CFQ)."""

MAX_MESSAGE = 128
"""BLK_TN_MAX_MSG: the kernel cuts longer messages."""
PADDING = MAX_MESSAGE + 8
"""Bytes behind the last message, so that words can be read from any place in it."""
_ONES = 0x0101010101010101
_SPACE, _SLASH = ord(" "), ord("/")
_KINDS = {
    b"cfq": {
        b"insert_r": INSERTED,  # insert_request
        b"set_acti": SELECTED,  # set_active
        b"dispatch": DISPATCHED,  # dispatched a request
        b"slice ex": EXPIRED,  # slice expired t=%d
        b"preempt": PREEMPTS,
        b"sl_used=": OTHER,  # sl_used=%u disp=%u charge=%u iops=%u sect=%lu
    },
    b"bfq": {
        b"add_requ": INSERTED,  # add_request %d
        b"set_in_s": SELECTED,  # set_in_service_queue, cur-budget = %d
        b"bfqq_ser": DISPATCHED,  # bfqq_served %d secs
        b"expire (": EXPIRED,  # expire (%d, slow %d, num_disp %d, short_ttime %d)
    },
}
"""Kinds by scheduler and the first eight bytes of the words."""
_PREEMPTED_REASON = ord("4")
"""BFQQE_PREEMPTED of enum bfqq_expiration in block/bfq-iosched.h."""


def word(text: bytes) -> int:
    """Return up to eight bytes as the number that they are in memory."""
    return int.from_bytes(text[:8].ljust(8, b"\0"), "little")


def parse(
    text: npt.NDArray[np.uint8], start: Integers, length: Integers
) -> tuple[Integers, list[bytes], npt.NDArray[np.uint8]]:
    """Return the queue of each message, the names of the queues, and the kinds of messages.

    :param text: bytes with the messages, and :data:`PADDING` more at the end
    :param start: place of each message, shape (n,)
    :param length: their bytes, shape (n,)
    :return: index of each queue; names, of which the first one is empty: no queue; kinds
    """
    if not len(start):
        return np.zeros(0, np.int64), [b""], np.zeros(0, np.uint8)
    stop = start + np.minimum(length, MAX_MESSAGE)
    names, name_end = _names(text, start)
    scheduler = names[0] & np.uint64(0xFFFFFF)
    is_queue = (name_end > start + 3) & (name_end < stop) & (text[start + 3] != ord("-"))
    is_of = {name: is_queue & (scheduler == np.uint64(word(name))) for name in _KINDS}
    is_queue = np.logical_or.reduce([*is_of.values()])
    code, unique = _factorized([part * is_queue for part in names])
    place = _words_begin(text, name_end, stop)
    words = _words_at(text, place, stop)
    kind = np.zeros(len(start), np.uint8)
    for name, kinds in _KINDS.items():
        if is_of[name].any():
            for prefix, number in kinds.items():
                kind += (is_of[name] & (words == np.uint64(word(prefix)))) * np.uint8(number)
    expired = np.flatnonzero(is_of[b"bfq"] & (kind == EXPIRED))
    reason = place[expired] + 8
    is_preempted = (text[reason] == _PREEMPTED_REASON) & (reason < stop[expired])
    kind[expired[is_preempted]] = PREEMPTED
    used = np.flatnonzero(is_of[b"cfq"] & (words == np.uint64(word(b"sl_used="))))
    whole: npt.NDArray[Any] = np.ndarray(
        (len(text) - MAX_MESSAGE + 1,), f"V{MAX_MESSAGE}", text, strides=(1,)
    )
    matrix = whole[start[used]].view(np.uint8).reshape(-1, MAX_MESSAGE)
    matrix *= np.arange(MAX_MESSAGE) < (stop - start)[used][:, None]
    texts = matrix.view(f"S{MAX_MESSAGE}").ravel()
    kind[used[np.char.find(texts, b" disp=0 ") >= 0]] = EMPTY
    return code, unique, kind


def _names(text: npt.NDArray[np.uint8], start: Integers) -> tuple[list[Integers], Integers]:
    """Return the text before the first space of each message.

    :return: its first and next eight bytes as numbers, and its end; the end is 16 bytes after the
        start if there is no space in them
    """
    first, second = (_numbers(text)[start + offset] for offset in (0, 8))
    before, count = _before_space(first)
    is_longer = count == 8
    before_next, count_next = _before_space(second)
    names = [first & before, second & before_next * is_longer]
    end: Integers = start + count + count_next * is_longer
    return names, end


def _before_space(number: Integers) -> tuple[Integers, Integers]:
    """Return a mask of the bytes before the first space of eight bytes, and their count."""
    other = number ^ np.uint64(_SPACE * _ONES)  # zero where the space is
    marks = (other - np.uint64(_ONES)) & ~other & np.uint64(0x80 * _ONES)
    # The lowest mark is the first space's; higher ones may be wrong.
    mask = ((marks & (~marks + np.uint64(1))) >> np.uint64(7)) - np.uint64(1)
    count = ((mask & np.uint64(_ONES)) * np.uint64(_ONES)) >> np.uint64(56)
    return mask, count.view(np.int64)


def _words_begin(text: npt.NDArray[np.uint8], name_end: Integers, stop: Integers) -> Integers:
    """Return the places of the words of each message: after spaces and the path of a cgroup."""
    place = name_end + 1
    place += text[place] == _SPACE
    has_path = text[place] == _SLASH
    # Most cgroups are the root: a slash alone.
    is_root = has_path & (text[place + 1] == _SPACE)
    place += is_root * 2
    rows = np.flatnonzero(has_path & ~is_root)
    ends = place[rows]
    while len(rows):
        count = _before_space(_words_at(text, ends, stop[rows]))[1]
        ends = ends + count
        is_end = count < 8
        place[rows[is_end]] = ends[is_end] + 1
        is_left = ~is_end & (ends < stop[rows])
        rows, ends = rows[is_left], ends[is_left]
    return place


def _words_at(text: npt.NDArray[np.uint8], place: Integers, stop: Integers) -> Integers:
    """Return the eight bytes at some places as numbers; zeros from ``stop`` on."""
    unused = 8 - np.clip(stop - place, 0, 8)
    words: Integers = _numbers(text)[np.minimum(place, stop)]
    words &= ~np.uint64(0) >> (unused * 8).astype(np.uint64)
    words *= unused < 8
    return words


def _numbers(text: npt.NDArray[np.uint8]) -> Integers:
    """Return a view with the number of the eight bytes at each place."""
    return np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))


def _factorized(parts: list[Integers]) -> tuple[Integers, list[bytes]]:
    """Return a code for each name, and the names by code; code 0 is the empty name.

    :param parts: eight bytes of each name after the other, as numbers
    """
    code = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        if part.any():
            inner, unique = pd.factorize(part)
            code = pd.factorize(code * len(unique) + inner)[0] if code.any() else inner
    first = np.unique(code, return_index=True)[1]
    texts = [b"".join(part[row].tobytes() for part in parts).rstrip(b"\0") for row in first]
    order = [b"", *(text for text in texts if text)]
    number = {text: index for index, text in enumerate(order)}
    table = np.array([number[text] for text in texts], np.int64)
    return table[code], order
