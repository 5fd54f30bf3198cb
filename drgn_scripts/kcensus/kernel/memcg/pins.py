# SPDX-License-Identifier: LGPL-2.1-or-later
"""References that keep offline memory cgroups from being released, by holder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import drgn
import numpy as np
import pandas as pd

from kcensus.engine.chase import Damage, circular, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Memory, Numbers, Words
from kcensus.engine.rows import rows_of
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.charges import KINDS as CHARGES
from kcensus.kernel.memcg.charges import Charges
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from kcensus.kernel.names import decode_array
from kcensus.kernel.vfs.files import dentry_paths
from kcensus.kernel.vfs.super_blocks import MountState, super_blocks

SOCKET, SWAP, WRITEBACK, CACHE, CHILD = "sockets", "swap", "writeback", "child caches", "children"
KINDS = (*CHARGES, SOCKET, SWAP, WRITEBACK, CACHE, CHILD)
_MAX_FILES = 10_000
"""Most files to look up, by number of pages."""
_MAX_LIST = 1 << 20
"""Most backing devices, writeback structures or protocols."""
_FILE_COLUMNS = {
    **dict.fromkeys(("memcg", "pages", "refs", "file_pages"), "int64"),
    **dict.fromkeys(("kind", "path", "type", "mount"), "object"),
    **dict.fromkeys(("at_home", "deleted", "named"), "bool"),
    "inode": "uint64",
}
_ATOMIC = np.uint64(1)
"""``__PERCPU_REF_ATOMIC``: the counter is not split over CPUs."""


@dataclass(frozen=True)
class Pins:
    """References to the ``css`` of each memory cgroup; zeros for online ones."""

    refs: Numbers
    """All references, as counted by the kernel; -1 if unknown; shape (memcgs,)."""
    held: dict[str, Numbers]
    """Found references by :data:`KINDS`, each of shape (memcgs,)."""
    swapped: Numbers
    """Pages in swap; together they hold one reference."""
    files: pd.DataFrame
    """A sample of the files with charged pages, and of files attached to writeback: ``memcg``
    (row), ``kind`` (of charges), ``pages``, ``refs``, ``path``, ``type`` (of the file system),
    ``mount``, ``at_home`` (in init's mount namespace), ``deleted``, ``named`` (``path`` is one),
    ``file_pages``."""
    other: pd.DataFrame
    """Sockets and child caches: ``memcg`` (row), ``kind``, ``what``, ``objects``."""
    lost: int = 0
    """Lists that could not be followed to their end."""
    faults: Faults = field(default_factory=Faults)
    report: ScanReport = field(default_factory=ScanReport)

    @property
    def explained(self) -> Numbers:
        """References with a known holder."""
        return np.asarray(np.sum([*self.held.values()], axis=0))

    @property
    def unexplained(self) -> Numbers:
        """References without a known holder; 0 if the kernel's count is unknown."""
        return np.where(self.refs < 0, 0, np.maximum(self.refs - self.explained, 0))


def no_pins(groups: Memcgs) -> Pins:
    """Return unknown references, for a capsule that was recorded for other analyses."""
    count = len(groups)
    files = pd.DataFrame(columns=[*_FILE_COLUMNS]).astype(_FILE_COLUMNS)
    return Pins(
        np.where(groups.online, 0, -1),
        {kind: np.zeros(count, np.int64) for kind in KINDS},
        np.zeros(count, np.int64),
        files,
        _pins(SOCKET, np.empty(0, np.int64), []),
    )


def pins(kernel: Kernel, charges: Charges) -> Pins:
    """Return the references to offline memory cgroups, by holder."""
    return _Search(kernel, charges).all()


class _Search:
    def __init__(self, kernel: Kernel, charges: Charges) -> None:
        self.kernel = kernel
        self.memory: Memory = kernel.memory
        self.prog = kernel.prog
        self.charges = charges
        self.groups: Memcgs = memcgs(kernel)
        self.offline = np.flatnonzero(~self.groups.online)
        self.faults, self.report = Faults(), ScanReport()
        self.lost = 0
        self.css = np.uint64(drgn.offsetof(self.prog.type("struct mem_cgroup"), "css"))

    def all(self) -> Pins:
        swapped = self._swapped()
        sockets, caches = self._sockets(), self._child_caches()
        self.writeback = self._writeback_structures()
        held = {kind: self.charges.refs[:, index] for index, kind in enumerate(CHARGES)}
        held |= {
            SOCKET: self._counted(sockets["memcg"], sockets["objects"]),
            SWAP: (swapped > 0).astype(np.int64),
            WRITEBACK: self._counted(self.writeback[1]),
            # Until Linux kernel commit f0a3a24b532d ("mm: memcg/slab: rework non-root kmem_cache
            # lifecycle management") (in v5.3), a child cache holds one; then each of its slabs.
            CACHE: self._counted(caches["memcg"]),
            CHILD: self._counted(self.groups.parent[self.offline]),
        }
        return Pins(
            self._refs(),
            held,
            swapped,
            self._files(),
            pd.concat([sockets, caches], ignore_index=True),
            self.lost,
            self.faults,
            self.report,
        )

    # Counts

    def _read(self, path: tuple[str, ...]) -> Numbers | None:
        """Return a member of the offline memory cgroups; None if this kernel lacks it."""
        members = layout(self.prog, "struct mem_cgroup", {}, {"value": path})
        if "value" not in members:
            return None
        read = gather(self.memory, self.groups.address[self.offline], members, self.faults)
        return read["value"]

    def _column(self, values: Numbers) -> Numbers:
        column = np.zeros(len(self.groups), np.int64)
        column[self.offline] = values
        return column

    def _refs(self) -> Numbers:
        word = self._read(("css.refcnt.percpu_count_ptr",))
        # Since Linux kernel commit 2b0d3d3e4fcf ("percpu_ref: reduce memory footprint of
        # percpu_ref in fast path") (in v5.10), the counter is in an allocation of its own.
        count = self._read(("css.refcnt.count.counter",))
        if count is None and (data := self._read(("css.refcnt.data",))) is not None:
            members = layout(self.prog, "struct percpu_ref_data", {"count": "count.counter"})
            read = gather(self.memory, data.view(np.uint64), members, self.faults)
            count = np.where(read.readable, read["count"], -1)
        if word is None or count is None:
            return self._column(np.full(len(self.offline), -1))
        return self._column(np.where(word & _ATOMIC, np.maximum(count, -1), -1))

    def _swapped(self) -> Numbers:
        # Only its swapped pages keep the id of an offline memory cgroup.
        count = self._read(("id.ref.refs.counter", "id.ref.counter"))
        none = np.zeros(len(self.offline), np.int64)
        return self._column(none if count is None else np.maximum(count, 0))

    def _counted(self, rows: Any, objects: Any = None) -> Numbers:
        """Return the number of objects by offline memory cgroup, by default one per row."""
        weights = None if objects is None else np.asarray(objects, np.float64)
        column = np.bincount(np.asarray(rows, np.int64), weights, len(self.groups))
        return np.where(self.groups.online, 0, column.astype(np.int64))

    # Holders

    def _listed(self, variable: str, type_: str, member: str) -> Words:
        head = self.prog[variable].address_of_().value_()
        nodes, damaged = circular(self.memory, head, self.faults, limit=_MAX_LIST)
        self.lost += damaged
        return nodes - np.uint64(drgn.offsetof(self.prog.type(type_), member))

    def _sockets(self) -> pd.DataFrame:
        """Return sockets by protocol: from the slab caches of protocols, and of processes."""
        slab_map, sock = self.kernel.slab_map, None
        names = {"memcg": "sk_memcg", "protocol": "__sk_common.skc_prot"}
        with contextlib.suppress(LookupError, drgn.FaultError):
            sock = layout(self.prog, "struct sock", names)
            protocols = self._listed("proto_list", "struct proto", "node")
            members = layout(self.prog, "struct proto", ["name", "slab"])
        if sock is None or not len(self.offline):
            return _pins(SOCKET, np.empty(0, np.int64), [])
        known = gather(self.memory, protocols, members, self.faults)
        roots, _ = slab_map.lineage
        ids = slab_map.cache_ids(known["slab"])
        caches = [each for each in slab_map.caches if roots[each.id] in ids[ids >= 0]]
        address, found = allocated(slab_map, caches, sock, self.report)
        parts = [pd.DataFrame({"address": address, **found})]
        with contextlib.suppress(LookupError):
            inodes = find_caches(slab_map, "struct socket_alloc", "sock_inode_cache")
            member = layout(self.prog, "struct socket_alloc", {"sock": "socket.sk"})
            _, column = allocated(slab_map, inodes, member, self.report)
            address = column["sock"][column["sock"] != 0]
            read = gather(self.memory, address, sock, self.faults)
            parts.append(pd.DataFrame({"address": address, **read.columns}))
        sockets = pd.concat(parts).drop_duplicates("address")
        # Caches that were merged hold objects of other types as well.
        protocol = rows_of(protocols, sockets["protocol"].to_numpy(), np.argsort(protocols))
        row = self.groups.rows(sockets["memcg"].to_numpy())
        pinned = (row >= 0) & (protocol >= 0)
        pinned[pinned] = ~self.groups.online[row[pinned]]
        texts = [decode_array(raw) for raw in known["name"][protocol[pinned]].tolist()]
        return _pins(SOCKET, row[pinned], texts)

    def _child_caches(self) -> pd.DataFrame:
        """Return objects in child caches of memory cgroups (up to v5.8)."""
        slab_map = self.kernel.slab_map
        roots, owners = slab_map.lineage
        row = self.groups.rows(owners)
        children = np.flatnonzero(row >= 0)
        children = children[~self.groups.online[row[children]]]
        slabs = slab_map.index([slab_map.caches[each] for each in children.tolist()], self.report)
        objects = np.bincount(slabs.cache, slabs.inuse, len(slab_map.caches)).astype(np.int64)
        names = [slab_map.caches[roots[each]].name for each in children.tolist()]
        return _pins(CACHE, row[children], names, objects[children])

    def _writeback_structures(self) -> tuple[Words, Numbers]:
        """Return the ``bdi_writeback`` of offline memory cgroups, and rows of these memory cgroups.

        Until its last inode is detached, only the list of its device has it.
        """
        try:
            type_ = self.prog.type("struct bdi_writeback")
            member = layout(self.prog, type_, ["memcg_css"])
            devices = self._listed("bdi_list", "struct backing_dev_info", "bdi_list")
            heads = layout(self.prog, "struct backing_dev_info", {"first": "wb_list.next"})
        except (LookupError, drgn.FaultError):
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        address = self._chased(devices, heads, np.uint64(drgn.offsetof(type_, "bdi_node")))[1]
        css = gather(self.memory, address, member, self.faults)["memcg_css"]
        row = self.groups.rows(css - self.css)
        pinned = row >= 0
        pinned[pinned] = ~self.groups.online[row[pinned]]
        return address[pinned], row[pinned]

    def _chased(self, owners: Words, head: Layout, offset: np.uint64) -> tuple[Numbers, Words]:
        """Return the owner's row and the address of each structure on the owners' lists."""
        damage, link = Damage(), layout(self.prog, "struct list_head", ["next"])
        ends = owners + np.uint64(head.fields["first"].offset)
        first = gather(self.memory, owners, head, self.faults)["first"]
        step = pointer_step(self.memory, link, "next", self.faults)
        lanes, nodes = collect(first, step, limit=_MAX_LIST, damage=damage, ends=ends)
        self.lost += damage.lists
        return lanes, nodes - offset

    # Files

    def _files(self) -> pd.DataFrame:
        mappings = self.charges.mappings
        mappings = mappings.sort_values("pages", ascending=False).head(_MAX_FILES)
        host = layout(self.prog, "struct address_space", {"host": "host"})
        hosts = gather(self.memory, mappings["mapping"].to_numpy(np.uint64), host, self.faults)
        charged = mappings[["memcg", "kind", "pages", "refs"]].assign(inode=hosts["host"])
        parts = [charged.assign(kind=[CHARGES[kind] for kind in charged["kind"]])]
        address, row = self.writeback
        # Since Linux kernel commit f3b6a6df38aa ("writeback, cgroup: keep list of inodes attached
        # to bdi_writeback") (in v5.14), a list has all attached inodes.
        with contextlib.suppress(LookupError):
            head = layout(self.prog, "struct bdi_writeback", {"first": "b_attached.next"})
            offset = np.uint64(drgn.offsetof(self.prog.type("struct inode"), "i_io_list"))
            lanes, inodes = self._chased(address, head, offset)
            attached = pd.DataFrame({"memcg": row[lanes], "inode": inodes}).head(_MAX_FILES)
            parts.append(attached.assign(kind=WRITEBACK, pages=0, refs=0))
        files = pd.concat(parts, ignore_index=True)
        return pd.concat([files, self._described(files["inode"].to_numpy(np.uint64))], axis=1)

    def _described(self, inodes: Words) -> pd.DataFrame:
        names = {"block": "i_sb", "number": "i_ino", "links": "i_nlink", "pages": "i_data.nrpages"}
        members = layout(self.prog, "struct inode", names | {"first": "i_dentry.first"})
        inode = gather(self.memory, inodes, members, self.faults)
        paths = dentry_paths(self.kernel, inode["first"], self.faults)
        blocks, numbers = super_blocks(self.kernel), inode["number"].tolist()
        owner = blocks.rows(inode["block"]).tolist()
        if lost := int(np.count_nonzero(inode.readable & (np.array(owner, np.int64) < 0))):
            self.faults["inodes of no super block"] += lost
        return pd.DataFrame(
            {
                "path": [paths.get(row, f"inode {each}") for row, each in enumerate(numbers)],
                "type": [blocks.type[each] if each >= 0 else "" for each in owner],
                "mount": [blocks.mount[each] if each >= 0 else "" for each in owner],
                "at_home": [
                    each >= 0 and blocks.state[each] is MountState.MOUNTED for each in owner
                ],
                "deleted": inode.readable & (inode["links"] == 0),
                "named": inode["first"] != 0,
                "file_pages": inode["pages"].astype(np.int64),
            }
        )


def _pins(kind: str, rows: Numbers, what: list[str], objects: Numbers | int = 1) -> pd.DataFrame:
    frame = pd.DataFrame({"memcg": rows, "kind": kind, "what": what, "objects": objects})
    return frame.groupby(["memcg", "kind", "what"])[["objects"]].sum().reset_index()
