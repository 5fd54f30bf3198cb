# SPDX-License-Identifier: LGPL-2.1-or-later
"""Copies of dm-snapshot on *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from drgn import Object

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.dm.devices import DmTarget, MappedDevice, MappedDevices, mapped_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.copied.copies import COPIED, COPIES, DELAYED, LIMIT, Copies
from kcensus.kernel.waiting.finders.copied.metadata import OwnIo, OwnIos, own_io
from kcensus.kernel.waiting.finders.io.devices import DEVICE
from kcensus.kernel.waiting.joined import held, joined
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_RAM, _ORIGIN, _UPPER, _OTHER = (0xFFFF_8881_0000_0000 + 0x1000 * at for at in range(4))
_MAPPED, _REQUEST = 0xFFFF_8882_0000_0000, 0xFFFF_8884_0000_0000
_COW = 0xFFFF_8881_0000_4000
_TYPES = """
struct task_struct 64
struct dm_snapshot 256
    0 struct dm_dev * origin; 8 struct dm_dev * cow; 16 struct atomic_t pending_exceptions_count
    24 unsigned int in_progress; 32 struct dm_kcopyd_client * kcopyd_client
    40 struct dm_exception_store * store; 128 struct wait_queue_head in_progress_wait
struct atomic_t 4 : 0 int counter
struct dm_dev 64 : 0 struct block_device * bdev
struct block_device 64
    0 struct gendisk * bd_disk; 8 unsigned int bd_dev; 16 unsigned long bd_start_sect
struct gendisk 64
struct dm_kcopyd_client 64 : 0 struct dm_io_client * io_client
struct dm_io_client 64
struct dm_exception_store 64 : 0 struct dm_snapshot * snap; 8 void * context
struct pstore 64 : 0 struct dm_io_client * io_client
struct completion 16
struct sync_io 64 : 8 struct completion wait
struct wait_queue_head 16
"""


class Origin(Sleepers):
    """dm-1 is on dm-0, the origin, on ram0; each snapshot of these has a COW device."""

    def __init__(
        self,
        *copies: tuple[int, int],
        function: str = "io_schedule",
        origin: int = _RAM,
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(_TYPES, function, *others)
        names = {_RAM: "ram0", _ORIGIN: "dm-0", _UPPER: "dm-1", _OTHER: "vda", _COW: "ram1"}
        disks = [
            SimpleNamespace(address=address, name=name, private=_MAPPED if name == "dm-0" else 0)
            for address, name in names.items()
        ]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        self.remember(stacks, Stacks((Edge(1, 0, 0, Via.DM), Edge(2, 1, 0, Via.DM))))
        self.snapshots = [self._snapshot(origin, *each) for each in copies]
        targets = [DmTarget("snapshot", 8, 8, each) for each in self.snapshots]
        first = DmTarget("snapshot-origin", 0, 8, 0)
        known = MappedDevice(_MAPPED, "254:0", "home", (first, *targets))
        self.remember(mapped_devices, MappedDevices([known]))
        none = np.empty(0, np.int64)
        for reader in (joined, held):
            self.remember(reader, SimpleNamespace(wait=none))
        self.remember(own_io, OwnIo(none, words(), words()))
        self.remember(
            requests,
            SimpleNamespace(
                address=words(_REQUEST),
                disk=np.array([4]),
                sector=np.array([8]),
                state=np.array([2]),
            ),
        )

    def _device(self, disk: int) -> Object:
        device = self.k.alloc("struct block_device", bd_disk=disk)
        return self.k.alloc("struct dm_dev", bdev=device)

    def _snapshot(self, origin: int, in_progress: int, pending: int) -> int:
        client = self.k.alloc("struct dm_io_client")
        self.client = int(client.address_)
        made = self.k.alloc(
            "struct dm_snapshot",
            origin=self._device(origin),
            cow=self._device(_COW),
            in_progress=in_progress,
            kcopyd_client=self.k.alloc("struct dm_kcopyd_client", io_client=client),
        )
        self.k.set(made.pending_exceptions_count.counter, pending)
        self.store = int(self.k.alloc("struct pstore").address_)
        store = self.k.alloc("struct dm_exception_store", snap=made, context=self.store)
        self.k.set(made.store, store)
        return int(made.address_)


def test_writes_to_an_origin_wait_for_its_copies_and_these_for_the_cow_device() -> None:
    scene = Origin((40, 50), (0, 7))
    graph, finder = scene.run(Copies)
    assert links(graph) == {
        (DEVICE, _ORIGIN, DELAYED, _MAPPED, int(Strength.DERIVED)),
        (COPIES, _MAPPED, COPIED, _COW, int(Strength.POSSIBLE)),
    }
    assert finder.names[COPIES, _MAPPED] == "to snapshots of dm-0 (home)"
    assert finder.hint(COPIES, _MAPPED) == "47 copies to snapshots of dm-0 (home)"
    found = finder.finding(COPIES, _MAPPED, Stall(frozenset({1}), 1, 12.0))
    assert found is not None
    assert (found.id, found.severity) == ("waits-copies:dm-0 (home)", Severity.NOTICE)
    many = finder.finding(COPIES, _MAPPED, Stall(frozenset(range(10)), 10, 12.0))
    assert many is not None
    assert many.severity is Severity.WARNING


def test_copies_wait_for_a_cow_device_whose_io_something_keeps() -> None:
    scene = Origin((1, 1))

    class Kept(Copies):
        def find(self) -> None:
            super().find()
            self.draft.keeping.add(_COW)

    graph, _ = scene.run(Kept)
    assert (COPIES, _MAPPED, COPIED, _COW, int(Strength.DERIVED)) in links(graph)


def test_reads_of_an_origin_wait_for_no_copies() -> None:
    scene = Origin((1, 1), function="vfs_read", others=("vfs_write",))
    for lane in range(2):
        scene.wait(lane, 0xFFFF_8886_0000_0000 + 64 * lane, "struct dio")
        scene.waits.disk[lane] = _ORIGIN
    graph, _ = scene.run(Copies)
    delayed = {each[1]: each[4] for each in links(graph) if each[2] is DELAYED}
    assert delayed == {
        _ORIGIN: int(Strength.POSSIBLE),
        0xFFFF_8886_0000_0040: int(Strength.DERIVED),
    }


def test_copies_in_requests_wait_for_these() -> None:
    scene = Origin((1, 1))
    scene.remember(own_io, OwnIo(np.array([0]), words(scene.client), words(0)))
    graph, _ = scene.run(Copies)
    assert (COPIES, _MAPPED, COPIED, _REQUEST, int(Strength.DERIVED)) in links(graph)
    assert (COPIES, _MAPPED, COPIED, _COW, int(Strength.DERIVED)) not in links(graph)


def test_without_copies_nothing_is_delayed() -> None:
    for scene in (Origin(), Origin((0, 0)), Origin((9, 9), origin=_OTHER)):
        graph, _ = scene.run(Copies)
        assert len(graph) == 0


@pytest.mark.parametrize("is_own", [True, False])
def test_a_task_that_writes_exceptions_waits_for_the_cow_device(*, is_own: bool) -> None:
    scene = Origin((0, 0), function="sync_io")
    completion = scene.stack[0] + 2048
    scene.wait(0, completion, "struct completion")
    scene.put(0, scene.store if is_own else scene.store + 8)
    scene.waits.stacks.modules[int(scene.waits.stacks.pc[0])] = "dm_snapshot"
    graph, _ = scene.run(Copies)
    found = {(each[1], each[3], each[4]) for each in links(graph)}
    assert found == ({(completion, _COW, int(Strength.DERIVED))} if is_own else set())


@pytest.mark.parametrize("module", ["dm_mod", "dm_mirror", ""])
def test_a_store_on_the_stack_of_another_target_proves_nothing(module: str) -> None:
    scene = Origin((0, 0), function="sync_io")
    scene.wait(0, scene.stack[0] + 2048, "struct completion")
    scene.put(0, scene.store)
    scene.waits.stacks.modules[int(scene.waits.stacks.pc[0])] = module
    graph, _ = scene.run(Copies)
    assert {each[4] for each in links(graph)} == {int(Strength.POSSIBLE)}


def test_two_devices_on_a_stack_are_both_only_possible() -> None:
    scene = Origin((0, 0), function="sync_io")
    scene.wait(0, scene.stack[0] + 2048, "struct completion")
    scene.put(0, 1, 2)
    scene.waits.stacks.modules[int(scene.waits.stacks.pc[0])] = "dm_snapshot"

    class Two(Copies):
        def find(self) -> None:
            self._to_metadata({1: _COW, 2: _OTHER}, "two", frozenset({"dm_snapshot"}))

    graph, _ = scene.run(Two)
    found = {(each[3], each[4]) for each in links(graph)}
    assert found == {(_COW, int(Strength.POSSIBLE)), (_OTHER, int(Strength.POSSIBLE))}


def test_a_task_waits_for_the_request_that_names_its_completion() -> None:
    scene = Origin((0, 0), function="sync_io")
    completion = scene.stack[0] + 2048
    scene.wait(0, completion, "struct completion")
    scene.remember(own_io, OwnIo(np.array([0]), words(1), words(completion - 8)))
    graph, _ = scene.run(OwnIos)
    assert (completion, _REQUEST) in {(each[1], each[3]) for each in links(graph)}


def test_the_wait_queue_of_a_snapshot_is_its_limit_of_copies() -> None:
    made = Origin((1, 1))
    (snapshot,) = made.snapshots
    made.wait(0, snapshot + 128, "struct wait_queue_head")
    graph, finder = made.run(Copies)
    assert (int(made.waits.object[0]), finder.draft.kind_of(0)) == (snapshot, LIMIT)
    assert (LIMIT, snapshot, COPIED, _COW, int(Strength.POSSIBLE)) in links(graph)
    found = finder.finding(LIMIT, snapshot, Stall(frozenset({1, 2}), 2, 12.0))
    assert found is not None
    assert (found.id, found.part_of) == ("waits-copies:home", "dm-snapshot-waiters:home")
    made = Origin((1, 1))
    (snapshot,) = made.snapshots
    made.wait(0, snapshot + 64, "struct wait_queue_head")
    made.run(Copies)
    assert int(made.waits.object[0]) == snapshot + 64
