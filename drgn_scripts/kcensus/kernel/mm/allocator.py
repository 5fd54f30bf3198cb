# SPDX-License-Identifier: LGPL-2.1-or-later
"""How kmalloc() and kvmalloc() round sizes up."""

from __future__ import annotations

from dataclasses import dataclass

KMALLOC = (8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
"""Slot sizes of the kmalloc() caches of x86, bytes."""


@dataclass(frozen=True)
class Allocator:
    """Sizes of the allocations of a kernel."""

    slots: tuple[int, ...] = KMALLOC
    """Slot sizes of the kmalloc() caches, bytes, ascending."""
    page_size: int = 4096

    def size(self, asked: int) -> int:
        """Return the bytes that an allocation of ``asked`` bytes occupies.

        That is a slot, or 2^order pages if no cache is large enough. (kvmalloc() falls back to
        vmalloc(), whose areas are whole pages.)
        """
        for slot in self.slots:
            if asked <= slot:
                return slot
        pages = -(-asked // self.page_size)
        return self.page_size << (pages - 1).bit_length()
