# SPDX-License-Identifier: LGPL-2.1-or-later
"""All memory cgroups, offline (dying) ones included, with their paths."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.engine.chase import Damage, Lanes, collect, pointer_step
from kcensus.engine.gather import Gathered, gather, gather_words
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.engine.slub.percpu import node_ids
from kcensus.engine.strings import c_strings
from kcensus.engine.zeros import is_lost
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import DAMAGED, decode
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

_MAX_MEMCGS = 1 << 22
_MAX_DEPTH = 1024
PER_NODE = "struct mem_cgroup_per_node"
_CSS, _MEMCG = "struct cgroup_subsys_state", "struct mem_cgroup"
_WAYS = ("next", "prev")
_KERNFS_TYPE_MASK, _KERNFS_DIR = 0xF, 1  # enum kernfs_node_type, include/linux/kernfs.h


@dataclass(frozen=True)
class Memcgs(Addressed):
    """Memory cgroups as columns, shape (memcgs,); parents before children, the root first."""

    address: Words
    """``struct mem_cgroup`` pointers."""
    parent: Numbers
    """Row of the parent, -1 for the root."""
    path: list[str]
    """Path within the cgroup hierarchy; Unicode, not safe to print."""
    online: Mask
    """CSS_ONLINE and not CSS_DYING, or the root; the others are offline (dying)."""
    has_id: Mask
    """CSS_ONLINE: :attr:`kmemcg_id` is its own. A running rmdir sets CSS_DYING first, so an offline
    memory cgroup may still have its id."""
    kmemcg_id: Numbers
    """Index in the per-memcg lists of every list_lru; -1 for the root, and without
    CONFIG_MEMCG_KMEM. Meaningless unless :attr:`has_id`: before Linux kernel commit 642688681133
    ("mm: memcontrol: remove kmemcg_id reparenting") (in v5.16), a memory cgroup that goes offline
    takes over its parent's id; since then another one may have the id."""
    serial: Words
    """``cgroup_subsys_state.serial_nr``, which grows with each new state; zeros if unknown."""
    cgroup: Words
    """``struct cgroup`` pointers; several controllers share one."""
    online_children: Numbers
    """Children with CSS_ONLINE: ``cgroup_subsys_state.online_cnt`` without the memcg itself."""
    damaged: int = 0
    """Lists of children that are torn, lead elsewhere, or differ by direction."""
    faults: Faults = field(default_factory=Faults)
    is_hierarchical: bool = True
    """Whether parents account for their children. Until Linux kernel commit bef8620cd8e0 ("mm:
    memcg: deprecate the non-hierarchical mode") (in v5.11), they need not."""
    unread: str = "torn or unreadable"
    """Reason of :attr:`damaged`."""
    ids_lost: int = 0
    """Lost entries or nodes of the registry of ids: removed ones may be missing (RHEL 7)."""

    @property
    def states(self) -> list[str]:
        """``online`` or ``offline`` for each."""
        return ["online" if is_online else "offline" for is_online in self.online.tolist()]

    @cached_property
    def list_owner(self) -> Numbers:
        """Row of the memory cgroup that has the lists of each: itself, or the nearest ancestor
        with CSS_ONLINE; the root, if the hierarchy is off."""
        owner = np.arange(len(self))
        if not self.is_hierarchical:
            return np.where(self.has_id, owner, 0)
        for row in np.flatnonzero(~self.has_id & (self.parent >= 0)).tolist():
            owner[row] = owner[self.parent[row]]  # parents come first
        return owner

    def unlisted(self, addresses: Words) -> int:
        """Return how many of the pointers lead to none of these, where any are known.

        Before 4.4 and on RHEL 7, removed memory cgroups are on no list, but may be charged.
        """
        return int((self.rows(np.unique(addresses[addresses != 0])) < 0).sum()) if len(self) else 0

    @property
    def newer(self) -> int | None:
        """Online memory cgroups created after the oldest offline one; None if unknown."""
        if not self.serial.any() or self.online.all():
            return None
        return int((self.serial[self.online] > self.serial[~self.online].min()).sum())


@once
def memcgs(kernel: Kernel) -> Memcgs:
    """Return all memory cgroups; none without CONFIG_MEMCG or with it disabled at boot.

    A ``cgroup_subsys_state`` stays on its parent's list of children until it is *released*, so the
    walk finds removed ones pinned by charges. (Before 4.4 and on RHEL 7, rmdir takes them off.)
    """
    damaged, unread = 0, Memcgs.unread
    with contextlib.suppress(KeyError):
        root = kernel.prog["root_mem_cgroup"]
        try:
            if root:
                found = _walk(kernel.memory, root)
                if not kernel.prog.type(_CSS).has_member("children"):
                    found = _with_removed(kernel, found)
                # There is a root at least, unless the pointer to it is bent.
                return replace(found, damaged=max(found.damaged, int(not len(found))))
            damaged = int(is_lost(root))
        # Objects can then not be attributed to memory cgroups, but still be counted.
        except LookupError as error:
            damaged, unread = 1, f"their layout is unknown to kcensus ({printable(str(error))})"
        except drgn.FaultError:
            damaged = 1
    words, rows, mask = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.bool_)
    return Memcgs(words, rows, [], mask, mask, rows, words, words, rows, damaged, unread=unread)


def per_node(
    memory: Memory, groups: Memcgs, rows: Numbers, faults: Faults
) -> tuple[Numbers, Words, int]:
    """Return rows and addresses of ``struct mem_cgroup_per_node``, and the unreadable pointers."""
    prog, nodes = memory.prog, node_ids(memory.prog)
    type_ = prog.type(_MEMCG)
    # RHEL 7 has the array in a structure of its own.
    place = "nodeinfo" if type_.has_member("nodeinfo") else "info.nodeinfo"
    first = np.uint64(drgn.offsetof(type_, place))
    steps = np.arange(nodes, dtype=np.uint64) * np.uint64(8) + first
    places = (groups.address[rows][:, None] + steps).ravel()
    pointers, readable = gather_words(memory, places, word_dtype(prog), faults)
    owners = np.repeat(rows, nodes)
    # Each memory cgroup has one for each possible node.
    known = (pointers != 0).reshape(-1, nodes).sum(axis=1)
    is_lost = readable.reshape(-1, nodes).all(axis=1) & (known < known.max(initial=0))
    faults.add("memory cgroups without a node", is_lost.sum())
    return owners[pointers != 0], pointers[pointers != 0], int((~readable).sum())


def newer_states(kernel: Kernel) -> Numbers:
    """Return the number of newer states of any controller for each memory cgroup; 0 if unknown."""
    serial = memcgs(kernel).serial
    with contextlib.suppress(*DAMAGED):
        if serial.any():
            return int(kernel.prog["css_serial_nr_next"]) - 1 - serial.astype(np.int64)
    return np.zeros(len(serial), np.int64)


def online_children(kernel: Kernel, groups: Memcgs) -> int:
    """Return the present sum of :attr:`Memcgs.online_children`."""
    prog = kernel.prog
    css = prog.type(_CSS)
    members = layout(prog, css, ["flags", "cgroup"], {"online": "online_cnt.counter"})
    places = groups.address + np.uint64(drgn.offsetof(prog.type(_MEMCG), "css"))
    read = gather(kernel.memory, places, members, Faults())
    if "online" not in members:
        return 0
    has_id = (read["flags"] & np.uint32(prog.constant("CSS_ONLINE").value_())) != 0
    counts = np.maximum(read["online"].astype(np.int64) - has_id, 0)
    # The memory of freed memory cgroups has other contents.
    return int(counts[read["cgroup"] == groups.cgroup].sum())


class _Tree:
    """The states of memory cgroups, each with its children.

    They are the nodes since Linux kernel commit d5c419b68e36 ("cgroup: move cgroup->sibling and
    ->children into cgroup_subsys_state") (in v3.16).
    """

    def __init__(self, memory: Memory, faults: Faults) -> None:
        self.memory, self.faults = memory, faults
        self.node = memory.prog.type(_CSS)
        required = {"flags": "flags", "cgroup": "cgroup", "parent": "parent"}
        required |= {way: f"children.{way}" for way in _WAYS}
        optional = {"serial": "serial_nr", "online": "online_cnt.counter"}
        self.members = layout(memory.prog, self.node, required, optional)

    def root(self, memcg: drgn.Object) -> int:
        """Return the address of the node of the root."""
        return int(memcg.css.address_of_())

    def read(self, nodes: Words) -> Gathered:
        """Return the columns of nodes; ``css`` has the addresses of their states."""
        states = gather(self.memory, nodes, self.members, self.faults)
        return replace(states, columns={**states.columns, "css": nodes})

    def names(self, states: dict[str, npt.NDArray[Any]]) -> list[str]:
        return _kernfs_names(self.memory, states["cgroup"], self.faults)


class _CgroupTree(_Tree):
    """Cgroups are the nodes, and have a pointer to the state of each controller."""

    def __init__(self, memory: Memory, faults: Faults) -> None:
        self.memory, self.faults = memory, faults
        prog = memory.prog
        self.node = prog.type("struct cgroup")
        number = int(prog["mem_cgroup_subsys"].subsys_id)
        required = {"css": f"subsys[{number}]", "parent": "parent", "name": "name"}
        required |= {way: f"children.{way}" for way in _WAYS}
        self.members = layout(prog, self.node, required)
        self.states = layout(prog, _CSS, ["flags", "cgroup"])
        self.text = np.uint64(drgn.offsetof(prog.type("struct cgroup_name"), "name"))

    def root(self, memcg: drgn.Object) -> int:
        return int(memcg.css.member_("cgroup"))

    def read(self, nodes: Words) -> Gathered:
        cgroups = gather(self.memory, nodes, self.members, self.faults)
        states = gather(self.memory, cgroups["css"], self.states, self.faults)
        fits = states["cgroup"] == nodes
        self.faults.add("in use for something else", (states.readable & ~fits).sum())
        readable = cgroups.readable & states.readable & fits
        return Gathered({**cgroups.columns, **states.columns}, readable, readable)

    def names(self, states: dict[str, npt.NDArray[Any]]) -> list[str]:
        # Since Linux kernel commit 65dff759d294 ("cgroup: fix cgroup_path() vs rename() race") (in
        # v3.10).
        texts = c_strings(self.memory, states["name"] + self.text, self.faults)
        return ["?" if raw is None else decode(raw) for raw in texts]


def _tree(memory: Memory, faults: Faults) -> _Tree:
    css = memory.prog.type(_CSS)
    return (_Tree if css.has_member("children") else _CgroupTree)(memory, faults)


def _walk(memory: Memory, root: drgn.Object) -> Memcgs:
    prog, faults = memory.prog, Faults()
    memcg = prog.type(_MEMCG)
    tree = _tree(memory, faults)
    online = np.uint32(prog.constant("CSS_ONLINE").value_())
    try:
        dying = np.uint32(prog.constant("CSS_DYING").value_())
    except LookupError:
        # CSS_DYING was added in Linux kernel commit 33c35aa48178 ("cgroup: Prevent kill_css()
        # from being called more than once") (in v4.12).
        dying = np.uint32(0)
    level = np.array([tree.root(root)], np.uint64)
    above, parent, paths = np.zeros(1, np.uint64), np.array([-1]), list[str]()
    levels: list[tuple[npt.NDArray[Any], ...]] = []
    seen = np.empty(0, np.uint64)
    damaged = 0
    while len(level) and len(levels) < _MAX_DEPTH and len(seen) <= _MAX_MEMCGS:
        states = tree.read(level)
        # A torn list leads anywhere, such as to the head or the nodes of another list.
        valid = states.readable & (states["parent"] == above)
        damaged += int((states.readable & ~valid).sum())
        level, parent = level[valid], parent[valid]
        state = {name: column[valid] for name, column in states.columns.items()}
        for row, name in zip(parent.tolist(), tree.names(state), strict=True):
            path = "" if row <= 0 else paths[row]
            paths.append("/" if row < 0 else f"{path}/{name}")
        zeros = np.zeros_like(level)
        counts = state.get("online", zeros), state.get("serial", zeros)
        levels.append((state["css"], parent, state["flags"], state["cgroup"], *counts))
        seen = np.union1d(seen, level)
        lanes, below, torn = _children(memory, tree.node, level, state, faults)
        damaged += torn
        # A torn list may lead back into the tree: count each memory cgroup once.
        fresh = ~np.isin(below, seen)
        damaged += len(np.unique(lanes[~fresh]))
        above, parent = level[lanes[fresh]], lanes[fresh] + len(paths) - len(level)
        level = below[fresh]
    columns = (np.concatenate(each) for each in zip(*levels, strict=True))
    css_address, parent, flags, cgroup, online_count, serial = columns
    address = css_address - np.uint64(drgn.offsetof(memcg, "css"))
    # Since Linux kernel commit 3a3b7fec3974 ("mm: remove CONFIG_MEMCG_KMEM") (in v6.11), every
    # kernel with CONFIG_MEMCG has kmemcg_id.
    members = layout(prog, memcg, {}, {"id": "kmemcg_id", "hierarchy": "use_hierarchy"})
    ids = gather(memory, address, members, faults)
    kmemcg_id = ids.columns.get("id", np.full(len(address), -1)).astype(np.int64)
    has_id = (flags & online) != 0
    is_online = has_id & ((flags & dying) == 0)
    # Nothing can remove the root: its flags are damaged.
    damaged += int(not is_online[:1].all())
    is_online[:1] = True
    return Memcgs(
        address=address,
        parent=parent,
        path=paths,
        online=is_online,
        has_id=has_id,
        kmemcg_id=np.where(ids.readable, kmemcg_id, -1),
        serial=serial,
        cgroup=cgroup,
        is_hierarchical=bool(ids.columns.get("hierarchy", np.ones(1))[:1].all()),
        online_children=np.maximum(online_count.astype(np.int64) - has_id, 0),
        damaged=damaged + len(level),
        faults=faults,
    )


def _registered(kernel: Kernel, groups: Memcgs) -> tuple[Words, int]:
    """Return the memory cgroups in the registry of ids, and the number of its lost entries.

    On RHEL 7.9, __mem_cgroup_free() frees the id. Others before 3.16 have no registry.
    """
    try:
        known, damaged = idr_entries(kernel.memory, kernel.prog["mem_cgroup_idr"])
    except drgn.FaultError:
        known, damaged = [], 0
    except (LookupError, NotRecorded):
        return groups.address[:0], 0
    address = np.array([each for each in known if each], np.uint64)
    return address, max(damaged, int((~np.isin(groups.address, address)).sum()))


def _with_removed(kernel: Kernel, groups: Memcgs) -> Memcgs:
    """Add removed memory cgroups that are registered or keep child caches.

    rmdir takes them off all lists. Their cgroups may be freed; the name is in those of the caches:
    "dentry(7:name)".
    """
    roots, owners = kernel.slab_map.lineage
    registered, ids_lost = _registered(kernel, groups)
    address = np.setdiff1d(np.concatenate([owners[owners != 0], registered]), groups.address)
    # One that is online is on a list: the list is torn, or the pointer is bent.
    states = gather(
        kernel.memory, address, layout(kernel.prog, _MEMCG, ["css.flags"]), groups.faults
    )
    online = np.uint32(kernel.prog.constant("CSS_ONLINE").value_())
    removed = states.readable & ((states["css.flags"] & online) == 0)
    lost = len(address) - int(removed.sum())
    # Each child cache has an owner.
    lost += int(((roots != np.arange(len(roots))) & (owners == 0)).sum())
    address, count = address[removed], int(removed.sum())
    named = dict(zip(owners.tolist(), kernel.slab_map.caches, strict=True))
    names = [named[each].name if each in named else "" for each in address.tolist()]
    texts = [name.rpartition("(")[2].rpartition(")")[0].partition(":")[2] for name in names]
    no, zeros = np.zeros(count, np.bool_), np.zeros(count, np.int64)
    rows = {
        "address": address, "parent": zeros, "online": no, "has_id": no, "kmemcg_id": zeros - 1,
        "serial": zeros, "cgroup": zeros, "online_children": zeros,
    }  # fmt: skip
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(groups, name), column.astype(getattr(groups, name).dtype)])
        for name, column in rows.items()
    }
    path = [*groups.path, *(f"/{text or '?'}" for text in texts)]
    damaged = groups.damaged + lost
    return replace(groups, path=path, damaged=damaged, ids_lost=ids_lost, **columns)


def _children(
    memory: Memory,
    node: drgn.Type,
    level: Words,
    state: dict[str, npt.NDArray[Any]],
    faults: Faults,
) -> tuple[Lanes, Words, int]:
    """Return the rows of the parents and the addresses of children, and damaged lists.

    Each list is followed in both directions, since a bent pointer spoils only one, and no counter
    before v6.12 has the number of offline children.
    """
    links = layout(memory.prog, "struct list_head", _WAYS)
    children, sibling = (np.uint64(drgn.offsetof(node, name)) for name in ("children", "sibling"))
    damage = Damage()
    parts = []
    for way in _WAYS:
        step, ends = pointer_step(memory, links, way, faults), level + children
        lanes, nodes = collect(state[way], step, limit=_MAX_MEMCGS, damage=damage, ends=ends)
        parts.append(pd.DataFrame({"lane": lanes, "node": nodes}).drop_duplicates())
    pairs = pd.concat(parts)
    differ = pairs["lane"][~pairs.duplicated(keep=False)].to_numpy()
    torn = len(np.union1d(damage.lanes(), differ))
    pairs = pairs.drop_duplicates("node").sort_values("lane", kind="stable")
    return pairs["lane"].to_numpy(), pairs["node"].to_numpy() - sibling, torn


def _kernfs_names(memory: Memory, cgroups: Words, faults: Faults) -> list[str]:
    nodes = gather(memory, cgroups, layout(memory.prog, "struct cgroup", ["kn"]), faults)
    # On a running kernel, the node of a removed cgroup may be a file's meanwhile.
    member = layout(memory.prog, "struct kernfs_node", ["name"], {"flags": "flags"})
    names = gather(memory, nodes["kn"], member, faults)
    texts = c_strings(memory, names["name"], faults)
    flags = names.columns.get("flags", np.full(len(cgroups), _KERNFS_DIR, np.uint64))
    is_directory = flags & _KERNFS_TYPE_MASK == _KERNFS_DIR
    faults.add("in use for something else", (names.readable & ~is_directory).sum())
    return [
        decode(raw) if raw is not None and fits else "?"
        for raw, fits in zip(texts, is_directory.tolist(), strict=True)
    ]
