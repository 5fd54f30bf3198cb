# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mirrors of device mapper that hold writes since a leg has failed, and the logs of mirrors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.chase import Damage, chase, pointer_step
from kcensus.engine.layout import layout
from kcensus.human import counted, listed
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.names import ABSENT, decode
from kcensus.kernel.tasks.programs import REPAIRERS, processes
from kcensus.kernel.waiting.finder import Draft, Stall
from kcensus.kernel.waiting.finders.copied.metadata import Metadata
from kcensus.kernel.waiting.finders.io.devices import keep
from kcensus.kernel.waiting.finders.mapped.suspended import mapped_disks, shown, targets
from kcensus.kernel.waiting.finders.mapped.thin import LVM_NAME, volume_of
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.results import Figure, Finding, Remedy
from kcensus.text import pasteable, printable

MIRROR = NodeKind("mirror with a failed leg", ("struct mirror_set",))
_TYPE = "struct mirror_set"
_MEMBERS = (
    *("ti", "nr_mirrors", "holds.head", "default_mirror.counter"),
    *("mirror[0].ms", "mirror[0].dev", "mirror[0].offset", "mirror[0].error_count.counter"),
)
_MAX_LEGS = 64
"""A mirror has at most 9 legs."""
_MAX_BIOS = 1 << 20
_LOGS = (b"core", b"disk")
"""Kinds of logs with a ``struct log_c``."""


@dataclass(frozen=True)
class _Leg:
    number: str
    """``major:minor``, as ``dmsetup status`` shows it."""
    disk: str
    """Name of its disk, empty if unknown; not safe to print."""
    offset: int
    """First sector of the leg on its device."""
    errors: int

    @property
    def text(self) -> str:
        return self.disk or self.number


@dataclass(frozen=True)
class _Mirror:
    name: str
    """Name by which dmsetup knows the device; not safe to print."""
    size: int
    """Sectors, or 0 if the device has other targets, too."""
    legs: list[_Leg]
    default: int
    """Index of the leg whose data are valid in any case; -1 for an impossible one."""
    bios: int
    volume: str
    """``VG/LV`` of a mirror of LVM; else empty."""
    regions: int = 0
    """Number of regions by the log; 0 if the log is not readable, or of another kind."""
    synced: int = 0
    """Regions that are the same on all legs."""

    @property
    def healthy(self) -> _Leg | None:
        """The leg with valid data, unless it has failed, too."""
        leg = self.legs[self.default] if 0 <= self.default < len(self.legs) else None
        return leg if leg and not leg.errors else None

    @property
    def copies(self) -> str:
        """A sentence about which leg has which data; empty if no leg is healthy."""
        if self.healthy is None:
            return ""
        name = printable(self.healthy.text)
        if not self.regions:
            return (
                f"{name} is the default leg, which has all data as far as dm-mirror knows; its "
                "log is not readable here: `dmsetup status` shows the regions in sync"
            )
        start = f"{self.synced:,} of {self.regions:,} regions are in sync"
        rest = self.regions - self.synced
        only = f"; data of the other {rest:,} is only on {name}, the default leg"
        return f"{start}{only if rest else f': {name} has all data'}"


class Mirrors(Metadata):
    """Finds the mirrors that hold writes until a program has replaced a failed leg."""

    about = "mirrors of device mapper"
    kinds = (MIRROR,)
    modules = ("dm_mod", "dm_mirror", "dm_region_hash", "dm_log")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.mirrors: dict[int, _Mirror] = {}

    def find(self) -> None:
        """Add edges from devices to the mirrors that hold their writes, and to logs of mirrors.

        :raises LookupError: the debug info lacks a type or member of dm-mirror
        """
        kept: dict[int, int] = {}
        found = targets(self, _TYPE, "mirror")
        for member in _MEMBERS if found else ():
            self._offset(_TYPE, member)  # drgn raises AttributeError for a missing one
        for row, device, target in found:
            mirror = Object(self.kernel.prog, f"{_TYPE} *", value=target.private)
            try:
                if mirror.ti.private.value_() != target.private:
                    self.faults["the mirror set belongs to another target"] += 1
                    continue
                legs, default = list(self._legs(mirror)), int(mirror.default_mirror.counter)
                head = int(mirror.holds.head)
            except drgn.FaultError as error:
                self.faults.note(error)
                continue
            # Without a failed leg, writes are held only for a moment.
            bios = self._count(head) if any(leg.errors for leg in legs) else 0
            if bios:
                size = target.length if len(device.targets) == 1 else 0
                volume = self._volume(device.name, legs)
                regions = self._regions(mirror)
                known = _Mirror(device.name, size, legs, default, bios, volume, *regions)
                self.mirrors[target.private] = known
                self.names[MIRROR, target.private] = shown(self, row, device)
                kept[row] = target.private
        inside = int(self._offset(_TYPE, "holds")) if kept else 0
        keep(self, MIRROR, kept, "mirror_set.holds", inside)
        if found and len(self._waiting()):
            self._logs([target.private for _, _, target in found])

    def _legs(self, mirror: Object) -> Iterator[_Leg]:
        for index in range(min(int(mirror.nr_mirrors), _MAX_LEGS)):
            leg = mirror.mirror[index]
            if leg.ms.value_() != mirror.value_():
                self.faults["the leg belongs to another mirror set"] += 1
                return
            number = decode(leg.dev.name.string_())
            disk = int(self._disks(np.array([int(leg.dev)], np.uint64))[0])
            errors = int(leg.error_count.counter)
            yield _Leg(number, self._disk_names.get(disk, ""), int(leg.offset), errors)

    @cached_property
    def _disk_names(self) -> dict[int, str]:
        return {each.address: each.name for each in block_devices(self.kernel).disks}

    def _volume(self, name: str, legs: list[_Leg]) -> str:
        """Return the volume of a mirror of LVM, whose legs are volumes of their own."""
        match = LVM_NAME.fullmatch(name)
        images = [self._mapped_names.get(leg.disk, "").rpartition("_mimage_") for leg in legs]
        if not match or any(image[0] != name or not image[2].isdecimal() for image in images):
            return ""
        return volume_of(match)

    @cached_property
    def _mapped_names(self) -> dict[str, str]:
        """Name of each mapped device by the name of its disk."""
        disks = block_devices(self.kernel).disks
        return {disks[row].name: device.name for row, device in mapped_disks(self)}

    def _regions(self, mirror: Object) -> tuple[int, int]:
        """Return the number of regions, and how many are in sync; zeros if unknown."""
        with contextlib.suppress(drgn.FaultError, *ABSENT, AttributeError):
            log = mirror.rh.log
            # A log of another kind has another context.
            if log.type.name.string_() in _LOGS:
                context = Object(self.kernel.prog, "struct log_c *", value=log.context.value_())
                regions, synced = int(context.region_count), int(context.sync_count)
                is_own = context.ti.value_() == mirror.ti.value_()
                if is_own and regions == int(mirror.nr_regions) and synced <= regions:
                    return regions, synced
        return 0, 0

    def _count(self, head: int) -> int:
        """Return the number of bios in a list; 0 if it is torn."""
        first, damage = np.array([head] if head else [], np.uint64), Damage()
        link = layout(self.kernel.prog, "struct bio", {"next": "bi_next"})
        step = pointer_step(self.kernel.memory, link, "next", self.faults)
        steps = chase(first, step, limit=_MAX_BIOS, damage=damage, ends=np.zeros(1, np.uint64))
        count = sum(len(nodes) for _, nodes in steps)
        self.draft.torn += damage.lists
        return 0 if damage.lists else count

    def _logs(self, mirrors: list[int]) -> None:
        """Add edges from tasks that write the logs of mirrors to the devices of the logs."""
        address = np.array(mirrors, np.uint64)
        log = self._member("struct dm_region_hash", "log", self._member(_TYPE, "rh", address))
        context = self._member("struct dm_dirty_log", "context", log)
        # Those in memory have no device.
        device = self._member("struct log_c", "log_dev", context)
        disks = np.zeros(len(device), np.uint64)
        disks[device != 0] = self._disks(device[device != 0])
        known = dict(zip(context.tolist(), disks.tolist(), strict=True))
        self._to_metadata(known, "log_c.log_dev", frozenset({"dm_mirror", "dm_log"}))

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a mirror, with the table without the failed leg."""
        if kind is not MIRROR:
            return None
        mirror, title = self.mirrors[address], printable(self.names[kind, address])
        failed = [printable(leg.text) for leg in mirror.legs if leg.errors]
        return stall.finding(
            "waits-mirror",
            title,
            f"the mirror {title}, which holds writes: {listed(failed)} failed",
            f"mirror_set.holds has {counted(mirror.bios, 'bio')}, which wait until a "
            "program (dmeventd of LVM) replaces the table of the mirror; errors: "
            + listed([f"{printable(leg.text)} {leg.errors:,}" for leg in mirror.legs])
            + (f"; {mirror.copies}" if mirror.copies else ""),
            self._remedies(mirror),
            "Replace the table of the mirror by one without the failed legs, and suspend it with "
            "--noflush --nolockfs for that; `dmsetup status` marks failed legs (D)",
            figures={
                "bios": Figure(mirror.bios),
                "failed": Figure(len(failed)),
                "regions": Figure(mirror.regions),
                "regions_in_sync": Figure(mirror.synced),
            },
        )

    def _remedies(self, mirror: _Mirror) -> Iterator[Remedy]:
        """Yield the commands that take the failed legs out of the mirror."""
        leg, name = mirror.healthy, pasteable(mirror.name)
        if leg is None or not mirror.size or not name:
            return
        volume = pasteable(mirror.volume)
        repair = f"`lvconvert --repair {volume}`"
        only = f"use {printable(leg.text)} alone: the held writes go on there"
        yield Remedy(
            effect=f"First try {repair}, as dmeventd does ({self._repairing()}). If that fails or "
            f"hangs, {only}"
            if volume
            else f"If no program repairs the mirror ({self._repairing()}), {only}",
            command=f"dmsetup load {name} --table '0 {mirror.size} linear {leg.number} "
            f"{leg.offset}' && dmsetup suspend --noflush --nolockfs {name} && "
            f"dmsetup resume {name}",
            risk="the data has no second copy any more"
            + (
                ""
                if mirror.regions
                else "; check `dmsetup status` first: A is a leg without errors"
            )
            + (
                f", and the metadata of LVM still have the mirror: run {repair} before the next "
                f"restart. `lvconvert --type mirror -m 1 {volume}` adds a copy later"
                if volume
                else ". To have one again, load a table with a new leg and without the option "
                "nosync: the mirror copies all data"
            ),
        )

    def _repairing(self) -> str:
        """Return a phrase about the programs that repair mirrors."""
        if self.kernel.has_pseudonyms:
            return "names of processes are not in this capsule"
        found = processes(self.kernel, self.known, REPAIRERS)
        if not found:
            return "no process has the name dmeventd or lvconvert"
        return f"{listed([*found.values()], 3)} is running"


FINDER = Mirrors
