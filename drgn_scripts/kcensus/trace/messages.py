# SPDX-License-Identifier: LGPL-2.1-or-later
"""What messages of I/O schedulers say about their queues.

CFQ (``cfq_log_cfqq()`` in block/cfq-iosched.c, up to 4.20) prints ``cfq1618SN /path words``, BFQ
(``bfq_log_bfqq()`` in block/bfq-iosched.h) ``bfq1618S words``: the pid for which the queue was
made, S for synchronous or A for asynchronous requests, and in CFQ, N for queues without idling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.trace.events import Integers

OTHER, INSERTED, SELECTED, DISPATCHED, EXPIRED, PREEMPTED, PREEMPTS, EMPTY = range(8)
"""Kinds of messages. ``PREEMPTED`` is an expiry for that reason (BFQ), ``PREEMPTS`` the queue that
preempts another one (CFQ, which then says that the other expires), ``EMPTY`` an expired slice in
which CFQ dispatched nothing."""

MAX_MESSAGE = 128
"""BLK_TN_MAX_MSG: the kernel cuts longer ones."""
PADDING = MAX_MESSAGE + 8
"""Bytes behind the last message, so that words can be read from any place in it."""
_MAX_NAME = 24
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
    """Return which queue each message is about, the names of the queues, and the kinds.

    :param text: bytes with the messages, and :data:`PADDING` more at the end
    :param start: where each begins, shape (n,)
    :param length: their bytes, shape (n,)
    :return: index of each queue; names, of which the first one is empty: no queue; kinds
    """
    if not len(start):
        return np.zeros(0, np.int64), [b""], np.zeros(0, np.uint8)
    lengths = np.minimum(length, MAX_MESSAGE)
    width = max(int(lengths.max(initial=0)), _MAX_NAME + 16)
    # Whole rows at any place: a matrix of indices is many times as slow.
    full = width + 8
    every: npt.NDArray[Any] = np.ndarray((len(text) - full + 1,), f"V{full}", text, strides=(1,))
    matrix = every[start].view(np.uint8).reshape(-1, full)
    matrix *= np.arange(full) < lengths[:, None]
    rows = np.arange(len(start))
    name_end = np.argmax(matrix[:, : _MAX_NAME + 1] == _SPACE, axis=1)
    scheduler = matrix[:, :3].copy().view("S3").ravel()
    is_queue = (name_end > 3) & (name_end <= _MAX_NAME)
    is_queue &= (scheduler == b"cfq") | (scheduler == b"bfq")
    is_queue &= matrix[:, 3] != ord("-")
    names = matrix[:, :_MAX_NAME].copy()
    names *= np.arange(_MAX_NAME) < np.where(is_queue, name_end, 0)[:, None]
    code, unique = _factorized(names)

    place = name_end.copy()
    for _ in range(2):
        place += matrix[rows, place] == _SPACE
    has_path = matrix[rows, place] == _SLASH
    # Most cgroups are the root: a slash alone.
    is_root = has_path & (matrix[rows, place + 1] == _SPACE)
    paths = np.flatnonzero(has_path & ~is_root)
    place[is_root] += 2
    is_space = matrix[paths] == _SPACE
    after = np.argmax(is_space & (np.arange(full) > place[paths][:, None]), axis=1)
    place[paths] = np.where(after > 0, after + 1, place[paths])
    words = _words_at(matrix, place)
    kind = np.zeros(len(start), np.uint8)
    for name, kinds in _KINDS.items():
        mine = is_queue & (scheduler == name)
        for prefix, number in kinds.items():
            kind[mine & (words == np.uint64(word(prefix)))] = number
    reason = matrix[rows, np.minimum(place + 8, width - 1)]
    is_bfq = scheduler == b"bfq"
    kind[is_bfq & (kind == EXPIRED) & (reason == _PREEMPTED_REASON)] = PREEMPTED
    used = np.flatnonzero(is_queue & (words == np.uint64(word(b"sl_used="))))
    texts = matrix[used].view(f"S{full}").ravel()
    kind[used[np.char.find(texts, b" disp=0 ") >= 0]] = EMPTY
    return code, unique, kind


def _words_at(matrix: npt.NDArray[np.uint8], place: Integers) -> Integers:
    """Return the eight bytes at a place of each row as a number."""
    width = matrix.shape[1]
    view: npt.NDArray[Any] = np.ndarray((matrix.size - 7,), "<u8", matrix.reshape(-1), strides=(1,))
    words: Integers = view[np.arange(len(matrix)) * width + place]
    return words


def _factorized(names: npt.NDArray[np.uint8]) -> tuple[Integers, list[bytes]]:
    """Return a code for each name, and the names by code; code 0 is the empty name."""
    parts = np.ascontiguousarray(names).view("<u8").reshape(len(names), -1)
    code = np.zeros(len(names), np.int64)
    for column in parts.T:
        inner, unique = pd.factorize(np.ascontiguousarray(column))
        code = pd.factorize(code * max(len(unique), 1) + inner)[0]
    known, first = np.unique(code, return_index=True)
    texts = [names[row].tobytes().rstrip(b"\0") for row in first]
    order = [b"", *(text for text in texts if text)]
    number = {text: index for index, text in enumerate(order)}
    table = np.array([number[text] for text in texts], np.int64)
    return (table[code] if len(known) else code), order
