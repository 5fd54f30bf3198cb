# SPDX-License-Identifier: LGPL-2.1-or-later
"""All super blocks and their mounts; some super blocks are not mounted."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, chase, circular, pointer_step
from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.rows import rows_of
from kcensus.engine.strings import c_strings
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.vfs.paths import ancestry

_MAX_LIST = 1 << 22
"""A longer list of super blocks, or of mounts of one, is damage."""
_MAX_DEPTH = 1024
"""A longer chain of parent mounts is damage."""


class MountState(enum.Enum):
    """Which processes reach a super block by a path."""

    MOUNTED = "mounted"
    """Those in init's mount namespace."""
    ELSEWHERE = "other namespace"
    """Only those in other mount namespaces, such as containers; the path is the one they see."""
    KERNEL = "kernel"
    """None: the kernel mounts it for itself (pipefs, sockfs, …)."""
    DETACHED = "detached"
    """None: its mounts are in no namespace. They are internal, or unmounted lazily and in use."""
    UNMOUNTED = "unmounted"
    """None: it has no mount. It is being mounted, or references keep it alive."""


@dataclass(frozen=True)
class SuperBlocks:
    """Super blocks as columns, in the order of the kernel's list."""

    address: Words
    """Of the ``struct super_block``."""
    type: list[str]
    """Name of the file system type, with the subtype if it has one: ``xfs``, ``fuse.sshfs``. Like
    all text here: valid Unicode but not safe to print, bytes that are not UTF-8 are written
    as ``\\xff``."""
    id: list[str]
    """``s_id``: the device's name, or the type's."""
    device: npt.NDArray[np.uint32]
    """``s_dev``, as the kernel packs it: 12 bits of major and 20 of minor."""
    root: Words
    """``struct dentry *`` of the root; 0 while it is being mounted or killed."""
    state: list[MountState]
    mount: list[str]
    """Shortest mount point, of the whole file system if it has one; empty without a path."""
    mounts: npt.NDArray[np.int64]
    """Number of mounts, in all namespaces."""
    mount_roots: dict[int, str]
    """Shortest path of each dentry that is the root of a mount with a path."""
    damaged: int = 0
    """Lists of super blocks or of mounts that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.address)

    def rows(self, addresses: Words) -> npt.NDArray[np.int64]:
        """Return the row of each ``struct super_block *``, or -1."""
        return rows_of(self.address, addresses, self._order)

    @cached_property
    def _order(self) -> npt.NDArray[np.int64]:
        return np.argsort(self.address)

    def device_name(self, row: int) -> str:
        """Return ``major:minor``."""
        device = int(self.device[row])
        return f"{device >> 20}:{device & 0xFFFFF}"


@once
def super_blocks(kernel: Kernel) -> SuperBlocks:
    """Return all super blocks of the kernel.

    Mounts are read by super block, not by namespace: that also covers the mounts of the kernel and
    detached ones, and is one chase over all lists (drgn's ``for_each_mount()`` and ``mount_dst()``
    take 0.35 ms a mount).

    :raises LookupError: the debug info lacks a type or variable
    :raises drgn.FaultError: the head of the list is not in the dump
    """
    return _Reader(kernel.memory).read()


class _Reader:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.prog = memory.prog
        self.faults = Faults()
        self.type = self.prog.type("struct super_block")
        self.members = layout(
            self.prog,
            self.type,
            {"type": "s_type", "id": "s_id", "device": "s_dev", "root": "s_root"},
            {"subtype": "s_subtype"},
        )

    def read(self) -> SuperBlocks:
        """Read the super blocks, then their mounts."""
        head = self.prog["super_blocks"].address_of_().value_()
        nodes, damaged = circular(self.memory, head, self.faults, limit=_MAX_LIST)
        address = nodes - np.uint64(drgn.offsetof(self.type, "s_list"))
        read = gather(self.memory, address, self.members, self.faults)
        # The last node of a torn list may be anything.
        address = address[read.readable]
        columns = Gathered(
            {name: column[read.readable] for name, column in read.columns.items()},
            np.ones(len(address), np.bool_),
        )
        mounts = _Mounts(self.memory, address, self.faults)
        roots = mounts.roots()
        state, mount = mounts.chosen(columns["root"], roots)
        return SuperBlocks(
            address=address,
            type=self._types(columns),
            id=[_text(raw.partition(b"\0")[0]) for raw in columns["id"].tolist()],
            device=columns["device"].astype(np.uint32),
            root=columns["root"],
            state=state,
            mount=mount,
            mounts=np.bincount(mounts.owner, minlength=len(address)),
            mount_roots=roots,
            damaged=damaged + mounts.damaged,
            faults=self.faults,
        )

    def _types(self, columns: Gathered) -> list[str]:
        kinds, kind_of = np.unique(columns["type"], return_inverse=True)
        member = layout(self.prog, "struct file_system_type", ["name"])
        read = gather(self.memory, kinds, member, self.faults)
        names = [_text(raw) for raw in c_strings(self.memory, read["name"], self.faults)]
        types = [names[kind] for kind in kind_of.tolist()]
        subtypes = columns.columns.get("subtype", np.zeros(len(types), np.uint64))
        rows = np.flatnonzero(subtypes)
        texts = c_strings(self.memory, subtypes[rows], self.faults)
        for row, text in zip(rows.tolist(), texts, strict=True):
            types[row] += f".{_text(text)}"
        return types


class _Mounts:
    """The mounts of super blocks."""

    def __init__(self, memory: Memory, super_blocks: Words, faults: Faults) -> None:
        self.memory = memory
        self.prog = memory.prog
        self.faults = faults
        self.type = self.prog.type("struct mount")
        address, self.owner, self.damaged = self._find(super_blocks)
        """Row of the super block of each mount."""
        names = {"parent": "mnt_parent", "point": "mnt_mountpoint", "root": "mnt.mnt_root"}
        members = layout(self.prog, self.type, names | {"namespace": "mnt_ns"})
        read = gather(memory, address, members, faults)
        good = read.readable
        self.address, self.owner = address[good], self.owner[good]
        self.parent = rows_of(self.address, read["parent"][good])
        self.point, self.root = read["point"][good], read["root"][good]
        namespace = read["namespace"][good]
        self.at_home: Mask = namespace == np.uint64(self._home())
        # The namespace of a mount that the kernel made for itself is an error number; that of a
        # mount that is detached, or not yet attached, is NULL.
        self.internal: Mask = namespace >= np.uint64((1 << 64) - 4096)
        self.reachable: Mask = (namespace != 0) & ~self.internal
        placed = self.reachable & (self.parent != np.arange(len(self.address)))
        self.above = ancestry(memory, self.point[placed], faults)
        self._paths: dict[int, str] = {}

    def _find(self, super_blocks: Words) -> tuple[Words, npt.NDArray[np.int64], int]:
        """Return all mounts, ascending, the rows of their super blocks, and torn lists."""
        head = layout(self.prog, "struct super_block", {"first": ("s_mounts.next", "s_mounts")})
        first = gather(self.memory, super_blocks, head, self.faults)
        # Since Linux kernel commit 09a1b33c080f ("preparations to taking MNT_WRITE_HOLD out of
        # ->mnt_flags") (in v6.18), a list that ends in NULL; before, a circular list.
        own = self.type.has_member("mnt_next_for_sb")
        link = layout(self.prog, self.type, {"next": ("mnt_next_for_sb", "mnt_instance.next")})
        offset = link.fields["next"].offset
        back = 0 if own else offset
        ends = None
        if not own:
            ends = super_blocks + np.uint64(head.fields["first"].offset)
            link = layout(self.prog, "struct list_head", ["next"])
        damage = Damage()
        step = pointer_step(self.memory, link, "next", self.faults)
        walk = list(chase(first["first"], step, limit=_MAX_LIST, damage=damage, ends=ends))
        torn = damage.lists + int((~first.readable).sum())
        if not walk:
            return np.empty(0, np.uint64), np.empty(0, np.int64), torn
        address = np.concatenate([nodes for _, nodes in walk]) - np.uint64(back)
        owner = np.concatenate([lanes for lanes, _ in walk])
        address, rows = np.unique(address, return_index=True)
        return address, owner[rows], torn

    def _home(self) -> int:
        """Return init's mount namespace, which kernel threads need not share; 0 if unreadable."""
        try:
            return int(self.prog["init_pid_ns"].child_reaper.nsproxy.mnt_ns)
        except (LookupError, drgn.FaultError):
            return 0

    def path(self, row: int) -> str:
        """Return the path of a mount from the root of its namespace."""
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
        """Return the path of the mount point from the root of the mount that it is on."""
        names = []
        start = int(self.above.rows(self.point[row : row + 1])[0])
        for above in self.above.up(start):
            if int(self.above.address[above]) == root or self.above.is_root(above):
                break
            names.append(self.above.name[above])
        return "".join(f"/{name}" for name in reversed(names))

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
        """Return the state and the mount point of each super block."""
        best: dict[int, tuple[bool, bool, int, str]] = {}
        state = [MountState.UNMOUNTED] * len(super_root)
        for owner in np.unique(self.owner).tolist():
            state[owner] = MountState.DETACHED
        for row in np.flatnonzero(self.internal).tolist():
            state[self.owner[row]] = MountState.KERNEL
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


def _text(raw: bytes | None) -> str:
    return "?" if raw is None else raw.decode(errors="backslashreplace")
