# SPDX-License-Identifier: LGPL-2.1-or-later
"""Vmcores of RHEL 7.9 with the pages of a capsule, as ELF and as makedumpfile compresses them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from kcensus.sources.capsule.container import PageStore, Reader
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo
from tests.unit.sources.test_sniff import PRSTATUS, note

BANNER = (
    b"Linux version 3.10.0 (root@vm) (gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) ) "
    b"#5 SMP Mon Nov 23 10:14:21 UTC 2026\n"
)
"""``linux_banner`` of both guests."""
LINKED = 0xFFFFFFFF81800080
"""Its address in the vmlinux."""
PAGE = 4096
_EHDR, _PHDR = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
# struct disk_dump_header, kdump_sub_header and page_desc of makedumpfile's diskdump_mod.h.
_HEADER, _SUB, _DESC = struct.Struct("<8si390s6xqqIiiIIIIIIi"), struct.Struct("<Qii11Q"), "<QIIQ"
_ZLIB = 1


def _runs(reader: Reader) -> Iterator[tuple[int, int]]:
    """Yield the first frame and the length of each run of pages."""
    index = reader.index(PAGE)
    columns = (each.tolist() for each in (index.first, index.pages, index.status))
    for first, pages, status in zip(*columns, strict=True):
        if not status:
            yield first, pages


def _notes(reader: Reader) -> tuple[bytes, bytes]:
    """Return the ELF notes, and the VMCOREINFO in them."""
    info = bytes(reader.section("vmcoreinfo"))
    return note(*PRSTATUS) + note(b"VMCOREINFO", 0, info), info


def write_elf(capsule: Path, path: Path) -> Path:
    """Write an ELF vmcore without virtual addresses, as QEMU does."""
    reader = Reader(str(capsule))
    store = PageStore(reader, PAGE)
    runs = [
        (first * PAGE, store.read(first * PAGE, pages * PAGE)) for first, pages in _runs(reader)
    ]
    notes, _ = _notes(reader)
    start = _EHDR.size + _PHDR.size * (1 + len(runs))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = _EHDR.pack(
        ident, 4, 62, 1, 0, _EHDR.size, 0, 0, _EHDR.size, _PHDR.size, 1 + len(runs), 0, 0, 0
    )
    header += _PHDR.pack(4, 0, start, 0, 0, len(notes), len(notes), 4)
    place = start + len(notes)
    for address, data in runs:
        header += _PHDR.pack(1, 7, place, 0, address, len(data), len(data), PAGE)
        place += len(data)
    path.write_bytes(b"".join([header, notes, *(data for _, data in runs)]))
    return path


def _compressed(page: bytes) -> bytes:
    """Return a page as makedumpfile stores it: as it is, if that is shorter."""
    return min(zlib.compress(page, 1), page, key=len)


def write_kdump(capsule: Path, path: Path, without: frozenset[int] = frozenset()) -> Path:
    """Write a kdump-compressed vmcore (zlib, dump level 31).

    :param without: frames to leave out, as makedumpfile does with those that it filters
    """
    reader = Reader(str(capsule))
    store = PageStore(reader, PAGE)
    runs = [range(first, first + pages) for first, pages in _runs(reader)]
    frames = [frame for run in runs for frame in run if frame not in without]
    stored = [_compressed(store.read(frame * PAGE, PAGE)) for frame in frames]
    notes, info = _notes(reader)
    memory = int(reader.manifest["machine"]["memory_bytes"]) // PAGE
    # Two bitmaps: the frames that the machine has, and those in the file.
    blocks = -(-memory // (8 * PAGE))
    bits = sum(1 << frame for frame in frames).to_bytes(blocks * PAGE, "little")
    ram = ((1 << memory) - 1).to_bytes(blocks * PAGE, "little")
    words = (b"Linux", b"(none)", b"3.10.0", b"#5 SMP", b"x86_64", b"(none)")
    uts = b"".join(word.ljust(65, b"\0") for word in words)
    counts = (_ZLIB, PAGE, 1, 2 * blocks, memory, 0, 0, 0, 0, 1)
    header = _HEADER.pack(b"KDUMP   ", 6, uts, 0, 0, *counts)
    start = PAGE + _SUB.size
    places = (start + notes.index(info), len(info), start, len(notes))
    base = (Vmcoreinfo(info).number("phys_base") or 0) & (1 << 64) - 1
    sub = _SUB.pack(base, 31, 0, 0, 0, *places, 0, 0, 0, 0, memory)
    place = (2 + 2 * blocks) * PAGE + struct.calcsize(_DESC) * len(frames)
    descs = []
    for data in stored:
        flags = _ZLIB if len(data) < PAGE else 0
        descs.append(struct.pack(_DESC, place, len(data), flags, 0))
        place += len(data)
    pages = [header.ljust(PAGE, b"\0"), (sub + notes).ljust(PAGE, b"\0"), ram, bits]
    path.write_bytes(b"".join([*pages, *descs, *stored]))
    return path
