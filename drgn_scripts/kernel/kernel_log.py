# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log, in memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import drgn
from drgn.helpers.linux.printk import get_printk_records

from drgn_scripts.text import printable

Line = tuple[float | None, str]
"""Seconds since boot, None unknown; and the text, printable."""

_STAMP = re.compile(
    r"^(?:<\d+>)?(?:.{0,120}? kernel: )?\s*\[\s*(\d{1,12}\.\d{1,9})\]\s?(?:\[\s*[TC]\d+\]\s?)?"
)


def records(prog: drgn.Program) -> list[Line]:
    """The records in the log of a program, oldest first, a line each.

    :raises LookupError: this kernel's log cannot be found
    :raises drgn.FaultError: it cannot be read
    """
    return [
        (record.timestamp / 1e9, printable(line))
        for record in get_printk_records(prog)
        for line in record.text.split(b"\n")
    ]


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
