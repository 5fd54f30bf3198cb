# SPDX-License-Identifier: LGPL-2.1-or-later
"""All super blocks and their mounts; some super blocks are not mounted."""

from __future__ import annotations

import enum
from contextlib import suppress
from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, circular, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import MISSING, decode_array
from kcensus.kernel.vfs.paths import ancestry, texts

_MAX_LIST = 1 << 22
"""Most super blocks, or mounts of one."""
_MAX_DEPTH = 1024
"""Most ancestors of a mount."""


class MountState(enum.Enum):
    """Reachability of a super block by a path."""

    MOUNTED = "mounted"
    """Mounts in init's mount namespace."""
    ELSEWHERE = "other namespace"
    """Mounts only in other mount namespaces, such as containers; the path is the one there."""
    KERNEL = "kernel"
    """No path: the kernel mounts it for itself (pipefs, sockfs, …)."""
    DETACHED = "detached"
    """No path: its mounts are in no namespace, being internal, or unmounted lazily and in use."""
    UNMOUNTED = "unmounted"
    """No mount: it is being mounted, or references keep it alive."""


@dataclass(frozen=True)
class SuperBlocks(Addressed):
    """Super blocks as columns, in the order of the kernel's list."""

    address: Words
    type: list[str]
    """Name of the file system type, with the subtype if it has one: ``xfs``, ``fuse.sshfs``. All
    text here is Unicode, but not safe to print."""
    id: list[str]
    """``s_id``: the name of the device, or of the type."""
    device: npt.NDArray[np.uint32]
    """``s_dev``, as the kernel packs it: 12 bits of major and 20 of minor."""
    root: Words
    """``struct dentry *`` of the root; 0 while it is being mounted or killed."""
    state: list[MountState]
    mount: list[str]
    """Shortest mount point, of the whole file system if it has one; empty without a path."""
    mounts: Numbers
    mount_roots: dict[int, str]
    """Shortest path of each dentry that is the root of a mount with a path."""
    mounts_at_home: tuple[int, int | None] = (0, None)
    """Mounts in init's mount namespace, and the namespace's own count, or None."""
    damaged: int = 0
    """Lists of super blocks or of mounts that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    def device_name(self, row: int) -> str:
        """Return ``major:minor``."""
        device = int(self.device[row])
        return f"{device >> 20}:{device & 0xFFFFF}"


@once
def super_blocks(kernel: Kernel) -> SuperBlocks:
    """Return all super blocks of the kernel.

    Mounts are read by super block, in one chase over all lists, and not by namespace: so the mounts
    of the kernel and detached ones are found as well.

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list is not in the dump
    """
    memory, prog, faults = kernel.memory, kernel.memory.prog, Faults()
    type_ = prog.type("struct super_block")
    members = {"type": "s_type", "id": "s_id", "device": "s_dev", "root": "s_root"}
    head = prog["super_blocks"].address_of_().value_()
    nodes, damaged = _both_ways(memory, head, faults)
    address = nodes - np.uint64(drgn.offsetof(type_, "s_list"))
    read = gather(memory, address, layout(prog, type_, members, {"subtype": "s_subtype"}), faults)
    # The last node of a torn list may be anything.
    address = address[read.readable]
    columns = {name: column[read.readable] for name, column in read.columns.items()}
    kinds, kind = np.unique(columns["type"], return_inverse=True)
    kind_layout = layout(prog, "struct file_system_type", ["name"])
    kind_names = texts(memory, gather(memory, kinds, kind_layout, faults)["name"], faults)
    types = [kind_names[each] for each in kind.tolist()]
    faults.add("the file system type has no name", sum(name in ("", "?") for name in types))
    with suppress(*MISSING):
        strays = _strays(memory, address, columns["type"], kinds, faults)
        faults.add("the file system type does not list the super block", strays)
    subtypes = columns.get("subtype", np.zeros(len(types), np.uint64))
    rows = np.flatnonzero(subtypes)
    for row, text in zip(rows.tolist(), texts(memory, subtypes[rows], faults), strict=True):
        types[row] += f".{text}"
    mounts = _Mounts(memory, address, faults)
    roots = mounts.roots()
    state, mount = mounts.chosen(columns["root"], roots)
    return SuperBlocks(
        address=address,
        type=types,
        id=[decode_array(raw) for raw in columns["id"].tolist()],
        device=columns["device"].astype(np.uint32),
        root=columns["root"],
        state=state,
        mount=mount,
        mounts=np.bincount(mounts.owner, minlength=len(address)),
        mount_roots=roots,
        mounts_at_home=(int(np.count_nonzero(mounts.at_home)), mounts.counted),
        damaged=damaged + mounts.damaged,
        faults=faults,
    )


def _strays(memory: Memory, address: Words, type_: Words, kinds: Words, faults: Faults) -> int:
    """Return the number of super blocks that are not on the list of their file system type.

    One that is being unmounted has left the list.

    :param type_: address of the ``file_system_type`` of each super block
    :param kinds: addresses of all types, sorted
    :raises LookupError: the debug info lacks a member
    """
    node = layout(memory.prog, "struct super_block", {"pprev": "s_instances.pprev"})
    offset = np.uint64(drgn.offsetof(memory.prog.type("struct super_block"), "s_instances"))
    head = layout(memory.prog, "struct file_system_type", {"first": "fs_supers.first"})
    step = pointer_step(memory, layout(memory.prog, "struct hlist_node", ["next"]), "next", faults)
    first = gather(memory, kinds, head, faults)["first"]
    kind, nodes = collect(first, step, limit=_MAX_LIST, damage=Damage())
    listed = rows_of(nodes, address + offset, np.argsort(nodes, kind="stable"))
    own = kinds[kind][np.maximum(listed, 0)] if len(nodes) else np.zeros(len(address), np.uint64)
    is_listed = (listed >= 0) & (own == type_)
    instance = gather(memory, address, node, faults)
    return int(np.count_nonzero(~is_listed & instance.readable & (instance["pprev"] != 0)))


def _both_ways(memory: Memory, head: int, faults: Faults) -> tuple[Words, int]:
    """Return the nodes of a list in either direction, and the number of damaged directions.

    A pointer that skips nodes still leads to the end: only the other direction has them.
    """
    nodes, damaged = circular(memory, head, faults, limit=_MAX_LIST)
    if damaged:
        return nodes, damaged  # the list was followed both ways
    link = layout(memory.prog, "struct list_head", ["prev"])
    damage, ends = Damage(), np.array([head], np.uint64)
    last = np.array([memory.word(head + link.fields["prev"].offset)], np.uint64)
    step = pointer_step(memory, link, "prev", faults)
    _, backwards = collect(last, step, limit=_MAX_LIST, damage=damage, ends=ends)
    others = np.setdiff1d(backwards, nodes)
    differ = len(others) > 0 or len(backwards) != len(nodes)
    return np.concatenate([nodes, others]), max(damage.lists, int(differ))


class _Mounts:
    def __init__(self, memory: Memory, super_blocks: Words, faults: Faults) -> None:
        prog = memory.prog
        type_ = prog.type("struct mount")
        head = layout(prog, "struct super_block", {"first": ("s_mounts.next", "s_mounts")})
        first = gather(memory, super_blocks, head, faults)
        # Since Linux kernel commit 09a1b33c080f ("preparations to taking MNT_WRITE_HOLD out of
        # ->mnt_flags") (in v6.18), a list that ends in NULL; before, a circular list.
        link, ends, offset = layout(prog, type_, {}, {"next": "mnt_next_for_sb"}), None, 0
        circular_lists = "next" not in link
        if circular_lists:
            link = layout(prog, "struct list_head", ["next"])
            ends = super_blocks + np.uint64(head.fields["first"].offset)
            offset = drgn.offsetof(type_, "mnt_instance")
        damage = Damage()
        step = pointer_step(memory, link, "next", faults)
        owner, nodes = collect(first["first"], step, limit=_MAX_LIST, damage=damage, ends=ends)
        self.damaged = damage.lists + int((~first.readable).sum())
        """Lists that could not be followed to their end, plus one for an unknown home namespace."""
        if circular_lists:
            # After a pointer that skips nodes, the next node has another predecessor.
            links = layout(prog, "struct list_head", ["prev"])
            before = gather(memory, nodes, links, faults)
            known = np.concatenate([nodes, ends if ends is not None else nodes[:0]])
            strays = before.readable & ~np.isin(before["prev"], known)
            self.damaged += len(np.unique(owner[strays]))
        address, rows = np.unique(nodes - np.uint64(offset), return_index=True)
        names = {"parent": "mnt_parent", "point": "mnt_mountpoint", "root": "mnt.mnt_root"}
        read = gather(memory, address, layout(prog, type_, names | {"namespace": "mnt_ns"}), faults)
        readable = read.readable
        self.owner = owner[rows][readable]
        """Row of the super block of each mount."""
        self.parent = rows_of(address[readable], read["parent"][readable])
        self.point, self.root = read["point"][readable], read["root"][readable]
        namespace = read["namespace"][readable]
        # Init's namespace, which kernel threads need not share.
        home = 0
        self.counted: int | None = None
        """Mounts of init's namespace by its own count; None if unknown."""
        with suppress(LookupError, AttributeError, TypeError, drgn.FaultError):
            home = int(prog["init_pid_ns"].child_reaper.nsproxy.mnt_ns)
        # Since Linux kernel commit d29216842a85 ("mnt: Add a per mount namespace limit on the
        # number of mounts") (in v4.9), a namespace counts its mounts. Since commit 2eea9ce4310d
        # ("mounts: keep list of mounts in an rbtree") (in v6.8), the member is nr_mounts.
        with suppress(*MISSING):
            count = layout(prog, "struct mnt_namespace", {"mounts": ("nr_mounts", "mounts")})
            read = gather(memory, np.array([home], np.uint64), count, faults)
            self.counted = int(read["mounts"][0]) if read.readable[0] else None
        # Without a home namespace, all mounts seem to be elsewhere.
        self.damaged += int(not home)
        self.at_home: Mask = namespace == np.uint64(home)
        # Mounts that the kernel made for itself have an error number as namespace; mounts that are
        # detached, or not yet attached, have NULL.
        self.internal: Mask = namespace >= np.uint64((1 << 64) - 4096)
        self.reachable: Mask = (namespace != 0) & ~self.internal
        placed = self.reachable & (self.parent != np.arange(len(self.parent)))
        self.above = ancestry(memory, self.point[placed], faults)
        self._paths: dict[int, str] = {}

    def path(self, row: int) -> str:
        stack: list[int] = []
        while row not in self._paths:
            parent = int(self.parent[row])
            if parent == row or parent < 0 or parent in stack or len(stack) > _MAX_DEPTH:
                # It is the topmost, or its parent is lost: only the end of the path is known.
                self._paths[row] = "" if parent == row else f"?{self._below(row, 0)}"
                break
            stack.append(row)
            row = parent
        for mount in reversed(stack):
            root = int(self.root[row])
            self._paths[mount] = self._paths[row] + self._below(mount, root)
            row = mount
        return self._paths[row] or "/"

    def _below(self, row: int, root: int) -> str:
        path, above = "", self.above
        for ancestor in above.up(int(above.rows(self.point[row : row + 1])[0])):
            if int(above.address[ancestor]) == root or above.is_root(ancestor):
                break
            path = f"/{above.name[ancestor]}{path}"
        return path

    def roots(self) -> dict[int, str]:
        """Return the shortest path of each root of a mount, preferring init's namespace."""
        best: dict[int, tuple[bool, int, str]] = {}
        for row in np.flatnonzero(self.reachable).tolist():
            path, root = self.path(row), int(self.root[row])
            rank = (not self.at_home[row], len(path), path)
            best[root] = min(best.get(root, rank), rank)
        return {root: path for root, (_, _, path) in sorted(best.items())}

    def chosen(
        self, super_root: Words, roots: dict[int, str]
    ) -> tuple[list[MountState], list[str]]:
        best: dict[int, tuple[bool, bool, int, str]] = {}
        state = [MountState.UNMOUNTED] * len(super_root)
        for owner in self.owner.tolist():
            state[owner] = MountState.DETACHED
        for owner in self.owner[self.internal].tolist():
            state[owner] = MountState.KERNEL
        for row in np.flatnonzero(self.reachable).tolist():
            owner, root = int(self.owner[row]), int(self.root[row])
            path = roots[root]
            rank = (not self.at_home[row], root != int(super_root[owner]), len(path), path)
            best[owner] = min(best.get(owner, rank), rank)
        mount = [""] * len(super_root)
        for owner, (away, _, _, path) in best.items():
            mount[owner] = path
            state[owner] = MountState.ELSEWHERE if away else MountState.MOUNTED
        return state, mount
