# SPDX-License-Identifier: LGPL-2.1-or-later
"""Delay targets of *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE, KEPT
from kcensus.kernel.waiting.finders.mapped.delay import DELAY, DelayTargets
from tests.unit.kernel.waiting.making import Sleepers, links

_LISTS = """
struct task_struct 64
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct delay_class 16 : 0 unsigned int delay
"""
_CLASSES = """
struct delay_c 128
    0 struct list_head delayed_bios; 16 struct delay_class read; 32 struct delay_class write
    48 struct delay_class flush
"""
_TWO = """
struct delay_c 128
    0 struct list_head delayed_bios; 16 unsigned int read_delay; 32 unsigned int write_delay
"""
_DISK, _MAPPED = 0xFFFF_8881_0000_0000, 0xFFFF_8882_0000_0000


class Delays(Sleepers):
    """dm-0 has a delay target that holds some bios."""

    def __init__(self, types: str, bios: int) -> None:
        super().__init__(_LISTS + types, "io_schedule")
        self.target = self.k.alloc("struct delay_c")
        self.address = int(self.target.address_)
        self.k.write_words(self.address + 32, 300_000)
        self.k.list_init(self.target.delayed_bios)
        for _ in range(bios):
            self.k.list_add_tail(self.k.alloc("struct list_head"), self.target.delayed_bios)
        disk = SimpleNamespace(address=_DISK, name="dm-0", private=_MAPPED)
        self.remember(block_devices, SimpleNamespace(disks=[disk]))
        self.remember(stacks, Stacks(()))
        known = MappedDevice(_MAPPED, "254:0", "slow", (DmTarget("delay", 0, 8, self.address),))
        self.remember(mapped_devices, MappedDevices([known]))


@pytest.mark.parametrize("types", [_CLASSES, _TWO])
def test_a_delay_target_keeps_the_io_that_it_holds(types: str) -> None:
    scene = Delays(types, 3)
    graph, finder = scene.run(DelayTargets)
    assert links(graph) == {(DEVICE, _DISK, KEPT, scene.address, int(Strength.PROVEN))}
    found = finder.finding(DELAY, scene.address, Stall(frozenset({1}), 1, 20.0))
    assert found is not None
    assert (found.id, found.figures["bios"].value) == ("waits-delay:dm-0 (slow)", 3)
    assert "5 min" in found.title
    assert found.remedies[0].command == "dmsetup suspend --nolockfs slow && dmsetup resume slow"


def test_a_target_without_bios_keeps_nothing() -> None:
    assert len(Delays(_CLASSES, 0).run(DelayTargets)[0].edge) == 0


def test_a_torn_list_proves_nothing() -> None:
    scene = Delays(_CLASSES, 2)
    scene.k.write_words(scene.address, 0xFFFF_8000_0000_0000)
    graph, finder = scene.run(DelayTargets)
    assert len(graph.edge) == 0
    assert finder.draft.torn == 1
