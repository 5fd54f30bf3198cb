# SPDX-License-Identifier: LGPL-2.1-or-later
"""SLUB's free list pointers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.engine.memory import Words


@dataclass(frozen=True)
class FreelistCode:
    """How the free objects of the slab caches point to the next free one.

    Without CONFIG_SLAB_FREELIST_HARDENED, a pointer is stored as it is. With it, since Linux kernel
    commit 2482ddec670f ("mm: add SLUB free list pointer obfuscation") (in v4.14), it is XORed with
    ``kmem_cache.random`` and with the address at which it is stored. Since Linux kernel commit
    1ad53d9fa3f6 ("slub: improve bit diffusion for freelist ptr obfuscation") (in v5.7 and stable
    branches), the bytes of that address are swapped first. No type distinguishes the two.
    """

    swab: bool = True

    def decode(self, stored: Words, place: Words, secret: Words | np.uint64) -> Words:
        """Return the next free object.

        :param stored: the words in memory
        :param place: the addresses they were read from
        :param secret: ``kmem_cache.random``, 0 where the kernel does not harden
        """
        mixed = place.byteswap() if self.swab else place
        return np.where(secret == 0, stored, stored ^ secret ^ mixed)
