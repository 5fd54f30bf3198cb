# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disks, their partitions and request queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import drgn
import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.engine.strings import c_strings
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import decode, decode_array

MAX_DEVICES = 1 << 20
"""Disks and partitions: there are as many minor numbers for each major."""
_MAX_CLASSES = 1 << 14


class QueueKind(Enum):
    """The way in which a queue passes I/O on."""

    BIO = "bio"
    """The driver takes bios: there are no requests (dm, md, brd, zram)."""
    SINGLE = "single"
    """The legacy single queue, up to v4.20."""
    MULTI = "mq"
    """blk-mq."""


@dataclass(frozen=True)
class Disk:
    """A ``struct gendisk`` and its ``struct request_queue``; names are not safe to print."""

    address: int
    queue: int
    """Address of its queue; 0 without one."""
    name: str
    number: int
    """``dev_t`` of the whole disk."""
    private: int
    """``private_data`` of the driver."""
    kind: QueueKind
    scheduler: str
    """Name of the I/O scheduler, ``none`` without one."""
    scheduler_data: int
    """``elevator_data``; 0 without a scheduler."""
    hardware_queues: int
    freeze_depth: int
    """Nesting of its freezes: no request enters it until this is 0 again."""
    quiesce_depth: int
    """Nesting of its quiesces, during which nothing is dispatched; -1 if not recorded."""
    counted_in_flight: tuple[int, int]
    """Reads and writes in flight by the counters of the disk and its partitions; -1 without
    counters."""

    @property
    def device(self) -> str:
        """``major:minor``."""
        return f"{self.number >> 20}:{self.number & 0xFFFFF}"


@dataclass(frozen=True)
class Partitions(Addressed):
    """Partitions and whole disks as columns, by ascending address."""

    address: Words
    """``struct block_device``, or ``struct hd_struct`` up to v5.10."""
    disk: Numbers
    """Row of the disk, or -1."""
    number: Numbers
    """Partition number; 0 for the whole disk."""
    device: Numbers
    """``dev_t``."""


@dataclass
class BlockDevices:
    """All disks and partitions, and what is damaged of them."""

    disks: tuple[Disk, ...]
    partitions: Partitions
    queue_rows: dict[int, int] = field(default_factory=dict)
    """Row of the disk by address of its queue."""
    damage: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Numbers of lost parts by the name of the disk, empty if unknown, and what is wrong."""
    faults: Faults = field(default_factory=Faults)

    @property
    def damaged(self) -> int:
        """Lost disks and partitions, and torn lists of devices."""
        return self.damage.total()

    def of_kind(self, kind: QueueKind) -> tuple[Lanes, Words]:
        """Return the rows of the disks with a kind of queue, and the addresses of the queues."""
        rows = [row for row, disk in enumerate(self.disks) if disk.kind == kind]
        return np.array(rows, np.int64), np.array(
            [self.disks[row].queue for row in rows], np.uint64
        )

    def disk_rows(self, queues: Words) -> Numbers:
        """Return the row of the disk of each queue, or -1."""
        column = np.array(sorted(self.queue_rows), np.uint64)
        rows = np.array([self.queue_rows[int(each)] for each in column] or [-1], np.int64)
        found = rows_of(column, queues)
        return np.where(found >= 0, rows[found], -1)

    def rows_of_numbers(self, numbers: Numbers) -> Numbers:
        """Return the row of the disk of each ``dev_t``, of a disk or a partition, or -1."""
        parts = self.partitions
        known = np.flatnonzero((parts.disk >= 0) & (parts.device > 0))
        known = known[np.argsort(parts.device[known], kind="stable")]
        place = np.searchsorted(parts.device[known], numbers)
        device = np.append(parts.device[known], -1)
        return np.where(device[place] == numbers, np.append(parts.disk[known], -1)[place], -1)


@once
def block_devices(kernel: Kernel) -> BlockDevices:
    """Return all disks and partitions.

    :raises LookupError: the debug info lacks block devices
    :raises drgn.FaultError: the list of classes is unreadable
    """
    memory, faults = kernel.memory, Faults()
    damage: Counter[tuple[str, str]] = Counter()
    devices, torn = _devices(memory, faults)
    damage["", "torn list of devices, or unreadable devices"] += torn
    parts = _parts(memory, devices, faults)
    # An unreadable partition may be a whole disk.
    damage["", "unreadable disk or partition"] += int((parts.number < 0).sum())
    whole = parts.disk[(parts.number == 0) & (parts.disk != 0)]
    wanted = layout(
        memory.prog,
        "struct gendisk",
        {"major": "major", "minor": "first_minor", "name": "disk_name", "queue": "queue"}
        | {"private": "private_data"},
    )
    read = gather(memory, whole, wanted, faults)
    damage["", "unreadable disk"] += int((~read.readable).sum())
    whole = whole[read.readable]
    column = {name: values[read.readable] for name, values in read.columns.items()}
    names = [decode_array(name) for name in column["name"]]
    of_queue, wrong = _queues(kernel, whole, column["queue"], faults)
    for what, rows in wrong.items():
        damage.update((names[each], what) for each in np.flatnonzero(rows).tolist())
    row = rows_of(whole, parts.disk, np.argsort(whole))
    # A disk that is unreadable counts, but its partitions do not.
    contradicted = (row >= 0) & ~_is_of_disk(memory, parts, row, whole, faults)
    row = np.where(contradicted, -1, row)
    damage["", "partition of an unknown disk, or of two"] += int(contradicted.sum())
    order = np.argsort(parts.address)
    found = Partitions(parts.address[order], row[order], parts.number[order], parts.device[order])
    in_flight = _in_flight(memory, parts.address, parts.disk, parts.number, whole, faults)
    all_disks = tuple(
        Disk(
            address=int(whole[each]),
            queue=int(column["queue"][each]),
            name=names[each],
            number=int(column["major"][each]) << 20 | int(column["minor"][each]),
            private=int(column["private"][each]),
            **{name: values[each] for name, values in of_queue.items()},
            counted_in_flight=(int(in_flight[each, 0]), int(in_flight[each, 1])),
        )
        for each in range(len(whole))
    )
    by_queue = {disk.queue: place for place, disk in enumerate(all_disks) if disk.queue}
    return BlockDevices(all_disks, found, by_queue, +damage, faults)


def in_flight(kernel: Kernel) -> Numbers:
    """Return the present :attr:`Disk.counted_in_flight` of all disks, shape (disks, 2).

    :raises LookupError: the debug info lacks block devices
    :raises drgn.FaultError: the list of classes is unreadable
    """
    devices = block_devices(kernel)
    whole = np.array([disk.address for disk in devices.disks], np.uint64)
    parts = devices.partitions
    rows = np.flatnonzero(parts.disk >= 0)
    disk, number = whole[parts.disk[rows]], parts.number[rows]
    return _in_flight(kernel.memory, parts.address[rows], disk, number, whole, Faults())


def _devices(memory: Memory, faults: Faults) -> tuple[Words, int]:
    """Return the ``struct device`` of all disks and partitions, and the number of torn lists."""
    prog = memory.prog
    private = prog.type("struct subsys_private")
    own, torn = _of_class(memory, private, faults)
    heads = own + np.uint64(drgn.offsetof(private, "klist_devices.k_list"))
    _, nodes, cut = list_members(memory, heads, faults, limit=MAX_DEVICES)
    damaged = torn + len(cut)
    # Since Linux kernel commit 570d0200123f ("driver core: move device->knode_class to
    # device_private") (in v5.1), the node is in the private part of the device.
    holder = prog.type("struct device_private")
    if not holder.has_member("knode_class"):
        device = prog.type("struct device")
        return nodes - np.uint64(drgn.offsetof(device, "knode_class.n_node")), damaged
    holders = nodes - np.uint64(drgn.offsetof(holder, "knode_class.n_node"))
    read = gather(memory, holders, layout(prog, holder, ["device"]), faults)
    device = holder.member("device").type.type
    back = gather(memory, read["device"], layout(prog, device, ["p"]), Faults())
    known = read.readable & (~back.readable | (back["p"] == holders))
    return read["device"][known], damaged + int((~known).sum())


def _of_class(memory: Memory, private: drgn.Type, faults: Faults) -> tuple[Words, int]:
    """Return the ``struct subsys_private`` of block devices, and the number of torn lists.

    :raises LookupError: the list of classes is damaged and lacks it
    """
    prog = memory.prog
    block_class = prog["block_class"]
    # Since Linux kernel commit 2df418cf4b72 ("driver core: class: remove subsystem private pointer
    # from struct class") (in v6.4), only the list of all classes leads to the data of one.
    if block_class.type_.has_member("p"):
        return np.array([int(block_class.p)], np.uint64), 0
    head = np.array([prog["class_kset"].list.address_of_().value_()], np.uint64)
    _, nodes, torn = list_members(memory, head, faults, limit=_MAX_CLASSES)
    subsystems = nodes - np.uint64(drgn.offsetof(private, "subsys.kobj.entry"))
    classes = gather(memory, subsystems, layout(prog, private, ["class"]), faults)["class"]
    own = subsystems[classes == np.uint64(block_class.address_of_().value_())]
    if not len(own):
        raise LookupError("the list of device classes lacks block_class")
    return own, len(torn)


class _Parts(NamedTuple):
    """Partitions and whole disks as columns."""

    address: Words
    number: Numbers
    """Partition number; -1 if unreadable."""
    disk: Words
    device: Numbers
    """``dev_t``."""
    parent: Words
    """The partition or whole disk of the parent device; of no meaning for whole disks."""


def _parts(memory: Memory, devices: Words, faults: Faults) -> _Parts:
    prog = memory.prog
    # Since Linux kernel commit 0d02129e76ed ("block: merge struct block_device and struct
    # hd_struct") (in v5.11), partitions are block devices.
    try:
        type_, device = prog.type("struct block_device"), "bd_device"
        inside = drgn.offsetof(type_, device)
        columns: dict[str, Path] = {"disk": "bd_disk", "device": "bd_dev"}
        # Since Linux kernel commit 1116b9fa15c0 ("bdev: infrastructure for flags") (in v6.10), the
        # partition number is the low byte of the flags.
        columns["number"] = ("__bd_flags.counter", "bd_partno")
    except LookupError:
        type_, device = prog.type("struct hd_struct"), "__dev"
        inside = drgn.offsetof(type_, device)
        columns = {"number": "partno", "device": "__dev.devt"}
    parts = devices - np.uint64(inside)
    read = gather(memory, parts, layout(prog, type_, columns | {"up": f"{device}.parent"}), faults)
    number = np.where(read.readable, read["number"].astype(np.int64) & 0xFF, -1)
    # The parent of a partition's device is the device of the disk, in its part0.
    parent = read["up"] - np.uint64(inside)
    if "disk" in read.columns:
        disk = read["disk"]
    else:
        first = drgn.offsetof(prog.type("struct gendisk"), "part0")
        disk = np.where(number > 0, parent, parts) - np.uint64(first)
    return _Parts(parts, number, disk, read["device"].astype(np.int64), parent)


def _is_of_disk(memory: Memory, parts: _Parts, row: Numbers, whole: Words, faults: Faults) -> Mask:
    """Return whether the disks, in the rows ``row``, have the part0 of their partitions.

    A whole disk is the part0 of its disk; that of a partition is the parent of its device.
    """
    type_ = memory.prog.type("struct gendisk")
    if type_.member("part0").type.kind != drgn.TypeKind.POINTER:
        return np.ones(len(row), np.bool_)  # that is how they were found
    first = gather(memory, whole, layout(memory.prog, type_, ["part0"]), faults)["part0"]
    part0 = np.where(parts.number > 0, parts.parent, parts.address)
    is_own: Mask = np.append(first, np.uint64(0))[row] == part0
    return is_own


def _queues(
    kernel: Kernel, whole: Words, queues: Words, faults: Faults
) -> tuple[dict[str, list[Any]], dict[str, Mask]]:
    """Return the columns of :class:`Disk` read from queues, and which disks have a damaged one.

    :param whole: the ``struct gendisk`` of each queue
    """
    # Since Linux kernel commit 7996a8b5511a ("blk-mq: fix hang caused by freeze/unfreeze sequence")
    # (in v5.2, and in RHEL 8), mq_freeze_depth is an int. Since v5.16 (commit not verified), there
    # is quiesce_depth, and before only a flag with a number that debug info lacks.
    columns = layout(
        kernel.prog,
        "struct request_queue",
        {"elevator": "elevator"},
        {"mq_ops": "mq_ops", "request_fn": "request_fn", "hardware_queues": "nr_hw_queues"}
        | {"freeze_depth": ("mq_freeze_depth.counter", "mq_freeze_depth")}
        # Since Linux kernel commit d152c682f03c ("block: add an explicit ->disk backpointer to the
        # request_queue") (in v5.15), a queue names its disk.
        | {"quiesce_depth": "quiesce_depth", "disk": "disk"},
    )
    read = gather(kernel.memory, queues, columns, faults)
    elevators = np.unique(read["elevator"])
    elevators = elevators[elevators != 0]
    pair = layout(kernel.prog, "struct elevator_queue", ["type", "elevator_data"])
    elevator = gather(kernel.memory, elevators, pair, faults)
    names = _type_names(kernel.memory, elevator["type"], faults)
    data = zip(names, elevator["elevator_data"].tolist(), strict=True)
    schedulers = dict(zip(elevators.tolist(), data, strict=True))
    own = [schedulers.get(each, ("none", 0)) for each in read["elevator"].tolist()]

    def values(name: str, missing: int = 0) -> list[int]:
        column = read.columns.get(name)
        return [missing] * len(queues) if column is None else column.tolist()

    # Bio-based drivers have no operations; until v5.8 dm had some for both of its kinds.
    kinds = [
        QueueKind.MULTI if mq_ops else QueueKind.SINGLE if request_fn else QueueKind.BIO
        for mq_ops, request_fn in zip(values("mq_ops"), values("request_fn"), strict=True)
    ]
    bad = elevators[~elevator.readable | (elevator["elevator_data"] == 0)]
    is_multi = np.array([kind == QueueKind.MULTI for kind in kinds], np.bool_)
    _, first, uses = np.unique(queues, return_inverse=True, return_counts=True)
    # A listed disk has a queue, even if its driver takes bios.
    wrong = {
        "its queue is unreadable": ~read.readable,
        "its queue belongs to another disk": read.readable
        & ((read.columns.get("disk", whole) != whole) | (uses[first] > 1)),
        "its queue has no operations, or no hardware queues": read.readable
        & (is_multi != (np.array(values("hardware_queues")) > 0)),
        "its scheduler is unreadable": np.isin(read["elevator"], bad),
    }
    return {
        "kind": kinds,
        "scheduler": [name for name, _ in own],
        "scheduler_data": [address for _, address in own],
        "hardware_queues": values("hardware_queues"),
        "freeze_depth": values("freeze_depth"),
        "quiesce_depth": values("quiesce_depth", -1),
    }, wrong


def _type_names(memory: Memory, types: Words, faults: Faults) -> list[str]:
    # Since v5.3 or before (commit not verified), elevator_name is a pointer instead of an array.
    columns = layout(memory.prog, "struct elevator_type", {"name": "elevator_name"})
    names = gather(memory, types, columns, faults)["name"]
    if names.dtype.kind == "S":
        return [decode_array(raw) or "unreadable" for raw in names.tolist()]
    texts = c_strings(memory, names, faults)
    return ["unreadable" if text is None else decode(text[:64]) for text in texts]


def _in_flight(
    memory: Memory, parts: Words, disk: Words, number: Numbers, whole: Words, faults: Faults
) -> Numbers:
    """Return the disks' own counters of reads and writes in flight; -1 without counters."""
    prog = memory.prog
    counted = np.full((len(whole), 2), -1)
    first = np.flatnonzero(number == 0)
    rows = rows_of(whole, disk[first], np.argsort(whole))
    first, rows = first[rows >= 0], rows[rows >= 0]
    names = ["in_flight[0]", "in_flight[1]"]
    # Since v5.0 (commit not verified), the counters are per CPU, in disk_stats.
    try:
        old = layout(prog, "struct hd_struct", {name: f"{name}.counter" for name in names})
    except LookupError:
        pass
    else:
        read = gather(memory, parts[first], old, faults)
        counted[rows] = np.stack([read[name] for name in names], axis=1)
        counted[rows[~read.readable]] = -1
        return counted
    try:
        pointer = layout(prog, "struct block_device", {"stats": "bd_stats"})
        # A request counts on the partition or whole disk that its bio was sent to. Before, a
        # request to a partition counts on the whole disk, too.
        first = np.flatnonzero(number >= 0)
        rows = rows_of(whole, disk[first], np.argsort(whole))
        first, rows = first[rows >= 0], rows[rows >= 0]
    except LookupError:
        pointer = layout(prog, "struct hd_struct", {"stats": "dkstats"})
    stats = gather(memory, parts[first], pointer, faults)["stats"]
    offsets = cpu_offsets(prog)
    # local_t is an atomic_long_t, but on powerpc a struct with a long.
    paths = {name: (f"{name}.a.counter", f"{name}.v") for name in names}
    per_cpu = layout(prog, "struct disk_stats", paths)
    places = (stats[:, None] + offsets[None, :]).ravel()
    read = gather(memory, places, per_cpu, faults, may_be_zero=True)
    shape = len(stats), len(offsets)
    sums = [read[name].astype(np.int64).reshape(shape).sum(axis=1) for name in names]
    known = read.readable.reshape(shape).all(axis=1) & (stats != 0)
    counted[rows] = 0
    np.add.at(counted, rows, np.stack(sums, axis=1))
    counted[rows[~known]] = -1
    return counted
