# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups: all that exist, offline (dying) ones included, with their paths."""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, Lanes, chase, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.strings import c_strings
from kcensus.kernel.kernel import Kernel, once

_MAX_MEMCGS = 1 << 22
"""More than any machine has: a longer list is damaged."""
_MAX_DEPTH = 1024


@dataclass(frozen=True)
class Memcgs:
    """Memory cgroups as columns, shape (memcgs,); parents before children, the root first."""

    address: Words
    """``struct mem_cgroup`` pointers."""
    parent: npt.NDArray[np.int64]
    """Row of the parent, -1 for the root."""
    path: list[str]
    """Within the cgroup hierarchy: valid Unicode (other bytes are written ``\\xff``), not safe to
    print."""
    online: Mask
    """CSS_ONLINE and not CSS_DYING; the others are offline (dying)."""
    has_id: Mask
    """CSS_ONLINE: :attr:`kmemcg_id` is its own. An rmdir that is still running sets CSS_DYING
    first, so a memory cgroup can be offline here and still have its id."""
    kmemcg_id: npt.NDArray[np.int64]
    """Index in the per-memcg lists of every list_lru; -1 for the root, and without
    CONFIG_MEMCG_KMEM. Meaningless unless :attr:`has_id`: before Linux kernel commit 642688681133
    ("mm: memcontrol: remove kmemcg_id reparenting") (in v5.16), a memory cgroup that goes offline
    takes over its parent's id; since then another one may have the id."""
    serial: Words
    """``cgroup_subsys_state.serial_nr``, ascending in order of creation over the states of all
    controllers; zeros if unknown."""
    damaged: int = 0
    """Lists of children that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)

    def __len__(self) -> int:
        return len(self.address)

    def rows(self, addresses: Words) -> npt.NDArray[np.int64]:
        """Return the row of each ``struct mem_cgroup`` pointer, or -1."""
        if not len(self):
            return np.full(len(addresses), -1)
        order = np.argsort(self.address)
        place = np.searchsorted(self.address[order], addresses)
        place[place == len(order)] = 0
        row = order[place]
        return np.where(self.address[row] == addresses, row, -1)


@once
def memcgs(kernel: Kernel) -> Memcgs:
    """Return all memory cgroups; none without CONFIG_MEMCG or with it disabled at boot.

    A ``cgroup_subsys_state`` stays on its parent's list of children until it is *released*, so
    this walk finds those that were removed long ago and are pinned by what is charged to them. The
    registries of ids drop them when they go offline. (Kernels before 4.4, and those of RHEL 7,
    take it off the list at rmdir.)
    """
    try:
        root = kernel.prog["root_mem_cgroup"]
    except KeyError:
        return _none(damaged=0)
    try:
        return _Walk(kernel.memory, root).all() if root else _none(damaged=0)
    except (LookupError, drgn.FaultError):
        # Objects can then not be attributed to memory cgroups, but still be counted.
        return _none(damaged=1)


def _none(damaged: int) -> Memcgs:
    words, rows, mask = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.bool_)
    return Memcgs(words, rows, [], mask, mask, rows, words, damaged)


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
        # Since Linux kernel commit 3a3b7fec3974 ("mm: remove CONFIG_MEMCG_KMEM") (in v6.11), every
        # kernel with CONFIG_MEMCG has kmemcg_id.
        self.id = layout(prog, memcg, {}, {"id": "kmemcg_id"})
        self.link = layout(prog, "struct list_head", ["next"])
        self.kn = layout(prog, "struct cgroup", ["kn"])
        self.name = layout(prog, "struct kernfs_node", ["name"])
        self.online = np.uint32(prog.constant("CSS_ONLINE").value_())
        try:
            self.dying = np.uint32(prog.constant("CSS_DYING").value_())
        except LookupError:
            # CSS_DYING was added in Linux kernel commit 33c35aa48178 ("cgroup: Prevent kill_css()
            # from being called more than once") (in v4.12).
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
        for _ in range(_MAX_DEPTH):
            if not len(level) or len(seen) > _MAX_MEMCGS:
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
            # A torn list may lead back into the tree: count each memory cgroup once.
            fresh = np.zeros(len(below), np.bool_)
            fresh[np.unique(below, return_index=True)[1]] = True
            fresh &= ~np.isin(below, seen)
            damaged += len(np.union1d(torn, lanes[~fresh]))
            order = np.argsort(lanes[fresh], kind="stable")
            parent, first = lanes[fresh][order] + first, first + len(level)
            level = below[fresh][order]
        damaged += len(level)
        address, state_flags = np.concatenate(levels) - self.css, np.concatenate(flags)
        has_id = (state_flags & self.online) != 0
        return Memcgs(
            address=address,
            parent=np.concatenate(parents),
            path=paths,
            online=has_id & ((state_flags & self.dying) == 0),
            has_id=has_id,
            kmemcg_id=self._ids(address),
            serial=np.concatenate(serials),
            damaged=damaged,
            faults=self.faults,
        )

    def _ids(self, address: Words) -> npt.NDArray[np.int64]:
        if "id" not in self.id:
            return np.full(len(address), -1)
        read = gather(self.memory, address, self.id, self.faults)
        return np.where(read.readable, read["id"].astype(np.int64), -1)

    def _children(self, level: Words, first: Words) -> tuple[Lanes, Words, Lanes]:
        """Return the children of one level: parents' rows, css, and the rows of torn lists."""
        damage = Damage()
        walk = list(
            chase(
                first,
                pointer_step(self.memory, self.link, "next", self.faults),
                limit=_MAX_MEMCGS,
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
