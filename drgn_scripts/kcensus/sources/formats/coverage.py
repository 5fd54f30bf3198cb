# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much of the machine's memory a dump file holds, and what was left out on purpose.

Filter levels: makedumpfile(8), ``-d``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kcensus.sources.formats import elf, kdump
from kcensus.sources.reader import FileReader

_LEVELS = (
    (1, "pages of zeros"),
    (2, "non-private page cache"),
    (4, "private page cache"),
    (8, "user data"),
    (16, "free pages"),
)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Coverage:
    """What a dump file says of itself."""

    saved_bytes: int
    """Memory that is in the file."""
    memory_bytes: int
    """Memory that was there to be saved."""
    filtered: str
    """What was left out on purpose, in words; empty if nothing or unknown."""


def coverage(path: str | Path) -> Coverage | None:
    """Read it from the headers of a dump.

    :return: None for a flattened file, whose bitmaps can be anywhere in it
    :raises TargetError: the file cannot be read or is damaged
    """
    with FileReader(path) as reader:
        start = reader.read(0, 16)
        if start.startswith(elf.MAGIC):
            return _elf(reader)
        if start.startswith(kdump.MAGIC):
            return _kdump(reader)
    return None


def _elf(reader: FileReader) -> Coverage:
    loaded = [
        segment
        for segment in elf.segments(reader, elf.read_header(reader))
        if segment.type == elf.PT_LOAD
    ]
    # /proc/vmcore shows the kernel's image twice: where it is mapped and where all memory is.
    saved = _union([(one.paddr, one.paddr + one.filesz) for one in loaded])
    memory = _union([(one.paddr, one.paddr + one.memsz) for one in loaded])
    return Coverage(saved, memory, "")


def _union(spans: list[tuple[int, int]]) -> int:
    """Bytes in at least one of the spans (start, end)."""
    total = reached = 0
    for start, end in sorted(spans):
        start = max(start, reached)
        if end > start:
            total += end - start
            reached = end
    return total


def _kdump(reader: FileReader) -> Coverage:
    header = kdump.read_header(reader)
    half = header.bitmap_blocks * header.block_size // 2
    # The first half says which pages exist, the second which are in the dump.
    memory, saved = (
        _bits(reader, header.bitmap_offset + offset, half) * header.block_size
        for offset in (0, half)
    )
    left_out = [words for bit, words in _LEVELS if header.dump_level & bit]
    return Coverage(saved, memory, ", ".join(left_out))


def _bits(reader: FileReader, offset: int, size: int) -> int:
    return sum(
        int.from_bytes(reader.read(at, min(_CHUNK, offset + size - at)), "little").bit_count()
        for at in range(offset, offset + size, _CHUNK)
    )
