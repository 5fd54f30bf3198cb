# SPDX-License-Identifier: LGPL-2.1-or-later
"""Thin pools without free space, which hold writes until the pool is extended."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

import drgn
from drgn import Object

from kcensus.human import counted, human_bytes, human_seconds
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import stacks
from kcensus.kernel.dm.devices import DmTarget, mapped_devices
from kcensus.kernel.names import ABSENT, DAMAGED, MISSING, decode
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.devices import above, keep
from kcensus.kernel.waiting.finders.mapped.suspended import mapped_disks, shown, targets
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.results import Figure, Finding, Remedy, Unit
from kcensus.results.severity import LATE
from kcensus.sources.capsule import NotRecorded
from kcensus.text import pasteable, printable

THIN_POOL = NodeKind("thin pool without free space", ("struct pool",))
_SECTOR = 512
_EXTENT = 4 << 20
"""Default size of extents of a volume group."""
LVM_NAME = re.compile(r"((?:[\w+.]|--)+)-((?:[\w+.]|--)+)")
"""Names of LVM's devices: volume group and logical volume, with their hyphens doubled."""
_NUMBER = re.compile(r"\d+:\d+", re.ASCII)
"""``dm_dev.name``, a number of a device."""
_POOL = re.compile(f"{LVM_NAME.pattern}-tpool")
_PLAIN = re.compile(r"[\w/-]+", re.ASCII)
"""Names of disks that are their own regular expression."""


@dataclass(frozen=True)
class _Pool:
    name: str
    """Not safe to print."""
    size: int
    """Bytes."""
    row: int
    """Of its disk."""
    table: str
    """Its line of ``dmsetup table``; empty if unknown."""
    data: str
    """Name, or number, of its data device; not safe to print. Empty if unknown."""

    @property
    def group(self) -> str:
        """Volume group of LVM, as in names of devices; empty for another pool."""
        match = _POOL.fullmatch(self.name)
        return match[1] if match else ""


class ThinPools(Finder):
    """Finds the thin pools that hold writes since they have no free blocks."""

    about = "thin pools"
    kinds = (THIN_POOL,)
    modules = ("dm_mod", "dm_thin_pool")

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.pools: dict[int, _Pool] = {}
        self.held: set[int] = set()
        """Pools that hold writes."""

    def find(self) -> None:
        """Add edges from thin devices with held bios to their pools.

        :raises LookupError: the debug info lacks a type or member of dm-thin
        """
        thins = targets(self, "struct thin_c", "thin")
        if not thins:
            return
        prog, full = self.kernel.prog, self._full()
        kept: dict[int, int] = {}
        for row, device, target in thins:
            thin = Object(prog, "struct thin_c *", value=target.private)
            try:
                pool = int(thin.pool.value_())
                if int(thin.thin_md.value_()) != device.address:
                    self.faults["the thin device belongs to another mapped device"] += 1
                elif pool in full and self._holds(thin):
                    kept[row] = pool
            except drgn.FaultError as error:
                self.faults.note(error)
        self.held = {*kept.values()}
        inside = int(self._offset("struct pool", "pf"))
        keep(self, THIN_POOL, kept, "pool.pf.mode", inside)

    def _full(self) -> set[int]:
        """Return the pools that queue writes for lack of space; note their names and sizes."""
        prog, mapped = self.kernel.prog, {each.address: row for row, each in mapped_disks(self)}
        # Since v3.15 (commit not verified), a mode of its own; before, there is no such constant.
        no_space = int(prog.constant("PM_OUT_OF_DATA_SPACE"))
        for row, device, target in targets(self, "struct pool_c", "thin-pool"):
            try:
                pool = Object(prog, "struct pool_c *", value=target.private).pool
                if int(pool.pool_md.value_()) not in mapped:
                    self.faults["the thin pool belongs to no mapped device"] += 1
                    continue
                features = pool.pf
                if int(features.mode) == no_space and not bool(features.error_if_no_space):
                    address = int(pool.value_())
                    size, line = target.length * _SECTOR, self._line(target)
                    self.pools[address] = _Pool(device.name, size, row, *line)
                    self.names[THIN_POOL, address] = shown(self, row, device)
            except drgn.FaultError as error:
                self.faults.note(error)
        return set(self.pools)

    def _line(self, target: DmTarget) -> tuple[str, str]:
        """Return the line of a pool in ``dmsetup table``, and the name of its data device."""
        pool = Object(self.kernel.prog, "struct pool_c *", value=target.private)
        with contextlib.suppress(*DAMAGED):
            data, metadata = (
                decode(each.name.string_()) for each in (pool.data_dev, pool.metadata_dev)
            )
            if not all(map(_NUMBER.fullmatch, (data, metadata))):
                return "", ""
            features, flags = pool.requested_pf, list[str]()
            for word, is_set in (
                ("skip_block_zeroing", not features.zero_new_blocks),
                ("ignore_discard", not features.discard_enabled),
                ("no_discard_passdown", not features.discard_passdown),
                ("error_if_no_space", features.error_if_no_space),
            ):
                flags += [word] if is_set else []
            words = (metadata, data, int(pool.pool.sectors_per_block), int(pool.low_water_blocks))
            line = " ".join(map(str, (0, target.length, "thin-pool", *words, len(flags), *flags)))
            name = mapped_devices(self.kernel).by_number().get(data, "")
            return line, f"{name} ({data})" if name else data
        return "", ""

    @staticmethod
    def _holds(thin: Object) -> bool:
        """Return whether bios of a thin device wait for space, or for the pool's worker."""
        lists = (thin.member_("retry_on_resume_list"), thin.member_("deferred_bio_list"))
        return any(bool(each.head) for each in lists)

    def _timeout(self) -> int:
        """Return the seconds after which the pool fails writes; 0 for never, -1 if unknown."""
        with contextlib.suppress(*ABSENT, NotRecorded):
            return int(self.kernel.prog["no_space_timeout_secs"])
        return -1

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a full pool, with the command that extends it."""
        if kind is not THIN_POOL:
            return None
        pool, title = self.pools[address], printable(self.names[kind, address])
        first, *others = self._alike(address)
        seconds = self._timeout()
        until = (
            ""
            if seconds < 0
            else f"; the pool fails held writes {human_seconds(seconds)} after it ran out of space"
            if seconds
            else "; it holds them without a time limit (no_space_timeout is 0)"
        )
        full = counted(len(others), "other pool is", plural="other pools are")
        more = f"; {full} full in the volume group"
        found = stall.finding(
            "waits-thin",
            title,
            f"free space in the thin pool {title}, all {human_bytes(pool.size)} of which are in "
            "use",
            "pool.pf.mode is PM_OUT_OF_DATA_SPACE without error_if_no_space: writes to "
            f"new blocks are held{until}{more * bool(others)}",
            map(_briefly, self._remedies(pool)) if address != first else self._remedies(pool),
            self._advice(pool),
            figures={"size": Figure(pool.size, Unit.BYTES)},
        )
        owner = f"waits-thin:{printable(self.names[kind, first])}"
        return found if address == first else replace(found, part_of=owner)

    def _alike(self, address: int) -> list[int]:
        """Return the full pools of the volume group of a pool, by name; only it without one."""
        group, name = self.pools[address].group, lambda each: self.pools[each].name
        mates = [each for each in self.held if group and self.pools[each].group == group]
        return sorted(mates, key=name) or [address]

    def _advice(self, pool: _Pool) -> str:
        """Return what to do without commands of LVM."""
        name, data = pasteable(pool.name), printable(pool.data)
        # A pseudonym may be that of a pool of LVM.
        is_known = bool(name and pool.table) and not pool.group and not self.kernel.has_pseudonyms
        steps = (
            f"Extend its data device {data}, then load its table with the new length in sectors in "
            f"place of {pool.size // _SECTOR}, and resume it: `dmsetup load {name} --table "
            f"'{pool.table}'`, `dmsetup resume {name}`"
            if is_known
            else "Extend the data device of the pool, then load the pool's table with its new "
            "length and resume it (`dmsetup load`, `dmsetup resume`)"
        )
        return (
            f"{steps}: it issues the held writes. Do not remove data to make room: fstrim and "
            "deletions wait for the pool, too"
        )

    def _remedies(self, pool: _Pool) -> Iterator[Remedy]:
        """Yield the commands of LVM for a pool of its own, unless they would hang."""
        match = _POOL.fullmatch(pool.name)
        stuck = self._stuck(pool)
        below = self._disks_of(pool.group) | stacks(self.kernel).below(pool.row)
        if not match or stuck & below:
            return
        options = ""
        if stuck:
            # LVM reads all disks that its filter accepts, and needs all of the volume group.
            named = {row: device.name for row, device in mapped_disks(self)}
            disks = block_devices(self.kernel).disks
            own = sorted(
                disks[row].name
                for row in below - {pool.row}
                if not _is_of(pool.group, named.get(row, ""))
            )
            if not own or not all(map(_PLAIN.fullmatch, own)):
                return
            accepted = "".join(f'"a|^/dev/{each}p?[0-9]*$|", ' for each in own)
            config = f'devices {{ use_devicesfile=0 filter=[{accepted}"r|.*|"] }}'
            options = f"--config {shlex.quote(config)} "
        yield from _commands(match, options, pool.size)

    def _disks_of(self, group: str) -> set[int]:
        """Return the rows of the disks below all volumes of a volume group."""
        every, found = stacks(self.kernel), set[int]()
        for row, device in mapped_disks(self):
            if _is_of(group, device.name):
                found |= every.below(row) - {row}
        return found

    def _stuck(self, pool: _Pool) -> set[int]:
        """Return the rows of the disks that do not answer, or whose I/O something keeps.

        Those are left out that the pool itself stops: LVM does not read them.
        """
        disks, found = block_devices(self.kernel).disks, set[int]()
        with contextlib.suppress(*MISSING):
            every = requests(self.kernel)
            found.update(every.disk[every.age_ns >= LATE * 1e9].tolist())
        found |= {row for row, disk in enumerate(disks) if disk.address in self.draft.keeping}
        return found - above(stacks(self.kernel), pool.row)


def _is_of(group: str, name: str) -> bool:
    """Return whether a device is of a volume group, both as in names of devices."""
    # Hyphens of the volume group are doubled.
    return bool(group) and re.match(f"{re.escape(group)}-(?!-)", name) is not None


def volume_of(match: re.Match[str]) -> str:
    """Return the ``VG/LV`` of a match of :data:`LVM_NAME`."""
    return "/".join(part.replace("--", "-") for part in match.groups())


def _briefly(remedy: Remedy) -> Remedy:
    """Return a remedy of one of several pools, shorter than that of the first."""
    if remedy.undo:
        return replace(remedy, effect="Let its writes fail that lack space")
    return replace(remedy, effect="Extend this pool, too", risk="")


def _commands(match: re.Match[str], options: str, size: int) -> Iterator[Remedy]:
    volume = shlex.quote(volume_of(match))
    more = max(size // 4, _EXTENT) >> 20
    reads = (
        "the filter has the known disks of the volume group, as others do not answer"
        if options
        else "the command reads all disks, and hangs if one does not answer"
    )
    yield Remedy(
        effect="Extend the pool, which then issues the held writes (a full volume group needs "
        "vgextend first)",
        command=f"lvextend {options}--size +{more}M {volume}",
        risk=f"it takes space of the volume group; {reads}",
    )
    yield Remedy(
        effect="If no space can be added, let writes fail that lack it",
        command=f"lvchange {options}--errorwhenfull y {volume}",
        risk="programs get I/O errors: file systems on thin volumes shut down or become read-only",
        undo=f"lvchange {options}--errorwhenfull n {volume}",
    )


FINDER = ThinPools
