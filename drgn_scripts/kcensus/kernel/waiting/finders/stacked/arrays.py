# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arrays of md: their barriers, the writes of their superblocks, and suspended arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.block.bios import Bios, bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Via, kind_of
from kcensus.kernel.lists import list_members
from kcensus.kernel.locking.owners import Strength, holders
from kcensus.kernel.names import decode_array, name_at
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.places import places_of_devices
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import nodes_of
from kcensus.kernel.waiting.finders.io.requests import REQUEST, serve_requests
from kcensus.kernel.waiting.graph import HELD, SERVED, TASK, NodeKind
from kcensus.results import Figure, Finding, Remedy
from kcensus.text import printable

BARRIER = NodeKind("queue of array", is_io=True)
"""A wait queue of an array: for its resync, its stripes, or others of its I/O."""
SUPERBLOCK = NodeKind("superblocks of array", is_io=True)
"""Writes of the superblocks of an array, at the address of its ``struct mddev``."""
STATE = NodeKind("state of array", is_io=True, is_passed_on=True)
"""The change of an array's state to dirty, before its first write."""
SUSPENDED_ARRAY = NodeKind("suspended array")
_QUEUES = ("struct wait_queue_head", "struct __wait_queue_head")
_WRITE_START, _SUPER_WAIT = "md_write_start", "md_super_wait"
_ENTRIES = frozenset({"md_handle_request", "md_make_request", "md_submit_bio"})
_CONFS = {
    **dict.fromkeys(("raid4", "raid5", "raid6"), "struct r5conf"),
    "raid1": "struct r1conf",
    "raid10": "struct r10conf",
}
"""Private data of arrays, by personality."""
_MIRRORED = {"struct r1conf": "struct r1bio", "struct r10conf": "struct r10bio"}
"""Mirrored I/O of arrays, by the private data."""
_MAX_MEMBERS = 1 << 12
_NAME = re.compile(r"md\w+")
_CONTAINER = re.compile(r"/(md\w+)/")
"""The start of ``mddev.metadata_type`` of an array in a container."""


_NO_SECTOR = (1 << 64) - 1
"""MaxSector: ``reshape_position`` without a reshape."""


@dataclass(frozen=True)
class _Array:
    row: int
    """Of the disk."""
    name: str
    """Not safe to print."""
    address: int
    """``struct mddev *``."""
    conf: int
    type: str
    """C type of ``conf``; empty if unknown."""
    suspended: int
    low: int
    """First suspended sector."""
    high: int
    """End of the suspended sectors; at most ``low`` for none."""
    is_external: bool
    container: str
    """The array whose disks have the metadata of this one, such as ``md127``; empty if unknown."""
    is_reshaping: bool
    thread: int
    """``struct md_thread *``."""


class Arrays(Finder):
    """Finds the arrays of wait queues, and what their waiters wait for."""

    about = "md arrays"
    kinds = (BARRIER, SUPERBLOCK, STATE, SUSPENDED_ARRAY)
    modules = ("md_mod", "raid1", "raid10", "raid456")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.arrays: dict[tuple[NodeKind, int], _Array] = {}

    def note(self) -> None:
        """Note the arrays that the wait queues of tasks are members of.

        :raises LookupError: the debug info lacks a type of md
        """
        lanes = self._of_type(*_QUEUES)
        disks = block_devices(self.kernel).disks if len(lanes) else ()
        rows = [row for row, disk in enumerate(disks) if kind_of(disk) is Via.MD and disk.private]
        if not rows:
            return
        wait = int(self._offset("struct mddev", "sb_wait"))
        for array in self._arrays(np.array(rows, np.int64)):
            parts = [("struct mddev", array.address)]
            if array.type and array.conf:
                parts.append((array.type, array.conf))
            for type_, address in parts:
                size = self.kernel.prog.type(type_).size
                for lane in lanes.tolist():
                    inside = int(self.object[lane]) - address
                    if 0 <= inside < size:
                        is_sb_wait = address == array.address and inside == wait
                        self._note_queue(lane, array, type_, inside, is_sb_wait)

    def _arrays(self, rows: Numbers) -> Iterator[_Array]:
        """Yield the arrays that name their disk."""
        disks = [block_devices(self.kernel).disks[row] for row in rows.tolist()]
        address = np.array([disk.private for disk in disks], np.uint64)
        members = ["gendisk", "pers", "private", "external", "thread"]
        members += ["suspended", "suspend_lo", "suspend_hi", "reshape_position"]
        read = self._read("struct mddev", address, members)
        metadata = self._member("struct mddev", "metadata_type", address)
        containers = [_CONTAINER.match(decode_array(each)) for each in metadata]
        is_known = read["gendisk"] == np.array([disk.address for disk in disks], np.uint64)
        if count := np.count_nonzero(read.readable & ~is_known):
            self.faults["the array belongs to another disk"] += int(count)
        for at in np.flatnonzero(read.readable & is_known).tolist():
            column = {name: int(values[at]) for name, values in read.columns.items()}
            yield _Array(
                row=int(rows[at]),
                name=disks[at].name,
                address=int(address[at]),
                conf=column["private"],
                type=self._type_of(column["pers"]),
                suspended=column["suspended"],
                low=column["suspend_lo"],
                high=column["suspend_hi"],
                is_external=column["external"] != 0,
                container=match[1] if (match := containers[at]) else "",
                is_reshaping=column["reshape_position"] != _NO_SECTOR,
                thread=column["thread"],
            )

    def _type_of(self, personality: int) -> str:
        """Return the C type of the private data of a personality; empty if it is unknown."""
        level = Object(self.kernel.prog, "struct md_personality *", value=personality)
        try:
            # Since v6.14 (commit not verified), the name is in md_submodule_head.
            has_head = level.type_.type.has_member("head")
            name = name_at(level.head.name if has_head else level.name) if level else ""
            type_ = _CONFS.get(name, "")
            if type_:
                self.kernel.prog.type(type_)
        except LookupError:
            return ""
        except drgn.FaultError as error:
            self.faults.note(error)
            return ""
        return type_

    def _note_queue(
        self, lane: int, array: _Array, type_: str, inside: int, is_sb_wait: bool
    ) -> None:
        """Note the object of a task's wait on a wait queue of an array."""
        names = {plain(name) for name in self.waits.stacks.functions(lane)}
        start, queue = array.address, int(self.object[lane])
        if not is_sb_wait:
            kind, address = BARRIER, queue
        elif _WRITE_START in names:
            kind, address = STATE, start
        elif _SUPER_WAIT in names:
            kind, address = SUPERBLOCK, start
        elif names & _ENTRIES and (array.suspended > 0 or array.low < array.high):
            kind, address = SUSPENDED_ARRAY, start
        else:
            kind, address = BARRIER, queue
        member = self._member_at(type_, inside)
        evidence = f"{type_.removeprefix('struct ')}.{member}"
        self._note(lane, address, "struct mddev" if address == start else _QUEUES[0], evidence)
        self.draft.kind[lane] = kind
        self.arrays[kind, address] = array
        self.names[kind, address] = (
            f"{array.name} ({member})" if kind is BARRIER and member else array.name
        )

    def _member_at(self, type_: str, inside: int) -> str:
        members = self.kernel.prog.type(type_).members or ()
        return next((each.name or "" for each in members if each.bit_offset == 8 * inside), "")

    def find(self) -> None:
        """Add edges from the wait queues of arrays to their devices, tasks and requests."""
        for (kind, address), array in self.arrays.items():
            if kind is BARRIER:
                if not self._to_own(address, array):
                    self._to_device(kind, address, array)
            elif kind is SUPERBLOCK:
                if not self._to_requests(address, array):
                    self._to_device(kind, address, array)
            elif kind is SUSPENDED_ARRAY:
                if array.suspended > 0:
                    self._to_owner(kind, address, array, "suspend_mutex", "reconfig_mutex")
            elif not array.is_external:
                self._to_thread(address, array)

    def _to_device(self, kind: NodeKind, address: int, array: _Array) -> None:
        target = nodes_of(self, np.array([array.row]))
        source = kind, np.array([address], np.uint64)
        self.build.edges(SERVED, source, target, "mddev.gendisk", strength=Strength.DERIVED)

    def _to_own(self, address: int, array: _Array) -> bool:
        """Add edges to the requests of an array's own I/O; return whether there are any.

        A resync keeps other I/O out until its own has ended, and starts when others have ended.
        """
        known, every = bios(self.kernel), requests(self.kernel)
        is_own = self._of_resync(known, array) | self._sent_to(known, array)
        row = np.unique(known.request[is_own])
        self._to(BARRIER, address, REQUEST, every.address[row], "bio.bi_private: of the array")
        serve_requests(self, row)
        return len(row) > 0

    def _of_resync(self, known: Bios, array: _Array) -> Mask:
        """Return a mask of the bios of an array's resync."""
        found = known.ends_in("end_sync_read", "end_sync_write")
        rows = np.flatnonzero(found)
        type_ = _MIRRORED.get(array.type, "")
        if not type_ or not len(rows):
            return np.zeros(len(found), np.bool_)
        # Since Linux kernel commit f0250618361d ("md: raid10: don't use bio's vec table to manage
        # resync pages") and its likes (in v4.12), bi_private of such a bio is a struct
        # resync_pages.
        bio = self._member("struct resync_pages", "raid_bio", known.origin_private[rows])
        found[rows] = self._member(type_, "mddev", bio, is_guess=True) == array.address
        return found

    def _sent_to(self, known: Bios, array: _Array) -> Mask:
        """Return a mask of the bios that were sent to an array, as clones of which they go on."""
        disk = np.uint64(block_devices(self.kernel).disks[array.row].address)
        # Since Linux kernel commit 309dca309fc3 ("block: store a block_device pointer in struct
        # bio") (in v5.12), bi_bdev; since commit 74d46992e0d9 ("block: replace bi_bdev with a
        # gendisk pointer and partitions index") (in v4.14), bi_disk.
        if self.kernel.prog.type("struct bio").has_member("bi_disk"):
            return np.asarray(self._member("struct bio", "bi_disk", known.origin) == disk)
        device = self._member("struct bio", "bi_bdev", known.origin)
        places = places_of_devices(self.kernel, np.unique(device), self.faults)
        return np.isin(device, np.unique(device)[places.disk == disk])

    def _to_requests(self, address: int, array: _Array) -> bool:
        """Add edges to the requests that write superblocks; return whether there are any."""
        head = np.array([array.address], np.uint64) + self._offset("struct mddev", "disks")
        _, nodes, torn = list_members(self.kernel.memory, head, self.faults, limit=_MAX_MEMBERS)
        self.draft.torn += len(torn)
        members = nodes - self._offset("struct md_rdev", "same_set")
        known, every = bios(self.kernel), requests(self.kernel)
        is_write = known.ends_in("super_written")
        rows = np.flatnonzero(is_write & np.isin(known.origin_private, members))
        row = np.unique(known.request[rows])
        self._to(SUPERBLOCK, address, REQUEST, every.address[row], "bio.bi_private: md_rdev")
        serve_requests(self, row)
        return len(row) > 0

    def _to(self, kind: NodeKind, address: int, target: NodeKind, to: Words, evidence: str) -> None:
        source = kind, np.full(len(to), address, np.uint64)
        self.build.edges(SERVED, source, (target, to), evidence, strength=Strength.DERIVED)

    def _to_owner(self, kind: NodeKind, address: int, array: _Array, *locks: str) -> bool:
        """Add an edge to the task that reconfigures an array; return whether there is one."""
        type_ = self.kernel.prog.type("struct mddev")
        for name in filter(type_.has_member, locks):
            place = np.array([array.address], np.uint64) + self._offset("struct mddev", name)
            found = holders(self.kernel, "struct mutex", place)
            self.faults.update(found.faults)
            tasks = found.task[np.isin(found.task, self.known.address)]
            if len(tasks):
                source = kind, np.full(len(tasks), address, np.uint64)
                proof = f"mddev.{name}"
                target = TASK, tasks
                self.build.edges(HELD, source, target, proof, strength=Strength.DERIVED)
                return True
        return False

    def _to_thread(self, address: int, array: _Array) -> None:
        """Add an edge to the thread that writes the superblocks, or to who keeps it from that.

        The thread needs the ``reconfig_mutex``, and does not wait for it.
        """
        thread = np.array([array.thread], np.uint64)
        task = int(self._member("struct md_thread", "tsk", thread)[0]) if array.thread else 0
        row = int(self.known.rows(np.array([task], np.uint64))[0]) if task else -1
        if row >= 0 and bool(self.known.is_blocked[row] | self.known.is_on_cpu[row]):
            self._to(STATE, address, TASK, np.array([task], np.uint64), "mddev.thread")
        elif not self._to_owner(STATE, address, array, "reconfig_mutex"):
            self._to_device(STATE, address, array)

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about an array that waits for mdmon, or is suspended."""
        array = self.arrays.get((kind, address))
        if array is None:
            return None
        if kind is STATE and array.is_external:
            return _mdmon(array, stall)
        return _suspended(array, stall) if kind is SUSPENDED_ARRAY else None


def _mdmon(array: _Array, stall: Stall) -> Finding:
    name = printable(array.name)
    remedies = (
        Remedy(
            effect="Start mdmon for the container of the array, which /proc/mdstat names after "
            "`external:`: it marks the array as dirty, and lets writes go on",
            command=f"mdmon --takeover {array.container}" if array.container else "",
        ),
        Remedy(
            effect="If mdmon cannot be started, mark the array as active yourself",
            command=f"echo active > /sys/block/{name}/md/array_state",
            risk="the metadata on the disks still say that the array is clean: after a crash, its "
            "disks may differ without a resync",
        ),
    )
    return stall.finding(
        "waits-mdmon",
        name,
        f"mdmon, which must mark the array {name} as dirty before a write",
        "mddev.external is set, and md_write_start() waits until MD_SB_CHANGE_PENDING is "
        "cleared, which only a program does that writes to array_state",
        remedies if _NAME.fullmatch(array.name) else (),
        "Start mdmon for the array: `cat /proc/mdstat` lists arrays",
    )


def _suspended(array: _Array, stall: Stall) -> Finding:
    name = printable(array.name)
    low, high, is_range = array.low, array.high, array.suspended <= 0
    # The superblock says whether a reshape is in progress.
    can_end = is_range and bool(_NAME.fullmatch(array.name)) and not array.is_reshaping
    remedy = Remedy(
        effect="No reshape is in progress: end the suspension",
        command=f"echo 0 > /sys/block/{name}/md/suspend_hi",
        risk="a program that changes the sectors just now would overwrite their new content",
        undo=f"echo {high} > /sys/block/{name}/md/suspend_hi",
    )
    search = (
        "A reshape of the array is in progress, and its program (mdadm) keeps these sectors until "
        "it has moved them: let it go on, or start it again with its backup file. Do not end the "
        "suspension by suspend_hi: writes to the sectors would be lost"
        if is_range and array.is_reshaping
        else "Find the task that changes the array (mdadm, a write to its sysfs files): its stack "
        "has a function of md_mod: `kcensus waits TARGET --table stacks --top 0`"
    )
    what = f"the suspended sectors {low:,} to {high:,} of the array {name}"
    return stall.finding(
        "waits-array-suspended",
        name,
        what if is_range else f"the suspended array {name}",
        "mddev.suspend_lo is below mddev.suspend_hi: a program, usually mdadm, keeps the "
        "I/O of these sectors"
        if is_range
        else "mddev.suspended is set: a change of the array keeps its I/O",
        (remedy,) if can_end else (),
        search,
        figures={"first": Figure(low), "end": Figure(high)} if is_range else {},
    )


FINDER = Arrays
