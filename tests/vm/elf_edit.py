# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make a damaged copy of a real ELF vmcore."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
PT_LOAD = 1
PAGE = 4096
_S390 = 22
_LITTLE = 1


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--sparse=auto", "--reflink=auto", source, target], check=True)
    target.chmod(0o600)


def headers(file: IO[bytes]) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Return the header of an ELF file, and its program headers."""
    ident = file.read(EHDR.size)
    header = list(_ordered(EHDR, ident[5]).unpack(ident))
    phdr = _ordered(PHDR, ident[5])
    file.seek(header[5])
    return header, [phdr.unpack(file.read(phdr.size)) for _ in range(header[10])]


def _ordered(structure: struct.Struct, data: int) -> struct.Struct:
    return structure if data == _LITTLE else struct.Struct(f">{structure.format[1:]}")


def without_pages(source: Path, target: Path, pfns: Iterable[int]) -> None:
    """A copy of an ELF vmcore that lacks some pages, as if they had been filtered out."""
    copy(source, target)
    missing = sorted(set(pfns))
    with target.open("r+b") as dump:
        header, old = headers(dump)
        dump.seek(5)
        data = dump.read(1)[0]
        new: list[tuple[int, ...]] = []
        # On Z, virtual address 0 is one; elsewhere it is none.
        is_mapped = header[2] == _S390 or any(phdr[3] for phdr in old)
        for phdr in old:
            new += _split(phdr, missing, is_mapped) if phdr[0] == PT_LOAD else [phdr]
        assert len(new) < 0xFFFF
        dump.seek(0, 2)
        header[5], header[10] = dump.tell(), len(new)
        for phdr in new:
            dump.write(_ordered(PHDR, data).pack(*phdr))
        dump.seek(0)
        dump.write(_ordered(EHDR, data).pack(*header))


def _split(phdr: tuple[int, ...], missing: list[int], is_mapped: bool) -> list[tuple[int, ...]]:
    """A PT_LOAD cut into those around the missing pages."""
    type_, flags, offset, vaddr, paddr, filesz, _, align = phdr
    parts: list[tuple[int, ...]] = []
    start = paddr
    for page in [pfn * PAGE for pfn in missing] + [paddr + filesz]:
        if not paddr <= page <= paddr + filesz:
            continue
        if page > start:
            skip, size = start - paddr, page - start
            at = vaddr + skip if is_mapped else 0
            parts.append((type_, flags, offset + skip, at, start, size, size, align))
        start = page + PAGE
    return parts


def truncated(source: Path, target: Path, size: int) -> None:
    """A copy of a dump that ends after ``size`` bytes."""
    copy(source, target)
    os.truncate(target, size)


def poke(dump: Path, address: int, data: bytes) -> None:
    with dump.open("r+b") as file:
        for type_, _, offset, _, paddr, filesz, *_ in headers(file)[1]:
            if type_ == PT_LOAD and paddr <= address <= paddr + filesz - len(data):
                file.seek(offset + address - paddr)
                file.write(data)
                return
    raise AssertionError(f"{address:#x} is not in {dump}")
