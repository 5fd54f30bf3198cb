# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel log in memory."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.printk import get_printk_records

from kcensus.text import printable

Line = tuple[float | None, str]
"""Seconds since boot, None where unknown, and printable text."""

_MAX_RECORD_BITS = 24
"""Binary logarithm of the number of records, those of a log of half a gigabyte."""


def is_sound(prog: drgn.Program) -> bool:
    """Return whether head and tail of the ring buffer are possible.

    drgn walks from tail to head, however far.

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
    return [
        (record.timestamp / 1e9, printable(line))
        for record in get_printk_records(prog)
        for line in record.text.split(b"\n")
    ]
