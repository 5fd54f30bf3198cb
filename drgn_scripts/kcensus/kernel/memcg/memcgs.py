# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups: all that exist, dying ones included, with their paths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, Lanes, chase, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.strings import c_strings
from kcensus.kernel.kernel import Kernel, once

_MAX = 1 << 22
"""No machine has that many memory cgroups: a longer list is damage."""
_DEEPEST = 1024
"""Nor are they nested that deeply."""


@dataclass(frozen=True)
class Memcgs:
    """Memory cgroups as columns, parents before children; the root is the first."""

    address: Words
    """Of the ``struct mem_cgroup``."""
    parent: npt.NDArray[np.int64]
    """Row of the parent, -1 for the root."""
    path: list[str]
    """Within the cgroup hierarchy, valid Unicode but not safe to print: bytes that are no UTF-8
    stand as ``\\xff``."""
    alive: Mask
    """Online and not being removed; the others are dying, or dead and pinned."""
    damaged: int = 0
    """Lists of children that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)
    online: Mask = field(default_factory=lambda: np.empty(0, np.bool_))
    """Not offline yet: being removed, or in use. Offline ones have lost their id."""
    kmemcg_id: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Index in the per-memcg lists of every list_lru; -1 for the root, and where there is none.
    Up to 5.15 a cgroup takes over its parent's when it goes offline (642688681133, 5.16, ended
    that), so only those of cgroups that are online mean anything."""
    serial: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    """Ascending in order of creation, over the states of all controllers; zeros if unknown."""

    def __len__(self) -> int:
        return len(self.address)

    def rows(self, addresses: Words) -> npt.NDArray[np.int64]:
        """Rows of ``struct mem_cgroup`` pointers, -1 for unknown ones."""
        if not len(self):
            return np.full(len(addresses), -1)
        order = np.argsort(self.address)
        at = np.searchsorted(self.address[order], addresses)
        at[at == len(order)] = 0
        found = order[at]
        rows: npt.NDArray[np.int64] = np.where(self.address[found] == addresses, found, -1)
        return rows


@once
def memcgs(kernel: Kernel) -> Memcgs:
    """All memory cgroups of the kernel; none without CONFIG_MEMCG or with it disabled at boot.

    A ``cgroup_subsys_state`` stays on its parent's list of children until it is *released*, so
    this walk finds those that were removed long ago and are kept by what is charged to them. The
    registries of ids forget them when they go offline. (4.4 and later; the kernels of RHEL 7 take
    it off the list at rmdir.)
    """
    prog, memory = kernel.prog, kernel.memory
    try:
        root = prog["root_mem_cgroup"]
    except KeyError:
        root = None
    none = Memcgs(np.empty(0, np.uint64), np.empty(0, np.int64), [], np.empty(0, np.bool_))
    try:
        return _Walk(memory, root).all() if root is not None and root else none
    except (LookupError, drgn.FaultError):
        # Whose objects they are is then not known, but how many there are still is.
        return replace(none, damaged=1)


class _Walk:
    def __init__(self, memory: Memory, root: drgn.Object) -> None:
        self.memory = memory
        self.root = root
        prog = memory.prog
        memcg, css = prog.type("struct mem_cgroup"), prog.type("struct cgroup_subsys_state")
        self.css = np.uint64(drgn.offsetof(memcg, "css"))
        self.children = np.uint64(drgn.offsetof(css, "children"))
        self.sibling = np.uint64(drgn.offsetof(css, "sibling"))
        self.state = layout(
            prog,
            css,
            {"flags": "flags", "cgroup": "cgroup", "next": "children.next"},
            {"serial": "serial_nr"},
        )
        # CONFIG_MEMCG_KMEM until 6.10, CONFIG_MEMCG since.
        self.id = layout(prog, memcg, {}, {"id": "kmemcg_id"})
        self.link = layout(prog, "struct list_head", ["next"])
        self.kn = layout(prog, "struct cgroup", ["kn"])
        self.name = layout(prog, "struct kernfs_node", ["name"])
        self.online = np.uint32(prog.constant("CSS_ONLINE").value_())
        try:
            self.dying = np.uint32(prog.constant("CSS_DYING").value_())
        except LookupError:  # since 4.12
            self.dying = np.uint32(0)
        self.faults = Faults()

    def all(self) -> Memcgs:
        """Walk the tree level by level: the children of one level are read together."""
        level = np.array([self.root.css.address_of_().value_()], np.uint64)
        parent = np.array([-1])
        levels, parents, paths = [], [], list[str]()
        flags, serials = [], []
        seen = np.empty(0, np.uint64)
        first = damaged = 0
        for _ in range(_DEEPEST):
            if not len(level) or len(seen) > _MAX:
                break
            states = gather(self.memory, level, self.state, self.faults)
            # The last node of a torn list is whatever its last pointer points at.
            level, parent = level[states.readable], parent[states.readable]
            state = {name: column[states.readable] for name, column in states.columns.items()}
            for row, name in zip(parent.tolist(), self._names(state["cgroup"]), strict=True):
                above = "" if row <= 0 else paths[row]
                paths.append("/" if row < 0 else f"{above}/{name}")
            levels.append(level)
            parents.append(parent)
            flags.append(state["flags"])
            serials.append(state.get("serial", np.zeros(len(level), np.uint64)))
            seen = np.union1d(seen, level)
            lanes, below, torn = self._children(level, state["next"])
            # A torn list may lead back into the tree; nobody is to be counted twice.
            fresh = np.zeros(len(below), np.bool_)
            fresh[np.unique(below, return_index=True)[1]] = True
            fresh &= ~np.isin(below, seen)
            damaged += len(np.union1d(torn, lanes[~fresh]))
            order = np.argsort(lanes[fresh], kind="stable")
            parent, first = lanes[fresh][order] + first, first + len(level)
            level = below[fresh][order]
        damaged += len(level)
        address, state_flags = np.concatenate(levels) - self.css, np.concatenate(flags)
        online = (state_flags & self.online) != 0
        return Memcgs(
            address,
            np.concatenate(parents),
            paths,
            online & ((state_flags & self.dying) == 0),
            damaged,
            self.faults,
            online,
            self._ids(address),
            np.concatenate(serials),
        )

    def _ids(self, address: Words) -> npt.NDArray[np.int64]:
        if "id" not in self.id:
            return np.full(len(address), -1)
        read = gather(self.memory, address, self.id, self.faults)
        return np.where(read.readable, read["id"].astype(np.int64), -1)

    def _children(self, level: Words, first: Words) -> tuple[Lanes, Words, Lanes]:
        """The children of one level: rows of their parents, their css, and torn lists' rows."""
        damage = Damage()
        walk = list(
            chase(
                first,
                pointer_step(self.memory, self.link, "next", self.faults),
                limit=_MAX,
                damage=damage,
                ends=level + self.children,
            )
        )
        if not walk:
            return np.empty(0, np.int64), np.empty(0, np.uint64), damage.lanes()
        lanes = np.concatenate([lanes for lanes, _ in walk])
        nodes = np.concatenate([nodes for _, nodes in walk])
        return lanes, nodes - self.sibling, damage.lanes()

    def _names(self, cgroups: Words) -> list[str]:
        nodes = gather(self.memory, cgroups, self.kn, self.faults)
        names = gather(self.memory, nodes["kn"], self.name, self.faults)
        return [
            "?" if raw is None else raw.decode(errors="backslashreplace")
            for raw in c_strings(self.memory, names["name"], self.faults)
        ]
