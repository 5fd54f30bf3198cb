# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dentry cache: members and flags of dentries, hash table, counters and limits."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import drgn
import numpy as np
import pandas as pd
from drgn.helpers.linux.mm import totalram_pages
from drgn.helpers.linux.nodemask import nr_node_ids

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.kernel.names import MISSING
from kcensus.kernel.size import MAX_NODES

DENTRY_MEMBERS = {
    "flags": "d_flags",
    "next": "d_hash.next",
    "pprev": "d_hash.pprev",
    "parent": "d_parent",
    "inode": "d_inode",
    # Since Linux kernel commit 180a9cc3fd6a ("make it easier to catch those who try to modify
    # ->d_name") (in v6.18), d_name is in an anonymous union with __d_name; the paths stay.
    "name": "d_name.name",
    "length": "d_name.len",
    # Since Linux kernel commit 58cf9c383c5c ("dcache: back inline names with a struct-wrapped array
    # of unsigned long") (in v6.14), d_iname is d_shortname.
    "inline": ("d_shortname.string", "d_iname"),
    "count": "d_lockref.count",
    "super_block": "d_sb",
    # Since Linux kernel commit da549bdd15c2 ("dentry: switch the lists of children to hlist")
    # (in v6.8), lists of children end in NULL; before, they are circular. Since Linux kernel commit
    # 946e51f2bf37 ("move d_rcu from overlapping d_child to overlapping d_alias") (in v3.19), their
    # link is not in d_u.
    "sibling": ("d_sib.next", "d_child.next", "d_u.d_child.next"),
}


class Flags(NamedTuple):
    """Bits of ``d_flags`` of one kernel."""

    referenced: int
    shrink_list: int
    lru_list: int
    par_lookup: int
    """0 if the kernel has no such flag."""
    cursor: int

    @property
    def types(self) -> int:
        """The bits of the type of entry, all 0 of a negative dentry; 0 if they are unknown.

        Since Linux kernel commit b18825a7c8e3 ("VFS: Put a small type field into
        struct dentry::d_flags") (in v3.13), d_inode and the type are set and cleared together.
        """
        return next((7 << shift for shift, _, known in _ORDERS if known == self), 0)


_ENUM = ("REFERENCED", "SHRINK_LIST", "LRU_LIST", "PAR_LOOKUP", "DENTRY_CURSOR")
# Since Linux kernel commit b2b4483b5d05 ("dcache: convert dentry flag macros to enum") (in v6.15),
# the flags are enumerators; before, they are macros, which are not in the debug info. All of them
# moved together with the type of entry in Linux kernel commit 9748cb2dc393 ("VFS: repack DENTRY_
# flags.") (in v6.15), and in the kernels of RHEL 7 (include/linux/dcache.h of each).
_ORDERS = (
    (19, (2, 3), Flags(1 << 6, 1 << 10, 1 << 18, 1 << 24, 1 << 25)),
    (20, (2, 3), Flags(1 << 6, 1 << 10, 1 << 19, 1 << 28, 1 << 29)),
    (24, (1, 2), Flags(1 << 6, 1 << 10, 1 << 19, 0, 0)),
)
"""Shift of the three bits of the type of entry, the types of directories, and the flags."""
_SURE = 0.75
"""Least share of directories among root dentries."""


def flags(memory: Memory, roots: Words) -> Flags:
    """Return the bits of ``d_flags``, by enumerators, or else by the root dentries.

    Roots of mounted super blocks are directories, with few exceptions: the order of the bits is the
    one that makes them directories.

    :param roots: root dentries of all super blocks
    :raises LookupError: no known order of the flags fits
    """
    prog = memory.prog
    with suppress(LookupError):
        return Flags(*(int(prog.constant(f"DCACHE_{name}")) for name in _ENUM))
    member = layout(prog, "struct dentry", {"flags": "d_flags", "inode": "d_inode"})
    read = gather(memory, roots[roots != 0], member, Faults())
    seen = read["flags"][read.readable & (read["inode"] != 0)]
    if not len(seen):
        raise LookupError("the bits of d_flags: no root dentry is readable to derive them from")
    shares = [
        np.isin(seen >> np.uint32(shift) & np.uint32(7), types).mean()
        for shift, types, _ in _ORDERS
    ]
    best = int(np.argmax(shares))
    if shares[best] < _SURE:
        raise LookupError("the bits of d_flags: root dentries do not fit any known order")
    return _ORDERS[best][2]


def hash_table(memory: Memory) -> tuple[int, int]:
    """Return the address of ``dentry_hashtable`` and its number of buckets.

    :raises LookupError: the debug info lacks a variable
    :raises drgn.FaultError: a variable is not in the dump
    :raises ValueError: the address or the number of buckets is impossible
    :raises TypeError: a variable is not a number or a pointer
    """
    prog = memory.prog
    # Since Linux kernel commit 854d3e63438d ("dcache: subtract d_hash_shift from 32 in advance")
    # (in v4.16), there is no d_hash_mask, and hashes are shifted right by d_hash_shift; before, it
    # is the logarithm of the number of buckets.
    shift = int(prog["d_hash_shift"])
    bits = shift if "d_hash_mask" in prog else 32 - shift
    # By default the table takes a thousandth of memory; dhash_entries= can ask for more.
    if not 0 < bits <= 32 or 8 << bits > int(totalram_pages(prog)) << memory.page_shift:
        raise ValueError(f"d_hash_shift: '{shift}' is impossible")
    address, places = int(prog["dentry_hashtable"]), memory.places
    if address % 8 or not places.start <= address <= places.stop - (8 << bits):
        raise ValueError(f"dentry_hashtable: '{address:#x}' is impossible")
    return address, 1 << bits


class LruItems(NamedTuple):
    """Dentries on LRU lists, by the kernel's own counts."""

    all: int | None
    """None without such counts."""
    charged: int | None
    """The part on lists of memory cgroups other than the root."""
    lost: int = 0
    """Unreadable counts."""


def lru_items(memory: Memory, super_blocks: Words) -> LruItems:
    """Return the items of all dentry LRUs (``nr_items``)."""
    prog = memory.prog
    faults = Faults()
    try:
        lru = layout(prog, "struct super_block", {"node": "s_dentry_lru.node"})
        # Since Linux kernel commit 2c80cd57c743 ("mm/list_lru.c: fix list_lru_count_node() to be
        # race free") (in v4.13), there is a count for each node; since Linux kernel commit
        # fb56fdf8b9a2 ("mm/list_lru: split the lock to per-cgroup scope") (in v6.13), it is atomic.
        members = {"items": ("nr_items.counter", "nr_items")}
        # Since Linux kernel commit 60d3fd32a7a9 ("list_lru: introduce per-memcg lists") (in v4.0).
        items = layout(prog, "struct list_lru_node", members, {"root": "lru.nr_items"})
    except LookupError:
        return LruItems(None, None)
    read = gather(memory, super_blocks, lru, faults)
    nodes = int(nr_node_ids(prog))
    if not 0 < nodes <= MAX_NODES:
        return LruItems(None, None, len(super_blocks))
    step = np.arange(nodes, dtype=np.uint64) * np.uint64(items.size)
    # A super block that is being set up or torn down has no lists.
    places = (read["node"][read["node"] != 0][:, None] + step[None, :]).ravel()
    counts = gather(memory, places, items, faults)
    lost = int((~read.readable).sum()) + int((~(counts.readable & counts.possible)).sum())
    total = int(counts["items"].astype(np.int64).sum())
    charged = total - int(counts["root"].astype(np.int64).sum()) if "root" in items else None
    return LruItems(total, charged, lost)


def watched(memory: Memory, dentries: Words, faults: Faults) -> Mask:
    """Return which dentries' inodes have inotify, fanotify or dnotify marks."""
    prog = memory.prog
    # Since Linux kernel commit 9dd813c15b2c ("fsnotify: Move mark list head from object into
    # dedicated structure") (in v4.12), i_fsnotify_marks is a pointer; before, a list head.
    members = {"mask": "i_fsnotify_mask", "marks": ("i_fsnotify_marks.first", "i_fsnotify_marks")}
    try:
        marks = layout(prog, "struct inode", members)
    except LookupError:  # without CONFIG_FSNOTIFY
        return np.zeros(len(dentries), np.bool_)
    inode = gather(memory, dentries, layout(prog, "struct dentry", ["d_inode"]), faults)["d_inode"]
    rows = np.flatnonzero(inode)
    read = gather(memory, inode[rows], marks, faults)
    has_marks = np.zeros(len(dentries), np.bool_)
    has_marks[rows] = (read["mask"] != 0) & (read["marks"] != 0)
    return has_marks


_PRESSURE = "weight of dentries and inodes in reclaim; default: 100"
_DIVISOR = "divisor of vm.vfs_cache_pressure"
_SHARE = "thousandths of RAM for negative dentries; 0: no limit"
_SYSCTLS = (
    # Since Linux kernel commit e6957c99dca5 ("vfs: Add a sysctl for automated deletion of dentry")
    # (in v6.13).
    ("dentry_negative_policy", "fs.dentry-negative", "1: unlink leaves no negative dentry", 1),
    # In RHEL 8.10 (commit not verified).
    ("dentry_fs_klimit_sysctl", "fs.dentry-fs-klimit", "thousands of dentries; 0: no limit", None),
    # In RHEL 7.8 and 7.9 (commit not verified).
    ("dcache_negative_dentry_limit_sysctl", "fs.negative-dentry-limit", _SHARE, 100),
    ("sysctl_vfs_cache_pressure", "vm.vfs_cache_pressure", _PRESSURE, 100_000),
    # Since Linux kernel commit e7b9cea718ee ("vfs: Add sysctl vfs_cache_pressure_denom for bulk
    # file operations") (in v6.16).
    ("sysctl_vfs_cache_pressure_denom", "vm.vfs_cache_pressure_denom", _DIVISOR, 100_000),
)
"""Variable, name, meaning, and the largest sane value. The variable of fs.negative-dentry-limit
in Oracle UEK is unknown."""


def limits(prog: drgn.Program) -> tuple[pd.DataFrame, list[str]]:
    """Return this kernel's limits and mitigations, by their variables.

    :return: a row for each; and those left out for an impossible value
    """
    known, impossible = [], []
    for symbol, name, meaning, largest in _SYSCTLS:
        with suppress(*MISSING):
            try:
                value = int(prog[symbol])
            except (TypeError, ValueError):  # not a number
                value = -1
            if 0 <= value <= (value if largest is None else largest):
                known.append((name, value, meaning))
            else:
                impossible.append(f"{name} = {value}")
    frame = pd.DataFrame(known, columns=["setting", "value", "meaning"])
    return frame.astype({"value": np.int64}), impossible
