# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mirrors of *synthetic* kernels: with a failed leg, with sound ones, and damaged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.copied.mirrors import MIRROR, Mirrors
from kcensus.kernel.waiting.finders.io.devices import DEVICE, KEPT
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct atomic_t 4 : 0 int counter
struct dm_target 64 : 0 void * private
struct dm_dev 64 : 0 struct block_device * bdev; 8 char[16] name
struct block_device 64
    0 struct gendisk * bd_disk; 8 unsigned int bd_dev; 16 unsigned long bd_start_sect
struct gendisk 64
struct bio 64 : 0 struct bio * bi_next
struct bio_list 16 : 0 struct bio * head
struct mirror 40
    0 struct mirror_set * ms; 8 struct atomic_t error_count; 24 struct dm_dev * dev
    32 unsigned long offset
struct dm_dirty_log_type 64 : 0 char * name
struct dm_dirty_log 32 : 0 struct dm_dirty_log_type * type; 8 void * context
struct dm_region_hash 64 : 0 struct dm_dirty_log * log
struct log_c 64 : 0 struct dm_target * ti; 8 unsigned int region_count; 16 unsigned long sync_count
struct mirror_set 256
    0 struct dm_target * ti; 8 struct bio_list holds; 24 struct atomic_t default_mirror
    28 unsigned int nr_mirrors; 32 struct mirror[2] mirror
    128 struct dm_region_hash * rh; 136 unsigned long nr_regions
"""
_SDA, _SDB, _MIRROR = (0xFFFF_8881_0000_0000 + 0x1000 * at for at in range(3))
_MAPPED = 0xFFFF_8882_0000_0000


class Mirror(Sleepers):
    """dm-0 is a mirror on sda and sdb, which holds two bios."""

    def __init__(
        self, *errors: int, default: int = 0, others: int = 0, types: str = _TYPES
    ) -> None:
        super().__init__(types, "io_schedule")
        self.mirror = self.k.alloc("struct mirror_set", nr_mirrors=2)
        target = self.k.alloc("struct dm_target", private=self.mirror)
        self.k.set(self.mirror.ti, target)
        if types == _TYPES:
            self.k.set(self.mirror.default_mirror.counter, default)
        last = self.k.alloc("struct bio")
        self.k.set(self.mirror.holds.head, self.k.alloc("struct bio", bi_next=last))
        for at, (disk, number) in enumerate(((_SDA, b"8:0"), (_SDB, b"8:16"))):
            device = self.k.alloc("struct block_device", bd_disk=disk)
            self.k.set(self.mirror.mirror[at].ms, self.mirror)
            self.k.set(self.mirror.mirror[at].error_count.counter, errors[at])
            self.k.set(self.mirror.mirror[at].offset, 2048)
            named = self.k.alloc("struct dm_dev", bdev=device, name=number)
            self.k.set(self.mirror.mirror[at].dev, named)
        disks = [
            SimpleNamespace(address=_SDA, name="sda", private=0),
            SimpleNamespace(address=_SDB, name="sdb", private=0),
            SimpleNamespace(address=_MIRROR, name="dm-0", private=_MAPPED),
        ]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        self.remember(stacks, Stacks((Edge(2, 0, 0, Via.DM), Edge(2, 1, 0, Via.DM))))
        targets = [DmTarget("mirror", 0, 4096, int(self.mirror.address_))]
        targets += [DmTarget("linear", 4096, 8, 0)] * others
        known = MappedDevice(_MAPPED, "254:0", "two legs", tuple(targets))
        self.remember(mapped_devices, MappedDevices([known]))

    def keep_log(self, kind: bytes, regions: int, synced: int, *, is_own: bool = True) -> None:
        """Give it a log of regions."""
        target = self.mirror.ti.value_() if is_own else 0
        log = self.k.alloc("struct log_c", region_count=regions, sync_count=synced, ti=target)
        name = self.k.alloc("char [16]")
        self.k.write(int(name.address_), kind + b"\0")
        type_ = self.k.alloc("struct dm_dirty_log_type", name=int(name.address_))
        dirty = self.k.alloc("struct dm_dirty_log", type=type_, context=int(log.address_))
        self.k.set(self.mirror.rh, self.k.alloc("struct dm_region_hash", log=dirty))
        self.k.set(self.mirror.nr_regions, 64)


def test_a_mirror_with_a_failed_leg_holds_its_writes() -> None:
    scene = Mirror(0, 3)
    graph, finder = scene.run(Mirrors)
    address = int(scene.mirror.address_)
    assert (DEVICE, _MIRROR, KEPT, address, int(Strength.PROVEN)) in links(graph)
    found = finder.finding(MIRROR, address, Stall(frozenset({1, 2}), 2, 300.0))
    assert found is not None
    assert (found.id, found.severity) == ("waits-mirror:dm-0 (two legs)", Severity.WARNING)
    assert (found.figures["bios"].value, found.figures["failed"].value) == (2, 1)
    (remedy,) = found.remedies
    assert remedy.command == (
        "dmsetup load 'two legs' --table '0 4096 linear 8:0 2048' && "
        "dmsetup suspend --noflush --nolockfs 'two legs' && dmsetup resume 'two legs'"
    )


def test_lvm_repairs_its_own_mirrors() -> None:
    scene = Mirror(0, 3)
    addresses = {"dm-1": _SDA, "dm-2": _SDB, "dm-0": _MIRROR}
    disks = [
        SimpleNamespace(address=address, name=name, private=_MAPPED + 64 * int(name[-1]))
        for name, address in addresses.items()
    ]
    scene.remember(block_devices, SimpleNamespace(disks=disks))
    (mirror,) = mapped_devices(scene.kernel).devices
    legs = [
        MappedDevice(_MAPPED + 64 * (at + 1), f"254:{at + 1}", f"shop-a--b_mimage_{at}", ())
        for at in range(2)
    ]
    scene.remember(mapped_devices, MappedDevices([replace(mirror, name="shop-a--b"), *legs]))
    _, finder = scene.run(Mirrors)
    found = finder.finding(MIRROR, int(scene.mirror.address_), Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    (remedy,) = found.remedies
    assert remedy.effect.startswith("First try `lvconvert --repair shop/a-b`")
    assert "run `lvconvert --repair shop/a-b` before the next restart" in remedy.risk


@pytest.mark.parametrize(
    ("log", "is_own", "expected"),
    [
        ((b"core", 64, 61), True, (64, 61, "the other 3 is only on sda")),
        ((b"disk", 64, 64), True, (64, 64, "in sync: sda has all data")),
        ((b"userspace", 64, 61), True, (0, 0, "not readable here")),
        ((b"core", 64, 65), True, (0, 0, "not readable here")),
        ((b"core", 63, 61), True, (0, 0, "not readable here")),
        ((b"core", 64, 61), False, (0, 0, "not readable here")),
    ],
)
def test_the_log_has_the_regions_in_sync(
    log: tuple[bytes, int, int], is_own: bool, expected: tuple[int, int, str]
) -> None:
    scene = Mirror(0, 3)
    scene.keep_log(*log, is_own=is_own)
    _, finder = scene.run(Mirrors)
    found = finder.finding(MIRROR, int(scene.mirror.address_), Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    figures = found.figures["regions"].value, found.figures["regions_in_sync"].value
    assert figures == expected[:2]
    assert expected[2] in found.evidence
    assert ("dmsetup status" in found.remedies[0].risk) == (not expected[0])


@pytest.mark.parametrize(
    "scene",
    [Mirror(2, 3), Mirror(0, 3, default=1), Mirror(0, 3, default=7), Mirror(0, 3, others=1)],
)
def test_without_a_valid_leg_there_is_no_command(scene: Mirror) -> None:
    _, finder = scene.run(Mirrors)
    found = finder.finding(MIRROR, int(scene.mirror.address_), Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    assert found.remedies == ()
    assert found.no_remedy


def test_a_kernel_without_a_member_is_a_lookup_error() -> None:
    scene = Mirror(0, 3, types=_TYPES.replace("24 struct atomic_t default_mirror", "24 int other"))
    with pytest.raises(LookupError):
        scene.run(Mirrors)


def test_mirrors_without_errors_or_bios_and_damaged_ones_hold_nothing() -> None:
    sound, idle, others, torn = Mirror(0, 0), Mirror(0, 3), Mirror(0, 3), Mirror(0, 3)
    idle.k.set(idle.mirror.holds.head, 0)
    others.k.set(others.mirror.ti, others.k.alloc("struct dm_target"))
    torn.k.set(torn.mirror.holds.head, 0xDEAD_0000_0000_1000)
    for scene in (sound, idle, others, torn):
        graph, _ = scene.run(Mirrors)
        assert len(graph) == 0
    assert others.faults or torn.faults
