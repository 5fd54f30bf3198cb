# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ELF structures that distinguish a vmcore, a vmlinux and a core dump of a process.

Layouts: System V gABI (``elf.h``: ``Elf64_Ehdr``, ``Elf64_Phdr``, ``Elf64_Shdr``, ``Elf64_Nhdr``);
for more than 65534 program headers, ``PN_XNUM`` in elf(5).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kcensus.arch import by_machine
from kcensus.sources.formats.order import ordered
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader

MAGIC = b"\x7fELF"
ET_REL, ET_CORE = 1, 4
PT_LOAD, PT_NOTE = 1, 4
NT_AUXV = 6
NT_GNU_BUILD_ID = 3
_SHT_NOTE, _SHT_NOBITS = 7, 8

_PN_XNUM = 0xFFFF
_TYPE = struct.Struct("<HH")
_EHDR = struct.Struct("<HHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_NHDR = struct.Struct("<III")
# Far more than any kernel writes; bounds the allocation for a corrupt header.
_MAX_HEADERS = 1 << 20
_MAX_NOTES = 64 << 20

_MACHINES = {
    2: "sparc", 3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm",
    43: "sparc64", 50: "ia64", 62: "x86_64", 183: "aarch64", 243: "riscv", 258: "loongarch",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The header of an ELF file; only the first three fields are set unless ``supported``."""

    type: int
    machine: str
    supported: bool
    """Whether kcensus reads memory of this machine."""
    phdrs: tuple[int, int, int] = (0, 0, 0)
    """Program headers: offset, number, bytes of each."""
    shdrs: tuple[int, int, int] = (0, 0, 0)
    shstrndx: int = 0
    is_little: bool = True
    """Byte order of the file's structures."""


class Segment(NamedTuple):
    """The used fields of a program header (``Elf64_Phdr``)."""

    type: int
    offset: int
    filesz: int
    paddr: int
    memsz: int
    vaddr: int


class Section(NamedTuple):
    """A section header (``Elf64_Shdr``)."""

    name: int
    """Place of the name in the section with the names."""
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    addralign: int
    entsize: int


def read_header(reader: FileReader) -> Header:
    """Return the header of a file that starts with :data:`MAGIC`."""
    ident = reader.exact(0, 20, "ELF header")
    little = ident[5] != 2
    type_, machine = ordered(_TYPE, is_little=little).unpack_from(ident, 16)
    architecture = by_machine(machine, is_little=little)
    if ident[4] != 2 or architecture is None:
        name = _MACHINES.get(machine, f"ELF machine {machine}")
        if architecture is not None:
            name = f"32-bit {architecture.name}"
        return Header(type_, name if little else f"{name} (big-endian)", False)
    ehdr, shdr = ordered(_EHDR, is_little=little), ordered(_SHDR, is_little=little)
    fields = ehdr.unpack(reader.exact(16, ehdr.size, "ELF header"))
    _, _, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = fields
    if phnum == _PN_XNUM:
        # sh_info of the first section header has the real number.
        phnum = shdr.unpack(reader.exact(shoff, shdr.size, "ELF section headers"))[7]
    phdrs, shdrs = (phoff, phnum, phentsize), (shoff, shnum, shentsize)
    return Header(type_, architecture.name, True, phdrs, shdrs, shstrndx, little)


def _table(
    reader: FileReader, place: tuple[int, int, int], layout: struct.Struct
) -> Iterator[tuple[int, ...]]:
    offset, number, entry = place
    if number and not (layout.size <= entry <= 4096 and number <= _MAX_HEADERS):
        raise TargetError(f"{reader.name}: has a corrupt ELF header; copy it again")
    table = reader.exact(offset, number * entry, "ELF headers")
    for start in range(0, number * entry, entry or 1):
        yield layout.unpack_from(table, start)


def segments(reader: FileReader, header: Header) -> list[Segment]:
    """Return the program headers."""
    table = _table(reader, header.phdrs, ordered(_PHDR, is_little=header.is_little))
    return [
        Segment(type_, offset, filesz, paddr, memsz, vaddr)
        for type_, _, offset, vaddr, paddr, filesz, memsz, _ in table
    ]


def sections(reader: FileReader, header: Header) -> list[Section]:
    """Return the section headers; none of a machine that is not supported."""
    layout = ordered(_SHDR, is_little=header.is_little)
    return [Section(*fields) for fields in _table(reader, header.shdrs, layout)]


def notes(data: bytes, *, is_little: bool) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (owner, type, contents) of the notes in a note segment or section, while intact."""
    start, nhdr = 0, ordered(_NHDR, is_little=is_little)
    while start + nhdr.size <= len(data):
        namesz, descsz, type_ = nhdr.unpack_from(data, start)
        name = start + nhdr.size
        desc = name + (namesz + 3) // 4 * 4
        if desc + descsz > len(data):
            return
        yield data[name : name + namesz].rstrip(b"\0"), type_, data[desc : desc + descsz]
        start = desc + (descsz + 3) // 4 * 4


def core_notes(
    reader: FileReader, header: Header, segments: list[Segment]
) -> list[tuple[bytes, int, bytes]]:
    """Return the notes of all note segments."""
    return [
        note
        for segment in segments
        if segment.type == PT_NOTE and segment.filesz <= _MAX_NOTES
        for note in notes(
            reader.exact(segment.offset, segment.filesz, "ELF notes"), is_little=header.is_little
        )
    ]


def section(reader: FileReader, header: Header, name: bytes, most: int) -> bytes | None:
    """Return the first ``most`` bytes of the section of a name, or None if the file lacks it."""
    table = sections(reader, header)
    names = _names(reader, header, table)
    for each in table:
        if each.type != _SHT_NOBITS and names.startswith(name + b"\0", each.name):
            return reader.read(each.offset, min(each.size, most))
    return None


def _names(reader: FileReader, header: Header, table: list[Section]) -> bytes:
    if header.shstrndx >= len(table):
        return b""
    place = table[header.shstrndx]
    return reader.read(place.offset, min(place.size, _MAX_NOTES))


@dataclass(frozen=True)
class Identity:
    """Data that distinguishes a vmlinux from other builds."""

    build_id: str | None = None
    release: str | None = None
    contents: tuple[tuple[int, bytes], ...] = ()
    """Address as linked and bytes of ``linux_banner`` and of the build ID."""

    def __str__(self) -> str:
        build_id = self.build_id and f"build ID {self.build_id}"
        return ", ".join(filter(None, (self.release, build_id)))

    @property
    def banner(self) -> str:
        """Release and version; without a banner, as :meth:`__str__`."""
        version = version_of(self.contents)
        return f"{self.release} {version}" if version else str(self)


def version_of(contents: Iterable[tuple[int, bytes]]) -> str:
    """Return the version in a ``linux_banner``, such as ``#1 SMP Fri Jul 1 12:00:00 UTC 2022``.

    It is untrusted; empty without a banner.
    """
    banners = (data for _, data in contents if data.startswith(b"Linux version "))
    _, mark, version = next(banners, b"").decode(errors="replace").partition(" #")
    return f"{mark}{version}".strip()


def identity(reader: FileReader, header: Header) -> Identity:
    """Return the identity of a vmlinux; its banner may have been stripped."""
    if not header.supported:
        return Identity(release=header.machine)
    build_id = release = None
    memory: list[tuple[int, bytes]] = []
    table = sections(reader, header)
    names = _names(reader, header, table)
    for name, type_, _, address, offset, size, *_ in table:
        if type_ == _SHT_NOTE and size <= _MAX_NOTES and build_id is None:
            data = reader.exact(offset, size, "ELF notes")
            for owner, kind, description in notes(data, is_little=header.is_little):
                if owner == b"GNU" and kind == NT_GNU_BUILD_ID:
                    build_id = description.hex()
                    memory.append((address + data.index(description), description))
                    break
        elif type_ != _SHT_NOBITS and names.startswith(b".rodata\0", name):
            data = reader.read(offset, min(size, _MAX_NOTES))
            banner = re.search(rb"Linux version ([\x21-\x7e]{1,64}) [^\0]{0,1024}", data)
            if banner:
                release = banner[1].decode()
                memory.append((address + banner.start(), banner[0]))
    return Identity(build_id, release, tuple(memory))
