# SPDX-License-Identifier: LGPL-2.1-or-later
"""Search for VMCOREINFO in memory.

The kernel has it twice: as text (``vmcoreinfo_data``), and as an ELF note (``vmcoreinfo_note``).
Memory also has texts of other kernels, such as those in files of the page cache; the right one says
where the release of the running kernel is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import drgn

from kcensus.sources.vmcoreinfo.text import BadVmcoreinfo, Read, Vmcoreinfo

START = b"OSRELEASE="
_CHUNK_BYTES = 4 << 20
_MAX_SEARCHED_BYTES = 64 << 30
_PAGE_BYTES = 4096
# VMCOREINFO_BYTES of the kernel is a page, of up to 64 KiB.
_MAX_TEXT_BYTES = 1 << 16
# Hosts have a few dozen, in programs that read dumps.
_MAX_PLACES = 1 << 14
_TEXT = re.compile(rb"(?:[!-~][ -~]{0,1023}\n)+")


def search_vmcoreinfo(read: Read, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Return the text of VMCOREINFO in physical memory.

    :param ranges: (address, size) of the memory
    :raises BadVmcoreinfo: there is none that describes this memory
    """
    untold: list[bytes] = []
    for info in candidates(read, ranges):
        describes = info.describes(read)
        if describes:
            return info.text
        if describes is None and len(untold) < 2 and info.text not in untold:
            untold.append(info.text)
    if len(untold) == 1:
        return untold[0]
    raise BadVmcoreinfo("its memory has no VMCOREINFO")


def candidates(read: Read, ranges: Iterable[tuple[int, int]]) -> Iterator[Vmcoreinfo]:
    """Yield each VMCOREINFO in memory, of whatever kernel, that is complete.

    :raises BadVmcoreinfo: there are too many texts to try them all
    """
    tried = 0
    for address, data in _chunks(read, ranges):
        place = data.find(START)
        while place >= 0:
            if tried == _MAX_PLACES:
                raise BadVmcoreinfo(
                    f"its memory has no VMCOREINFO among {_MAX_PLACES:,} similar texts"
                )
            tried += 1
            info = _text_at(read, address + place)
            if info is not None and info.is_complete():
                yield info
            place = data.find(START, place + 1)


def text_in(data: bytes) -> bytes:
    """Return the lines of text at the start of ``data``."""
    match = _TEXT.match(data[:_MAX_TEXT_BYTES])
    return match[0] if match else b""


def _text_at(read: Read, address: int) -> Vmcoreinfo | None:
    data, next_start = b"", -1
    # VMCOREINFO has the start once, so that no byte is read for several texts.
    while len(data) < _MAX_TEXT_BYTES and next_start < 0:
        place = address + len(data)
        try:
            data += read(place, _PAGE_BYTES - place % _PAGE_BYTES)
        except drgn.FaultError:
            break
        next_start = data.find(START, 1)
        if b"\0" in data[-_PAGE_BYTES:]:
            break
    text = text_in(data[:next_start] if next_start > 0 else data)
    return Vmcoreinfo(text) if text else None


def _chunks(read: Read, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield (address, bytes) of memory, in stretches that overlap by the length of the start."""
    left = _MAX_SEARCHED_BYTES
    for start, size in ranges:
        end = start + min(size, left)
        left -= end - start
        for place in range(start, end, _CHUNK_BYTES):
            count = min(_CHUNK_BYTES + len(START) - 1, end - place)
            for address, data in stretches(read, place, count, drgn.FaultError):
                if data:
                    yield address, data


def stretches(
    read: Read, address: int, size: int, error: type[Exception]
) -> Iterator[tuple[int, bytes]]:
    """Yield (address, bytes) of the memory that can be read, and no bytes for a page that cannot.

    :param error: what ``read`` raises then
    """
    stack = [(address, size)]
    while stack:
        address, size = stack.pop()
        try:
            data = bytes(read(address, size))
        except error:
            if size > _PAGE_BYTES:
                half = max(size // 2 // _PAGE_BYTES, 1) * _PAGE_BYTES
                stack += [(address + half, size - half), (address, half)]
                continue
            data = b""
        yield address, data
