# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dentries the slow, obvious way: one drgn object, one list node, one name at a time."""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import drgn
import numpy as np
from drgn import Object, Program
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.fs import for_each_mount, mount_dst
from drgn.helpers.linux.list import hlist_for_each_entry
from drgn.helpers.linux.mm import compound_head, page_to_virt, virt_to_page
from drgn.helpers.linux.slab import (
    find_containing_slab_cache,
    find_slab_cache,
    slab_cache_for_each_allocated_object,
)

from kcensus.analyses.dentries.walks import ORDER_BASE, mix
from tests.vm.oracles import entries
from tests.vm.oracles.slab import objcg_of

_HEX = "abcdef"


@dataclass
class Dentry:
    object: Object
    name: bytes
    parent: int
    inode: int
    count: int
    flags: int
    super_block: int
    hashed: bool
    external: int
    """Bytes of the slot that holds its name, 0 if it is inside."""

    @property
    def negative(self) -> bool:
        return not self.inode and self.count >= 0

    @property
    def unused(self) -> bool:
        return self.count == 0

    @property
    def address(self) -> int:
        return int(self.object)


# From include/linux/dcache.h of these kernels.
REFERENCED, SHRINK = 1 << 6, 1 << 10


def children(parent: Object) -> Iterator[Object]:
    """Yield the children of a dentry, as the kernel has them on its list."""
    # Since Linux kernel commit da549bdd15c2 ("dentry: switch the lists of children to hlist") (in
    # v6.8), the list is an hlist.
    if parent.prog_.type("struct dentry").has_member("d_children"):
        return hlist_for_each_entry("struct dentry", parent.d_children.address_of_(), "d_sib")
    return entries(parent.d_subdirs, "struct dentry", "d_child")


class OracleDentries:
    """Everything about the dentries of a program."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self.lru = 1 << (18 if prog.type("struct dentry").has_member("d_shortname") else 19)
        cache = find_slab_cache(self.prog, "dentry")
        assert cache is not None
        self.cache = cache
        self.slot_size = int(cache.size)
        self.dentries = {
            int(dentry): self._read(dentry)
            for dentry in slab_cache_for_each_allocated_object(cache, "struct dentry")
        }

    def _read(self, dentry: Object) -> Dentry:
        size = drgn.sizeof(self.prog.type("struct dentry"))
        name = dentry.d_name.name
        external = 0
        if not int(dentry) <= int(name) < int(dentry) + size:
            external = int(find_containing_slab_cache(self.prog, name).size)
        return Dentry(
            object=dentry,
            name=self.prog.read(int(name), int(dentry.d_name.len)),
            parent=int(dentry.d_parent),
            inode=int(dentry.d_inode),
            count=int(dentry.d_lockref.count),
            flags=int(dentry.d_flags),
            super_block=int(dentry.d_sb),
            hashed=bool(dentry.d_hash.pprev),
            external=external,
        )

    @cached_property
    def negatives(self) -> list[Dentry]:
        return [dentry for dentry in self.dentries.values() if dentry.negative]

    def bytes_of(self, dentries: list[Dentry]) -> int:
        """Bytes of their slots, and of those of their names."""
        return sum(self.slot_size + dentry.external for dentry in dentries)

    # Paths

    @cached_property
    def mounts(self) -> dict[int, str]:
        """Shortest mount point by the address of the root dentry."""
        found: dict[int, str] = {}
        for mount in for_each_mount(self.prog):
            path = mount_dst(mount).decode(errors="backslashreplace")
            root = int(mount.mnt.mnt_root)
            found[root] = min(found.get(root, path), path, key=lambda text: (len(text), text))
        return found

    def path(self, address: int) -> str:
        """Path of a dentry below the mount that shows it; from its root if none does."""
        names: list[str] = []
        while address not in self.mounts:
            dentry = self.dentries[address]
            if dentry.parent == address:
                break
            names.append(dentry.name.decode(errors="backslashreplace"))
            address = dentry.parent
        above = self.mounts.get(address, "")
        return "/".join([above.rstrip("/"), *reversed(names)]) or "/"

    # Children

    @cached_property
    def directories(self) -> dict[int, list[int]]:
        found = {
            address: [*map(int, children(dentry.object))]
            for address, dentry in self.dentries.items()
        }
        return {address: children for address, children in found.items() if children}

    def is_watched(self, address: int) -> bool:
        inode = self.dentries[address].object.d_inode
        return bool(inode) and bool(inode.i_fsnotify_mask)

    # Hash chains

    @cached_property
    def chains(self) -> list[list[int]]:
        prog = self.prog
        count = 1 << (32 - int(prog["d_hash_shift"]))
        table = prog.read(int(prog["dentry_hashtable"]), 8 * count)
        type_ = prog.type("struct dentry")
        offset = drgn.offsetof(type_, "d_hash")
        found = []
        order = "<" if prog.platform.flags & drgn.PlatformFlags.IS_LITTLE_ENDIAN else ">"
        for (head,) in struct.iter_unpack(f"{order}Q", table):
            chain = []
            node = head & ~1
            while node:
                chain.append(node - offset)
                node = prog.read_u64(node)
            found.append(chain)
        return found

    def unreferenced(self, address: int) -> bool:
        """Whether the limit of the series applies to a dentry."""
        dentry = self.dentries[address]
        return dentry.negative and dentry.unused and not dentry.flags & REFERENCED

    def rows(self, chain: list[int]) -> list[list[int]]:
        """Unreferenced negatives that follow each other."""
        found: list[list[int]] = [[]]
        for address in chain:
            if self.unreferenced(address):
                found[-1].append(address)
            elif found[-1]:
                found.append([])
        return [row for row in found if row]

    def _in_order(self, parts: list[list[int]]) -> list[list[int]]:
        """Chains in the order of a table with fewer buckets, which their dentries alone decide."""
        seen, keyed = Counter[tuple[int, int]](), []
        for part in parts:
            flags = enumerate(map(self.unreferenced, part))
            number = sum(pow(ORDER_BASE, place, 1 << 64) for place, each in flags if each)
            number %= 1 << 64
            seen[number, len(part)] += 1
            rank = seen[number, len(part)] - 1
            (key,) = mix(*np.array([[number], [len(part)], [rank]], np.uint64)).tolist()
            keyed.append((key, part))
        return [part for _, part in sorted(keyed, key=lambda pair: pair[0])]

    def trimmed(self, fewer: int = 1) -> list[Dentry]:
        """What a limit of three in a row takes; with fewer buckets, neighbours are one chain.

        Whose dentries come first is not known: kcensus orders chains by their dentries.
        """
        gone = []
        for start in range(0, len(self.chains), fewer):
            parts = self._in_order(self.chains[start : start + fewer])
            chain = [node for part in parts for node in part]
            for row in self.rows(chain):
                gone += [self.dentries[address] for address in row[3:]]
        return gone

    # Pages

    @cached_property
    def slabs(self) -> dict[int, list[Dentry]]:
        found = defaultdict(list)
        for address, dentry in self.dentries.items():
            found[int(page_to_virt(compound_head(virt_to_page(self.prog, address))))].append(dentry)
        return dict(found)

    # Memory cgroups

    @cached_property
    def memcgs(self) -> dict[str, Counter[str]]:
        """Dentries, negative and unused ones, by path of the memory cgroup; '' for none."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        paths: dict[int, str] = {}
        pad = int(getattr(self.cache, "red_left_pad", 0))
        for start, dentries in self.slabs.items():
            page = virt_to_page(self.prog, start)
            try:
                slab = drgn.cast("struct slab *", page)
            except LookupError:
                slab = page
            for dentry in dentries:
                index = (dentry.address - start - pad) // self.slot_size
                objcg = objcg_of(self.prog, self.cache, slab, index)
                path = ""
                if objcg:
                    memcg = objcg.memcg
                    if int(memcg) not in paths:
                        raw = cgroup_path(memcg.css.cgroup)
                        paths[int(memcg)] = raw.decode(errors="backslashreplace")
                    path = paths[int(memcg)]
                size = self.slot_size + dentry.external
                found[path].update(
                    dentries=1, negative=dentry.negative, negative_bytes=dentry.negative * size
                )
        return dict(found)

    # Names

    def patterns(self) -> dict[str, Counter[str]]:
        """Negative dentries by name pattern: their number, bytes, and directories."""
        families: dict[tuple[object, ...], list[Dentry]] = defaultdict(list)
        for dentry in self.negatives:
            families[(dentry.parent, *_shape(dentry.name))].append(dentry)
        found: dict[str, Counter[str]] = defaultdict(Counter)
        directories: dict[str, set[int]] = defaultdict(set)
        for family in families.values():
            text = _pattern([dentry.name for dentry in family]).decode(errors="backslashreplace")
            found[text]["negative"] += len(family)
            found[text]["bytes"] += self.bytes_of(family)
            directories[text].add(family[0].parent)
        for text, parents in directories.items():
            found[text]["directories"] = len(parents)
        return dict(found)


_RUN = re.compile(rb"[0-9A-Za-z\x80-\xff]+")
_LETTERS = re.compile(rb"[A-Za-z\x80-\xff]{1,4}")


def _shape(name: bytes) -> tuple[bytes, bytes, bytes]:
    """What the names of a family have in common: where their runs are, and short outer words."""
    runs = _RUN.findall(name)
    first = last = b""
    if runs and runs[0] != name:
        if name.startswith(runs[0]) and _LETTERS.fullmatch(runs[0]):
            first = runs[0]
        if name.endswith(runs[-1]) and _LETTERS.fullmatch(runs[-1]):
            last = runs[-1]
    return _RUN.sub(lambda run: b"A" * len(run[0]), name), first, last


def _pattern(names: list[bytes]) -> bytes:
    out = b""
    position = 0
    for run in _RUN.finditer(names[0]):
        out += names[0][position : run.start()]
        out += _run_pattern([name[run.start() : run.end()] for name in names])
        position = run.end()
    return out + names[0][position:]


def _run_pattern(runs: list[bytes]) -> bytes:
    texts = (run.decode("latin-1") for run in runs)
    columns = ["".join(sorted(set(column))) for column in zip(*texts, strict=True)]
    if len(columns) >= 8 and _kind("".join(columns)) == "hex":
        return b"<hex>"
    varies = [at for at, column in enumerate(columns) if len(column) > 1 or column.isdigit()]
    if not varies:
        return runs[0]
    start, end = varies[0], varies[-1] + 1
    kind = _kind("".join(columns[start:end]))
    middle = {"digits": b"<digits>", "hex": b"<hex>"}.get(kind, b"X" * (end - start))
    return runs[0][:start] + middle + runs[0][end:]


def _kind(characters: str) -> str:
    letters = {*characters} - {*"0123456789"}
    if letters == {*characters}:
        return "any"
    if not letters:
        return "digits"
    return "hex" if letters <= {*_HEX} or letters <= {*_HEX.upper()} else "any"
