# SPDX-License-Identifier: LGPL-2.1-or-later
"""Maps of tags: their bits, those that several hardware queues share, and their disks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import drgn
import numpy as np
import pytest

from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import hardware
from kcensus.kernel.block.hardware import HardwareQueues, disks_of_maps, maps_of_queues, set_bits
from kcensus.kernel.block.requests import _Reader
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel

_TYPES = """
struct sbitmap_word 64 : 0 unsigned long word; 32 unsigned long cleared
struct sbitmap 24
    0 unsigned int depth; 4 unsigned int shift; 8 unsigned int map_nr; 16 struct sbitmap_word * map
"""
_OLD_TYPES = """
struct blk_align_bitmap 64 : 0 unsigned long word; 8 unsigned long depth
struct blk_mq_bitmap_tags 32
    0 unsigned int depth; 4 unsigned int wake_cnt; 8 unsigned int bits_per_word
    12 unsigned int map_nr; 16 struct blk_align_bitmap * map
"""
_WITHOUT_CLEARING = "struct sbitmap_word 64 : 0 unsigned long word; 8 unsigned long depth"


class Maps:
    def __init__(self, types: str = "", *, is_old: bool = False) -> None:
        # Without types of blk-mq.
        self.k = FakeKernel("6.13", (_OLD_TYPES if is_old else _TYPES) + types)
        self.type_name = "struct blk_mq_bitmap_tags" if is_old else "struct sbitmap"
        self.word = "struct blk_align_bitmap" if is_old else "struct sbitmap_word"
        self.shift = "bits_per_word" if is_old else "shift"
        self.maps: list[int] = []

    def add(self, depth: int, shift: int, *words: int, cleared: int = 0) -> None:
        """Add a map of words, the first one with lazily cleared bits."""
        array = self.k.alloc(f"{self.word} [{len(words)}]", alone=True)
        numbers = {"depth": depth, self.shift: shift, "map_nr": len(words)}
        place = self.k.fill(self.k.alloc(self.type_name, map=array), **numbers)
        for word, bits in zip(array, words, strict=True):
            self.k.set(word.word, bits)
        if cleared:
            self.k.set(array[0].cleared, cleared)
        self.maps.append(int(place.address_))

    def bits(self) -> tuple[list[list[int]], int]:
        maps = np.array(self.maps, np.uint64)
        lanes, bits, damaged = set_bits(Memory(self.k.prog), maps, Faults())
        return [bits[lanes == lane].tolist() for lane in range(len(maps))], damaged


def test_bits_of_several_words() -> None:
    maps = Maps()
    maps.add(10, 3, 0b1000_0001, 0b11)
    maps.add(64, 6, 1 << 63 | 1)
    # Cleared and impossible bits do not count.
    maps.add(10, 3, 0b1_1000_0001, 0b110, cleared=0b1000_0000)
    assert maps.bits() == ([[0, 7, 8, 9], [0, 63], [0, 9]], 0)


def test_pages_of_words_without_a_tag_in_use() -> None:
    maps = Maps()
    # 64 words of 64 bytes are exactly a page: nothing else is on it.
    maps.add(64 * 128, 6, 1, *[0] * 127)
    maps.add(64 * 64, 6, *[0] * 64)
    assert maps.bits() == ([[0], []], 0)


@pytest.mark.parametrize("is_old", [False, True])
def test_maps_before_lazy_clearing_and_before_sbitmap(is_old: bool) -> None:
    maps = Maps("" if is_old else _WITHOUT_CLEARING, is_old=is_old)
    maps.add(10, 3, 0b101, 0b10)
    assert maps.bits() == ([[0, 2, 9]], 0)


@pytest.mark.parametrize("numbers", [(1 << 30, 6), (1 << 17, 6), (64, 7), (8, 3)])
def test_an_impossible_map_costs_only_itself(numbers: tuple[int, int]) -> None:
    maps = Maps()
    maps.add(*numbers, *[1] * 8)
    maps.add(8, 3, 2)
    assert maps.bits() == ([[], [1]], 1)


@pytest.mark.parametrize("damaged", [1, 8], ids=["too large together", "words unreadable"])
def test_a_lost_map_costs_only_itself(damaged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = Maps()
    maps.add(64, 3, *[1] * 8)
    if damaged == 8:
        maps.k.drop(int(maps.k.word(maps.maps[0] + 16)))
    else:
        monkeypatch.setattr(hardware, "_MAX_WORDS", 4)
    maps.add(8, 3, 2)
    assert maps.bits() == ([[], [1]], damaged)


_TAGS, _IN_USE = 8, 5
_QUEUE, _CONTEXT = 0xFFFF_8880_0010_0000, 0xFFFF_8880_0020_0000
_STATES = 8 * 64
_NO_MAP = np.array([1 << 40], np.uint64)
_TAG_TYPES = f"""{_TYPES}
struct sbq_wait_state 64 : 0 unsigned long wait
struct sbitmap_queue 40 : 0 struct sbitmap sb; 32 struct sbq_wait_state * ws
struct blk_mq_tags 48
    0 unsigned int nr_tags; 4 unsigned int nr_reserved_tags; 8 struct sbitmap_queue * bitmap_tags
    16 struct sbitmap_queue * breserved_tags; 24 struct request ** rqs
    32 struct request ** static_rqs
struct blk_mq_hw_ctx 16 : 0 unsigned long queue; 8 struct blk_mq_tags * tags
struct request 40
    0 unsigned long q; 8 int tag; 12 int internal_tag; 16 unsigned int ref; 24 unsigned long mq_hctx
"""


class Host:
    """Hardware queues, each with its own tags and preallocated requests, around one map."""

    def __init__(self, queues: int, *, shared: bool = True) -> None:
        k = self.k = FakeKernel("6.13", _TAG_TYPES)
        self.maps = [self._map() for _ in range(1 if shared else queues)]
        self.tags, self.requests = [], []
        for number in range(queues):
            pointers, static = (k.alloc(f"struct request * [{_TAGS}]") for _ in range(2))
            requests = k.alloc(f"struct request [{_TAGS}]", alone=True)
            for pointer, request in zip(static, requests, strict=True):
                k.set(pointer, request)
                k.fill(request, q=_QUEUE, tag=-1, internal_tag=-1, mq_hctx=_CONTEXT + number)
            maps = self.maps[number % len(self.maps)], self._map(bits=0)
            tags = k.alloc("struct blk_mq_tags", bitmap_tags=maps[0], breserved_tags=maps[1])
            k.fill(tags, nr_tags=_TAGS, rqs=pointers[0], static_rqs=static[0])
            self.tags.append(int(tags.address_))
            self.requests.append(requests)

    def _map(self, bits: int = (1 << _IN_USE) - 1) -> drgn.Object:
        k = self.k
        word = k.alloc("struct sbitmap_word", word=bits)
        queue = k.alloc("struct sbitmap_queue", ws=k.alloc("struct sbq_wait_state [8]"))
        k.fill(queue.sb, depth=_TAGS, shift=6, map_nr=1, map=word)
        return queue

    def allocate(self, number: int, tag: int) -> int:
        request = self.requests[number][tag]
        self.k.fill(request, tag=tag, ref=1)
        return int(request.address_)

    def hardware(self, disk: list[int] | None = None) -> HardwareQueues:
        count = len(self.tags)
        addresses = np.array(self.tags, np.uint64)
        sets, damaged = hardware._tags(Memory(self.k.prog), np.unique(addresses), Faults())
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
            nr_contexts=np.zeros(count, np.int64),
            tag_sets=sets,
        )


def tagged(
    host: Host, queues: HardwareQueues | None = None, *, has_context: bool = True
) -> tuple[list[int], list[int], int]:
    """Requests that the maps lead to, the queues of their tags, and bits that lack one.

    :param has_context: whether requests point to their hardware queue
    """
    reader: Any = _Reader.__new__(_Reader)
    reader.hardware = queues or host.hardware()
    reader.prog, reader.memory = host.k.prog, Memory(host.k.prog)
    reader.faults, reader.damage, reader.lost = Faults(), Counter(), 0
    reader.devices = SimpleNamespace(
        disks=[SimpleNamespace(scheduler_data=0)],
        disk_rows=lambda queues: np.where(queues == _QUEUE, 0, -1),
    )
    columns = {"queue": "q", "tag": "tag", "sched_tag": "internal_tag", "ref": "ref"}
    columns |= {"hctx": "mq_hctx"} if has_context else {}
    reader.columns = layout(host.k.prog, "struct request", columns)
    address, queue = reader._tagged()
    return address.tolist(), queue.tolist(), reader.damage["free_tags"]


@pytest.mark.parametrize(
    ("queues", "shared", "maps"), [(1, True, 1), (2, True, 1), (64, True, 1), (3, False, 3)]
)
def test_each_map_counts_once(queues: int, shared: bool, maps: int) -> None:
    found = Host(queues, shared=shared).hardware()
    rows = np.unique(found.tag_sets.rows(found.tags))
    assert len(rows) == maps
    assert int(found.tag_sets.used[rows].sum()) == maps * _IN_USE
    assert int(found.tag_sets.depth[rows].sum()) == maps * _TAGS


@pytest.mark.parametrize(
    ("queues", "owners", "free"),
    # Two of the five tags have no request in any of the three queues.
    [(3, {0: 0, 1: 1, 4: 2}, 2), (64, {tag: 7 * tag for tag in range(_IN_USE)}, 0)],
)
def test_a_tag_belongs_to_the_queue_whose_request_has_it(
    queues: int, owners: dict[int, int], free: int
) -> None:
    host = Host(queues)
    expected = {host.allocate(number, tag): number for tag, number in owners.items()}
    address, queue, lacking = tagged(host)
    assert (dict(zip(address, queue, strict=True)), lacking) == (expected, free)


@pytest.mark.parametrize("has_context", [False, True])
def test_the_queue_of_a_tag_of_a_scheduler(has_context: bool) -> None:
    """Before v5.0, requests do not point to it."""
    host = Host(3, shared=False)
    found = host.hardware()
    found.sched_tags, found.tags = found.tags, np.arange(3, dtype=np.uint64) + np.uint64(8)
    expected = {}
    for number, requests in enumerate(host.requests):
        host.k.fill(requests[number], internal_tag=number, ref=1)
        expected[int(requests[number].address_)] = number
    address, queue, lacking = tagged(host, found, has_context=has_context)
    assert (dict(zip(address, queue, strict=True)), lacking) == (expected, 3 * (_IN_USE - 1))


@pytest.mark.parametrize(
    ("shared", "disk", "expected"),
    [
        (True, [4, 4], [4]),
        (True, [4, 5], [-1]),  # of one host
        (False, [4, 5], [4, 5]),
        (False, [], []),
    ],
)
def test_the_disk_of_a_map(
    shared: bool, disk: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(len(disk), shared=shared)
    monkeypatch.setattr(hardware, "hardware_queues", lambda _: host.hardware(disk))
    kernel = Kernel(host.k.prog)
    maps = np.array([int(each.address_) for each in host.maps], np.uint64)
    assert disks_of_maps(kernel, maps).tolist() == expected
    assert disks_of_maps(kernel, np.append(maps + np.uint64(8), _NO_MAP)).max() == -1
    assert maps_of_queues(kernel, _NO_MAP).tolist() == [0]
    # Before v5.0, only the wait queue leads to the map.
    queues = np.array([int(each.ws) for each in host.maps], np.uint64)
    for offset, found in ((0, maps), (_STATES - 8, maps), (_STATES, None)):
        same = maps_of_queues(kernel, queues + np.uint64(offset))
        assert same.tolist() == (maps.tolist() if found is not None else [0] * len(maps))
