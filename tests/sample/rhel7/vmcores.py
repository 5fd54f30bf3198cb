# SPDX-License-Identifier: LGPL-2.1-or-later
"""A vmcore of RHEL 7.9 with the pages of a capsule, as the crash kernel has it in /proc/vmcore."""

from __future__ import annotations

import struct
from pathlib import Path

from kcensus.sources.capsule.container import PageStore, Reader
from tests.unit.sources.test_sniff import PRSTATUS, note

BANNER = (
    b"Linux version 3.10.0 (root@vm) (gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) ) "
    b"#5 SMP Mon Nov 23 10:14:21 UTC 2026\n"
)
"""``linux_banner`` of both guests."""
LINKED = 0xFFFFFFFF81800080
"""Its address in the vmlinux."""
_PAGE = 4096
_EHDR, _PHDR = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")


def write(capsule: Path, path: Path) -> Path:
    """Write the pages of a capsule as an ELF vmcore."""
    reader = Reader(str(capsule))
    store, index = PageStore(reader, _PAGE), reader.index(_PAGE)
    runs = [
        (first * _PAGE, store.read(first * _PAGE, pages * _PAGE))
        for first, pages, status in zip(
            index.first.tolist(), index.pages.tolist(), index.status.tolist(), strict=True
        )
        if not status
    ]
    info = (b"VMCOREINFO", 0, bytes(reader.section("vmcoreinfo")))
    notes = b"".join(note(*each) for each in (PRSTATUS, info))
    start = _EHDR.size + _PHDR.size * (1 + len(runs))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = _EHDR.pack(
        ident, 4, 62, 1, 0, _EHDR.size, 0, 0, _EHDR.size, _PHDR.size, 1 + len(runs), 0, 0, 0
    )
    header += _PHDR.pack(4, 0, start, 0, 0, len(notes), len(notes), 4)
    place = start + len(notes)
    # The virtual addresses stand in for the page tables of the direct map.
    direct_map = reader.manifest["machine"]["direct_map"]
    for address, data in runs:
        header += _PHDR.pack(
            1, 7, place, direct_map + address, address, len(data), len(data), _PAGE
        )
        place += len(data)
    path.write_bytes(b"".join([header, notes, *(data for _, data in runs)]))
    return path
