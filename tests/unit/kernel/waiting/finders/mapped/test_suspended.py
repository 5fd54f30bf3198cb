# SPDX-License-Identifier: LGPL-2.1-or-later
"""Suspended devices of *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.dm.devices import MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE, KEPT, STACKED
from kcensus.kernel.waiting.finders.mapped.suspended import SUSPENDED, SuspendedDevices
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct mapped_device 64 : 16 unsigned long flags
"""
_VDA, _LOWER, _UPPER = (0xFFFF_8881_0000_0000 + at for at in (0, 0x1000, 0x2000))
_STACKED = {
    (DEVICE, upper, STACKED, lower, int(Strength.PROVEN))
    for upper, lower in ((_LOWER, _VDA), (_UPPER, _LOWER))
}


class Devices(Sleepers):
    """dm-1 is on dm-0, and that on vda."""

    def __init__(self, *flags: int, name: str = "home") -> None:
        super().__init__(_TYPES, "io_schedule")
        made = [self.k.alloc("struct mapped_device", flags=each) for each in flags]
        self.mapped = [int(each.address_) for each in made]
        private = [0, *self.mapped]
        disks = [
            SimpleNamespace(address=address, name=disk, private=at)
            for address, disk, at in zip(
                (_VDA, _LOWER, _UPPER), ("vda", "dm-0", "dm-1"), private, strict=False
            )
        ]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        every = (Edge(1, 0, 0, Via.DM), Edge(2, 1, 0, Via.DM))[: len(flags)]
        self.remember(stacks, Stacks(every))
        known = [MappedDevice(at, "254:0", name, ()) for at in self.mapped]
        self.remember(mapped_devices, MappedDevices(known))


def test_a_suspended_device_keeps_what_is_above_it() -> None:
    scene = Devices(0b11, 0b1000)
    graph, finder = scene.run(SuspendedDevices)
    (kept,) = scene.mapped[:1]
    assert links(graph) - _STACKED == {
        (DEVICE, _LOWER, KEPT, kept, int(Strength.PROVEN)),
        (DEVICE, _UPPER, KEPT, kept, int(Strength.DERIVED)),
    }
    assert finder.names[SUSPENDED, scene.mapped[0]] == "dm-0 (home)"


@pytest.mark.parametrize("flags", [(), (0, 0b10)])
def test_others_keep_nothing(flags: tuple[int, ...]) -> None:
    graph, _ = Devices(*flags).run(SuspendedDevices)
    assert len(graph) == 0


@pytest.mark.parametrize(
    ("name", "seconds", "severity", "commands"),
    [
        ("data base", 12.0, Severity.WARNING, ["dmsetup resume 'data base'"]),
        ("home", 2.0, Severity.NOTICE, ["dmsetup resume home"]),
        ("", 0.5, Severity.INFO, []),
        ("x\x1b", 12.0, Severity.WARNING, []),
    ],
)
def test_the_finding(name: str, seconds: float, severity: Severity, commands: list[str]) -> None:
    scene = Devices(0b11, name=name)
    _, finder = scene.run(SuspendedDevices)
    found = finder.finding(SUSPENDED, scene.mapped[0], Stall(frozenset({100}), 1, seconds))
    assert found is not None
    assert (found.kind, found.severity) == ("waits-suspended", severity)
    assert [remedy.command for remedy in found.remedies] == commands
    assert bool(found.no_remedy) == (not commands)
    assert finder.finding(DEVICE, _LOWER, Stall(frozenset(), 0, 0.0)) is None


def test_a_suspension_in_progress_is_not_resumed() -> None:
    """It waits for the I/O below, and a resume would wait behind it."""
    scene = Devices(0b01)
    _, finder = scene.run(SuspendedDevices)
    found = finder.finding(SUSPENDED, scene.mapped[0], Stall(frozenset({100}), 1, 12.0))
    assert found is not None
    assert found.remedies == ()
    assert found.no_remedy
