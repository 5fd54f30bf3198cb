# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that users chose, and where in memory they stand.

Those of files (dentries), cgroups, device-mapper devices, processes, and of the host. What the
kernel calls things by itself is told apart as well as can be: :func:`kernel_words`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.block import for_each_partition, part_name
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import follow_phys
from drgn.helpers.linux.module import for_each_module
from drgn.helpers.linux.pid import for_each_task

from kcensus.engine.gather import gather, gather_arrays
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Bytes, Faults, Mask, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.super_blocks import super_blocks

_BATCH = 1 << 16
"""Names to read at once."""
_LONGEST = 256
"""Bytes of the longest name, with its end (NAME_MAX; a UUID of device-mapper has 129)."""

_KERNELS_OWN = frozenset(
    ("sysfs", "proc", "debugfs", "tracefs", "securityfs", "anon_inodefs", "sockfs", "pipefs")
)
"""Types of file systems in which the kernel gives the names."""
_CGROUPS = frozenset(("cgroup", "cgroup2", "cpuset"))
"""Types of file systems in which directories have users' names, and files the kernel's."""


@dataclass(frozen=True)
class Places:
    """Some names, all with room for equally many bytes."""

    physical: Words
    """Where they begin."""
    text: Bytes
    """Shape (names, bytes); zero from their end on."""
    room: npt.NDArray[np.int64]
    """How many bytes of memory are the name's: what follows its end in there is left over from
    older ones, and may be wiped."""


@dataclass(frozen=True)
class Hashes:
    """Numbers of four bytes that the kernel computed from names."""

    physical: Words
    value: npt.NDArray[np.uint32]


class UserNames:
    """Finds the names in one kernel.

    :raises LookupError: the debug information lacks a type or variable that is needed
    :raises drgn.FaultError: memory that everything depends on is not in the dump
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.slab_map = slab_map = kernel.slab_map
        self.memory = kernel.memory
        self.prog = kernel.prog
        self.report = ScanReport()
        """What could not be scanned: names may lie there."""
        self.missing: list[str] = []
        """Kinds of names that could not be looked for: one sentence each."""
        self._direct = np.uint64(slab_map.pages.direct_map)
        self._cgroup_names = np.empty(0, f"S{_LONGEST}")

    def find(self) -> Iterator[Places | Hashes]:
        """All names, some at a time; call it once."""
        yield from self._cgroups()
        yield from self._dentries()
        yield from self._processes()
        yield from self._device_mapper()

    def _all(
        self, type_name: str, columns: Layout
    ) -> tuple[Words, dict[str, npt.NDArray[np.uint64]]]:
        caches = find_caches(self.slab_map, type_name)
        return allocated(self.slab_map, caches, columns, self.report)

    def _physical(self, addresses: Words) -> tuple[Words, Mask]:
        """Physical addresses, and which of the virtual ones are in the direct map."""
        inside = self.slab_map.pages.valid(self.slab_map.pages.pfn(addresses))
        return addresses - self._direct, inside & (addresses >= self._direct)

    def _strings(self, addresses: Words) -> Iterator[Places]:
        """The strings at some addresses; those outside of the direct map are nobody's own."""
        addresses = np.unique(addresses)
        addresses = addresses[self._physical(addresses)[1]]
        for start in range(0, len(addresses), _BATCH):
            rows = addresses[start : start + _BATCH]
            # Most are short, and the rest of a long read may not be in the dump.
            for width in (64, _LONGEST, 8):
                text, readable = gather_arrays(self.memory, rows, width, np.uint8, Faults())
                ends = text == 0
                whole = readable & (ends.any(axis=1) | (width == _LONGEST))
                length = np.where(ends.any(axis=1), ends.argmax(axis=1), width)[whole]
                text = text[whole]
                text[np.arange(width) >= length[:, None]] = 0
                yield Places(self._physical(rows[whole])[0], text, length)
                rows = rows[~whole]
                if not len(rows):
                    break
            for address in rows.tolist():
                try:
                    raw = self.prog.read_c_string(address, max_size=_LONGEST)
                except drgn.FaultError:
                    continue
                yield self._one(address - int(self._direct), raw)

    @staticmethod
    def _one(physical: int, raw: bytes, room: int = 0) -> Places:
        text = np.frombuffer(raw.ljust(1, b"\0"), np.uint8)[None, :].copy()
        return Places(np.array([physical], np.uint64), text, np.array([max(room, len(raw))]))

    # Cgroups

    def _cgroups(self) -> Iterator[Places | Hashes]:
        """Names of cgroups, dying ones included: of kernfs nodes that their cgroup points back to.

        Cgroups without a name, as their roots are, have an empty one.
        """
        columns = layout(self.prog, "struct kernfs_node", ["name", "priv", "hash"])
        address, read = self._all("struct kernfs_node", columns)
        member = layout(self.prog, "struct cgroup", ["kn"])
        back = gather(self.memory, read["priv"], member, Faults())
        mine = back.readable & (back["kn"] == address)
        names = []
        for places in self._strings(read["name"][mine]):
            names.append(places.text.view(f"S{places.text.shape[1]}")[:, 0])
            yield places
        if names:
            self._cgroup_names = np.unique(np.concatenate(names).astype(f"S{_LONGEST}"))
        at = address[mine] + np.uint64(columns.fields["hash"].offset)
        yield Hashes(self._physical(at)[0], read["hash"][mine].astype(np.uint32))

    # Dentries

    def _dentries(self) -> Iterator[Places | Hashes]:
        members = {
            "sb": "d_sb",
            "inode": "d_inode",
            "name": "d_name.name",
            "hash": "d_name.hash",
            # 6.14 made it a union.
            "inline": ("d_iname", "d_shortname.string"),
        }
        columns = layout(self.prog, "struct dentry", members)
        address, read = self._all("struct dentry", columns)
        inline = columns.fields["inline"]
        width = inline.dtype.itemsize
        kernels, cgroups = self._file_systems()
        for start in range(0, len(address), _BATCH):
            part = {name: column[start : start + _BATCH] for name, column in read.items()}
            own = address[start : start + _BATCH] + np.uint64(inline.offset)
            outside = part["name"] != own
            text = np.ascontiguousarray(part["inline"]).view(np.uint8).reshape(-1, width).copy()
            ends = (text == 0).argmax(axis=1)
            # Where the name is elsewhere, what is here is left over from an older one.
            text[(np.arange(width) >= ends[:, None]) | outside[:, None]] = 0
            wanted = self._users(part["sb"], part["inode"] != 0, text, kernels, cgroups)
            rows = np.flatnonzero(wanted)
            room = np.full(len(rows), width)
            yield Places(self._physical(own[rows])[0], text[rows], room)
            hashes = own[rows] + np.uint64(
                (columns.fields["hash"].offset - inline.offset) & ((1 << 64) - 1)
            )
            yield Hashes(self._physical(hashes)[0], part["hash"][rows].astype(np.uint32))
            yield from self._strings(part["name"][wanted & outside])

    def _file_systems(self) -> tuple[Words, Words]:
        """Super blocks with names of the kernel, and those of cgroups; ascending."""
        found = super_blocks(self.kernel)
        kinds = [type_.partition(".")[0] for type_ in found.type]
        return (
            np.sort(found.address[[kind in _KERNELS_OWN for kind in kinds]]),
            np.sort(found.address[[kind in _CGROUPS for kind in kinds]]),
        )

    def _users(
        self, sb: Words, positive: Mask, text: Bytes, kernels: Words, cgroups: Words
    ) -> Mask:
        """Which dentries have names of users.

        What does not exist was asked for by somebody, also where names are the kernel's.
        """
        names = text.view(f"S{text.shape[1]}")[:, 0]
        users: Mask = ~positive | ~np.isin(sb, kernels)
        rows = np.flatnonzero(positive & np.isin(sb, cgroups))
        users[rows] = np.isin(names[rows], self._cgroup_names) | (names[rows] == b"")
        return users

    # Processes

    def _processes(self) -> Iterator[Places]:
        """Names of processes and their threads, and of the hosts that they believe to be on."""
        members = ["comm", "mm", "real_parent", "pid", "nsproxy"]
        columns = layout(self.prog, "struct task_struct", members)
        address, read = self._all("struct task_struct", columns)
        # A thread of a user's process loses its address space as it exits.
        daemon = np.uint64(self.prog["kthreadd_task"].value_())
        idle = np.uint64(self.prog["init_task"].address_of_().value_())
        kernels = (read["real_parent"] == daemon) | (read["real_parent"] == idle)
        users = (read["mm"] != 0) | ~(kernels | (read["pid"] == 0))
        width = columns.fields["comm"].dtype.itemsize
        text = np.ascontiguousarray(read["comm"][users]).view(np.uint8).reshape(-1, width).copy()
        text[np.arange(width) >= (text == 0).argmax(axis=1)[:, None]] = 0
        at = address[users] + np.uint64(columns.fields["comm"].offset)
        yield Places(self._physical(at)[0], text, np.full(len(text), width))
        yield from self._hosts(np.unique(read["nsproxy"]))

    def _hosts(self, proxies: Words) -> Iterator[Places]:
        """Names of the host, by namespace."""
        member = layout(self.prog, "struct nsproxy", ["uts_ns"])
        found = gather(self.memory, proxies, member, Faults())["uts_ns"]
        type_ = self.prog.type("struct uts_namespace")
        first = self.prog["init_uts_ns"]
        for address in sorted({int(first.address_), *found[found != 0].tolist()}):
            name = drgn.Object(self.prog, type_, address=address).name
            for field in (name.nodename, name.domainname):
                raw = field.string_()
                if raw == b"(none)":
                    continue
                kernel = self.prog["init_mm"].address_of_()
                place = int(follow_phys(kernel, field.address_))
                # Many programs leave the domain out.
                yield self._one(place, raw.partition(b".")[0])
                yield self._one(place, raw, drgn.sizeof(field))

    # Device mapper

    def _device_mapper(self) -> Iterator[Places]:
        if not any(module.name.string_() == b"dm_mod" for module in for_each_module(self.prog)):
            try:
                self.prog["_minor_idr"]
            except LookupError:
                return
        try:
            entries, _ = idr_entries(self.memory, self.prog["_minor_idr"])
            devices = [
                drgn.Object(self.prog, "struct mapped_device *", value=entry)
                for entry in entries
                if entry < (1 << 64) - 4096  # a reserved number has no device yet
            ]
            cells = [
                drgn.cast("struct hash_cell *", device.interface_ptr)
                for device in devices
                if device.interface_ptr
            ]
            strings = [int(text) for cell in cells for text in (cell.name, cell.uuid) if text]
        except LookupError:
            self.missing.append(
                "names of device-mapper devices: the debug info of dm_mod was not found"
            )
            return
        yield from self._strings(np.array(strings, np.uint64))


def kernel_words(kernel: Kernel) -> list[bytes]:
    """Words that are the kernel's, though a user may have chosen the same.

    Of slab caches, types of file systems, kernel threads, workqueues, disks, I/O schedulers,
    modules and device-mapper targets.
    """
    prog, slab_map = kernel.prog, kernel.slab_map
    words = [cache.name.encode(errors="surrogateescape") for cache in slab_map.caches]
    words += [
        name.encode(errors="surrogateescape") for pair in slab_map.aliases.items() for name in pair
    ]
    words += [type_.partition(".")[0].encode() for type_ in set(super_blocks(kernel).type)]
    for source in (_threads, _workqueues, _disks, _schedulers, _modules, _targets):
        try:
            words += source(prog)
        except (LookupError, drgn.FaultError):
            continue  # the kernel has no such things
    return words


def _threads(prog: drgn.Program) -> list[bytes]:
    parents = (prog["kthreadd_task"], prog["init_task"].address_of_())
    return [
        task.comm.string_()
        for task in for_each_task(prog)
        if not task.mm and task.real_parent in parents
    ]


def _workqueues(prog: drgn.Program) -> list[bytes]:
    heads = prog["workqueues"].address_of_()
    type_ = "struct workqueue_struct"
    return [queue.name.string_() for queue in list_for_each_entry(type_, heads, "list")]


def _disks(prog: drgn.Program) -> list[bytes]:
    return [part_name(part) for part in for_each_partition(prog)]  # whole disks are parts, too


def _schedulers(prog: drgn.Program) -> list[bytes]:
    heads = prog["elv_list"].address_of_()
    type_ = "struct elevator_type"
    return [
        elevator.elevator_name.string_() for elevator in list_for_each_entry(type_, heads, "list")
    ]


def _modules(prog: drgn.Program) -> list[bytes]:
    return [module.name.string_() for module in for_each_module(prog)]


def _targets(prog: drgn.Program) -> list[bytes]:
    heads = prog.object("_targets", drgn.FindObjectFlags.VARIABLE, "dm-target.c").address_of_()
    type_ = "struct target_type"
    return [target.name.string_() for target in list_for_each_entry(type_, heads, "list")]
