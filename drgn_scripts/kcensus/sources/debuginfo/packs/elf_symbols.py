# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sections and symbols of a vmlinux or module, as NumPy columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kcensus.arch import names as architectures
from kcensus.sources.formats import elf
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader
from kcensus.text import printable

_SYMBOL = np.dtype(
    [
        *(("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")),
        *(("value", "<u8"), ("size", "<u8")),
    ]
)
_SHF_ALLOC, _SHT_SYMTAB, _SHN_LORESERVE = 2, 2, 0xFF00
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
    if os.path.isdir(path):
        raise TargetError(f"{printable(str(path))}: is a directory; pass the vmlinux inside it")
    with FileReader(path) as reader:
        if reader.read(0, 4) != elf.MAGIC:
            raise TargetError(
                f"{reader.name}: is not an ELF file; pass a vmlinux and modules with debug info, "
                "decompressed"
            )
        header = elf.read_header(reader)
        if not header.supported or header.type == elf.ET_CORE:
            raise TargetError(f"{reader.name}: is not a vmlinux or module of {architectures()}")
        sections = elf.sections(reader, header)
        tables = [section for section in sections if section.type == _SHT_SYMTAB]
        if not tables or header.shstrndx >= len(sections):
            raise TargetError(
                f"{reader.name}: has no symbol table: it was stripped; pass the file from the "
                "debug info package"
            )
        names = _contents(reader, sections[header.shstrndx])
        used = [nth for nth, section in enumerate(sections) if section.flags & _SHF_ALLOC]
        table = tables[0]
        if table.size > _MAX_SYMBOLS * _SYMBOL.itemsize or table.link >= len(sections):
            raise TargetError(f"{reader.name}: has a corrupt symbol table; copy it again")
        data = _contents(reader, table)
        stored = _SYMBOL.newbyteorder("<" if header.is_little else ">")
        symbols = np.frombuffer(data, stored, len(data) // stored.itemsize).astype(_SYMBOL)
        strings = _contents(reader, sections[table.link])
        symbols = symbols[(symbols["section"] != 0) & (symbols["name"] < len(strings))].copy()
        row = np.full(1 << 16, UNKNOWN, np.uint16)
        named = [nth for nth in used if nth < _SHN_LORESERVE]
        row[named] = np.arange(len(named))
        symbols["section"] = row[symbols["section"]]
        is_module = header.type == elf.ET_REL
        return ElfFile(
            [_string(names, sections[nth].name).decode(errors="replace") for nth in used],
            np.array([sections[nth].addr for nth in used], np.uint64),
            np.array([sections[nth].size for nth in used], np.uint64),
            symbols,
            [_string(strings, place) for place in symbols["name"].tolist()],
            (0, 0) if is_module else _extent(reader, header),
        )


def _extent(reader: FileReader, header: elf.Header) -> tuple[int, int]:
    # As drgn has it. Before Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative percpu
    # offsets") (in v6.15), a segment of per-CPU variables in between begins at address 0.
    segments = elf.segments(reader, header)
    loads = [each for each in segments if each.type == elf.PT_LOAD and each.memsz]
    return (loads[0].vaddr, loads[-1].vaddr + loads[-1].memsz) if loads else (0, 0)


def _contents(reader: FileReader, section: elf.Section) -> bytes:
    if section.size > _MAX_NAMES:
        raise TargetError(f"{reader.name}: has a corrupt section header; copy it again")
    return reader.exact(section.offset, section.size, "symbols")


def _string(strings: bytes, place: int) -> bytes:
    end = strings.find(b"\0", place)
    return strings[place:end] if end >= 0 else b""
