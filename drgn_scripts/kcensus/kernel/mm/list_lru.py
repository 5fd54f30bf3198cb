# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the ``list_lru`` of a kernel are, and whose they are.

Every super block has two; the others are variables, or members of something that is found by name.
What is on the kernel's own list besides is named after its symbol.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.nodemask import nr_node_ids

from kcensus.engine.chase import circular
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.vfs.super_blocks import SuperBlocks, super_blocks

DENTRY, INODE, OTHER = "dentry", "inode", "other"
KINDS = (DENTRY, INODE, OTHER)
"""What is on a list: the dentries or the inodes of a super block, or something else."""

VARIABLES = (
    # mm/workingset.c; aware of memory cgroups since 4.15 at the latest, named otherwise in 4.4.
    "shadow_nodes",
    "workingset_shadow_nodes",
    # fs/nfs/nfs42xattr.c (5.9).
    "nfs4_xattr_cache_lru",
    "nfs4_xattr_entry_lru",
    "nfs4_xattr_large_entry_lru",
    "zswap_list_lru",  # a member of the pool in 6.8
    "deferred_split_lru",  # 7.1 or 7.2
    "gfs2_qd_lru",
    "nfsd_file_lru",
)
UNKNOWN = "(unknown)"
"""Owner of what is in nothing that is known."""
MODULES = ("xfs", "nfsv4", "gfs2", "nfsd")
"""Those that have list_lrus of their own."""
_MAX = 1 << 20
"""No machine has that many: a longer list is damage."""


class NoListLru(LookupError):
    """The kernel has no ``struct list_lru`` for what it caches."""


@dataclass(frozen=True)
class ListLrus:
    """All list_lrus as columns, those of super blocks first, each once."""

    address: Words
    owner: list[str]
    """File system type, or name of the variable or member; not safe to print."""
    kind: npt.NDArray[np.int8]
    """Index in :data:`KINDS`."""
    superblock: npt.NDArray[np.int64]
    """Row of the super block, -1 for others."""
    aware: Mask
    """Keeps a list for each memory cgroup."""
    listed: Mask
    """On the kernel's own list: all up to 5.15, then those that are aware."""
    node: Words
    """Address of the array of ``list_lru_node``."""
    xa_head: Words
    """Of the XArray of ``list_lru_memcg``; zeros up to 5.17."""
    memcg_lrus: Words
    """Address of the ``list_lru_memcg``, shape (list_lrus, nodes); zeros since 5.18."""
    root_items: npt.NDArray[np.int64]
    """On the list of no or of the root memory cgroup, shape (list_lrus, nodes)."""
    items: npt.NDArray[np.int64]
    """On all lists of a node, as the kernel counts; shape (list_lrus, nodes)."""
    counts_all: bool
    """The kernel does count :attr:`items` (not in 4.4); otherwise they are zeros."""
    has_xarray: bool
    """The lists of memory cgroups are in an XArray (5.18), not in arrays."""
    total_listed: int | None = None
    """How many are on the kernel's own list; None if it has none."""
    list_name: str = ""
    """The variable that heads it."""
    owned: int = 0
    """How many of those have an owner that is known."""
    damaged: int = 0
    """Lists that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.address)


class ListLruTypes:
    """The layouts of this kernel's structures.

    :raises NoListLru: the kernel has no list_lrus
    """

    def __init__(self, prog: drgn.Program) -> None:
        try:
            type_ = prog.type("struct list_lru")
            node = prog.type("struct list_lru_node")
        except LookupError:
            raise NoListLru("this kernel has no list_lrus") from None
        if type_.has_member("mlrus"):
            raise NoListLru(
                "this kernel was built from the middle of the series that went into 5.18; "
                "its list_lrus were in no release and are not supported"
            )
        self.type = type_
        self.pointer_first = type_.has_member("ext")
        """UEK7 (5.15) has the members of 5.18 behind a pointer, so that the struct stays as is."""
        inner = type_.member("ext").type.type if self.pointer_first else type_
        # bbca91cca9a9 (5.18) replaced the arrays by an XArray.
        optional = {"aware": "memcg_aware", "xa_head": "xa.xa_head"}
        self.ext = layout(prog, type_, {"ext": "ext"}) if self.pointer_first else None
        self.outer = layout(prog, type_, {}, {"aware": "memcg_aware"})
        self.inner = layout(prog, inner, {"node": "node"}, optional)
        self.has_xarray = "xa_head" in self.inner
        self.node_size = drgn.sizeof(node)
        self.node = layout(
            prog,
            node,
            # 4.0 moved the root's list and its count into a list_lru_one.
            {"root": ("lru.nr_items", "nr_items")},
            # fb56fdf8b9a2 (6.13) made the count of all an atomic_long_t; 4.4 has none.
            {"all": ("nr_items.counter", "nr_items"), "memcg_lrus": "memcg_lrus"},
        )


@once
def list_lrus(kernel: Kernel) -> ListLrus:
    """All list_lrus of a kernel.

    :raises NoListLru: none, or (RHEL 7) none for dentries and inodes
    """
    return _Finder(kernel.memory, super_blocks(kernel)).all()


class _Finder:
    def __init__(self, memory: Memory, superblocks: SuperBlocks) -> None:
        self.memory = memory
        self.prog = memory.prog
        self.superblocks = superblocks
        self.types = ListLruTypes(self.prog)
        self.faults = Faults()
        self.damaged = 0
        self.list_name, self.head = self._head()
        self.seen: set[int] = set()
        self.rows: list[tuple[int, str, int, int]] = []
        """Address, owner, kind, row of the super block."""

    def all(self) -> ListLrus:
        self._superblocks()
        self._xfs()
        self._variables()
        self._pools()
        listed = self._listed()
        for address in np.sort(listed).tolist():
            self._add(address, self._symbol(address), OTHER)
        read = self._read(np.array([row[0] for row in self.rows], np.uint64))
        # What was not initialized, or destroyed already, has no array.
        exists = np.flatnonzero(read["node"])
        rows = [self.rows[at] for at in exists.tolist()]
        address = np.array([row[0] for row in rows], np.uint64)
        nodes = self._nodes(read["node"][exists])
        memcg_lrus = nodes.get("memcg_lrus", np.zeros_like(nodes["root"], np.uint64))
        # 3e8589963773 (5.2) added the flag.
        aware = read["aware"][exists] != 0 if "aware" in read else (memcg_lrus != 0).any(axis=1)
        root = nodes["root"].astype(np.int64)
        return ListLrus(
            address=address,
            owner=[row[1] for row in rows],
            kind=np.array([row[2] for row in rows], np.int8),
            superblock=np.array([row[3] for row in rows], np.int64),
            aware=aware,
            listed=np.isin(address, listed),
            node=read["node"][exists],
            xa_head=read.get("xa_head", np.zeros(len(read["node"]), np.uint64))[exists],
            memcg_lrus=memcg_lrus,
            root_items=root,
            items=nodes.get("all", np.zeros_like(root)).astype(np.int64),
            counts_all="all" in nodes,
            has_xarray=self.types.has_xarray,
            total_listed=len(listed) if self.head is not None else None,
            list_name=self.list_name,
            owned=len(listed) - sum(row[1] == UNKNOWN for row in self.rows),
            damaged=self.damaged,
            faults=self.faults,
        )

    def _add(self, address: int, owner: str, kind: str, superblock: int = -1) -> None:
        if address not in self.seen:
            self.seen.add(address)
            self.rows.append((address, owner, KINDS.index(kind), superblock))

    def _superblocks(self) -> None:
        type_ = self.prog.type("struct super_block")
        if type_.member("s_dentry_lru").type.type_name() != "struct list_lru":
            # Up to 3.11, and in RHEL 7: a plain list, and a count beside it.
            raise NoListLru("this kernel keeps unused dentries and inodes on plain lists")
        blocks = self.superblocks
        for kind, member in ((DENTRY, "s_dentry_lru"), (INODE, "s_inode_lru")):
            offset = drgn.offsetof(type_, member)
            for row, address in enumerate(blocks.address.tolist()):
                self._add(address + offset, blocks.type[row], kind, row)

    def _xfs(self) -> None:
        """Buffers and quotas of XFS, which know no memory cgroups."""
        rows = np.array([at for at, name in enumerate(self.superblocks.type) if name == "xfs"])
        if not len(rows):
            return
        try:
            info = layout(self.prog, "struct super_block", ["s_fs_info"])
            mount = layout(
                self.prog,
                "struct xfs_mount",
                {},
                {
                    "data": "m_ddev_targp",
                    "log": "m_logdev_targp",
                    "realtime": "m_rtdev_targp",
                    "quota": "m_quotainfo",
                },
            )
            buffers = drgn.offsetof(self.prog.type("struct xfs_buftarg"), "bt_lru")
            quotas = drgn.offsetof(self.prog.type("struct xfs_quotainfo"), "qi_lru")
        except LookupError:
            return
        mounts = gather(self.memory, self.superblocks.address[rows], info, self.faults)
        targets = gather(self.memory, mounts["s_fs_info"], mount, self.faults)
        for name in mount.fields:
            owner = "xfs_quotainfo.qi_lru" if name == "quota" else "xfs_buftarg.bt_lru"
            offset = quotas if name == "quota" else buffers
            for row, pointer in zip(rows.tolist(), targets[name].tolist(), strict=True):
                if pointer:
                    self._add(pointer + offset, owner, OTHER, row)

    def _variables(self) -> None:
        for name in VARIABLES:
            try:
                variable = self.prog[name]
            except LookupError:
                continue
            if variable.type_.type_name() == "struct list_lru" and variable.address_:
                self._add(variable.address_, name, OTHER)

    def _pools(self) -> None:
        """zswap had one for each pool in 6.8."""
        try:
            pools = self.prog["zswap_pools"].address_of_()
            if not self.prog.type("struct zswap_pool").has_member("list_lru"):
                return
            for pool in list_for_each_entry("struct zswap_pool", pools, "list"):
                self._add(pool.list_lru.address_of_().value_(), "zswap_pool.list_lru", OTHER)
        except LookupError:
            return
        except drgn.FaultError as error:
            self.faults.note(error)

    def _head(self) -> tuple[str, drgn.Object | None]:
        # 3eef11279ba5 (5.16) keeps only those that are aware, and says so in the name.
        for name in ("memcg_list_lrus", "list_lrus"):
            try:
                return name, self.prog[name]
            except LookupError:
                continue
        return "list_lrus", None

    def _listed(self) -> Words:
        """Addresses of those on the kernel's own list, which it has with CONFIG_MEMCG."""
        if self.head is None:
            return np.empty(0, np.uint64)
        try:
            start = self.head.address_of_().value_()
            found, cut = circular(self.memory, start, self.faults, limit=_MAX)
        except drgn.FaultError as error:
            self.faults.note(error)
            return np.empty(0, np.uint64)
        self.damaged += cut
        offset = np.uint64(drgn.offsetof(self.types.type, "list"))
        return np.unique(found) - offset

    def _symbol(self, address: int) -> str:
        try:
            return str(self.prog.symbol(address).name)
        except LookupError:
            return UNKNOWN

    def _read(self, address: Words) -> dict[str, npt.NDArray[np.uint64]]:
        """The members of the structs."""
        types = self.types
        outer = gather(self.memory, address, types.outer, self.faults)
        place = address
        if types.ext is not None:
            place = gather(self.memory, address, types.ext, self.faults)["ext"]
        inner = gather(self.memory, place, types.inner, self.faults)
        return {**outer.columns, **inner.columns}

    def _nodes(self, node: Words) -> dict[str, npt.NDArray[np.uint64]]:
        """The members of the nodes' structs, each of shape (list_lrus, nodes)."""
        count = nr_node_ids(self.prog)
        steps = np.arange(count, dtype=np.uint64) * np.uint64(self.types.node_size)
        places = (node[:, None] + steps[None, :]).ravel()
        read = gather(self.memory, places, self.types.node, self.faults)
        return {name: column.reshape(-1, count) for name, column in read.columns.items()}
