# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel log in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import drgn
import numpy as np
from drgn import Object, offsetof, sizeof
from drgn.helpers.linux.printk import get_printk_records

from kcensus.engine.gather import gather_words
from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import DAMAGED
from kcensus.sources.capsule.uses import Use, reading_nothing
from kcensus.text import printable

Line = tuple[float | None, str]
"""Seconds since boot, None where unknown, and printable text."""

HUNG_TASK = re.compile(
    r"INFO: task (.*):(\d+) blocked(?: in I/O wait)? for more than (\d+) seconds"
)
"""Message of the hung task detector: name and PID of the task, and seconds."""
OOPS = re.compile(r"kernel BUG at|BUG: (?:unable to handle|kernel NULL)|Oops: |: [0-9a-f]{4} \[#\d")
"""Messages of die(), which ends the task. Other messages with registers, such as of soft lockups,
are not oopses."""
PLACE = re.compile(
    r"\b(?:RIP: [0-9a-f]{4}:|pc : )([\w.]+)\+0x[0-9a-f/x]+(?: \[([\w-]+)\])?", re.ASCII
)
"""Function and module of the instruction pointer, in a message with registers."""
_MAX_RECORD_BITS = 24
"""Binary logarithm of the number of records of a log of half a gigabyte."""
_RECORDS_LOOKED_AT = 16
"""Newest records whose texts are looked at: one would do, but for records without text."""
_MAX_TEXT_BITS = 31
"""Binary logarithm of the most bytes of text, of LOG_BUF_LEN_MAX."""
_NUMBERS = 1 << 62
"""Numbers of records; the two bits above them are the state."""
_WRITTEN = np.array([1 << 62, 2 << 62], np.uint64)
"""States of a record that is committed, or finalized."""
_MAX_BYTES = 1 << 31
"""LOG_BUF_LEN_MAX, of the log up to v5.9."""


def is_sound(prog: drgn.Program) -> bool:
    """Return whether head, tail and text of the ring buffer are possible; drgn walks any distance.

    :raises drgn.FaultError: they are unreadable
    """
    try:
        # Since Linux kernel commit 896fbe20b4e2 ("printk: use the lockless ringbuffer") (in v5.10).
        ring = prog["prb"].desc_ring
        bits = int(ring.count_bits)
        distance = (int(ring.head_id.counter) - int(ring.tail_id.counter)) % (1 << 62)
        is_possible = bits <= _MAX_RECORD_BITS and distance < 1 << bits
        return is_possible and _has_texts(prog["prb"])
    except LookupError:
        return True
    except (AttributeError, OverflowError, TypeError):
        return False  # not a struct printk_ringbuffer, or beyond the last address


def _has_texts(ring: Object) -> bool:
    """Return whether the newest records have their number at the beginning of their texts.

    The text of a record is a ``struct prb_data_block``: its number, then characters.
    """
    start, (number, offset) = int(ring.text_data_ring.data), _texts(ring, _RECORDS_LOOKED_AT)
    # Redacted capsules have texts without numbers, whose printable bytes would else be taken for
    # the begin of the texts; so has a page of zeros, which shows in the texts.
    with reading_nothing(ring.prog_):
        return all(
            ring.prog_.read_word(start + at) in (0, each)
            for each, at in zip(number.tolist(), offset.tolist(), strict=True)
        )


def _texts(ring: Object, most: int) -> tuple[Words, Words]:
    """Return the numbers of the newest records with text, and the offsets of their texts."""
    number, state, begin = _descriptors(ring, most)
    # Odd positions are of records without text.
    has_text = np.isin(state - number, _WRITTEN) & (begin % np.uint64(2) == 0)
    size = np.uint64(1 << min(int(ring.text_data_ring.size_bits), _MAX_TEXT_BITS))
    return number[has_text], begin[has_text] % size


def _descriptors(ring: Object, most: int) -> tuple[Words, Words, Words]:
    """Return the numbers of the newest records, their state words, and positions of their texts.

    The state word is the number, with the state in its upper two bits: :data:`_WRITTEN` or not.
    """
    descs, prog = ring.desc_ring, ring.prog_
    type_ = descs.descs.type_.type
    length, size = 1 << int(descs.count_bits), sizeof(type_)
    head, tail = (int(each.counter) % _NUMBERS for each in (descs.head_id, descs.tail_id))
    count = min((head - tail) % _NUMBERS + 1, most, length)
    first = (head - count + 1) % length
    start, before_end = int(descs.descs), min(count, length - first)
    raw = prog.read(start + first * size, before_end * size)
    raw += prog.read(start, (count - before_end) * size) if count > before_end else b""

    def column(member: str) -> Words:
        word = word_dtype(prog)
        cut = np.ndarray(count, word, raw, offsetof(type_, member), (size,))
        return cut.astype(np.uint64)

    number = (np.uint64(head) - np.arange(count, dtype=np.uint64)[::-1]) % np.uint64(_NUMBERS)
    return number, column("state_var.counter"), column("text_blk_lpos.begin")


def _missing(ring: Object) -> int:
    """Return how many records are on pages of zeros; drgn takes them for not yet written."""
    number, state, _ = _descriptors(ring, 1 << _MAX_RECORD_BITS)
    return int(np.count_nonzero((state == 0) & (number != 0)))


def _elsewhere(kernel: Kernel) -> int:
    """Return how many records lead to the text of another record."""
    if "prb" not in kernel.prog:
        return 0
    ring = kernel.prog["prb"]
    number, offset = _texts(ring, 1 << _MAX_RECORD_BITS)
    places = np.uint64(int(ring.text_data_ring.data)) + offset
    # What is unreadable, or all zero, shows in the texts; redacted capsules have zeros here.
    word = word_dtype(kernel.prog)
    found, _ = gather_words(kernel.memory, places, word, Faults(), use=Use.NONE)
    return int(np.count_nonzero((found != 0) & (found != number)))


def records(prog: drgn.Program) -> list[Line]:
    """Return the records of the kernel log, oldest first, one per line of text.

    :raises LookupError: the log cannot be found
    :raises drgn.FaultError: it is unreadable
    :raises ValueError: head and tail of the ring buffer are impossible
    """
    if not is_sound(prog):
        raise ValueError("head and tail of the printk ring buffer are damaged")
    if "prb" in prog:
        texts = [
            # Only the first record has number 0: the page of others is all zero.
            (record.timestamp, record.text if number == 0 or record.seq else b"\0")
            for number, record in enumerate(get_printk_records(prog))
        ]
        texts += [(0, b"\0")] * _missing(prog["prb"])
    else:
        texts = [*_structured(prog)]
    return [(stamp / 1e9, printable(line)) for stamp, text in texts for line in text.split(b"\n")]


@dataclass(frozen=True)
class Log:
    """The kernel log; empty and undamaged if the kernel has none."""

    lines: list[Line] = field(default_factory=list)
    lost: int = 0
    """Lines that are all zero, records with another's text, or 1 of a damaged log."""
    damage: str = ""
    """What is wrong with the lost ones, or why there is no log."""


@once
def read_log(kernel: Kernel) -> Log:
    """Return the kernel log."""
    try:
        lines = records(kernel.prog)
    except (drgn.FaultError, ValueError) as error:
        return Log(lost=1, damage=str(error))
    except DAMAGED as error:
        return Log(damage=str(error))
    if lost := sum(is_lost(text) for _, text in lines):
        return Log(lines, lost, "all zero")
    # A running kernel writes over texts meanwhile.
    lost = 0 if kernel.live else _elsewhere(kernel)
    return Log(lines, lost, "with the text of another record" if lost else "")


def is_lost(text: str) -> bool:
    """Return whether the page of a record, or of its text, is all zero."""
    return text.startswith(r"\x00")


def _structured(prog: drgn.Program) -> Iterator[tuple[int, bytes]]:
    """Yield time stamp and text of the records of a log up to v5.9, oldest first.

    drgn follows the lengths of damaged or overwritten records without end; this raises ValueError.
    """
    try:
        type_ = prog.type("struct printk_log")
    except LookupError:
        # Before Linux kernel commit 62e32ac3505a ("printk: rename struct log to struct printk_log")
        # (in v3.11), and in RHEL 7.
        type_ = prog.type("struct log")
    # The BPF verifier had a log_buf, too, from v3.18 to v4.14.
    buffer = int(prog.variable("log_buf", "printk.c"))
    at, end = int(prog["log_first_idx"]), int(prog["log_next_idx"])
    wraps = at > end
    while at != end:
        record = Object(prog, type_, address=buffer + at).read_()
        length = int(record.len)
        if wraps and not length:  # the log goes on at its start
            at, wraps = 0, False
            continue
        if length < sizeof(type_) or at > _MAX_BYTES or (at > end and not wraps):
            raise ValueError("the records of the kernel log do not lead to its end")
        yield int(record.ts_nsec), prog.read(buffer + at + sizeof(type_), int(record.text_len))
        at += length
