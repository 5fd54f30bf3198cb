# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bits that decide about a dentry, and links between dentries with such bits below them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Bits of DentryCensus.state.
_BITS = [1 << bit for bit in range(12)]
DENTRY, NEGATIVE, BUSY, REFERENCED, ON_LRU, ON_SHRINK, LOOKUP, CURSOR, DEAD = _BITS[:9]
HASHED, ROOT, EXTERNAL = _BITS[9:]
STATES = np.arange(1 << 12)
"""All combinations of bits."""

NO_SLOT, FOREIGN = -1, -2
"""In a column of slots: a NULL pointer (or one to the head of a list); a pointer to something that
is not a dentry of this census."""

_UNREFERENCED = NEGATIVE | HASHED
LINK_BITS = 3
LINK_UNREFERENCED, LINK_NEGATIVE, LINK_EXTERNAL = 1, 2, 4
"""Bits of a link, below the slot: an unreferenced negative dentry, a negative one, and one with an
external name."""
KIN_BITS = 2
KIN_NEGATIVE, KIN_POSITIVE = 1, 2
"""Bits of the kin of a slot, below the parent; a readdir cursor has none of them."""


def packed_dtype(slots: int, bits: int) -> np.dtype[Any]:
    """Return the type of a column of so many slots, each with bits below it."""
    return np.dtype(np.int32 if slots < (1 << (31 - bits)) - 2 else np.int64)


def links_of(
    following: npt.NDArray[Any], state: npt.NDArray[np.uint16], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Return the links of slots: where the hash chain goes on, and three bits of the slot itself.

    :param following: next slot, :data:`NO_SLOT` or :data:`FOREIGN`
    :return: slots less :data:`FOREIGN`, shifted by :data:`LINK_BITS`, and the bits; the least
        number of the type where a slot is free
    """
    links = following.astype(dtype)
    links -= FOREIGN
    links <<= LINK_BITS
    is_negative, is_external = (state & NEGATIVE) // NEGATIVE, (state & EXTERNAL) // EXTERNAL
    unreferenced = (state & (_UNREFERENCED | BUSY | REFERENCED)) == _UNREFERENCED
    bits = unreferenced * np.uint16(LINK_UNREFERENCED)
    bits |= is_negative * np.uint16(LINK_NEGATIVE) | is_external * np.uint16(LINK_EXTERNAL)
    links |= bits
    links[state == 0] = np.iinfo(links.dtype).min
    return links


def kin_of(
    parent: npt.NDArray[Any], state: npt.NDArray[np.uint16], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Return the kin of slots: their parent, and whether they are negative or positive.

    :param parent: slot or :data:`FOREIGN`
    :return: parents shifted by :data:`KIN_BITS`, and the bits; negative for slots that are on no
        list of children of a dentry of the census
    """
    kin = parent.astype(dtype)
    kin <<= KIN_BITS
    kin |= (state & NEGATIVE) // NEGATIVE * np.uint16(KIN_NEGATIVE)
    kin |= ((state & (NEGATIVE | CURSOR)) == 0) * np.uint16(KIN_POSITIVE)
    kin[(state & (DENTRY | ROOT | DEAD)) != DENTRY] = FOREIGN << KIN_BITS
    return kin
