# SPDX-License-Identifier: LGPL-2.1-or-later
"""The headers of kdump-compressed dumps, plain and in makedumpfile's flattened format.

Layouts: makedumpfile's ``diskdump_mod.h`` (``struct disk_dump_header``, ``struct
kdump_sub_header``, ``struct page_desc``, ``DUMP_DH_*``) and its ``IMPLEMENTATION`` file (order of
the parts); for the flattened format, ``struct makedumpfile_header`` and
``makedumpfile_data_header`` in ``makedumpfile.h``, all numbers big-endian. QEMU writes the same
layouts (``dump/dump.c``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from kcensus.arch import by_name
from kcensus.sources.formats.order import ordered
from kcensus.sources.model import DamagedError, TargetError, unsupported_machine
from kcensus.sources.reader import FileReader
from kcensus.text import printable

MAGIC = b"KDUMP   "
FLAT_MAGIC = b"makedumpfile\0\0\0\0"

HEADER_BYTES = 464
_SUB_HEADER = struct.Struct("<QiiQQQQQQQQQQQ")
_PAGE_DESC = struct.Struct("<QIIQ")
_DESCRIPTOR = np.dtype([("offset", "<i8"), ("size", "<u4"), ("flags", "<u4"), ("page", "<u8")])
_FLAT_RECORD = struct.Struct(">qq")
_FLAT_HEADER_BYTES = 4096
_FLAT_END = b"\xff" * _FLAT_RECORD.size

_COMPRESSION = ((0x1, "zlib"), (0x2, "lzo"), (0x4, "snappy"), (0x20, "zstd"))
OUT_OF_SPACE = "makedumpfile ran out of space while it wrote the dump"
_PARTS = (("notes", 7, 4), ("eraseinfo", 9, 5))
"""What libkdumpfile maps: its number in the sub-header, and the first version with it."""
_INCOMPLETE = 0x8
_NO_VMEMMAP = 0x10

# What QEMU writes where its target has no ELF_MACHINE_UNAME.
_NO_MACHINE = "Unknown"
# A block is as large as a page of the dumped machine.
_BLOCK_SIZES = (4 << 10, 16 << 10, 64 << 10)
# A bitmap for 128 TiB of 4 KiB pages; a larger one is not counted.
_MAX_BITMAP = 4 << 30
_CHUNK = 1 << 20
_MAX_TAIL = 1 << 16
"""Most page descriptors to check at the end of the table."""
_MAX_TABLE = 1 << 30
"""Most bytes of page descriptors to check against the size of the file: those of 170 GiB."""


@dataclass(frozen=True)
class KdumpHeader:
    """The content of the first two blocks."""

    block_size: int
    bitmap_offset: int
    bitmap_blocks: int
    max_mapnr: int
    compression: str
    """Empty if pages are stored uncompressed."""
    dump_level: int
    """makedumpfile's ``-d``: the kinds of filtered pages."""
    split: bool
    """Whether the file is one of several written by ``makedumpfile --split``."""
    incomplete: bool
    no_vmemmap: bool
    """``makedumpfile -e``"""
    from_qemu: bool
    is_little: bool
    """Byte order of the structures: that of the dumped machine."""
    parts: tuple[tuple[str, int, int], ...]
    """What the sub-header refers to, of :data:`_PARTS`: name, position and size in the file."""

    @property
    def format(self) -> str:
        parts = [self.compression or "raw pages"]
        if self.dump_level > 0:
            parts.append(f"dump level {self.dump_level}")
        if self.no_vmemmap:
            parts.append("without unused vmemmap pages")
        return f"kdump-compressed ({', '.join(parts)})"


def parse_header(start: bytes, name: str) -> KdumpHeader:
    """Return the headers of a dump; ``start`` is its first block and more."""
    corrupt = TargetError(f"{name}: has a corrupt kdump header; copy it again")
    if len(start) < HEADER_BYTES:
        raise corrupt
    # struct new_utsname: six strings of 65 bytes.
    uts = [start[12 + 65 * i : 12 + 65 * (i + 1)].split(b"\0")[0] for i in range(6)]
    sysname, machine = uts[0], printable(uts[4])
    if machine == _NO_MACHINE:
        raise TargetError(
            f"{name}: QEMU wrote '{machine}' as its machine, so that no tool can open it; dump the "
            "guest as ELF (dump-guest-memory without a format, virsh dump --memory-only)"
        )
    architecture = by_name(machine)
    if machine and architecture is None:
        raise unsupported_machine(name, machine)
    is_little = architecture is None or architecture.is_little
    order = "<" if is_little else ">"
    (version,) = struct.unpack_from(f"{order}i", start, 8)
    status, block_size, sub_blocks, bitmap_blocks, max_mapnr = struct.unpack_from(
        f"{order}5I", start, 424
    )
    if block_size not in _BLOCK_SIZES or not 0 < sub_blocks < 1 << 20 or not bitmap_blocks:
        raise corrupt
    level = split = 0
    parts: list[tuple[str, int, int]] = []
    if version >= 1 and len(start) >= block_size + _SUB_HEADER.size:
        sub = ordered(_SUB_HEADER, is_little=is_little).unpack_from(start, block_size)
        level = sub[1]
        if version >= 2:
            split = sub[2]
        parts += [(part, *sub[at : at + 2]) for part, at, since in _PARTS if version >= since]
        if version >= 6:
            max_mapnr = sub[13]
    return KdumpHeader(
        block_size=block_size,
        bitmap_offset=(1 + sub_blocks) * block_size,
        bitmap_blocks=bitmap_blocks,
        max_mapnr=max_mapnr,
        compression=next((name for flag, name in _COMPRESSION if status & flag), ""),
        dump_level=level,
        split=bool(split),
        incomplete=bool(status & _INCOMPLETE),
        no_vmemmap=bool(status & _NO_VMEMMAP),
        # makedumpfile copies the kernel's utsname; QEMU fills in the machine only.
        from_qemu=not sysname,
        is_little=is_little,
        parts=tuple(parts),
    )


def read_header(reader: FileReader) -> KdumpHeader:
    """Return the headers of a file that starts with :data:`MAGIC`."""
    header = parse_header(reader.exact(0, HEADER_BYTES, "kdump header"), reader.name)
    start = reader.exact(0, header.block_size + _SUB_HEADER.size, "kdump header")
    return parse_header(start, reader.name)


def count_pages(reader: FileReader, offset: int, size: int) -> int:
    """Return the number of bits set in a bitmap of pages."""
    starts = range(offset, offset + size, _CHUNK)
    chunks = (reader.read(start, min(_CHUNK, offset + size - start)) for start in starts)
    return sum(int.from_bytes(chunk, "little").bit_count() for chunk in chunks)


def check_length(reader: FileReader, header: KdumpHeader) -> str:
    """Check that the file is complete.

    :return: why pages are missing from a file of full length; empty if none are
    :raises DamagedError: the file ends before data that its headers refer to. drgn cannot open such
        a file: libkdumpfile maps it, and an access beyond its end kills the process (SIGBUS).
    """
    bitmap = header.bitmap_blocks * header.block_size
    # One byte is enough, here and below, to check that the file is long enough.
    reader.exact(header.bitmap_offset + bitmap - 1, 1, "page bitmap")
    offset, size = header.bitmap_offset, bitmap
    if header.max_mapnr <= bitmap * 8 // 2:
        # The first half has a bit for each page that exists, the second for each page in the dump.
        offset, size = offset + bitmap // 2, bitmap // 2
    if size > _MAX_BITMAP:
        return ""
    pages = count_pages(reader, offset, size)
    descs = header.bitmap_offset + bitmap
    end = descs + pages * _PAGE_DESC.size
    reader.exact(end - 1, 1, "page descriptors")
    # Pages are written in order, so the last descriptors show where the data ends. Check many,
    # because pages of zeros share the data of the first such page.
    tail = min(pages, _MAX_TAIL)
    table = reader.exact(end - tail * _PAGE_DESC.size, tail * _PAGE_DESC.size, "page descriptors")
    # End of the data if no page was compressed.
    most = end + pages * header.block_size
    unwritten = False
    last = (0, 0)
    for position, length, _, _ in ordered(_PAGE_DESC, is_little=header.is_little).iter_unpack(
        table
    ):
        if length > header.block_size or position + length > most:
            raise _corrupt(reader)
        unwritten |= position == 0 or length == 0
        last = max(last, (position, length))
    end = max(end, sum(last))
    if end > reader.size:
        missing = end - reader.size
        why = f"{missing} of {end} bytes are missing"
        remedy = (
            f"copy it again, or extend a copy to its full length with `truncate -s {end}` and read "
            "the rest with --allow-truncated"
        )
        raise DamagedError(reader.name, "truncated", why, missing, remedy)
    _check_descriptors(reader, header, range(descs, descs + pages * _PAGE_DESC.size))
    for part, position, length in header.parts:
        if length and position + length > reader.size:
            raise DamagedError(reader.name, "corrupt", f"its {part} would be outside of the file")
    if header.incomplete:
        return OUT_OF_SPACE
    # No page compresses to zeros: this end was allocated but never written.
    if header.compression and not reader.read(*last).strip(b"\0"):
        unwritten |= pages > 0
    return "its last pages were never written" if unwritten else ""


def _check_descriptors(reader: FileReader, header: KdumpHeader, table: range) -> None:
    step = _CHUNK // _PAGE_DESC.size * _PAGE_DESC.size
    own = _DESCRIPTOR if header.is_little else _DESCRIPTOR.newbyteorder(">")
    for start in table[:_MAX_TABLE:step]:
        data = reader.read(start, min(step, table.stop - start))
        descriptors = np.frombuffer(data, own)
        position, length = descriptors["offset"], descriptors["size"].astype(np.int64)
        outside = (position < 0) | (position > reader.size - length)
        if (outside | (length > header.block_size)).any():
            raise _corrupt(reader)


def _corrupt(reader: FileReader) -> DamagedError:
    return DamagedError(reader.name, "corrupt", "page descriptors point outside of the file")


def flattened_start(reader: FileReader) -> bytes:
    """Return the first bytes of the dump inside a flattened file, from its first records."""
    if reader.read(reader.size - len(_FLAT_END), len(_FLAT_END)) != _FLAT_END:
        why = "it lacks the end mark of makedumpfile's flattened format"
        raise DamagedError(reader.name, "truncated", why)
    start = bytearray(_FLAT_HEADER_BYTES * 2 + _SUB_HEADER.size)
    position = _FLAT_HEADER_BYTES
    for _ in range(8):
        offset, size = _FLAT_RECORD.unpack(reader.exact(position, _FLAT_RECORD.size, "records"))
        if offset < 0 or size < 0:
            break
        position += _FLAT_RECORD.size
        if offset < len(start):
            data = reader.read(position, min(size, len(start) - offset))
            start[offset : offset + len(data)] = data
        position += size
    return bytes(start)
