# SPDX-License-Identifier: LGPL-2.1-or-later
"""Physical memory in a file: in the segments of an ELF dump, or the whole file as a raw image."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import drgn

from kcensus.arch import Architecture, by_name
from kcensus.sources.formats import elf
from kcensus.sources.reader import FileReader

_NO_ADDRESS = (1 << 64) - 1


class _Part(NamedTuple):
    start: int
    size: int
    offset: int


class FileMemory:
    """Memory of a file that stays open; forked processes may read it, too."""

    def __init__(
        self, path: str | Path, parts: list[_Part], architecture: Architecture | None = None
    ) -> None:
        self.architecture = architecture
        """As its headers say; None for a raw image."""
        self._file = open(path, "rb")  # noqa: SIM115, as long as the program lives
        self._parts = list(_disjoint(parts))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(address, size) of each stretch of memory."""
        return [(part.start, part.size) for part in self._parts]

    def moved(self, start: int) -> FileMemory:
        """Return the same memory of a raw image whose first byte has another address."""
        return FileMemory(self._file.name, [part._replace(start=start) for part in self._parts])

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at a physical address.

        :raises drgn.FaultError: the file does not have them
        """
        row = bisect.bisect_right(self._parts, (address, _NO_ADDRESS, 0)) - 1
        parts: list[bytes] = []
        place, end = address, address + size
        while place < end:
            part = self._parts[row] if 0 <= row < len(self._parts) else _Part(0, 0, 0)
            skip = place - part.start
            count = min(part.size - skip, end - place)
            data = b""
            if skip >= 0 and count > 0:
                data = os.pread(self._file.fileno(), count, part.offset + skip)
            if not data:
                raise drgn.FaultError("could not find memory segment", place)
            parts.append(data)
            place += len(data)
            row += place - part.start >= part.size
        return b"".join(parts)


def _disjoint(parts: list[_Part]) -> Iterator[_Part]:
    """Yield the parts by address, without what an earlier one has, too.

    /proc/vmcore has the kernel's image twice, in a segment of its own and in the direct map.
    """
    reached = 0
    for start, size, offset in sorted(parts):
        skip = max(reached - start, 0)
        if size > skip:
            yield _Part(start + skip, size - skip, offset + skip)
            reached = start + size


def of_elf(path: str | Path) -> FileMemory:
    """Return the memory of an ELF dump.

    :raises TargetError: its headers are damaged
    """
    with FileReader(path) as reader:
        header = elf.read_header(reader)
        segments = elf.segments(reader, header)
        parts = [
            _Part(segment.paddr, min(segment.filesz, reader.size - segment.offset), segment.offset)
            for segment in segments
            if segment.type == elf.PT_LOAD and segment.paddr + segment.filesz <= _NO_ADDRESS
        ]
    return FileMemory(path, parts, by_name(header.machine))


def of_raw(path: str | Path) -> FileMemory:
    """Return the memory of a raw image, which begins at physical address 0."""
    with FileReader(path) as reader:
        return FileMemory(path, [_Part(0, reader.size, 0)])
