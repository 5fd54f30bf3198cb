# SPDX-License-Identifier: LGPL-2.1-or-later
"""SLUB's free list pointers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcensus.engine.memory import Words


@dataclass(frozen=True)
class FreelistCode:
    """How the free objects of the slab caches point to the next free one.

    Without CONFIG_SLAB_FREELIST_HARDENED the pointer stands there as it is. With it (4.14), it is
    XORed with ``kmem_cache.random`` and with the address at which it stands; 1ad53d9fa3f6 (5.7,
    and all stable branches) swaps the bytes of that address first. No type tells the two apart.
    """

    swab: bool = True

    def decode(self, stored: Words, place: Words, secret: Words | np.uint64) -> Words:
        """The next free object.

        :param stored: the words in memory
        :param place: the addresses they were read from
        :param secret: ``kmem_cache.random``, 0 where the kernel does not harden
        """
        mixed = place.byteswap() if self.swab else place
        return np.where(secret == 0, stored, stored ^ secret ^ mixed)
