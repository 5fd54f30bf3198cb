# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the dentry cache has its things: members, flags, hash table, counters and limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import drgn
import numpy as np
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.mm import totalram_pages
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.percpu import per_cpu

from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Mask, Memory, Words

_MEMBERS = {
    "flags": "d_flags",
    "next": "d_hash.next",
    "pprev": "d_hash.pprev",
    "parent": "d_parent",
    "inode": "d_inode",
    # 7.0 put d_name into an anonymous union with __d_name; the paths stay.
    "name": "d_name.name",
    "length": "d_name.len",
    # 6.14 renamed d_iname.
    "inline": ("d_shortname.string", "d_iname"),
    "count": "d_lockref.count",
    "super_block": "d_sb",
    # 6.8: d_sib and d_children, lists that end in NULL. Before: list_heads, the
    # link in a union up to 3.18.
    "sibling": ("d_sib.next", "d_child.next", "d_u.d_child.next"),
}


def dentry_layout(prog: drgn.Program) -> Layout:
    """The members of ``struct dentry`` that a census needs.

    :raises LayoutError: one of them does not exist under any known name
    """
    return layout(prog, "struct dentry", _MEMBERS)


@dataclass(frozen=True)
class Flags:
    """Bits of ``d_flags`` of this kernel."""

    referenced: int
    shrink_list: int
    lru_list: int
    par_lookup: int
    """0 where the kernel has no such flag."""
    cursor: int


_ENUM = ("REFERENCED", "SHRINK_LIST", "LRU_LIST", "PAR_LOOKUP", "DENTRY_CURSOR")
# Up to 6.16 the flags are macros, which no debug information has. The type of entry moved with
# all others: 9748cb2dc393 (6.15) repacked them, and the kernels of RHEL 7 have an order of their
# own (include/linux/dcache.h of each).
_BY_SHIFT = {
    19: Flags(1 << 6, 1 << 10, 1 << 18, 1 << 24, 1 << 25),
    20: Flags(1 << 6, 1 << 10, 1 << 19, 1 << 28, 1 << 29),
    24: Flags(1 << 6, 1 << 10, 1 << 19, 0, 0),
}
"""By where the three bits are that tell the type of entry."""
_DIRECTORY = {19: (2, 3), 20: (2, 3), 24: (1, 2)}
"""What the type of entry is for directories."""


def flags(memory: Memory, roots: Words) -> Flags:
    """The bits of ``d_flags``, by enumerators or else by what must be true of root dentries.

    Every root of a super block that has been mounted is a directory, so the type of entry stands
    where all of them have that of directories. (A few pseudo file systems have other roots.)

    :param roots: root dentries of all super blocks
    :raises LookupError: no known order of the flags fits
    """
    prog = memory.prog
    try:
        return Flags(*(int(prog.constant(f"DCACHE_{name}")) for name in _ENUM))
    except LookupError:
        pass
    member = layout(prog, "struct dentry", {"flags": "d_flags", "inode": "d_inode"})
    read = gather(memory, roots[roots != 0], member, Faults())
    seen = read["flags"][read.readable & (read["inode"] != 0)]
    if not len(seen):
        raise LookupError("no super block has a root dentry by which to tell its flags")
    share = {
        shift: float(np.isin(seen >> np.uint32(shift) & np.uint32(7), types).mean())
        for shift, types in _DIRECTORY.items()
    }
    best = max(share, key=lambda shift: share[shift])
    if share[best] < _SURE:
        raise LookupError("the flags of the root dentries are in no known order")
    return _BY_SHIFT[best]


_SURE = 0.75


@dataclass(frozen=True)
class HashTable:
    """``dentry_hashtable``."""

    address: int
    buckets: int


def hash_table(memory: Memory) -> HashTable:
    """Where the hash table is, and how many buckets it has.

    854d3e63438d (4.16) made ``d_hash_shift`` what a hash is shifted by, and dropped
    ``d_hash_mask``; before, it was the logarithm of the number of buckets.

    :raises LookupError: the debug information lacks a variable
    :raises drgn.FaultError: one of them is not in the dump
    :raises ValueError: the number of buckets is impossible
    """
    prog = memory.prog
    shift = int(prog["d_hash_shift"])
    bits = shift if "d_hash_mask" in prog else 32 - shift
    # By default it takes a thousandth of memory; one can ask for more, but not for more than all.
    if not 0 < bits <= 32 or 8 << bits > int(totalram_pages(prog)) << memory.page_shift:
        raise ValueError(f"d_hash_shift is {shift}")
    return HashTable(int(prog["dentry_hashtable"]), 1 << bits)


def counter(prog: drgn.Program, name: str) -> int | None:
    """A per-CPU counter, summed over possible CPUs; None where there is none, or not in the dump.

    ``dentry_stat`` has the same only since somebody last read the sysctl. CPUs may be negative.
    """
    try:
        variable = prog[name]
        # int up to 4.3: the sum over CPUs is right modulo its width only.
        total = sum(int(per_cpu(variable, cpu)) for cpu in for_each_possible_cpu(prog))
    except (LookupError, drgn.FaultError):
        return None
    bits = 8 * drgn.sizeof(variable)
    half = 1 << (int(bits) - 1)
    return (total + half) % (2 * half) - half


def lru_items(memory: Memory, super_blocks: Words) -> tuple[int | None, int]:
    """``nr_items`` of the dentry LRUs of all super blocks, over all nodes and memory cgroups.

    :return: the sum, None where the kernel does not keep it (up to 4.4); and how many could not
        be read
    """
    prog = memory.prog
    faults = Faults()
    try:
        lru = layout(prog, "struct super_block", {"node": "s_dentry_lru.node"})
        # 6.13 made it an atomic_long_t.
        items = layout(prog, "struct list_lru_node", {"items": ("nr_items.counter", "nr_items")})
    except LookupError:
        return None, 0
    read = gather(memory, super_blocks, lru, faults)
    nodes = int(nr_node_ids(prog))
    step = np.arange(nodes, dtype=np.uint64) * np.uint64(items.size)
    # A super block that is being set up or torn down has no lists.
    places = (read["node"][read["node"] != 0][:, None] + step[None, :]).ravel()
    found = gather(memory, places, items, faults)
    lost = int((~read.readable).sum()) + int((~found.readable).sum())
    return int(found["items"].sum(dtype=np.int64)), lost


@dataclass(frozen=True)
class Limit:
    """A setting of this kernel that bears on how many dentries there are."""

    name: str
    value: int
    meaning: str
    bounds: bool
    """Whether it bounds the number of dentries, where it is not 0."""


def limits(prog: drgn.Program) -> Iterator[Limit]:
    """The limits and mitigations that this kernel has, by their variables.

    How those of fs.negative-dentry-limit (RHEL 7.8, Oracle UEK) are called is not known.
    """
    for symbol, name, meaning, bounds in (
        # e6957c99dca5 (6.13)
        (
            "dentry_negative_policy",
            "fs.dentry-negative",
            "1: unlink leaves no negative dentry; failed lookups leave theirs all the same",
            False,
        ),
        # RHEL 8.10 only
        (
            "dentry_fs_klimit_sysctl",
            "fs.dentry-fs-klimit",
            "thousands of dentries; 0: no limit",
            True,
        ),
        (
            "sysctl_vfs_cache_pressure",
            "vm.vfs_cache_pressure",
            "how eagerly reclaim takes dentries and inodes; 100 is the default",
            False,
        ),
        # 6.17
        (
            "sysctl_vfs_cache_pressure_denom",
            "vm.vfs_cache_pressure_denom",
            "what vm.vfs_cache_pressure is a fraction of",
            False,
        ),
    ):
        try:
            yield Limit(name, int(prog[symbol]), meaning, bounds)
        except (LookupError, drgn.FaultError):
            continue


def watched(memory: Memory, dentries: Words, faults: Faults) -> Mask:
    """Which dentries' inodes have inotify, fanotify or dnotify marks."""
    prog = memory.prog
    try:
        marks = layout(
            prog, "struct inode", {"mask": "i_fsnotify_mask", "marks": "i_fsnotify_marks"}
        )
    except LookupError:  # i_fsnotify_marks was a struct up to 4.11
        try:
            marks = layout(prog, "struct inode", {"mask": "i_fsnotify_mask"})
        except LookupError:  # without CONFIG_FSNOTIFY
            return np.zeros(len(dentries), np.bool_)
    inode = gather(memory, dentries, layout(prog, "struct dentry", ["d_inode"]), faults)["d_inode"]
    at = np.flatnonzero(inode)
    read = gather(memory, inode[at], marks, faults)
    found = np.zeros(len(dentries), np.bool_)
    found[at] = (read["mask"] != 0) & (read.columns.get("marks", read["mask"]) != 0)
    return found
