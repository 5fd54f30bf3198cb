# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mapped devices: their names and the targets of their tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import drgn
import numpy as np
from drgn import Object, Program, cast, sizeof

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.zeros import present
from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members
from kcensus.kernel.names import MISSING, decode, name_at

BLOCK_IO_FOR_SUSPEND = 1 << 0
"""DMF_BLOCK_IO_FOR_SUSPEND, a macro in dm-core.h: bios are deferred until resume."""
_MAX_DEVICES = 1 << 20
_MAX_ZONED_DEVICES = 256
_RESERVED = (1 << 64) - 1
"""MINOR_ALLOCED: a minor number without a device yet."""


@dataclass(frozen=True)
class DmTarget:
    """A ``struct dm_target``, one line of a table; in sectors."""

    type_name: str
    begin: int
    length: int
    private: int
    """Address of the data of the target's module."""


@dataclass(frozen=True)
class MappedDevice:
    """A ``struct mapped_device``; names are not safe to print."""

    address: int
    number: str
    """``major:minor``"""
    name: str
    targets: tuple[DmTarget, ...]


@dataclass
class MappedDevices:
    """All mapped devices, by minor number."""

    devices: list[MappedDevice] = field(default_factory=list)
    named: int | None = None
    """Devices in the index of names; None if unreadable."""
    damaged: int = 0
    """Unreadable or inconsistent devices, tables and nodes of indexes."""

    def by_number(self) -> dict[str, str]:
        """Return the names by ``major:minor``."""
        return {device.number: device.name for device in self.devices}


@once
def mapped_devices(kernel: Kernel) -> MappedDevices:
    """Return all mapped devices; none where ``dm_mod`` is not loaded.

    :raises LookupError: ``dm_mod`` has no debug info
    """
    devices, memory = MappedDevices(), kernel.memory
    type_ = memory.prog.type("struct mapped_device *")
    try:
        entries, devices.damaged = idr_entries(memory, memory.prog["_minor_idr"])
    except drgn.ObjectAbsentError:
        return devices
    except drgn.FaultError:
        devices.damaged += 1
        return devices
    for entry in entries:
        if entry in (0, _RESERVED):
            continue
        try:
            devices.devices.append(_device(Object(memory.prog, type_, value=entry), devices))
        except drgn.FaultError:
            devices.damaged += 1
    with contextlib.suppress(*MISSING):
        devices.named, damaged = _names(memory)
        devices.damaged += damaged
    return devices


def _names(memory: Memory) -> tuple[int, int]:
    """Return the number of names in the index of devices, and its damaged nodes or lists."""
    faults = Faults()
    try:
        # Since Linux kernel commit b82096afc8af ("dm ioctl: replace device hash with red-black
        # tree") (in v5.13); before, 64 lists.
        level = np.array([int(memory.prog["name_rb_tree"].rb_node)], np.uint64)
    except LookupError:
        buckets = memory.prog["_name_buckets"]
        size = np.uint64(sizeof(buckets[0]))
        steps = np.arange(len(buckets), dtype=np.uint64) * size
        heads = np.uint64(buckets.address_of_().value_()) + steps
        _, nodes, torn = list_members(memory, heads, faults, limit=_MAX_DEVICES)
        return len(nodes), len(torn)
    links, damaged = layout(memory.prog, "struct rb_node", ["rb_left", "rb_right"]), 0
    nodes = np.empty(0, np.uint64)
    while len(level := level[level != 0]) and len(nodes) <= _MAX_DEVICES:
        read = gather(memory, level, links, faults)
        damaged += int((~read.readable).sum())
        nodes = np.concatenate([nodes, level[read.readable]])
        children = np.concatenate([read["rb_left"], read["rb_right"]])
        level = np.setdiff1d(children, nodes)  # a child above its parent is damage, and ends here
        damaged += int(np.count_nonzero(children)) - int(np.count_nonzero(level))
    return len(nodes), damaged


def _device(md: Object, devices: MappedDevices) -> MappedDevice:
    """Return a device with its targets up to the first unreadable or impossible one."""
    number, name = decode(present(md[0]).name.string_()), ""
    targets: list[DmTarget] = []
    try:
        # Since Linux kernel commit b82096afc8af ("dm ioctl: replace device hash with red-black
        # tree") (in v5.13), hash_cell is a node of a tree; interface_ptr points to it either way.
        cell = cast("struct hash_cell *", md.interface_ptr)
        name = name_at(present(cell[0]).name) if cell else ""
    except (drgn.FaultError, LookupError):
        devices.damaged += 1
    try:
        table, end = cast("struct dm_table *", md.map), 0
        for index in range(int(present(table[0]).num_targets) if table else 0):
            target = table.targets[index]
            begin, length = int(target.begin), int(target.len)
            if begin != end or not length:  # the targets of a table have no gaps
                devices.damaged += 1
                break
            end = begin + length
            kind = name_at(target.type.name)
            targets.append(DmTarget(kind, begin, length, int(target.private)))
    except drgn.FaultError:
        devices.damaged += 1
    return MappedDevice(int(md.value_()), number, name, tuple(targets))


def _client(type_name: str, path: str, prog: Program, private: int) -> list[int]:
    client = Object(prog, f"struct {type_name} *", value=private)
    for name in path.split("."):
        client = client.member_(name)
    return [int(client.value_())]


def _zoned(prog: Program, private: int) -> list[int]:
    target = Object(prog, "struct dmz_target *", value=private)
    # Since Linux kernel commit f97809aec589 ("dm zoned: per-device reclaim") (in v5.8), each
    # device has a reclaim of its own.
    if not prog.type("struct dmz_dev").has_member("reclaim"):
        return [int(target.reclaim.kc)]
    devices = min(int(target.nr_ddevs), _MAX_ZONED_DEVICES)
    return [int(target.dev[i].reclaim.kc) for i in range(devices)]


CLIENTS_OF_TARGETS: dict[str, Callable[[Program, int], list[int]]] = {
    "snapshot": partial(_client, "dm_snapshot", "kcopyd_client"),
    "snapshot-merge": partial(_client, "dm_snapshot", "kcopyd_client"),
    "mirror": partial(_client, "mirror_set", "kcopyd_client"),
    "thin-pool": partial(_client, "pool_c", "pool.copier"),
    "cache": partial(_client, "cache", "copier"),
    "clone": partial(_client, "clone", "kcopyd_client"),
    "writecache": partial(_client, "dm_writecache", "dm_kcopyd"),
    "zoned": _zoned,
}
"""Readers of ``struct dm_kcopyd_client`` addresses by target type, given the private data of a
target; they raise LookupError without debug info. dm-era and RAID have no client."""
