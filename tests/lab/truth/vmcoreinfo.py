# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest says of its VMCOREINFO, put into its dump where QEMU has no way to do so."""

from __future__ import annotations

import struct
from pathlib import Path

from ..host import LabError

_EHDR, _PHDR, _NHDR = "HHIQQQIHHHHHH", "IIQQQQQQ", "III"
_LOAD, _NOTE = 1, 4
_PPC64 = 21
_MOST = 1 << 16
_LITTLE, _BIG = b"\1", b"\2"


def add_vmcoreinfo(path: Path, place: str) -> None:
    """Add the kernel's own note to an ELF dump, in place.

    QEMU 7.2 writes the headers and registers of a little-endian POWER guest in the wrong order:
    then the former are put right, and the latter left out.

    :param place: what /sys/kernel/vmcoreinfo says, physical address and size of the note
    """
    address, size = (int(word, 16) for word in place.split())
    with path.open("r+b") as file:
        ident = file.read(16)
        order = "<" if ident[5:6] == _LITTLE else ">"
        ehdr = list(struct.unpack(order + _EHDR, file.read(struct.calcsize("<" + _EHDR))))
        own = "<" if ehdr[1] == _PPC64 else ">"
        table, count = ehdr[4], ehdr[9]
        file.seek(table)
        phdrs = [
            list(struct.unpack(order + _PHDR, file.read(struct.calcsize("<" + _PHDR))))
            for _ in range(count)
        ]
        note = b""
        for type_, _, offset, _, start, length, *_ in phdrs:
            if type_ == _LOAD and start <= address < start + length:
                file.seek(offset + address - start)
                note = file.read(min(size, _MOST))
        named, described, _ = struct.unpack_from(own + _NHDR, note.ljust(12, b"\0"))
        length = 12 + -(-named // 4) * 4 + -(-described // 4) * 4
        if not 12 < length <= len(note):
            raise LabError(f"{path.name} has no VMCOREINFO where the kernel says")
        for phdr in phdrs:
            if phdr[0] == _NOTE:
                file.seek(phdr[2])
                notes = (file.read(phdr[5]) if own == order else b"") + note[:length]
                phdr[2], phdr[5], phdr[6] = file.seek(0, 2), len(notes), len(notes)
                file.write(notes)
        file.seek(table)
        for phdr in phdrs:
            file.write(struct.pack(own + _PHDR, *phdr))
        file.seek(0)
        file.write(ident[:5] + (_LITTLE if own == "<" else _BIG) + ident[6:])
        file.write(struct.pack(own + _EHDR, *ehdr))
