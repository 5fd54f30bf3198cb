# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``list_lru`` structures of a kernel, and their owners.

Every super block has two; other list_lrus are variables or members, named after their symbol.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import circular
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.engine.slub.percpu import node_ids
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.vfs.super_blocks import SuperBlocks, super_blocks

DENTRY, INODE, OTHER = "dentry", "inode", "other"
KINDS = (DENTRY, INODE, OTHER)
"""Contents: the dentries or the inodes of a super block, or something else."""

VARIABLES = (
    # mm/workingset.c, with per-memcg lists since Linux kernel commit 0a6b76dd23fa ("mm: workingset:
    # make shadow node shrinker memcg aware") (in v4.6); called shadow_nodes since Linux kernel
    # commit 14b468791fa9 ("mm: workingset: move shadow entry tracking to radix tree exceptional
    # tracking") (in v4.10).
    "shadow_nodes",
    "workingset_shadow_nodes",
    # Since Linux kernel commit 95ad37f90c33 ("NFSv4.2: add client side xattr caching.") (in v5.9).
    "nfs4_xattr_cache_lru",
    "nfs4_xattr_entry_lru",
    "nfs4_xattr_large_entry_lru",
    # Since Linux kernel commit bf9b7df23cb3 ("mm/zswap: global lru and shrinker shared by all
    # zswap_pools") (in v6.9).
    "zswap_list_lru",
    # Since Linux kernel commit fafaeceb89a5 ("mm: switch deferred split shrinker to list_lru")
    # (in v7.2).
    "deferred_split_lru",
    "gfs2_qd_lru",
    "nfsd_file_lru",
)
UNKNOWN = "(unknown)"
"""Owner of a list_lru without a symbol that is only on the kernel's own list."""
_MAX_LIST_LRUS = 1 << 20
_MAX_ZSWAP_POOLS = 1 << 12


class NoListLru(LookupError):
    """The layout of the list_lrus of dentries and inodes is unknown."""


@dataclass(frozen=True)
class ListLrus(Addressed):
    """All list_lrus as columns, shape (list_lrus,); each once, super blocks' first."""

    address: Words
    owner: list[str]
    """File system type, or name of the variable or member; not safe to print."""
    kind: npt.NDArray[np.int8]
    """Index in :data:`KINDS`."""
    super_block: Numbers
    """Row of the super block, or -1."""
    aware: Mask
    """Whether it has lists for memory cgroups."""
    node: Words
    """Address of the array of ``list_lru_node``; 0 for a plain list of a super block."""
    xa_head: Words
    """Head of the XArray of ``list_lru_memcg``; zeros before v5.18."""
    memcg_lrus: Words
    """``list_lru_memcg`` pointers, shape (list_lrus, nodes); zeros since v5.18."""
    root_items: Numbers
    """Items on the lists of the root, or of no memory cgroup; shape (list_lrus, nodes)."""
    items: Numbers
    """``list_lru_node.nr_items``: items on all lists of a node; shape (list_lrus, nodes)."""
    counts_all: bool
    has_xarray: bool
    """Whether the per-memcg lists are in XArrays (v5.18 and later), not in arrays."""
    is_per_memcg: bool = True
    """Whether the kernel can have lists for memory cgroups (v4.0 and later, with CONFIG_MEMCG)."""
    total_listed: int | None = None
    """Length of the kernel's own list of list_lrus; None without CONFIG_MEMCG."""
    list_name: str = ""
    """The variable with the head of this list."""
    owned: int = 0
    """Entries of this list with a known owner."""
    max_undescribed: int = 0
    """Most entries without a known owner for lack of the types of XFS."""
    damaged: int = 0
    """Lists that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)


@once
def list_lrus(kernel: Kernel) -> ListLrus:
    """Return all initialized list_lrus.

    :raises NoListLru: dentries and inodes are not on list_lrus of a known layout
    """
    return _Finder(kernel.memory, super_blocks(kernel)).all()


def counted_items(memory: Memory, lrus: ListLrus) -> int | None:
    """Return the present sum of :attr:`ListLrus.items`; None without these counts."""
    faults = Faults()
    items = _nodes(memory, lrus.node, faults).get("all") if lrus.counts_all else None
    return None if items is None or faults else int(items.astype(np.int64).sum())


class _Finder:
    def __init__(self, memory: Memory, blocks: SuperBlocks) -> None:
        self.memory = memory
        self.prog = memory.prog
        self.blocks = blocks
        self.faults = Faults()
        self.damaged = 0
        self.max_undescribed = 0
        self.owners: dict[int, tuple[str, str, int]] = {}
        """Owner, kind and row of the super block, by address."""
        try:
            self.type = self.prog.type("struct list_lru")
        except LookupError:
            raise NoListLru("no struct list_lru") from None
        # "dcache: convert to use new lru list infrastructure" (commit not verified) (in v3.12)
        # made these list_lrus; RHEL 7 has a list_head and a counter.
        member = self.prog.type("struct super_block").member("s_dentry_lru")
        self.is_plain = member.type.type_name() != "struct list_lru"
        if self.type.has_member("mlrus"):
            # Between Linux kernel commits 6a6b7b77cc0f ("mm: list_lru: transpose the array of
            # per-node per-memcg lru lists") and bbca91cca9a9 (both in v5.18).
            raise NoListLru("struct list_lru has the member mlrus, which was in no release")

    def all(self) -> ListLrus:
        if not self.is_plain:
            self._super_blocks()
            self._xfs()
        self._variables()
        self._zswap_pools()
        name, listed = self._listed()
        for address in [] if listed is None else np.sort(listed).tolist():
            owner = UNKNOWN
            with contextlib.suppress(LookupError):
                owner = str(self.prog.symbol(address).name)
            self._add(address, owner)
        address = np.array([*self.owners], np.uint64)
        columns = self._members(address)
        # A list_lru before its initialization, or after its destruction, has no array.
        initialized = np.flatnonzero(columns["node"])
        columns = {key: column[initialized] for key, column in columns.items()}
        address = address[initialized]
        owners = [self.owners[each] for each in address.tolist()]
        nodes = _nodes(self.memory, columns["node"], self.faults)
        zeros = np.zeros_like(nodes["root"])
        memcg_lrus = nodes.get("memcg_lrus", zeros).astype(np.uint64)
        unknown = sum(owner == UNKNOWN for owner, _, _ in self.owners.values())
        found = ListLrus(
            address=address,
            owner=[owner for owner, _, _ in owners],
            kind=np.array([KINDS.index(kind) for _, kind, _ in owners], np.int8),
            super_block=np.array([row for _, _, row in owners], np.int64),
            # The member memcg_aware came with Linux kernel commit 3e8589963773 ("memcg: make it
            # work on sparse non-0-node systems") (in v5.2).
            aware=columns.get("aware", memcg_lrus.any(axis=1)) != 0,
            node=columns["node"],
            xa_head=columns.get("xa_head", np.zeros_like(columns["node"])),
            memcg_lrus=memcg_lrus,
            root_items=nodes["root"].astype(np.int64),
            items=nodes.get("all", zeros).astype(np.int64),
            counts_all="all" in nodes,
            has_xarray="xa_head" in columns,
            is_per_memcg="xa_head" in columns or "memcg_lrus" in nodes,
            total_listed=None if listed is None else len(listed),
            list_name=name,
            owned=0 if listed is None else len(listed) - unknown,
            max_undescribed=min(self.max_undescribed, unknown),
            damaged=self.damaged,
            faults=self.faults,
        )
        return self._with_plain(found) if self.is_plain else found

    def _with_plain(self, others: ListLrus) -> ListLrus:
        """Add the lists of super blocks that are no list_lrus, with the kernel's counts of them."""
        blocks = self.blocks.address
        type_ = self.prog.type("struct super_block")
        counts = {DENTRY: "s_nr_dentry_unused", INODE: "s_nr_inodes_unused"}
        read = gather(self.memory, blocks, layout(self.prog, type_, counts), self.faults)
        kinds = len(counts)
        offsets = [drgn.offsetof(type_, f"s_{kind}_lru") for kind in counts]
        address = (blocks[:, None] + np.array(offsets, np.uint64)).ravel()
        items = np.zeros((len(address), others.items.shape[1]), np.int64)
        items[:, 0] = np.stack([read[kind] for kind in counts], axis=1).ravel()
        zeros, row = np.zeros(len(address), np.uint64), np.repeat(np.arange(len(blocks)), kinds)
        kind = np.tile(np.array([KINDS.index(kind) for kind in counts], np.int8), len(blocks))
        columns = {
            "address": address, "kind": kind, "super_block": row, "aware": zeros != 0,
            "node": zeros, "xa_head": zeros, "memcg_lrus": np.zeros_like(items, np.uint64),
            "root_items": items, "items": items,
        }  # fmt: skip
        joined: dict[str, Any] = {
            name: np.concatenate([column, getattr(others, name)])
            for name, column in columns.items()
        }
        owner = [self.blocks.type[each] for each in row.tolist()] + others.owner
        return replace(others, owner=owner, counts_all=False, **joined)

    def _add(self, address: int, owner: str, kind: str = OTHER, super_block: int = -1) -> None:
        self.owners.setdefault(address, (owner, kind, super_block))

    def _super_blocks(self) -> None:
        type_ = self.prog.type("struct super_block")
        for kind, member in ((DENTRY, "s_dentry_lru"), (INODE, "s_inode_lru")):
            offset = drgn.offsetof(type_, member)
            for row, address in enumerate(self.blocks.address.tolist()):
                self._add(address + offset, self.blocks.type[row], kind, row)

    def _xfs(self) -> None:
        """Add the list_lrus of XFS, which have no per-memcg lists."""
        rows = np.flatnonzero([name == "xfs" for name in self.blocks.type])
        buffers = "struct xfs_buftarg", "bt_lru"
        lrus = dict.fromkeys(("m_ddev_targp", "m_logdev_targp", "m_rtdev_targp"), buffers)
        lrus["m_quotainfo"] = "struct xfs_quotainfo", "qi_lru"
        try:
            info = layout(self.prog, "struct super_block", ["s_fs_info"])
            mount = layout(self.prog, "struct xfs_mount", {}, {name: name for name in lrus})
            offsets = {lru: drgn.offsetof(self.prog.type(lru[0]), lru[1]) for lru in lrus.values()}
        except LookupError:
            self.max_undescribed = len(rows) * len(lrus)
            return
        mounts = gather(self.memory, self.blocks.address[rows], info, self.faults)
        pointers = gather(self.memory, mounts["s_fs_info"], mount, self.faults)
        for name in mount.fields:
            owner = ".".join(lrus[name]).removeprefix("struct ")
            for row, pointer in zip(rows.tolist(), pointers[name].tolist(), strict=True):
                if pointer:
                    self._add(pointer + offsets[lrus[name]], owner, OTHER, row)

    def _variables(self) -> None:
        for name in VARIABLES:
            with contextlib.suppress(LookupError):
                variable = self.prog[name]
                if variable.type_.type_name() == "struct list_lru" and variable.address_:
                    self._add(variable.address_, name)

    def _zswap_pools(self) -> None:
        """Add the list_lru of each zswap pool.

        From Linux kernel commit a65b0e7607cc ("zswap: make shrinking memcg-aware") (in v6.8) until
        bf9b7df23cb3 (in v6.9), as above.
        """
        try:
            pools = self.prog["zswap_pools"].address_of_().value_()
            offset = drgn.offsetof(self.prog.type("struct zswap_pool"), "list_lru")
            link = drgn.offsetof(self.prog.type("struct zswap_pool"), "list")
            nodes, damaged = circular(self.memory, pools, self.faults, limit=_MAX_ZSWAP_POOLS)
            self.damaged += damaged
            for node in nodes.tolist():
                self._add(node - link + offset, "zswap_pool.list_lru")
        except LookupError:
            return
        except drgn.FaultError as error:
            self.faults.note(error)

    def _listed(self) -> tuple[str, Words | None]:
        """Return name and entries of the kernel's own list of list_lrus (CONFIG_MEMCG)."""
        # Since Linux kernel commit 3eef11279ba5 ("mm: list_lru: only add memcg-aware lrus to the
        # global lru list") (in v5.16), it is called memcg_list_lrus.
        for name in ("memcg_list_lrus", "list_lrus"):
            if name not in self.prog:
                continue
            start = self.prog[name].address_of_().value_()
            nodes, offset = np.empty(0, np.uint64), np.uint64(drgn.offsetof(self.type, "list"))
            try:
                nodes, damaged = circular(self.memory, start, self.faults, limit=_MAX_LIST_LRUS)
                self.damaged += damaged
            except drgn.FaultError as error:
                self.faults.note(error)
            return name, np.unique(nodes) - offset
        return "list_lrus", None

    def _members(self, address: Words) -> dict[str, Words]:
        outer = layout(self.prog, self.type, {}, {"aware": "memcg_aware"})
        columns = gather(self.memory, address, outer, self.faults).columns
        type_ = self.type
        if type_.has_member("ext"):
            # UEK7 (v5.15) has the members of v5.18 in a struct list_lru_ext, for the kABI.
            pointer = layout(self.prog, type_, ["ext"])
            address = gather(self.memory, address, pointer, self.faults)["ext"]
            type_ = type_.member("ext").type.type
        # Since Linux kernel commit bbca91cca9a9 ("mm: list_lru: replace linear array with xarray")
        # (in v5.18), it has an XArray.
        inner = layout(self.prog, type_, {"node": "node"}, {"xa_head": "xa.xa_head"})
        return {**columns, **gather(self.memory, address, inner, self.faults).columns}


def _nodes(memory: Memory, node: Words, faults: Faults) -> dict[str, Words]:
    """Read the members of the ``struct list_lru_node``, each of shape (list_lrus, nodes)."""
    type_ = memory.prog.type("struct list_lru_node")
    members = layout(
        memory.prog,
        type_,
        # Since Linux kernel commit 60d3fd32a7a9 ("list_lru: introduce per-memcg lists")
        # (in v4.0), the root's list and its count are in a list_lru_one.
        {"root": ("lru.nr_items", "nr_items")},
        # The count of all lists came with Linux kernel commit 2c80cd57c743 ("mm/list_lru.c: fix
        # list_lru_count_node() to be race free") (in v4.13). Since Linux kernel commit
        # fb56fdf8b9a2 ("mm/list_lru: split the lock to per-cgroup scope") (in v6.13), it is
        # an atomic_long_t.
        {"all": ("nr_items.counter", "nr_items"), "memcg_lrus": "memcg_lrus"},
    )
    count = node_ids(memory.prog)
    steps = np.arange(count, dtype=np.uint64) * np.uint64(drgn.sizeof(type_))
    places = (node[:, None] + steps[None, :]).ravel()
    columns = gather(memory, places, members, faults).columns
    return {name: column.reshape(len(node), count) for name, column in columns.items()}
