# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sections and symbols of a vmlinux or module, as NumPy columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.sources.formats import elf
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader

_SECTION = np.dtype(
    [
        *(("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8")),
        *(("offset", "<u8"), ("size", "<u8"), ("link", "<u4"), ("info", "<u4")),
        *(("alignment", "<u8"), ("entry", "<u8")),
    ]
)
_SYMBOL = np.dtype(
    [
        *(("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")),
        *(("value", "<u8"), ("size", "<u8")),
    ]
)
_PROGRAM_HEADER = np.dtype(
    [
        *(("type", "<u4"), ("flags", "<u4"), ("offset", "<u8"), ("address", "<u8")),
        *(("physical", "<u8"), ("file_size", "<u8"), ("size", "<u8"), ("alignment", "<u8")),
    ]
)
_SHF_ALLOC, _SHT_SYMTAB, _SHN_LORESERVE = 2, 2, 0xFF00
_MAX_SECTIONS = 1 << 16
_MAX_SYMBOLS = 1 << 21
_MAX_NAMES = 1 << 27
UNKNOWN = 0xFFFF
"""Section of a symbol without one, such as an absolute symbol."""


@dataclass(frozen=True)
class ElfFile:
    """What a pack needs of an ELF file besides its types."""

    names: list[str]
    """Of the sections with memory."""
    start: npt.NDArray[np.uint64]
    """Linked address of each section; 0 in a module."""
    size: npt.NDArray[np.uint64]
    symbols: npt.NDArray[Any]
    """Rows of ``Elf64_Sym``, defined symbols only, whose ``section`` is a row of the above, or
    :data:`UNKNOWN`."""
    symbol_names: list[bytes]
    extent: tuple[int, int]
    """First and last address of the kernel's image, as drgn has it; 0 in a module."""


def read_elf(path: Path) -> ElfFile:
    """Read sections and symbols.

    :raises TargetError: the file is not a vmlinux or module of a supported machine, or is corrupt
    """
    with FileReader(path) as reader:
        if reader.read(0, 4) != elf.MAGIC:
            raise TargetError(
                f"{reader.name}: is not an ELF file; pass a vmlinux and modules with debug info, "
                "decompressed"
            )
        header = elf.read_header(reader)
        if not header.supported or header.type == elf.ET_CORE:
            raise TargetError(f"{reader.name}: is not a vmlinux or module of x86_64 or aarch64")
        sections = _table(reader, header.shdrs, _SECTION, _MAX_SECTIONS)
        tables = sections[sections["type"] == _SHT_SYMTAB]
        if not len(tables) or header.shstrndx >= len(sections):
            raise TargetError(
                f"{reader.name}: has no symbol table: it was stripped; pass the file from the "
                "debug info package"
            )
        names = _contents(reader, sections[header.shstrndx])
        used = np.flatnonzero(sections["flags"] & np.uint64(_SHF_ALLOC))
        table = tables[0]
        if table["size"] > _MAX_SYMBOLS * _SYMBOL.itemsize or table["link"] >= len(sections):
            raise TargetError(f"{reader.name}: has a corrupt symbol table; copy it again")
        data = _contents(reader, table)
        symbols = np.frombuffer(data, _SYMBOL, len(data) // _SYMBOL.itemsize)
        strings = _contents(reader, sections[int(table["link"])])
        symbols = symbols[(symbols["section"] != 0) & (symbols["name"] < len(strings))].copy()
        row = np.full(1 << 16, UNKNOWN, np.uint16)
        row[used[used < _SHN_LORESERVE]] = np.arange(len(used[used < _SHN_LORESERVE]))
        symbols["section"] = row[symbols["section"]]
        is_module = header.type == elf.ET_REL
        return ElfFile(
            [_string(names, place).decode(errors="replace") for place in sections["name"][used]],
            sections["address"][used],
            sections["size"][used],
            symbols,
            [_string(strings, place) for place in symbols["name"].tolist()],
            (0, 0) if is_module else _extent(reader, header),
        )


def _extent(reader: FileReader, header: elf.Header) -> tuple[int, int]:
    # As drgn has it. Before Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative percpu
    # offsets") (in v6.15), a segment of per-CPU variables in between begins at address 0.
    headers = _table(reader, header.phdrs, _PROGRAM_HEADER, _MAX_SECTIONS)
    loads = headers[(headers["type"] == elf.PT_LOAD) & (headers["size"] > 0)]
    if not len(loads):
        return 0, 0
    return int(loads["address"][0]), int(loads["address"][-1] + loads["size"][-1])


def _table(
    reader: FileReader, place: tuple[int, int, int], dtype: np.dtype[Any], most: int
) -> npt.NDArray[Any]:
    offset, count, size = place
    if count > most or (count and size != dtype.itemsize):
        raise TargetError(f"{reader.name}: has a corrupt ELF header; copy it again")
    return np.frombuffer(reader.exact(offset, count * size, "ELF headers"), dtype, count)


def _contents(reader: FileReader, section: npt.NDArray[Any]) -> bytes:
    offset, size = int(section["offset"]), int(section["size"])
    if size > _MAX_NAMES:
        raise TargetError(f"{reader.name}: has a corrupt section header; copy it again")
    return reader.exact(offset, size, "symbols")


def _string(strings: bytes, place: int) -> bytes:
    end = strings.find(b"\0", place)
    return strings[place:end] if end >= 0 else b""
