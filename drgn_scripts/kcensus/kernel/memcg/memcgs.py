# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups: all that exist, offline (dying) ones included, with their paths."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Mask, Memory, Words
from kcensus.engine.rows import rows_of
from kcensus.engine.strings import c_strings
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import decode

_MAX_MEMCGS = 1 << 22
"""More than any machine has, so a longer list is damaged."""
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
        return rows_of(self.address, addresses, np.argsort(self.address))


@once
def memcgs(kernel: Kernel) -> Memcgs:
    """Return all memory cgroups; none without CONFIG_MEMCG or with it disabled at boot.

    A ``cgroup_subsys_state`` stays on its parent's list of children until it is *released*, so
    this walk finds those that were removed long ago and are pinned by what is charged to them. The
    registries of ids drop them when they go offline. (Kernels before 4.4, and those of RHEL 7,
    take it off the list at rmdir.)
    """
    damaged = 0
    with contextlib.suppress(KeyError):
        root = kernel.prog["root_mem_cgroup"]
        try:
            if root:
                return _walk(kernel.memory, root)
        except (LookupError, drgn.FaultError):
            # Objects can then not be attributed to memory cgroups, but still be counted.
            damaged = 1
    words, rows, mask = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.bool_)
    return Memcgs(words, rows, [], mask, mask, rows, words, damaged)


def _walk(memory: Memory, root: drgn.Object) -> Memcgs:
    """Walk the tree level by level: the children of one level are read together."""
    prog, faults = memory.prog, Faults()
    memcg, css = prog.type("struct mem_cgroup"), prog.type("struct cgroup_subsys_state")
    children, sibling = (np.uint64(drgn.offsetof(css, name)) for name in ("children", "sibling"))
    required = {"flags": "flags", "cgroup": "cgroup", "first": "children.next"}
    members = layout(prog, css, required, {"serial": "serial_nr"})
    link = layout(prog, "struct list_head", ["next"])
    online = np.uint32(prog.constant("CSS_ONLINE").value_())
    try:
        dying = np.uint32(prog.constant("CSS_DYING").value_())
    except LookupError:
        # CSS_DYING was added in Linux kernel commit 33c35aa48178 ("cgroup: Prevent kill_css()
        # from being called more than once") (in v4.12).
        dying = np.uint32(0)
    level = np.array([root.css.address_of_().value_()], np.uint64)
    parent, paths = np.array([-1]), list[str]()
    levels: list[tuple[Words, ...]] = []
    seen = np.empty(0, np.uint64)
    damaged = 0
    while len(level) and len(levels) < _MAX_DEPTH and len(seen) <= _MAX_MEMCGS:
        states = gather(memory, level, members, faults)
        # The last node of a torn list is whatever its last pointer points at.
        level, parent = level[states.readable], parent[states.readable]
        state = {name: column[states.readable] for name, column in states.columns.items()}
        for row, name in zip(parent.tolist(), _names(memory, state["cgroup"], faults), strict=True):
            above = "" if row <= 0 else paths[row]
            paths.append("/" if row < 0 else f"{above}/{name}")
        levels.append((level, parent, state["flags"], state.get("serial", np.zeros_like(level))))
        seen = np.union1d(seen, level)
        damage, step = Damage(), pointer_step(memory, link, "next", faults)
        lanes, nodes = collect(
            state["first"], step, limit=_MAX_MEMCGS, damage=damage, ends=level + children
        )
        below = nodes - sibling
        # A torn list may lead back into the tree: count each memory cgroup once.
        fresh = np.zeros(len(below), np.bool_)
        fresh[np.unique(below, return_index=True)[1]] = True
        fresh &= ~np.isin(below, seen)
        damaged += len(np.union1d(damage.lanes(), lanes[~fresh]))
        order = np.flatnonzero(fresh)[np.argsort(lanes[fresh], kind="stable")]
        parent, level = lanes[order] + len(paths) - len(level), below[order]
    css_address, parent, flags, serial = (np.concatenate(c) for c in zip(*levels, strict=True))
    address = css_address - np.uint64(drgn.offsetof(memcg, "css"))
    # Since Linux kernel commit 3a3b7fec3974 ("mm: remove CONFIG_MEMCG_KMEM") (in v6.11), every
    # kernel with CONFIG_MEMCG has kmemcg_id.
    ids = gather(memory, address, layout(prog, memcg, {}, {"id": "kmemcg_id"}), faults)
    kmemcg_id = ids.columns.get("id", np.full(len(address), -1)).astype(np.int64)
    has_id = (flags & online) != 0
    return Memcgs(
        address=address,
        parent=parent,
        path=paths,
        online=has_id & ((flags & dying) == 0),
        has_id=has_id,
        kmemcg_id=np.where(ids.readable, kmemcg_id, -1),
        serial=serial,
        damaged=damaged + len(level),
        faults=faults,
    )


def _names(memory: Memory, cgroups: Words, faults: Faults) -> list[str]:
    nodes = gather(memory, cgroups, layout(memory.prog, "struct cgroup", ["kn"]), faults)
    member = layout(memory.prog, "struct kernfs_node", ["name"])
    names = gather(memory, nodes["kn"], member, faults)
    texts = c_strings(memory, names["name"], faults)
    return ["?" if raw is None else decode(raw) for raw in texts]
