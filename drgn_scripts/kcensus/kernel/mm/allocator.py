# SPDX-License-Identifier: LGPL-2.1-or-later
"""How kmalloc() and kvmalloc() round what is asked for."""

from __future__ import annotations

from dataclasses import dataclass

KMALLOC = (8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
"""Slots of the kmalloc() caches of x86, bytes."""


@dataclass(frozen=True)
class Allocator:
    """How much memory an allocation really takes."""

    slots: tuple[int, ...] = KMALLOC
    """Of the kmalloc() caches, bytes, ascending."""
    page_size: int = 4096

    def size(self, asked: int) -> int:
        """Bytes that ``asked`` bytes take: a slot, or beyond the caches a power of two of pages.

        kvmalloc() tries that before it resorts to vmalloc(), whose areas take whole pages.
        """
        for slot in self.slots:
            if asked <= slot:
                return slot
        pages = -(-asked // self.page_size)
        return self.page_size << (pages - 1).bit_length()
