# SPDX-License-Identifier: LGPL-2.1-or-later
"""Device-mapper devices with their names and the targets of their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import drgn
from drgn import Object, Program, cast

from kcensus.kernel.idr import idr_entries
from kcensus.kernel.kernel import Kernel, once

_MAX_TARGETS = 1 << 20
"""No table has that many: a larger number is damage."""
_MAX_ZONED = 256
"""Devices of one zoned target."""
_LONGEST_NAME = 256
"""Names and UUIDs of devices have 128 bytes at most."""
UNKNOWN = (LookupError, drgn.FaultError, drgn.ObjectAbsentError)
"""What reading a variable of a module can raise: no debug info, no such page, and debug info of a
module that is not loaded."""
_RESERVED = (1 << 64) - 1
"""A minor number that is taken, and whose device does not exist yet."""


@dataclass(frozen=True)
class DmTarget:
    """One line of a table."""

    type_name: str
    begin: int
    """First sector in the device."""
    length: int
    """Sectors."""
    private: int
    """Address of what the target's own module keeps."""


@dataclass(frozen=True)
class MappedDevice:
    """One ``struct mapped_device``. Names are as the kernel has them, not safe to print."""

    address: int
    number: str
    """``major:minor``"""
    name: str
    uuid: str
    targets: tuple[DmTarget, ...]


@dataclass
class MappedDevices:
    """All of them, by minor number."""

    devices: list[MappedDevice] = field(default_factory=list)
    damaged: int = 0
    """Devices or tables that could not be read."""

    def by_number(self) -> dict[str, str]:
        """Names by ``major:minor``."""
        return {device.number: device.name for device in self.devices}


def name_at(pointer: Object) -> str:
    """The string at a ``char *``, empty for a null pointer; cut where it is too long for a name.

    :raises drgn.FaultError: it cannot be read
    """
    address = int(pointer)
    return text(pointer.prog_.read_c_string(address, max_size=_LONGEST_NAME)) if address else ""


def text(raw: bytes) -> str:
    """Bytes of a name as text that keeps them all."""
    return raw.decode(errors="backslashreplace")


@once
def mapped_devices(kernel: Kernel) -> MappedDevices:
    """All devices of the device mapper; none where it is not loaded.

    :raises LookupError: ``dm_mod`` has no debug info here
    """
    found, memory = MappedDevices(), kernel.memory
    type_ = memory.prog.type("struct mapped_device *")
    try:
        entries, found.damaged = idr_entries(memory, memory.prog["_minor_idr"])
    except drgn.ObjectAbsentError:
        return found
    except drgn.FaultError:
        found.damaged += 1
        return found
    for entry in entries:
        if entry in (0, _RESERVED):
            continue
        try:
            found.devices.append(_device(Object(memory.prog, type_, value=entry), found))
        except drgn.FaultError:
            found.damaged += 1
    return found


def _device(md: Object, found: MappedDevices) -> MappedDevice:
    number = text(md.name.string_())
    try:
        # The name stands in the cell of a hash table up to 5.12, since b82096afc8af (5.13) of a
        # red-black tree; the device points at it either way.
        cell = cast("struct hash_cell *", md.interface_ptr)
        name, uuid = (name_at(cell.name), name_at(cell.uuid)) if cell else ("", "")
    except (drgn.FaultError, LookupError):
        name, uuid = "", ""
        found.damaged += 1
    return MappedDevice(int(md.value_()), number, name, uuid, tuple(_targets(md, found)))


def _targets(md: Object, found: MappedDevices) -> Iterator[DmTarget]:
    """Those that can be read; a table is left at the first that cannot."""
    try:
        table = cast("struct dm_table *", md.map)
        number = min(int(table.num_targets), _MAX_TARGETS) if table else 0
        for target in (table.targets[i] for i in range(number)):
            yield DmTarget(
                name_at(target.type.name), int(target.begin), int(target.len), int(target.private)
            )
    except drgn.FaultError:
        found.damaged += 1


# The client of a target: from its private data, by the name of its type. dm-era and the RAID
# targets of md have none.


def _member(type_name: str, path: str) -> Callable[[Program, int], list[int]]:
    def get(prog: Program, private: int) -> list[int]:
        found = Object(prog, f"struct {type_name} *", value=private)
        for name in path.split("."):
            found = found.member_(name)
        return [int(found.value_())]

    return get


def _zoned(prog: Program, private: int) -> list[int]:
    target = Object(prog, "struct dmz_target *", value=private)
    # One thread of reclaim for all devices, or in newer kernels one for each.
    if not prog.type("struct dmz_dev").has_member("reclaim"):
        return [int(target.reclaim.kc)]
    devices = min(int(target.nr_ddevs), _MAX_ZONED)
    return [int(target.dev[i].reclaim.kc) for i in range(devices)]


CLIENTS_OF_TARGETS: dict[str, Callable[[Program, int], list[int]]] = {
    "snapshot": _member("dm_snapshot", "kcopyd_client"),
    "snapshot-merge": _member("dm_snapshot", "kcopyd_client"),
    "mirror": _member("mirror_set", "kcopyd_client"),
    "thin-pool": _member("pool_c", "pool.copier"),
    "cache": _member("cache", "copier"),
    "clone": _member("clone", "kcopyd_client"),
    "writecache": _member("dm_writecache", "dm_kcopyd"),
    "zoned": _zoned,
}
"""Addresses of the ``struct dm_kcopyd_client`` of a target, given the address of its private
data. Raises LookupError where the target's module has no debug info."""
