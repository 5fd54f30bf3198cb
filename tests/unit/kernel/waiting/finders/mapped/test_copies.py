# SPDX-License-Identifier: LGPL-2.1-or-later
"""Copies of dm-snapshot on *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE
from kcensus.kernel.waiting.finders.mapped.copies import COPIES, DELAYED, LIMIT, Copies
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links

_RAM, _ORIGIN, _UPPER, _OTHER = (0xFFFF_8881_0000_0000 + 0x1000 * at for at in range(4))
_MAPPED, _SNAPSHOT = 0xFFFF_8882_0000_0000, 0xFFFF_8882_0000_1000
_TYPES = """
struct task_struct 64
struct dm_snapshot 256 : 128 struct wait_queue_head in_progress_wait
struct wait_queue_head 16
"""
_SNAPSHOTS = "kcensus.kernel.waiting.finders.mapped.copies.snapshots"


def scene(disk: int) -> Sleepers:
    """dm-1 is on dm-0, the origin on ram0; a task waits for one of them."""
    made = Sleepers(_TYPES, "io_schedule")
    names = {_RAM: "ram0", _ORIGIN: "dm-0", _UPPER: "dm-1", _OTHER: "vda"}
    disks = [
        SimpleNamespace(address=address, name=name, private=_MAPPED if name == "dm-0" else 0)
        for address, name in names.items()
    ]
    made.remember(block_devices, SimpleNamespace(disks=disks))
    made.remember(stacks, Stacks((Edge(1, 0, 0, Via.DM), Edge(2, 1, 0, Via.DM))))
    targets = DmTarget("snapshot-origin", 0, 8, 0), DmTarget("snapshot", 8, 8, _SNAPSHOT)
    known = MappedDevice(_MAPPED, "254:0", "home", targets)
    made.remember(mapped_devices, MappedDevices([known]))
    made.waits.disk[0], made.waits.kind[0] = disk, WaitKind.FOLIO
    return made


def _snapshots(*copies: tuple[str, int | None, int]) -> SimpleNamespace:
    return SimpleNamespace(
        all=[
            SimpleNamespace(origin_disk=disk, in_flight=in_flight, pending=pending)
            for disk, in_flight, pending in copies
        ]
    )


@pytest.mark.parametrize("disk", [_ORIGIN, _UPPER])
def test_writes_to_an_origin_wait_for_all_its_copies(disk: int) -> None:
    copies = _snapshots(("ram0", 40, 50), ("ram0", None, 7), ("ram1", 100, 100))
    with mock.patch(_SNAPSHOTS, return_value=copies):
        graph, finder = scene(disk).run(Copies)
    assert links(graph) == {(DEVICE, _ORIGIN, DELAYED, _MAPPED, int(Strength.DERIVED))}
    assert finder.names == {(COPIES, _MAPPED): "47 copies to snapshots of dm-0 (home)"}
    found = finder.finding(COPIES, _MAPPED, Stall(frozenset({1}), 1, 12.0))
    assert found is not None
    assert (found.id, found.severity) == ("waits-copies:dm-0 (home)", Severity.NOTICE)
    many = finder.finding(COPIES, _MAPPED, Stall(frozenset(range(10)), 10, 12.0))
    assert many is not None
    assert many.severity is Severity.WARNING


@pytest.mark.parametrize("disk", [_RAM, _OTHER, _ORIGIN])
def test_without_copies_nothing_is_delayed(disk: int) -> None:
    copies = _snapshots(("ram0", 0, 0), ("ram1", 9, 9))
    with mock.patch(_SNAPSHOTS, return_value=copies) as read:
        graph, _ = scene(disk).run(Copies)
    assert len(graph) == 0
    assert read.called == (disk == _ORIGIN)  # it takes a while


def test_the_wait_queue_of_a_snapshot_is_its_limit_of_copies() -> None:
    made = scene(_OTHER)
    made.wait(0, _SNAPSHOT + 128, "struct wait_queue_head")
    _, finder = made.run(Copies)
    assert (int(made.waits.object[0]), finder.draft.kind_of(0)) == (_SNAPSHOT, LIMIT)
    found = finder.finding(LIMIT, _SNAPSHOT, Stall(frozenset({1, 2}), 2, 12.0))
    assert found is not None
    assert (found.id, found.part_of) == ("waits-copies:home", "dm-snapshot-waiters:home")
    made = scene(_OTHER)
    made.wait(0, _SNAPSHOT + 64, "struct wait_queue_head")
    made.run(Copies)
    assert int(made.waits.object[0]) == _SNAPSHOT + 64
