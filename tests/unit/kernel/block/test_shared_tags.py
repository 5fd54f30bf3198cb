# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tags of hardware queues with one map (BLK_MQ_F_TAG_HCTX_SHARED, v5.10 to v5.15), and whose disk a
map is for: *synthetic* memory."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import drgn
import numpy as np
import pytest

from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import hardware as hardware_module
from kcensus.kernel.block.hardware import HardwareQueues, _tags, disks_of_maps, maps_of_queues
from kcensus.kernel.block.requests import _Reader
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel, add_types

_DEPTH, _IN_USE = 8, 5
_QUEUE, _CONTEXT = 0xFFFF_8880_0010_0000, 0xFFFF_8880_0020_0000
_STATES = 8 * 64
_TYPES = {
    "struct sbitmap_word": (64, "0 unsigned long word\n32 unsigned long cleared"),
    "struct sbitmap": (
        24,
        "0 unsigned int depth\n4 unsigned int shift\n8 unsigned int map_nr\n"
        "16 struct sbitmap_word * map",
    ),
    "struct sbq_wait_state": (64, "0 unsigned long wait"),
    "struct sbitmap_queue": (40, "0 struct sbitmap sb\n32 struct sbq_wait_state * ws"),
    "struct blk_mq_tags": (
        48,
        "0 unsigned int nr_tags\n4 unsigned int nr_reserved_tags\n"
        "8 struct sbitmap_queue * bitmap_tags\n16 struct sbitmap_queue * breserved_tags\n"
        "24 struct request ** rqs\n32 struct request ** static_rqs",
    ),
    "struct blk_mq_hw_ctx": (16, "0 unsigned long queue\n8 struct blk_mq_tags * tags"),
    "struct request": (
        40,
        "0 unsigned long q\n8 int tag\n12 int internal_tag\n16 unsigned int ref\n"
        "24 unsigned long mq_hctx",
    ),
}


class Host:
    """Hardware queues, each with its own tags and preallocated requests, around one map."""

    def __init__(self, queues: int, *, shared: bool = True) -> None:
        k = self.k = FakeKernel("6.13")
        add_types(k.prog, _TYPES, "tags")
        self.maps = [self._map() for _ in range(1 if shared else queues)]
        self.tags, self.requests = [], []
        for number in range(queues):
            tags = k.alloc("struct blk_mq_tags")
            pointers, static = (k.alloc(f"struct request * [{_DEPTH}]") for _ in range(2))
            requests = k.alloc(f"struct request [{_DEPTH}]", alone=True)
            for pointer, request in zip(static, requests, strict=True):
                k.set(pointer, request)
                k.set(request.q, _QUEUE)
                k.set(request.tag, -1)
                k.set(request.internal_tag, -1)
                k.set(request.mq_hctx, _CONTEXT + number)
            k.set(tags.nr_tags, _DEPTH)
            k.set(tags.bitmap_tags, self.maps[number % len(self.maps)])
            k.set(tags.breserved_tags, self._map(bits=0))
            k.set(tags.rqs, pointers[0])
            k.set(tags.static_rqs, static[0])
            self.tags.append(int(tags.address_))
            self.requests.append(requests)

    def _map(self, bits: int = (1 << _IN_USE) - 1) -> drgn.Object:
        k = self.k
        queue, word = k.alloc("struct sbitmap_queue"), k.alloc("struct sbitmap_word [1]")
        states = k.alloc("struct sbq_wait_state [8]")
        for name, value in {"depth": _DEPTH, "shift": 6, "map_nr": 1}.items():
            k.set(queue.sb.member_(name), value)
        k.set(queue.sb.map, word[0])
        k.set(queue.ws, states[0])
        k.set(word[0].word, bits)
        return queue

    def allocate(self, number: int, tag: int) -> int:
        """Give a tag to the request of a hardware queue."""
        request = self.requests[number][tag]
        self.k.set(request.tag, tag)
        self.k.set(request.ref, 1)
        return int(request.address_)

    def hardware(self, disk: list[int] | None = None) -> HardwareQueues:
        count = len(self.tags)
        addresses = np.array(self.tags, np.uint64)
        sets, damaged = _tags(Memory(self.k.prog), np.unique(addresses), Faults())
        assert damaged == 0
        zeros = np.zeros(count, np.uint64)
        return HardwareQueues(
            address=np.uint64(_CONTEXT) + np.arange(count, dtype=np.uint64),
            disk=np.array(disk or [0] * count),
            number=np.arange(count),
            tags=addresses,
            sched_tags=zeros,
            sched_data=zeros,
            flush_queue=zeros,
            is_stopped=np.zeros(count, np.bool_),
            contexts=zeros,
            nr_contexts=np.zeros(count, np.int64),
            tag_sets=sets,
        )


def tagged(host: Host) -> tuple[list[int], list[int], int]:
    """Requests that the maps lead to, the queues of their tags, and bits that lack one."""
    reader: Any = _Reader.__new__(_Reader)
    reader.hardware, reader.prog, reader.memory = host.hardware(), host.k.prog, Memory(host.k.prog)
    reader.faults, reader.damage, reader.lost = Faults(), Counter(), 0
    reader.devices = SimpleNamespace(
        disks=[SimpleNamespace(scheduler_data=0)],
        disk_rows=lambda queues: np.where(queues == _QUEUE, 0, -1),
    )
    columns = {"queue": "q", "tag": "tag", "sched_tag": "internal_tag", "ref": "ref"}
    reader.columns = layout(host.k.prog, "struct request", columns | {"hctx": "mq_hctx"})
    address, queue = reader._tagged()
    return address.tolist(), queue.tolist(), reader.damage["free_tags"]


@pytest.mark.parametrize("queues", [1, 2, 64])
def test_a_shared_map_counts_once(queues: int) -> None:
    found = Host(queues).hardware()
    rows = np.unique(found.tag_sets.rows(found.tags))
    assert len(rows) == 1
    assert int(found.tag_sets.used[rows].sum()) == _IN_USE
    assert int(found.tag_sets.depth[rows].sum()) == _DEPTH


def test_maps_of_their_own_count_each() -> None:
    found = Host(3, shared=False).hardware()
    rows = np.unique(found.tag_sets.rows(found.tags))
    assert len(rows) == 3
    assert int(found.tag_sets.used[rows].sum()) == 3 * _IN_USE


def test_a_tag_belongs_to_the_queue_whose_request_has_it() -> None:
    host = Host(3)
    expected = {host.allocate(number, tag): number for number, tag in enumerate((0, 1, 4))}
    address, queue, free = tagged(host)
    assert dict(zip(address, queue, strict=True)) == expected
    # Two of the five tags have no request in any of the three queues.
    assert free == 2


def test_no_tag_lacks_a_request() -> None:
    host = Host(64)
    for tag in range(_IN_USE):
        host.allocate(7 * tag, tag)
    assert tagged(host)[2] == 0


@pytest.mark.parametrize(
    ("shared", "disk", "expected"),
    [
        (True, [4, 4], [4]),
        (True, [4, 5], [-1]),  # of one host
        (False, [4, 5], [4, 5]),
    ],
)
def test_the_disk_of_a_map(
    shared: bool, disk: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(2, shared=shared)
    monkeypatch.setattr(hardware_module, "hardware_queues", lambda _: host.hardware(disk))
    kernel = Kernel(host.k.prog)
    maps = np.array([int(each.address_) for each in host.maps], np.uint64)
    assert disks_of_maps(kernel, maps).tolist() == expected
    assert disks_of_maps(kernel, maps + np.uint64(8)).tolist() == [-1] * len(maps)
    # Before v5.0, only the wait queue leads to the map.
    queues = np.array([int(each.ws) for each in host.maps], np.uint64)
    for offset, found in ((0, maps), (_STATES - 8, maps), (_STATES, None)):
        same = maps_of_queues(kernel, queues + np.uint64(offset))
        assert same.tolist() == (maps.tolist() if found is not None else [0] * len(maps))


def test_a_host_without_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(0)
    monkeypatch.setattr(hardware_module, "hardware_queues", lambda _: host.hardware())
    maps, kernel = np.array([1 << 40], np.uint64), Kernel(host.k.prog)
    assert disks_of_maps(kernel, maps).tolist() == [-1]
    assert maps_of_queues(kernel, maps).tolist() == [0]
