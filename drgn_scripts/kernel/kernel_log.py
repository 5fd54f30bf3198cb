# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log, in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import drgn
from drgn.helpers.linux.printk import get_printk_records

from drgn_scripts.text import printable

Line = tuple[float | None, str]
"""Seconds since boot, None unknown; and the text, printable."""

_STAMP = re.compile(
    r"^(?:<\d+>)?(?:.{0,120}? kernel: )?\s*\[\s*(\d+\.\d+)\]\s?(?:\[\s*[TC]\d+\]\s?)?"
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


def lines(text: str) -> Iterator[Line]:
    """The lines of a text as ``dmesg`` or a system log has it."""
    for line in text.splitlines():
        stamp = _STAMP.match(line)
        yield (
            float(stamp[1]) if stamp else None,
            printable(line[stamp.end() :] if stamp else line),
        )
