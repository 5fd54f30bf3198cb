# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO from a file that the user passes: ``--vmcoreinfo FILE``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import drgn

from kcensus.sources.formats import elf, kdump
from kcensus.sources.reader import FileReader
from kcensus.sources.vmcoreinfo.search import START, text_in
from kcensus.sources.vmcoreinfo.text import BadVmcoreinfo, Read, Vmcoreinfo

_OWNER = b"VMCOREINFO"
_MAX_BYTES = 1 << 20
_PLACE = re.compile(rb"(?:0x)?([0-9a-f]{1,16}) ([0-9a-f]{1,8})\s*")


class Place(NamedTuple):
    """The place of the ELF note in physical memory, as /sys/kernel/vmcoreinfo has it."""

    address: int
    size: int


def read_vmcoreinfo(path: str | Path) -> bytes | Place:
    """Return the VMCOREINFO in a file: a text, an ELF note, a dump, or /sys/kernel/vmcoreinfo.

    :raises BadVmcoreinfo: the file has none
    :raises TargetError: the file cannot be read
    """
    with FileReader(path, "--vmcoreinfo ") as reader:
        start = reader.read(0, _MAX_BYTES)
        if start.startswith(elf.MAGIC):
            header = elf.read_header(reader)
            notes = elf.core_notes(reader, header, elf.segments(reader, header))
            text = next((text for owner, _, text in notes if owner == _OWNER), b"")
        elif start.startswith((kdump.MAGIC, kdump.FLAT_MAGIC)):
            text = _of_kdump(path)
        elif match := _PLACE.fullmatch(start):
            return Place(int(match[1], 16), int(match[2], 16))
        else:
            text = _of_note(start) or start
    return _checked(text)


def at_place(place: Place, read: Read) -> bytes:
    """Return the VMCOREINFO of the note at a place in memory.

    :raises BadVmcoreinfo: there is none
    """
    try:
        note = bytes(read(place.address, min(place.size, _MAX_BYTES)))
    except (drgn.FaultError, ValueError, OverflowError) as error:
        raise BadVmcoreinfo("the dump has no memory at the place of the note") from error
    return _checked(_of_note(note))


def _of_note(data: bytes) -> bytes:
    # In the other byte order, the lengths are far too large.
    notes = (each for is_little in (True, False) for each in elf.notes(data, is_little=is_little))
    return next((text for owner, _, text in notes if owner == _OWNER), b"")


def _of_kdump(path: str | Path) -> bytes:
    prog = drgn.Program()
    try:
        prog.set_core_dump(path)
        return bytes(prog["VMCOREINFO"].string_())
    except MemoryError:
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise BadVmcoreinfo("the dump cannot be opened") from error


def _checked(text: bytes) -> bytes:
    """Return the lines from OSRELEASE on, if they are complete."""
    place = text.find(START)
    lines = text_in(text[place:]) if place >= 0 else b""
    if not lines:
        raise BadVmcoreinfo("the file has no VMCOREINFO")
    if not Vmcoreinfo(lines).is_complete():
        raise BadVmcoreinfo("the VMCOREINFO lacks PAGESIZE, or a SYMBOL that opening needs")
    return lines
