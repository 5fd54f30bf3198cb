# SPDX-License-Identifier: LGPL-2.1-or-later
"""The few ELF structures that tell a vmcore, a vmlinux and a process core apart.

Layouts: System V gABI (``elf.h``: ``Elf64_Ehdr``, ``Elf64_Phdr``, ``Elf64_Shdr``, ``Elf64_Nhdr``);
more than 65534 program headers: ``PN_XNUM`` in elf(5).
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
# Far above what any kernel writes; keeps a damaged header from being taken at its word.
_MAX_HEADERS = 1 << 20
_MAX_NOTES = 64 << 20

_MACHINES = {
    2: "sparc", 3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm",
    43: "sparc64", 50: "ia64", EM_X86_64: "x86_64", EM_AARCH64: "aarch64", 243: "riscv",
    258: "loongarch",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The start of an ELF file. All but the first three are set for 64-bit little-endian only."""

    type: int
    machine: str
    supported: bool
    """Whether it is of a machine that kcensus reads: x86_64 or aarch64, little-endian."""
    phoff: int = 0
    phnum: int = 0
    phentsize: int = 0
    shoff: int = 0
    shnum: int = 0
    shentsize: int = 0
    shstrndx: int = 0


@dataclass(frozen=True)
class Segment:
    """What a program header says of the file (``Elf64_Phdr``)."""

    type: int
    offset: int
    filesz: int
    paddr: int = 0
    memsz: int = 0


@dataclass(frozen=True)
class Section:
    """What a section header says of the file (``Elf64_Shdr``)."""

    name: int
    """Offset in the section header string table."""
    type: int
    offset: int
    size: int


def read_header(reader: FileReader) -> Header:
    """The header of a file that starts with :data:`MAGIC`.

    :raises TargetError: if the file ends inside it
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
        # The real number is sh_info of the first section header.
        first = _SHDR.unpack(reader.exact(shoff, _SHDR.size, "ELF section headers"))
        header = replace(header, phnum=first[7])
    return header


def _table(reader: FileReader, offset: int, number: int, entry: int, least: int) -> bytes:
    if number and not (least <= entry <= 4096 and number <= _MAX_HEADERS):
        raise TargetError(f"{reader.name}: has a damaged ELF header; copy it again")
    return reader.exact(offset, number * entry, "ELF headers")


def segments(reader: FileReader, header: Header) -> list[Segment]:
    """The program headers.

    :raises TargetError: if they are damaged or the file ends before them
    """
    table = _table(reader, header.phoff, header.phnum, header.phentsize, _PHDR.size)
    found = []
    for index in range(header.phnum):
        fields = _PHDR.unpack_from(table, index * header.phentsize)
        found.append(Segment(fields[0], fields[2], fields[5], fields[4], fields[6]))
    return found


def sections(reader: FileReader, header: Header) -> list[Section]:
    """The section headers.

    :raises TargetError: if they are damaged or the file ends before them
    """
    table = _table(reader, header.shoff, header.shnum, header.shentsize, _SHDR.size)
    found = []
    for index in range(header.shnum):
        fields = _SHDR.unpack_from(table, index * header.shentsize)
        found.append(Section(fields[0], fields[1], fields[4], fields[5]))
    return found


def notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """(owner, type, contents) of each note in a note segment or section; stops at damage."""
    at = 0
    while at + _NHDR.size <= len(data):
        namesz, descsz, type_ = _NHDR.unpack_from(data, at)
        at += _NHDR.size
        name_end, desc = at + namesz, at + (namesz + 3) // 4 * 4
        if desc + descsz > len(data):
            return
        yield data[at:name_end].rstrip(b"\0"), type_, data[desc : desc + descsz]
        at = desc + (descsz + 3) // 4 * 4


def core_notes(reader: FileReader, loaded: list[Segment]) -> list[tuple[bytes, int, bytes]]:
    """The notes of all note segments.

    :raises TargetError: if the file ends before them
    """
    found: list[tuple[bytes, int, bytes]] = []
    for segment in loaded:
        if segment.type == PT_NOTE and segment.filesz <= _MAX_NOTES:
            found.extend(notes(reader.exact(segment.offset, segment.filesz, "ELF notes")))
    return found


def build_id(reader: FileReader, header: Header) -> str | None:
    """The GNU build ID in hexadecimal, from the note sections (debug files keep those).

    :raises TargetError: if the file is damaged
    """
    for section in sections(reader, header):
        if section.type == SHT_NOTE and section.size <= _MAX_NOTES:
            data = reader.exact(section.offset, section.size, "ELF notes")
            for owner, type_, contents in notes(data):
                if owner == b"GNU" and type_ == NT_GNU_BUILD_ID:
                    return contents.hex()
    return None


def vmlinux_release(reader: FileReader, header: Header) -> str | None:
    """The release in a vmlinux's ``linux_banner``; None where its data was stripped away.

    :raises TargetError: if the file is damaged
    """
    found = sections(reader, header)
    if header.shstrndx >= len(found):
        return None
    names = reader.read(found[header.shstrndx].offset, min(found[header.shstrndx].size, _MAX_NOTES))
    for section in found:
        if section.type != SHT_NOBITS and names[section.name :].startswith(b".rodata\0"):
            data = reader.read(section.offset, min(section.size, _MAX_NOTES))
            banner = re.search(rb"Linux version ([\x21-\x7e]{1,64}) ", data)
            return banner[1].decode() if banner else None
    return None
