# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names chosen by users, and their places in the kernel.

They are the names of files (dentries), cgroups, device-mapper devices, processes and the host, and
for storage the labels of XFS file systems and of partitions, the files of loop devices, the paths
of cgroups that BFQ keeps for its messages, and the names of servers. Labels in pages of a disk,
such as a super block that was read, are contents of memory like any other. Names chosen by the
kernel are kept where they can be recognized; see :func:`kernel_words`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.block import for_each_partition, part_name
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import follow_phys
from drgn.helpers.linux.module import for_each_module
from drgn.helpers.linux.pid import for_each_task

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import Layout, Path, layout
from kcensus.engine.memory import Bytes, Faults, Mask, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.engine.strings import c_strings
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.symbols import module_symbols
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.xfs.mounts import mounts
from kcensus.redaction import servers

_BATCH = 1 << 16
_MAX_NAME_BYTES = 256
"""NAME_MAX and the NUL byte; a device-mapper UUID has 129 (DM_UUID_LEN)."""

_MAX_GROUPS = 1 << 20
_MAX_PARAMETER = 128
"""Most bytes of the name of a module and its parameter."""
_MAX_LISTED = 1 << 18
"""Most tasks, partitions, modules and the like: drgn follows a list that leads into itself forever.
"""
MODULES = ("bfq", "loop", "xfs", *servers.MODULES)
"""Modules with debug info of the places of names."""
_KERNEL_NAMED = frozenset(
    ("sysfs", "proc", "debugfs", "tracefs", "securityfs", "anon_inodefs", "sockfs", "pipefs")
)
"""File systems with files named by the kernel."""
_CGROUP_TYPES = frozenset(("cgroup", "cgroup2", "cpuset"))
"""File systems with directories named by users and files named by the kernel."""
_CHILD = re.compile(rb"\(\d+:(.+?)\)?\Z", re.DOTALL)
"""End of the name of a child cache, with the name of its memory cgroup: ``dentry(7:name)``."""


@dataclass(frozen=True)
class Names:
    """A batch of names."""

    physical: Words
    text: Bytes
    """Shape (names, bytes); zero after the end of each name."""
    room: npt.NDArray[np.int64]
    """Bytes of memory of each name. The rest after its end is left over from older names and may be
    zeroed."""
    is_kernels: bool = False
    """Whether the kernel chose the names, so that they stay."""


@dataclass(frozen=True)
class Hashes:
    """A batch of 32-bit hashes of names, computed by the kernel."""

    physical: Words
    value: npt.NDArray[np.uint32]


class UserNames:
    """Finds the names in one kernel; raises as :class:`~kcensus.redaction.redaction.Redaction`.

    :param frames: page frames; names of files are those of dentries that lie on these only
    """

    def __init__(self, kernel: Kernel, frames: Mask | None = None) -> None:
        self.kernel, self._frames = kernel, frames
        self.slab_map = slab_map = kernel.slab_map
        self.memory = kernel.memory
        self.prog = kernel.prog
        self.report = ScanReport()
        """Report of unreadable slabs, which may hold more names."""
        self.missing: list[str] = []
        """Kinds of names that could not be searched for: one phrase each."""
        self._direct = np.uint64(slab_map.pages.direct_map)
        self._cgroup_names = np.empty(0, f"S{_MAX_NAME_BYTES}")

    def find(self) -> Iterator[Names | Hashes]:
        """Yield all names and their hashes in batches; call it once."""
        yield from self._cgroups()
        yield from self._child_caches()
        yield from self._dentries()
        yield from self._processes()
        yield from self._device_mapper()
        yield from self._storage()
        yield from self._servers()

    def _all(
        self, type_name: str, columns: Layout, frames: Mask | None = None
    ) -> tuple[Words, dict[str, npt.NDArray[np.uint64]]]:
        caches = find_caches(self.slab_map, type_name)
        return allocated(self.slab_map, caches, columns, self.report, frames)

    def _strings(self, addresses: Words) -> Iterator[Names]:
        """Yield the strings at some addresses in the direct map."""
        # Strings elsewhere are constants of the kernel or of a module.
        addresses = np.unique(addresses)
        pages = self.slab_map.pages
        addresses = addresses[pages.valid(pages.pfn(addresses)) & (addresses >= self._direct)]
        for start in range(0, len(addresses), _BATCH):
            rows = addresses[start : start + _BATCH]
            # Most names are short, and the end of a longer read may not be in the dump.
            for width in (64, _MAX_NAME_BYTES, 8):
                text, readable = gather_arrays(self.memory, rows, width, np.uint8, Faults())
                ends = text == 0
                whole = readable & (ends.any(axis=1) | (width == _MAX_NAME_BYTES))
                length = np.where(ends.any(axis=1), ends.argmax(axis=1), width)[whole]
                text = text[whole]
                text[np.arange(width) >= length[:, None]] = 0
                yield Names(rows[whole] - self._direct, text, length)
                rows = rows[~whole]
                if not len(rows):
                    break
            for address in rows.tolist():
                try:
                    raw = self.prog.read_c_string(address, max_size=_MAX_NAME_BYTES)
                except drgn.FaultError:
                    continue
                yield self._single(address - int(self._direct), raw)

    @staticmethod
    def _single(physical: int, raw: bytes, room: int = 0) -> Names:
        text = np.frombuffer(raw.ljust(1, b"\0"), np.uint8)[None, :].copy()
        return Names(np.array([physical], np.uint64), text, np.array([max(room, len(raw))]))

    # Cgroups

    def _cgroups(self) -> Iterator[Names | Hashes]:
        """Yield the names of cgroups: of kernfs nodes that a cgroup points back to."""
        if not self.prog.type("struct cgroup").has_member("kn"):
            yield from self._listed_cgroups()
            return
        columns = layout(self.prog, "struct kernfs_node", ["name", "priv", "hash"])
        address, nodes = self._all("struct kernfs_node", columns)
        member = layout(self.prog, "struct cgroup", ["kn"])
        owners = gather(self.memory, nodes["priv"], member, Faults())
        is_cgroup = owners.readable & (owners["kn"] == address)
        names = []
        for batch in self._strings(nodes["name"][is_cgroup]):
            names.append(batch.text.view(f"S{batch.text.shape[1]}")[:, 0])
            yield batch
        self._cgroup_names = np.unique(np.concatenate([self._cgroup_names, *names]))
        hashes = address[is_cgroup] + np.uint64(columns.fields["hash"].offset)
        yield Hashes(hashes - self._direct, nodes["hash"][is_cgroup].astype(np.uint32))

    def _listed_cgroups(self) -> Iterator[Names]:
        """Yield the names of cgroups that have no kernfs node, as on RHEL 7."""
        prog, names = self.prog, []
        text = np.uint64(drgn.offsetof(prog.type("struct cgroup_name"), "name"))
        node = np.uint64(drgn.offsetof(prog.type("struct cgroup"), "allcg_node"))
        roots = list_for_each_entry(
            "struct cgroupfs_root", prog["roots"].address_of_(), "root_list"
        )
        for root in islice(roots, _MAX_LISTED):
            head = np.array([root.allcg_list.address_of_().value_()], np.uint64)
            _, found, torn = list_members(self.memory, head, Faults(), limit=_MAX_GROUPS)
            if len(torn):
                self.missing.append("names of cgroups: a list is torn")
            member = layout(prog, "struct cgroup", ["name"])
            read = gather(self.memory, found - node, member, Faults())
            for batch in self._strings(read["name"] + text):
                names.append(batch.text.view(f"S{batch.text.shape[1]}")[:, 0])
                yield batch
            for name in ("name", "release_agent_path"):
                place = int(root.member_(name).address_of_())
                yield self._single(place - int(self._direct), root.member_(name).string_())
        self._cgroup_names = np.unique(np.concatenate([self._cgroup_names, *names]))

    def _child_caches(self) -> Iterator[Names]:
        """Yield the names of memory cgroups in those of their caches (up to 5.8)."""
        member = layout(self.prog, "struct kmem_cache", ["name"])
        places = gather(self.memory, self.slab_map.column("address"), member, Faults())["name"]
        for place, raw in zip(
            places.tolist(), c_strings(self.memory, places, Faults()), strict=True
        ):
            found = _CHILD.search(raw or b"")
            # Strings elsewhere are constants.
            if found is not None and place >= int(self._direct):
                yield self._single(place + found.start(1) - int(self._direct), found[1])

    # Dentries

    def _dentries(self) -> Iterator[Names | Hashes]:
        members = {
            "sb": "d_sb",
            "inode": "d_inode",
            "name": "d_name.name",
            "hash": "d_name.hash",
            # Since Linux kernel commit 58cf9c383c5c ("dcache: back inline names with a
            # struct-wrapped array of unsigned long") (in v6.14), d_shortname replaces d_iname.
            "inline": ("d_iname", "d_shortname.string"),
        }
        columns = layout(self.prog, "struct dentry", members)
        address, dentries = self._all("struct dentry", columns, self._frames)
        inline = columns.fields["inline"]
        width = inline.dtype.itemsize
        kernels, cgroups = self._file_systems()
        for start in range(0, len(address), _BATCH):
            batch = {name: column[start : start + _BATCH] for name, column in dentries.items()}
            own = address[start : start + _BATCH] + np.uint64(inline.offset)
            external = batch["name"] != own
            text = _texts(batch["inline"], width)
            # The inline name of a dentry with an external name is left over from an older one.
            text[external] = 0
            wanted = self._user_named(batch["sb"], batch["inode"] != 0, text, kernels, cgroups)
            wanted |= _in_brackets(text)
            rows = np.flatnonzero(~wanted & ~external)
            room = (text[rows] != 0).sum(axis=1)
            yield Names(own[rows] - self._direct, text[rows], room, is_kernels=True)
            rows = np.flatnonzero(wanted)
            room = np.full(len(rows), width)
            yield Names(own[rows] - self._direct, text[rows], room)
            hashes = address[start:][rows] + np.uint64(columns.fields["hash"].offset)
            yield Hashes(hashes - self._direct, batch["hash"][rows].astype(np.uint32))
            yield from self._strings(batch["name"][wanted & external])
            for kept in self._strings(batch["name"][~wanted & external]):
                users = _in_brackets(kept.text)
                for part in (users, ~users):
                    yield Names(
                        kept.physical[part],
                        kept.text[part],
                        kept.room[part],
                        is_kernels=part is not users,
                    )

    def _file_systems(self) -> tuple[Words, Words]:
        """Return the super blocks with files named by the kernel, and those of cgroups."""
        table = super_blocks(self.kernel)
        types = [type_.partition(".")[0] for type_ in table.type]
        return (
            table.address[[type_ in _KERNEL_NAMED for type_ in types]],
            table.address[[type_ in _CGROUP_TYPES for type_ in types]],
        )

    def _user_named(
        self, sb: Words, positive: Mask, text: Bytes, kernels: Words, cgroups: Words
    ) -> Mask:
        """Return which dentries have names chosen, or for negative ones looked up, by a user."""
        names = text.view(f"S{text.shape[1]}")[:, 0]
        user_named: Mask = ~positive | ~np.isin(sb, kernels)
        rows = np.flatnonzero(positive & np.isin(sb, cgroups))
        user_named[rows] = np.isin(names[rows], self._cgroup_names) | (names[rows] == b"")
        return user_named

    def _servers(self) -> Iterator[Names]:
        """Yield the names of servers, and zeros for addresses in binary."""
        yield from self._strings(servers.server_names(self.kernel))
        for places, size in servers.addresses(self.kernel, self.report):
            zeros = np.zeros((len(places), size), np.uint8)
            room = np.full(len(places), size)
            yield Names(places - self._direct, zeros, room, is_kernels=True)

    # Processes

    def _processes(self) -> Iterator[Names]:
        """Yield the names of user processes and threads, and the host names they see."""
        members = ["comm", "mm", "real_parent", "pid", "nsproxy"]
        columns = layout(self.prog, "struct task_struct", members)
        address, tasks = self._all("struct task_struct", columns)
        # An exiting user thread has no mm either; unlike a kernel thread, kthreadd is not its
        # parent.
        kthreadd = np.uint64(self.prog["kthreadd_task"].value_())
        idle = np.uint64(self.prog["init_task"].address_of_().value_())
        kernels = (tasks["real_parent"] == kthreadd) | (tasks["real_parent"] == idle)
        users = (tasks["mm"] != 0) | ~(kernels | (tasks["pid"] == 0))
        comm = columns.fields["comm"]
        text = _texts(tasks["comm"], comm.dtype.itemsize)
        places = address + np.uint64(comm.offset) - self._direct
        room = np.full(len(text), comm.dtype.itemsize)
        for rows in (users, ~users):
            yield Names(places[rows], text[rows], room[rows], is_kernels=rows is not users)
        yield from self._hosts(np.unique(tasks["nsproxy"]))

    def _hosts(self, proxies: Words) -> Iterator[Names]:
        member = layout(self.prog, "struct nsproxy", ["uts_ns"])
        namespaces = gather(self.memory, proxies, member, Faults())["uts_ns"]
        type_ = self.prog.type("struct uts_namespace")
        initial = int(self.prog["init_uts_ns"].address_)
        for address in sorted({initial, *namespaces[namespaces != 0].tolist()}):
            name = drgn.Object(self.prog, type_, address=address).name
            for field in (name.nodename, name.domainname):
                raw = field.string_()
                if raw == b"(none)":
                    continue
                kernel = self.prog["init_mm"].address_of_()
                place = int(follow_phys(kernel, field.address_))
                yield self._single(place, raw, drgn.sizeof(field))

    # Device mapper

    def _device_mapper(self) -> Iterator[Names]:
        modules = islice(for_each_module(self.prog), _MAX_LISTED)
        if not any(module.name.string_() == b"dm_mod" for module in modules):
            try:
                self.prog["_minor_idr"]
            except LookupError:
                return
        strings: list[int] = []
        try:
            entries, damaged = idr_entries(self.memory, self.prog["_minor_idr"])
            if damaged:
                self.missing.append("names of device-mapper devices: their registry is damaged")
            for entry in entries:
                if entry < (1 << 64) - 4096:  # not MINOR_ALLOCED: no device yet
                    device = drgn.Object(self.prog, "struct mapped_device *", value=entry)
                    cell = drgn.cast("struct hash_cell *", device.interface_ptr)
                    strings += [int(cell.name), int(cell.uuid)] if cell else []
        except LookupError:
            self.missing.append("names of device-mapper devices: debug info of dm_mod is missing")
            return
        yield from self._strings(np.array(strings, np.uint64))

    # Storage

    def _storage(self) -> Iterator[Names]:
        """Yield names in arrays of ``char``; the kernel may lack them, or their debug info."""
        for find in (_labels, _partitions, _files, _groups):
            try:
                type_name, member, addresses = find(self.kernel)
                columns = layout(self.prog, type_name, {"name": member})
            except LookupError:
                continue
            known = addresses[addresses != 0]
            read = gather(self.memory, known, columns, Faults())
            field = columns.fields["name"]
            places = known[read.readable] + np.uint64(field.offset)
            width = field.dtype.itemsize
            # A name that fills its array has no NUL.
            ended = read["name"][read.readable].astype(f"S{width + 1}")
            names = _texts(ended, width + 1)[:, :width]
            yield Names(places - self._direct, names, np.full(len(places), width))


def _in_brackets(text: Bytes) -> Mask:
    """Return which names of the kernel may have one of a user, as directories of child caches."""
    has: Mask = (text == ord("(")).any(axis=1)
    return has


def _texts(column: npt.NDArray[Any], width: int) -> Bytes:
    """Return arrays of ``char`` as a new array of shape (rows, width), zero after their NUL."""
    text = np.ascontiguousarray(column).view(np.uint8).reshape(-1, width).copy()
    text[np.arange(width) >= (text == 0).argmax(axis=1)[:, None]] = 0
    return text


def kernel_words(kernel: Kernel) -> list[bytes]:
    """Return names chosen by the kernel, which are kept even if a user has them, too."""
    prog, slab_map = kernel.prog, kernel.slab_map
    caches = [cache.name for cache in slab_map.caches]
    caches += [name for pair in slab_map.aliases.items() for name in pair]
    # Until v5.8, a cache of a cgroup has its name in brackets.
    caches = [name.partition("(")[0] for name in caches]
    words = [name.encode(errors="surrogateescape") for name in caches]
    uts = prog["init_uts_ns"].name
    words += [uts.member_(each).string_() for each in ("sysname", "release", "version", "machine")]
    words += [type_.partition(".")[0].encode() for type_ in set(super_blocks(kernel).type)]
    parents = (prog["kthreadd_task"], prog["init_task"].address_of_())
    sources: tuple[Callable[[], list[bytes]], ...] = (
        lambda: [
            task.comm.string_()
            for task in islice(for_each_task(prog), _MAX_LISTED)
            if not task.mm and task.real_parent in parents
        ],
        # Whole disks are parts, too; users name arrays of md.
        lambda: [
            name
            for name in map(part_name, islice(for_each_partition(prog), _MAX_LISTED))
            if not name.startswith(b"md_")
        ],
        lambda: [module.name.string_() for module in islice(for_each_module(prog), _MAX_LISTED)],
        lambda: _listed(prog["workqueues"], "struct workqueue_struct", "name"),
        lambda: _listed(prog["elv_list"], "struct elevator_type", "elevator_name"),
        lambda: _listed(
            prog.object("_targets", drgn.FindObjectFlags.VARIABLE, "dm-target.c"),
            "struct target_type",
            "name",
        ),
    )
    for names in sources:
        with suppress(LookupError, drgn.FaultError):  # not in this kernel
            words += names()
    return words


def symbol_names(prog: drgn.Program) -> list[bytes]:
    """Return the names of the kernel's functions, of its parameters, and of modules' symbols."""
    words = []
    for each in prog.symbols():
        if each.kind is drgn.SymbolKind.FUNC:
            words.append(each.name.encode())
        elif each.name.startswith("__param_str_"):  # "MODULE.PARAMETER", also of what is built in
            with suppress(*DAMAGED):
                words += prog.read_c_string(each.address, max_size=_MAX_PARAMETER).split(b".")
    with suppress(*DAMAGED):
        for module in islice(for_each_module(prog), _MAX_LISTED):
            symbols = module_symbols(module)
            words += [name.encode(errors="surrogateescape") for _, _, name in symbols]
    return words


def _listed(head: drgn.Object, type_name: str, member: str) -> list[bytes]:
    entries = list_for_each_entry(type_name, head.address_of_(), "list")
    return [entry.member_(member).string_() for entry in islice(entries, _MAX_LISTED)]


_Found = tuple[str, Path, Words]
"""A type, its member with a name, and addresses of such structures."""


def _labels(kernel: Kernel) -> _Found:
    return "struct xfs_mount", "m_sb.sb_fname", mounts(kernel).address


def _partitions(kernel: Kernel) -> _Found:
    parts = block_devices(kernel).partitions.address
    # Since Linux kernel commit 0d02129e76ed ("block: merge struct block_device and struct
    # hd_struct") (in v5.11).
    try:
        pointer = layout(kernel.prog, "struct block_device", {"info": "bd_meta_info"})
    except LookupError:
        pointer = layout(kernel.prog, "struct hd_struct", ["info"])
    info = gather(kernel.memory, parts, pointer, Faults())["info"]
    return "struct partition_meta_info", "volname", info


def _files(kernel: Kernel) -> _Found:
    disks = block_devices(kernel).disks
    loops = [disk.private for disk in disks if disk.name.startswith("loop")]
    return "struct loop_device", "lo_file_name", np.array(loops, np.uint64)


def _groups(kernel: Kernel) -> _Found:
    """Return the ``struct bfq_group`` of all cgroups on all disks."""
    prog, memory = kernel.prog, kernel.memory
    group = prog.type("struct bfq_group")
    number = int(prog["blkcg_policy_bfq"].plid)
    lists = np.uint64(drgn.offsetof(prog.type("struct request_queue"), "blkg_list"))
    heads = np.array([disk.queue for disk in block_devices(kernel).disks], np.uint64) + lists
    _, nodes, _ = list_members(memory, heads, Faults(), limit=_MAX_GROUPS)
    type_ = prog.type("struct blkcg_gq")
    places = nodes - np.uint64(drgn.offsetof(type_, "q_node"))
    data = gather(memory, places, layout(prog, type_, {"data": f"pd[{number}]"}), Faults())["data"]
    return "struct bfq_group", "blkg_path", data - np.uint64(drgn.offsetof(group, "pd"))
