# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log, in memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import drgn
from drgn.helpers.linux.printk import get_printk_records

from kcensus.text import printable

Line = tuple[float | None, str]
"""Seconds since boot, None unknown; and the text, printable."""

_STAMP = re.compile(
    r"^(?:<\d+>)?(?:.{0,120}? kernel: )?\s*\[\s*(\d{1,12}\.\d{1,9})\]\s?(?:\[\s*[TC]\d+\]\s?)?"
)


def records(prog: drgn.Program) -> list[Line]:
    """The records in the log of a program, oldest first, a line each.

    :raises LookupError: this kernel's log cannot be found
    :raises drgn.FaultError: it cannot be read
    :raises ValueError: its ends cannot be
    """
    _check_ends(prog)
    return [
        (record.timestamp / 1e9, printable(line))
        for record in get_printk_records(prog)
        for line in record.text.split(b"\n")
    ]


def _check_ends(prog: drgn.Program) -> None:
    """drgn goes from the tail to the head, however far apart they are said to be."""
    try:
        ring = prog["prb"].desc_ring
    except LookupError:
        return  # up to 5.9
    bits = int(ring.count_bits)
    distance = int(ring.head_id.counter) - int(ring.tail_id.counter)
    if bits > _MOST_BITS or not 0 <= distance % (1 << 62) < 1 << bits:
        raise ValueError("the ends of the ring of records are damaged")


_MOST_BITS = 24
"""Of the number of records: of a log of half a gigabyte."""


def lines(text: Iterable[str]) -> Iterator[Line]:
    """The lines of a text as ``dmesg`` or a system log has it."""
    for line in text:
        stamp = _STAMP.match(line)
        line = (line[stamp.end() :] if stamp else line).rstrip("\r\n")
        yield float(stamp[1]) if stamp else None, printable(line)


def log_file(path: str) -> Iterator[Line]:
    """The lines of a file.

    :raises OSError: it cannot be read
    :raises ValueError: it is no text, or too large for a log; the message is one sentence
    """
    file = Path(path)
    with file.open("rb") as stream:
        raw = stream.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise ValueError(
            f"{path} is larger than {_LARGEST >> 20} MiB: cut out the time around the problem"
        )
    beginning = raw[:_SAMPLE].decode(errors="replace")
    strange = sum(not char.isprintable() and not char.isspace() for char in beginning)
    strange += beginning.count("\ufffd")
    if strange > len(beginning) * _MOST_STRANGE:
        raise ValueError(f"{path} is not a text, so it cannot be a kernel's log")
    return lines(line.decode(errors="backslashreplace") for line in io.BytesIO(raw))


_LARGEST = 256 << 20
_SAMPLE = 64 << 10
_MOST_STRANGE = 0.3
"""Of the characters at the beginning. After a crash a few pages of a log may be zeroes."""
