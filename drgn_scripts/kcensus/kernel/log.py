# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel log in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import drgn
from drgn import Object, sizeof
from drgn.helpers.linux.printk import get_printk_records

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
_MAX_BYTES = 1 << 31
"""LOG_BUF_LEN_MAX, of the log up to v5.9."""


def is_sound(prog: drgn.Program) -> bool:
    """Return whether head and tail of the ring buffer are possible; drgn walks any distance.

    :raises drgn.FaultError: they are unreadable
    """
    try:
        # Since Linux kernel commit 896fbe20b4e2 ("printk: use the lockless ringbuffer") (in v5.10).
        ring = prog["prb"].desc_ring
        bits = int(ring.count_bits)
        distance = (int(ring.head_id.counter) - int(ring.tail_id.counter)) % (1 << 62)
    except LookupError:
        return True
    except (AttributeError, TypeError):
        return False  # not a struct printk_ringbuffer
    return bits <= _MAX_RECORD_BITS and distance < 1 << bits


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
    else:
        texts = [*_structured(prog)]
    return [(stamp / 1e9, printable(line)) for stamp, text in texts for line in text.split(b"\n")]


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
