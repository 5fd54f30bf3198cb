# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests, free tags and devices that tasks of *synthetic* kernels wait for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.engine.rows import rows_of
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.hardware import hardware_queues
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finders.io.devices import DEVICE, DISK, STACKED, Devices
from kcensus.kernel.waiting.finders.io.direct_io import IO
from kcensus.kernel.waiting.finders.io.pages import PAGE
from kcensus.kernel.waiting.finders.io.requests import REQUEST, TAGS, Requests
from kcensus.kernel.waiting.graph import BIT, SERVED, TASK, WAITS
from kcensus.kernel.waiting.joined import SAME_SECTORS, Joins, held, joined
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct buffer_head 64 : 0 unsigned long b_state; 8 struct block_device * b_bdev
struct block_device 64
    0 struct gendisk * bd_disk; 8 unsigned int bd_dev; 16 unsigned long bd_start_sect
struct gendisk 64
"""
_VDA, _DM, _LOOP = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000, 0xFFFF_8881_0000_2000
_ROWS = {_VDA: 0, _DM: 1, _LOOP: 2}
_PAGE, _DIO, _TAGS = 0xFFFF_EA00_0000_0040, 0xFFFF_8881_0000_3000, 0xFFFF_8881_0000_4000
_REQUEST, _SET = 0xFFFF_8881_0000_5000, 0xFFFF_8881_0000_7000
_PROVEN, _DERIVED, _POSSIBLE = map(int, (Strength.PROVEN, Strength.DERIVED, Strength.POSSIBLE))
_STACKED = {(DEVICE, _DM, STACKED, _LOOP, _PROVEN), (DEVICE, _LOOP, STACKED, _VDA, _PROVEN)}
"""dm-0 is on loop0, and that on vda."""


class Disks(Sleepers):
    """Tasks that wait for three disks: vda, dm-0 and loop0."""

    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        names = ("vda", "dm-0", "loop0")
        disks = [
            SimpleNamespace(address=address, name=name)
            for address, name in zip(_ROWS, names, strict=True)
        ]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        self.remember(stacks, Stacks((Edge(1, 2, 0, Via.DM), Edge(2, 0, 0, Via.LOOP))))
        self.join()

    def join(self, *pairs: tuple[int, int], evidence: Sequence[str] = ()) -> None:
        """Let tasks wait for requests, by their rows."""
        wait, request = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
        proven = np.array([each != SAME_SECTORS for each in evidence], np.bool_)
        self.remember(joined, Joins(wait, request, proven, list(evidence)))
        none = np.empty(0, np.int64)
        self.remember(held, Joins(none, none, np.empty(0, np.bool_), []))

    def on(self, lane: int, kind: WaitKind, disk: int, address: int, type_: str) -> None:
        self.wait(lane, address, type_)
        self.waits.kind[lane], self.waits.disk[lane] = kind, disk


@pytest.mark.parametrize(
    ("function", "strength"), [("folio_wait_writeback", _DERIVED), ("__folio_lock", _POSSIBLE)]
)
def test_a_page_of_a_stacked_device_leads_to_the_bottom(function: str, strength: int) -> None:
    scene = Disks(function)
    scene.on(0, WaitKind.FOLIO, _DM, _PAGE, "struct folio")
    graph, found = scene.run(Devices)
    assert links(graph) == {(PAGE, _PAGE, SERVED, _DM, strength), *_STACKED}
    assert found.names == {(DEVICE, _DM): "dm-0", (DEVICE, _LOOP): "loop0", (DISK, _VDA): "vda"}
    # That it is stacked says where it is, not that it waits.
    assert len(graph.sure.source) == (strength == _DERIVED)


def test_direct_io_and_buffer_heads_without_a_request() -> None:
    scene = Disks("__iomap_dio_rw", "__wait_on_buffer", "__lock_buffer", "bit_wait_io")
    scene.on(0, WaitKind.REQUEST, _VDA, _DIO, "struct iomap_dio")
    device, other = (scene.k.alloc("struct block_device", bd_disk=_VDA) for _ in range(2))
    # The last one is no buffer: the kernel does not know its device.
    heads = [scene.k.alloc("struct buffer_head", b_bdev=each) for each in (device, device, other)]
    address = words(int(device.address_))
    known = SimpleNamespace(rows=lambda wanted: rows_of(address, wanted))
    disks = block_devices(scene.kernel).disks
    scene.remember(block_devices, SimpleNamespace(disks=disks, partitions=known))
    for lane, head in enumerate(heads, 1):
        scene.on(lane, WaitKind.BIT, 0, int(head.address_), "unsigned long")
    graph, _ = scene.run(Devices)
    assert links(graph) == {
        (IO, _DIO, SERVED, _VDA, _DERIVED),
        (BIT, int(heads[0].address_), SERVED, _VDA, _DERIVED),
    }


def test_what_has_a_request_or_no_device_has_no_edge() -> None:
    scene = Disks("__iomap_dio_rw", "__folio_lock", "mutex_lock")
    scene.on(0, WaitKind.REQUEST, _VDA, _DIO, "struct iomap_dio")
    scene.join((0, 0), evidence=["bio.bi_private"])
    scene.on(1, WaitKind.FOLIO, 0, _PAGE, "struct folio")
    scene.on(2, WaitKind.LOCK, _VDA, 0xFFFF_8881_0000_6000, "struct mutex")
    assert len(scene.run(Devices)[0]) == 0


def test_requests_and_their_disks() -> None:
    scene = Disks("__iomap_dio_rw", "submit_bio_wait", "blk_mq_get_tag")
    scene.on(0, WaitKind.REQUEST, _VDA, _DIO, "struct iomap_dio")
    scene.waits.kind[1] = WaitKind.REQUEST
    scene.on(2, WaitKind.TAG, _LOOP, _TAGS, "struct sbitmap_queue")
    sets = SimpleNamespace(
        address=words(_SET),
        map=words(_TAGS),
        reserved_map=words(0),
        used=np.array([2]),
        depth=np.array([2]),
        rows=lambda wanted: rows_of(words(_SET), wanted),
    )
    hardware = SimpleNamespace(
        tags=words(0, _SET), sched_tags=words(0, 0), disk=np.array([0, 2]), tag_sets=sets
    )
    scene.remember(hardware_queues, hardware)
    scene.join((0, 0), (1, 1), evidence=["bio.bi_private", SAME_SECTORS])
    address = words(_REQUEST, _REQUEST + 384)
    found = SimpleNamespace(
        address=address,
        disk=np.array([0, 2]),
        hardware_queue=np.array([0, 1]),
        tag=np.array([0, 1]),
        sched_tag=np.array([-1, -1]),
        sector=np.array([8, -1]),
        state=np.array([State.INSERTED, State.ALLOCATED]),
        damage={"torn": 2},
        faults=Faults(),
        rows=lambda wanted: rows_of(address, wanted),
    )
    scene.remember(requests, found)
    scene.remember(bios, SimpleNamespace(torn=1, faults=Faults()))
    graph, finder = scene.run(Requests)
    assert links(graph) == {
        (IO, _DIO, SERVED, _REQUEST, _PROVEN),
        (TASK, scene.task[1], WAITS, _REQUEST + 384, _POSSIBLE),
        (REQUEST, _REQUEST, SERVED, _VDA, _PROVEN),
        (REQUEST, _REQUEST + 384, SERVED, _LOOP, _PROVEN),
        (TAGS, _TAGS, SERVED, _LOOP, _PROVEN),
        (DEVICE, _LOOP, STACKED, _VDA, _PROVEN),
    }
    assert finder.names[TAGS, _TAGS] == "of loop0 (driver: 2 of 2 in use)"
    assert finder.names[REQUEST, _REQUEST] == "vda at sector 8"
    assert finder.draft.states == {(REQUEST, _REQUEST): "not dispatched"}
    assert [gap.count for gap in finder.gaps(graph)] == [3]
