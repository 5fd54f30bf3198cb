# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory that a dump contains, and the pages filtered out (makedumpfile(8), ``-d``)."""

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


@dataclass(frozen=True)
class Coverage:
    """The memory in a dump, except for a lost end, and the machine's memory."""

    saved_bytes: int
    memory_bytes: int
    filtered: str
    """Filtered kinds of pages, in words; empty if none or unknown."""


def coverage(path: str | Path) -> Coverage | None:
    """Return the coverage by the headers; None for a flattened file with bitmaps anywhere."""
    with FileReader(path) as reader:
        start = reader.read(0, 16)
        if start.startswith(elf.MAGIC):
            return _elf(reader)
        if start.startswith(kdump.MAGIC):
            return _kdump(reader)
    return None


def _elf(reader: FileReader) -> Coverage:
    loaded = [
        (
            segment.paddr,
            segment.paddr + min(segment.filesz, max(reader.size - segment.offset, 0)),
            segment.paddr + segment.memsz,
        )
        for segment in elf.segments(reader, elf.read_header(reader))
        if segment.type == elf.PT_LOAD
    ]
    # /proc/vmcore has two segments for the kernel image: its own mapping and the direct map.
    saved = _union([(start, end) for start, end, _ in loaded])
    return Coverage(saved, _union([(start, end) for start, _, end in loaded]), "")


def _union(spans: list[tuple[int, int]]) -> int:
    """Return the number of bytes in at least one of the spans (start, end)."""
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
    # The first half has a bit for each page that exists, the second for each page in the dump.
    memory, saved = (
        kdump.count_pages(reader, header.bitmap_offset + offset, half) * header.block_size
        for offset in (0, half)
    )
    filtered = [words for bit, words in _LEVELS if header.dump_level & bit]
    return Coverage(saved, memory, ", ".join(filtered))
