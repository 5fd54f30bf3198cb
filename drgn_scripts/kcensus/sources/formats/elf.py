# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ELF structures that distinguish a vmcore, a vmlinux and a core dump of a process.

Layouts: System V gABI (``elf.h``: ``Elf64_Ehdr``, ``Elf64_Phdr``, ``Elf64_Shdr``, ``Elf64_Nhdr``);
for more than 65534 program headers, ``PN_XNUM`` in elf(5).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader

MAGIC = b"\x7fELF"
ET_REL, ET_EXEC, ET_DYN, ET_CORE = 1, 2, 3, 4
EM_X86_64, EM_AARCH64 = 62, 183
PT_LOAD, PT_NOTE = 1, 4
SHT_NOTE, SHT_NOBITS = 7, 8
NT_AUXV = 6
NT_GNU_BUILD_ID = 3

_PN_XNUM = 0xFFFF
_EHDR = struct.Struct("<HHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_NHDR = struct.Struct("<III")
# Far more than any kernel writes; bounds the allocation for a corrupt header.
_MAX_HEADERS = 1 << 20
_MAX_NOTES = 64 << 20

_MACHINES = {
    2: "sparc", 3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm",
    43: "sparc64", 50: "ia64", EM_X86_64: "x86_64", EM_AARCH64: "aarch64", 243: "riscv",
    258: "loongarch",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The header of an ELF file; only the first three fields are set unless ``supported``."""

    type: int
    machine: str
    supported: bool
    """Whether kcensus reads memory of this machine: x86_64 or aarch64, little-endian."""
    phoff: int = 0
    phnum: int = 0
    phentsize: int = 0
    shoff: int = 0
    shnum: int = 0
    shentsize: int = 0
    shstrndx: int = 0


@dataclass(frozen=True)
class Segment:
    """A program header (``Elf64_Phdr``)."""

    type: int
    offset: int
    filesz: int
    paddr: int = 0
    memsz: int = 0


@dataclass(frozen=True)
class Section:
    """A section header (``Elf64_Shdr``)."""

    name: int
    """Offset in the section header string table."""
    type: int
    offset: int
    size: int


def read_header(reader: FileReader) -> Header:
    """Return the header of a file that starts with :data:`MAGIC`.

    :raises TargetError: the file ends inside the header
    """
    ident = reader.exact(0, 20, "ELF header")
    little = ident[5] != 2
    type_, machine = struct.unpack_from("<HH" if little else ">HH", ident, 16)
    name = _MACHINES.get(machine, f"ELF machine {machine}")
    if name.startswith(("x86_64", "aarch64")) and ident[4] != 2:
        name = f"32-bit {name}"
    if not little:
        name = f"{name} (big-endian)"
    if ident[4] != 2 or not little or machine not in (EM_X86_64, EM_AARCH64):
        return Header(type_, name, False)
    fields = _EHDR.unpack(reader.exact(16, _EHDR.size, "ELF header"))
    _, _, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = fields
    header = Header(type_, name, True, phoff, phnum, phentsize, shoff, shnum, shentsize, shstrndx)
    if phnum == _PN_XNUM:
        # sh_info of the first section header has the real number.
        first = _SHDR.unpack(reader.exact(shoff, _SHDR.size, "ELF section headers"))
        header = replace(header, phnum=first[7])
    return header


def _table(
    reader: FileReader, offset: int, number: int, entry: int, layout: struct.Struct
) -> Iterator[tuple[int, ...]]:
    """Yield the entries of a header table.

    :raises TargetError: the table is corrupt or the file ends before it does
    """
    if number and not (layout.size <= entry <= 4096 and number <= _MAX_HEADERS):
        raise TargetError(f"{reader.name}: has a corrupt ELF header; copy it again")
    table = reader.exact(offset, number * entry, "ELF headers")
    for start in range(0, number * entry, entry or 1):
        yield layout.unpack_from(table, start)


def segments(reader: FileReader, header: Header) -> list[Segment]:
    """Return the program headers.

    :raises TargetError: they are corrupt or the file ends before them
    """
    table = _table(reader, header.phoff, header.phnum, header.phentsize, _PHDR)
    return [
        Segment(type_, offset, filesz, paddr, memsz)
        for type_, _, offset, _, paddr, filesz, memsz, _ in table
    ]


def sections(reader: FileReader, header: Header) -> list[Section]:
    """Return the section headers.

    :raises TargetError: they are corrupt or the file ends before them
    """
    table = _table(reader, header.shoff, header.shnum, header.shentsize, _SHDR)
    return [Section(name, type_, offset, size) for name, type_, _, _, offset, size, *_ in table]


def notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (owner, type, contents) of the notes in a note segment or section, while intact."""
    start = 0
    while start + _NHDR.size <= len(data):
        namesz, descsz, type_ = _NHDR.unpack_from(data, start)
        name = start + _NHDR.size
        desc = name + (namesz + 3) // 4 * 4
        if desc + descsz > len(data):
            return
        yield data[name : name + namesz].rstrip(b"\0"), type_, data[desc : desc + descsz]
        start = desc + (descsz + 3) // 4 * 4


def core_notes(reader: FileReader, segments: list[Segment]) -> list[tuple[bytes, int, bytes]]:
    """Return the notes of all note segments.

    :raises TargetError: the file ends before them
    """
    return [
        note
        for segment in segments
        if segment.type == PT_NOTE and segment.filesz <= _MAX_NOTES
        for note in notes(reader.exact(segment.offset, segment.filesz, "ELF notes"))
    ]


def build_id(reader: FileReader, header: Header) -> str | None:
    """Return the GNU build ID in hexadecimal, from the note sections, which debug files keep.

    :raises TargetError: the file is corrupt
    """
    for section in sections(reader, header):
        if section.type == SHT_NOTE and section.size <= _MAX_NOTES:
            data = reader.exact(section.offset, section.size, "ELF notes")
            for owner, type_, contents in notes(data):
                if owner == b"GNU" and type_ == NT_GNU_BUILD_ID:
                    return contents.hex()
    return None


def vmlinux_release(reader: FileReader, header: Header) -> str | None:
    """Return the release in a vmlinux's ``linux_banner``; None if its data was stripped.

    :raises TargetError: the file is corrupt
    """
    table = sections(reader, header)
    if header.shstrndx >= len(table):
        return None
    strings = table[header.shstrndx]
    names = reader.read(strings.offset, min(strings.size, _MAX_NOTES))
    for section in table:
        if section.type != SHT_NOBITS and names[section.name :].startswith(b".rodata\0"):
            data = reader.read(section.offset, min(section.size, _MAX_NOTES))
            banner = re.search(rb"Linux version ([\x21-\x7e]{1,64}) ", data)
            return banner[1].decode() if banner else None
    return None
