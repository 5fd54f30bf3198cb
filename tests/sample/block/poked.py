# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs with words and pages of memory that differ from the dump's."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.mm import pfn_to_virt

_PAGE = 4096


class Poked:
    """Changes what a program reads, by virtual address; use it before the program is read."""

    def __init__(self, prog: drgn.Program) -> None:
        self.prog = prog
        self._direct = int(pfn_to_virt(prog, 0))
        self._end = self._direct + int(prog["max_pfn"]) * _PAGE
        self._pages: dict[int, bytearray | None] = {}
        self._dumped: dict[int, bytes] = {}

    def write(self, address: int, data: bytes) -> None:
        page = self._page(address)
        assert page is not None
        start = address % _PAGE
        page[start : start + len(data)] = data

    def word(self, address: int, value: int) -> None:
        """Change a word of 8 bytes."""
        self.write(address, value.to_bytes(8, "little"))

    def remove(self, address: int, size: int = 1) -> None:
        """Make the pages unreadable that bytes lie on."""
        for start in range(address - address % _PAGE, address + size, _PAGE):
            try:
                self._page(start)
            except drgn.FaultError:
                continue  # it is not there
            self._pages[start] = None

    def restore(self) -> None:
        self._pages |= {start: bytearray(page) for start, page in self._dumped.items()}

    def _page(self, address: int) -> bytearray | None:
        start = address - address % _PAGE
        if start not in self._pages:
            self._dumped[start] = self.prog.read(start, _PAGE)
            self._pages[start] = bytearray(self._dumped[start])

            def read(at: int, count: int, offset: int, is_physical: bool) -> bytes:
                page = self._pages[start]
                if page is None:
                    raise drgn.FaultError("memory is not in the dump", at)
                return bytes(page[offset : offset + count])

            self.prog.add_memory_segment(start, _PAGE, read)
            if self._direct <= start < self._end:
                self.prog.add_memory_segment(start - self._direct, _PAGE, read, True)
        return self._pages[start]
