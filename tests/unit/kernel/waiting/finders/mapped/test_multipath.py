# SPDX-License-Identifier: LGPL-2.1-or-later
"""Multipath maps of *synthetic* kernels: with paths, without any, and damaged."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.engine.memory import Numbers
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE, KEPT
from kcensus.kernel.waiting.finders.mapped.multipath import MULTIPATH, MultipathMaps
from kcensus.results import Danger, Severity
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct atomic_t 4 : 0 int counter
struct dm_target 64 : 0 void * private
struct dm_dev 64 : 0 char[16] name
struct dm_path 16 : 0 struct dm_dev * dev
struct priority_group 64 : 0 struct list_head list; 16 struct list_head pgpaths
struct pgpath 64
    0 struct list_head list; 16 struct priority_group * pg; 24 unsigned int fail_count
    32 struct dm_path path
struct multipath 128
    0 unsigned long flags; 8 struct {count} nr_valid_paths
    16 struct list_head priority_groups; 32 struct dm_target * ti
"""
_SDA, _MAP = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000
_MAPPED = 0xFFFF_8882_0000_0000
_QUEUES = 0b10


class Maps(Sleepers):
    """dm-0 is a map over sda, by two paths."""

    def __init__(self, flags: int, paths: int, name: str = "san disk", *, own: bool = True) -> None:
        super().__init__(_TYPES.replace("struct {count}", "struct atomic_t"), "io_schedule")
        self.map = self.k.alloc("struct multipath", flags=flags)
        self.k.set(self.map.nr_valid_paths.counter, paths)
        target = self.k.alloc("struct dm_target", private=self.map if own else 0)
        self.k.set(self.map.ti, target)
        self.k.list_init(self.map.priority_groups)
        group = self.k.alloc("struct priority_group")
        self.k.list_add_tail(group.list, self.map.priority_groups)
        self.k.list_init(group.pgpaths)
        for number, failures in ((b"8:0", 2), (b"66:16", 1)):
            path = self.k.alloc("struct pgpath", pg=group, fail_count=failures)
            self.k.set(path.path.dev, self.k.alloc("struct dm_dev", name=number))
            self.k.list_add_tail(path.list, group.pgpaths)
        disks = [
            SimpleNamespace(address=_SDA, name="sda", private=0),
            SimpleNamespace(address=_MAP, name="dm-0", private=_MAPPED),
        ]

        def rows_of(numbers: Numbers) -> Numbers:
            return np.where(numbers == 8 << 20, 0, -1)

        self.remember(block_devices, SimpleNamespace(disks=disks, rows_of_numbers=rows_of))
        self.remember(stacks, Stacks((Edge(1, 0, 0, Via.DM),)))
        targets = (DmTarget("multipath", 0, 8, int(self.map.address_)),)
        known = MappedDevice(_MAPPED, "254:0", name, targets)
        self.remember(mapped_devices, MappedDevices([known]))


def test_a_map_without_paths_keeps_its_io() -> None:
    scene = Maps(_QUEUES, 0)
    graph, finder = scene.run(MultipathMaps)
    address = int(scene.map.address_)
    assert (DEVICE, _MAP, KEPT, address, int(Strength.PROVEN)) in links(graph)
    found = finder.finding(MULTIPATH, address, Stall(frozenset({1, 2}), 2, 300.0))
    assert found is not None
    assert (found.id, found.severity) == ("waits-multipath:dm-0 (san disk)", Severity.WARNING)
    assert found.danger is Danger.STALL
    assert "sda (8:0, failed 2 times), 66:16 (failed 1 time)" in found.evidence
    assert [each.command for each in found.remedies] == [
        "dmsetup message 'san disk' 0 'reinstate_path 8:0'",
        "dmsetup message 'san disk' 0 fail_if_no_path",
    ]
    assert finder.finding(DEVICE, address, Stall(frozenset(), 0, -1.0)) is None


@pytest.mark.parametrize(("flags", "paths"), [(_QUEUES, 1), (0b101, 0), (0, 2)])
def test_other_maps_keep_nothing(flags: int, paths: int) -> None:
    assert KEPT not in Maps(flags, paths).run(MultipathMaps)[0].edge


def test_a_map_whose_target_is_of_another_keeps_nothing() -> None:
    assert KEPT not in Maps(_QUEUES, 0, own=False).run(MultipathMaps)[0].edge


def test_a_torn_list_of_paths_is_counted() -> None:
    scene = Maps(_QUEUES, 0)
    scene.k.write_words(int(scene.map.priority_groups.address_), 0xFFFF_8000_0000_0000)
    graph, finder = scene.run(MultipathMaps)
    assert KEPT in graph.edge
    assert finder.draft.torn


def test_a_name_that_is_not_safe_is_in_no_command() -> None:
    scene = Maps(_QUEUES, 0, "a\x1bb")
    _, finder = scene.run(MultipathMaps)
    found = finder.finding(MULTIPATH, int(scene.map.address_), Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    assert (found.remedies, bool(found.no_remedy)) == ((), True)
    assert "\x1b" not in found.title
