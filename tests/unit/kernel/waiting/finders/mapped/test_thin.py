# SPDX-License-Identifier: LGPL-2.1-or-later
"""Thin pools of *synthetic* kernels: full ones, and such as keep nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE, KEPT
from kcensus.kernel.waiting.finders.mapped.thin import THIN_POOL, ThinPools
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct bio_list 16 : 0 void * head
struct dm_dev 64 : 8 char[16] name
struct pool_features 8
    0 unsigned int mode; 4 _Bool error_if_no_space; 5 _Bool zero_new_blocks
    6 _Bool discard_enabled; 7 _Bool discard_passdown
struct pool 64 : 0 void * pool_md; 8 struct pool_features pf; 16 unsigned int sectors_per_block
struct pool_c 64
    8 struct pool * pool; 16 struct dm_dev * data_dev; 24 struct dm_dev * metadata_dev
    32 unsigned long low_water_blocks; 40 struct pool_features requested_pf
struct thin_c 128
    0 struct pool * pool; 8 void * thin_md; 16 struct bio_list deferred_bio_list
    32 struct bio_list retry_on_resume_list
"""
_POOL_DISK, _THIN_DISK = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000
_POOL, _THIN = 0xFFFF_8882_0000_0000, 0xFFFF_8882_0000_1000
_FULL = 1
"""PM_OUT_OF_DATA_SPACE."""


class Pools(Sleepers):
    """dm-1 is a thin device of the pool dm-0."""

    def __init__(
        self, *, mode: int = _FULL, fails: int = 0, held: int = 8, name: str = "vg-thin--1-tpool",
        md: int = _THIN, late: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(_TYPES, "io_schedule")
        self.k.enum("pool_mode", ["PM_WRITE", "PM_OUT_OF_DATA_SPACE", "PM_FAIL"])
        self.pool = self.k.alloc("struct pool", pool_md=_POOL)
        self.k.fill(self.pool.pf, mode=mode, error_if_no_space=fails)
        self.data = data = self.k.alloc("struct pool_c", pool=self.pool)
        thin = self.k.alloc("struct thin_c", pool=self.pool, thin_md=md)
        self.k.set(thin.retry_on_resume_list.head, held)
        disks = [
            SimpleNamespace(address=address, name=disk, private=private)
            for address, disk, private in ((_POOL_DISK, "dm-0", _POOL), (_THIN_DISK, "dm-1", _THIN))
        ]
        disks += [SimpleNamespace(address=0, name=name, private=0) for name in ("sda", "sdb")]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        self.remember(stacks, Stacks((Edge(1, 0, 0, Via.DM), Edge(0, 2, 0, Via.DM))))
        old = SimpleNamespace(disk=np.array(late), age_ns=np.full(len(late), 60 * 10**9))
        self.remember(requests, old)
        known = [
            MappedDevice(at, "254:0", each, (DmTarget(kind, 0, 1 << 21, int(private.address_)),))
            for at, each, kind, private in (
                (_POOL, name, "thin-pool", data),
                (_THIN, "vg-home", "thin", thin),
            )
        ]
        self.remember(mapped_devices, MappedDevices(known))


def test_a_full_pool_keeps_the_writes_of_its_thin_devices() -> None:
    scene = Pools()
    scene.k.constant("no_space_timeout_secs", 60, "unsigned int")
    graph, finder = scene.run(ThinPools)
    address = int(scene.pool.address_)
    assert {each for each in links(graph) if each[2] is KEPT} == {
        (DEVICE, _THIN_DISK, KEPT, address, int(Strength.PROVEN))
    }
    found = finder.finding(THIN_POOL, address, Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    assert found.figures["size"].value == 1 << 30
    assert [each.command for each in found.remedies] == [
        "lvextend --size +256M vg/thin-1",
        "lvchange --errorwhenfull y vg/thin-1",
    ]
    assert "1 min 0 s after" in found.evidence


@pytest.mark.parametrize(
    ("late", "options"),
    [
        ((3,), """--config 'devices { use_devicesfile=0 filter=["a|^/dev/sda"""
         """p?[0-9]*$|", "r|.*|"] }' """),
        ((1,), ""),
        ((2,), None),
    ],
)  # fmt: skip
def test_commands_of_lvm_do_not_read_disks_that_do_not_answer(
    late: tuple[int, ...], options: str | None
) -> None:
    scene = Pools(late=late)
    _, finder = scene.run(ThinPools)
    found = finder.finding(THIN_POOL, int(scene.pool.address_), Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    commands = [each.command for each in found.remedies]
    assert commands[:1] == (
        [] if options is None else [f"lvextend {options}--size +256M vg/thin-1"]
    )
    assert bool(found.no_remedy) == (options is None)
    if options is not None:
        assert found.remedies[1].undo == f"lvchange {options}--errorwhenfull n vg/thin-1"


@pytest.mark.parametrize(
    "scene", [{"mode": 0}, {"mode": 2}, {"fails": 1}, {"held": 0}, {"md": _POOL}]
)
def test_other_pools_keep_nothing(scene: dict[str, int]) -> None:
    assert KEPT not in Pools(**scene).run(ThinPools)[0].edge  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pool", "vg-pool", "vg-a\x1b-tpool"])
def test_a_pool_that_is_not_of_lvm_has_advice(name: str) -> None:
    scene = Pools(name=name)
    _, finder = scene.run(ThinPools)
    found = finder.finding(THIN_POOL, int(scene.pool.address_), Stall(frozenset({1}), 1, 5.0))
    assert found is not None
    assert (found.remedies, bool(found.no_remedy)) == ((), True)


@pytest.mark.parametrize("damaged", [b"", b"8:1'; reboot'", b"8:1\x1b"])
def test_a_damaged_name_of_a_device_is_in_no_command(damaged: bytes) -> None:
    scene = Pools(name="pool")
    for names in ((damaged, b"8:1"), (b"254:0", damaged)):
        data, metadata = (scene.k.alloc("struct dm_dev", name=each) for each in names)
        scene.k.fill(scene.data, data_dev=data, metadata_dev=metadata)
        _, finder = scene.run(ThinPools)
        found = finder.finding(THIN_POOL, int(scene.pool.address_), Stall(frozenset({1}), 1, 5.0))
        assert found is not None
        assert "--table" not in found.no_remedy


def test_a_pool_without_lvm_shows_its_table() -> None:
    scene = Pools(name="pool")
    data, metadata = (scene.k.alloc("struct dm_dev", name=each) for each in (b"254:0", b"8:1"))
    scene.k.fill(scene.data, data_dev=data, metadata_dev=metadata, low_water_blocks=7)
    scene.k.fill(scene.data.requested_pf, zero_new_blocks=0, discard_enabled=1, discard_passdown=1)
    scene.k.set(scene.pool.sectors_per_block, 128)
    _, finder = scene.run(ThinPools)
    found = finder.finding(THIN_POOL, int(scene.pool.address_), Stall(frozenset({1}), 1, 5.0))
    assert found is not None
    table = "0 2097152 thin-pool 8:1 254:0 128 7 1 skip_block_zeroing"
    assert f"dmsetup load pool --table '{table}'" in found.no_remedy
    assert "in place of 2097152" in found.no_remedy


def test_pools_of_a_volume_group_are_one_finding() -> None:
    scene = Pools()
    _, finder = scene.run(ThinPools)
    address, other = int(scene.pool.address_), 0xFFFF_8883_0000_0000
    for name, owner in (("vg-other-tpool", "dm-7"), ("vg--x-thin-tpool", ""), ("pool", "")):
        finder.pools[other] = replace(finder.pools[address], name=name)
        finder.names[THIN_POOL, other] = f"dm-7 ({name})"
        finder.held = {address, other}
        found = finder.finding(THIN_POOL, address, Stall(frozenset({1}), 1, 5.0))
        assert found is not None
        assert found.part_of == (f"waits-thin:dm-7 ({name})" if owner else "")
        assert ("1 other pool is full" in found.evidence) == bool(owner)
        assert [each.command for each in found.remedies] == [
            "lvextend --size +256M vg/thin-1",
            "lvchange --errorwhenfull y vg/thin-1",
        ]
        assert [bool(each.risk) for each in found.remedies] == [not owner, True]
