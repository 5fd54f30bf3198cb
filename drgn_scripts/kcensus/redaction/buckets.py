# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hash table of dentries, with its dentries in chains that a secret key chooses.

The chain of a dentry is some 20 bits of the hash of its name and parent: with the shape of a
pseudonym, that is enough to find the name again, and a known name tells the bits of all others in
its chain. So dentries of one kind change places: what kcensus says of chains depends on the kinds
of dentries alone. Groups of :data:`~kcensus.analyses.dentries.walks.FEWER` neighboring chains
stay together, since a smaller table would join them, but go elsewhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import follow_phys

from kcensus.analyses.dentries.census import DentryCensus
from kcensus.analyses.dentries.columns.bits import FOREIGN, LINK_BITS, NO_SLOT
from kcensus.analyses.dentries.walks import FEWER
from kcensus.engine.gather import gather_arrays
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Bytes, Faults, Mask, Memory, Numbers, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.dcache import flags, hash_table
from kcensus.kernel.vfs.super_blocks import super_blocks

_LOCK = np.uint64(1)
_MAX_LENGTH = 1 << 16
"""Longest chain; the dentries of others, and of torn ones, stay together."""


def moved_dentries(
    kernel: Kernel, key: bytes, frames: Mask | None = None
) -> list[tuple[Words, Bytes]]:
    """Return physical addresses, and the bytes to write there: heads of chains, and links.

    :param key: 16 bytes of a secret, or more
    :param frames: page frames that matter; if the table lies on none of them, dentries on them lose
        their links, and others are not read
    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the table cannot be read
    :raises ValueError: it is damaged
    """
    memory = kernel.memory
    table, count = hash_table(memory)
    starts = np.uint64(table) + np.uint64(8) * np.arange(count, dtype=np.uint64)
    direct = np.uint64(kernel.slab_map.pages.direct_map)
    if frames is not None:
        pages = _physical(memory, starts[:: memory.page_size // 8], direct) >> memory.page_shift
        if not frames[pages[pages < len(frames)].astype(np.int64)].any():
            return [_unlinked(kernel, table, frames)]
    census = DentryCensus(kernel, flags(memory, super_blocks(kernel).root), ("chains",))
    place, word = np.array([table], np.uint64), word_dtype(memory.prog)
    heads, readable = gather_arrays(memory, place, count, word, Faults(), use=None)
    if not readable.all():
        raise ValueError("the hash table of dentries is not readable")
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    order = shuffled(count, random)
    heads = heads[0][order]
    chain, slot = _chained(census, census.slots_of(heads & ~_LOCK, census.hash_link))
    bits = census.links[slot] & ((1 << LINK_BITS) - 1)
    kinds = bits.astype(np.int64) << 16 | census.name_slot[slot]
    slot = slot[exchanged(kinds, random)]
    node = census.slots.address(slot) + census.hash_link
    is_first = np.diff(chain, prepend=-1) != 0
    is_last = np.diff(chain, append=-1) != 0
    words = np.zeros((len(node), 2), np.uint64)
    words[:-1, 0] = np.where(is_last[:-1], 0, node[1:])
    words[1:, 1] = node[:-1]
    words[is_first, 1] = starts[chain[is_first]]
    heads[chain[is_first]] = node[is_first] | (heads[chain[is_first]] & _LOCK)
    # Torn chains stay as they are, but no link tells where they were.
    torn = np.setdiff1d(np.flatnonzero(heads & ~_LOCK), chain)
    first = (heads[torn] & ~_LOCK) + np.uint64(8)
    known = (first > direct) & (first < direct + np.uint64(memory.end))
    back = starts[torn[known]]
    return [
        (first[known] - direct, back.astype(word)[:, None].view(np.uint8)),
        (_physical(memory, starts, direct), heads.astype(word)[:, None].view(np.uint8)),
        (node - direct, words.astype(word).view(np.uint8)),
    ]


def _unlinked(kernel: Kernel, table: int, frames: Mask) -> tuple[Words, Bytes]:
    """Return links that only tell whether a dentry is in the table."""
    columns = layout(kernel.prog, "struct dentry", {"next": "d_hash.next", "pprev": "d_hash.pprev"})
    caches = find_caches(kernel.slab_map, "struct dentry")
    address, dentries = allocated(kernel.slab_map, caches, columns, ScanReport(), frames)
    words = np.zeros((len(address), 2), np.uint64)
    words[:, 1] = np.where(dentries["pprev"] == 0, 0, np.uint64(table))
    place = address + np.uint64(columns.fields["next"].offset)
    direct = np.uint64(kernel.slab_map.pages.direct_map)
    return place - direct, words.astype(word_dtype(kernel.prog)).view(np.uint8)


def shuffled(count: int, random: np.random.Generator) -> Numbers:
    """Return an order of buckets: of groups of neighbors, and of the members of each."""
    size = min(FEWER, count)
    groups = random.permutation(count // size)
    inside = np.argsort(random.random((count // size, size)), axis=1)
    order: Numbers = (groups[:, None] * size + inside).ravel()
    return order


def exchanged(kinds: Numbers, random: np.random.Generator) -> Numbers:
    """Return a permutation in which each row is one of the same kind."""
    rows = np.argsort(kinds, kind="stable")
    found = np.empty(len(kinds), np.int64)
    found[rows] = np.lexsort((random.random(len(kinds)), kinds))
    return found


def _chained(census: DentryCensus, heads: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """Return the chain and the slot of all dentries in sound chains, chain by chain."""
    seen = np.zeros(len(census.slots), np.bool_)
    lanes, slots, sound = [], [], heads >= NO_SLOT
    lane, slot = np.flatnonzero(heads >= 0), heads[heads >= 0]
    for _ in range(_MAX_LENGTH):
        if not len(lane):
            break
        is_new = ~seen[slot]
        is_new &= np.bincount(slot, minlength=1)[slot] == 1
        sound[lane[~is_new]] = False
        lane, slot = lane[is_new], slot[is_new]
        seen[slot] = True
        lanes.append(lane)
        slots.append(slot)
        following = (census.links[slot] >> LINK_BITS) + FOREIGN
        sound[lane[following < NO_SLOT]] = False
        lane, slot = lane[following >= 0], following[following >= 0]
    sound[lane] = False
    chain = np.concatenate([np.empty(0, np.int64), *lanes])
    every = np.concatenate([np.empty(0, np.int64), *slots]).astype(np.int64)
    rows = np.argsort(chain, kind="stable")
    rows = rows[sound[chain[rows]]]
    return chain[rows], every[rows]


def _physical(memory: Memory, places: Words, direct: np.uint64) -> Words:
    """Return the physical addresses of ascending places on neighboring pages."""
    prog, shift = memory.prog, memory.page_shift
    if memory.is_direct(int(places[0])):
        return places - direct
    pages, index = np.unique(places >> np.uint64(shift), return_inverse=True)
    mm = prog["init_mm"].address_of_()
    frames = [int(follow_phys(mm, page << shift)) for page in pages.tolist()]
    return np.array(frames, np.uint64)[index] + (places & np.uint64(memory.page_size - 1))
