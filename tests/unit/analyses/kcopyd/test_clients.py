# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients and jobs of *synthetic* kernels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from drgn import Object

from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.dm.kcopyd import job_caches, list_heads
from tests.unit.analyses.kcopyd.making import World, count, eras, split, world
from tests.unit.fakekernel import PAGE, FakeKernel


@eras
def test_clients_and_their_reserve(era: str) -> None:
    w = world(era)
    kcopyd, clients, jobs = count(w)
    # The dead one lies in a free object.
    assert clients.address.tolist() == [w.clients["busy"], w.clients["idle"]]
    assert clients.reserves.tolist() == [2, 1]
    assert clients.throttle.tolist() == [100, 40]
    assert kcopyd.has_callback_list == w.new
    assert jobs.jobs.tolist() == [10, 0]
    assert (jobs.reserve, jobs.active, jobs.unknown, jobs.torn) == (3, 13, 0, 0)
    assert jobs.in_flight.tolist() == [10, 0]


@eras
def test_states_and_split_jobs(era: str) -> None:
    w = world(era)
    k, kc = w.k, w.client("busy")
    for slot in (0, 1, 2):
        k.list_add_tail(w.job(slot).list, kc.complete_jobs)
    k.list_add_tail(w.job(3).list, kc.io_jobs)
    k.list_add_tail(w.job(4).list, kc.pages_jobs)
    # Eight parts are on their way, one of them waits for pages.
    split(w, 5, 8)
    k.list_add_tail(w.job(5, part=3).list, kc.pages_jobs)
    # All parts are done: the master waits for its callback.
    split(w, 6, 0)
    k.list_add_tail(w.job(6).list, kc.complete_jobs)
    if w.new:
        k.list_add_tail(w.job(7).list, kc.callback_jobs)
    jobs = count(w)[2]
    assert jobs.jobs.tolist() == [10, 0]
    assert jobs.split.tolist() == [2, 0]
    assert jobs.sub_jobs.tolist() == [8, 0]
    assert jobs.listed.tolist() == [[int(w.new), 4, 1, 2], [0, 0, 0, 0]]
    # 8 and 9, seven parts, and 7 where there is no list for callbacks.
    assert jobs.in_flight.tolist() == [9 + (not w.new), 0]


@eras
def test_jobs_of_a_prepared_callback_copy_nothing(era: str) -> None:
    w = world(era)
    for slot in (0, 1):
        w.k.set(w.job(slot).source.count, 0)
    w.k.list_add_tail(w.job(1).list, w.client("busy").complete_jobs)
    jobs = count(w)[2]
    assert jobs.in_flight.tolist() == [9, 0]
    assert jobs.prepared.tolist() == [1, 0]


def test_sub_jobs_of_old_kernels_are_64_kib() -> None:
    w = world("4.18")
    w.k.set(w.job(0).source.count, 129)
    w.k.set(w.job(1).source.count, 128)
    assert count(w)[2].split.tolist() == [1, 0]


@pytest.mark.parametrize("length", [0, 4])
def test_a_torn_list_is_counted(length: int) -> None:
    w = world("6.10")
    kc = w.client("busy")
    for slot in range(length):
        w.k.list_add_tail(w.job(slot).list, kc.io_jobs)
    assert count(w)[2].torn == 0
    bent = (w.job(1).list, w.job(3).list) if length else (kc.io_jobs, 0xFFFF_8880_0000_1000)
    w.k.set(bent[0].next, bent[1])
    jobs = count(w)[2]
    # The jobs before the bend are no longer known to be on the list.
    assert (jobs.torn, jobs.listed[0].tolist()) == (1, [0, 0, length // 2, 0])
    assert jobs.in_flight.tolist() == [10 - length // 2, 0]


def pages_of(w: World, number: int) -> Object:
    nodes = [w.k.alloc("struct page_list") for _ in range(number)]
    for node, following in pairwise(nodes):
        w.k.set(node.next, following)
    return nodes[0]


def test_copy_pages_are_counted_twice() -> None:
    w = world("6.10")
    # Four pages; eight running parts, one of two pages and one that waits for pages.
    w.k.set(w.job(0).source.count, 4 * PAGE // 512)
    w.k.set(w.job(0).pages, pages_of(w, 4))
    split(w, 1, running=8)
    w.k.set(w.job(1, part=1).source.count, 2 * PAGE // 512)
    w.k.set(w.job(1, part=1).pages, pages_of(w, 2))
    w.k.set(w.job(1, part=2).pages, w.jobs[0])  # given back before it waited again
    w.k.list_add_tail(w.job(1, part=2).list, w.client("busy").pages_jobs)
    w.k.set(w.client("idle").pages, pages_of(w, 3))
    jobs = count(w)[2]
    assert (jobs.pages.tolist(), jobs.pages_expected, jobs.pages_followed) == ([6, 0], 6, 6)
    assert jobs.free_pages_followed == 3
    # With fewer parts running, which ones still have pages is unknown.
    w.k.set(w.job(1).sub_jobs.counter, 3)
    jobs = count(w)[2]
    assert (jobs.pages.tolist(), jobs.pages_expected) == ([4 + 3 * 128, 0], 4)


def test_filtered_pages_are_counted_and_the_rest_is_right() -> None:
    w = world("6.10")
    w.k.drop(w.jobs[0])
    report = ScanReport()
    kcopyd, _, jobs = count(w, report)
    # Five objects lie on the first page of that slab, the last of them in part.
    assert kcopyd.scan(ScanReport())[0].tolist() == w.jobs[5:]
    assert report.objects_unreadable == 5
    assert jobs.jobs.tolist() == [5, 0]


def test_job_of_a_client_that_is_none() -> None:
    w = world("6.10")
    w.k.set(w.job(9).kc, 0x1234)
    jobs = count(w)[2]
    assert (jobs.jobs.tolist(), jobs.unknown) == ([9, 0], 1)


def test_cache_is_found_by_name_without_the_variable() -> None:
    w = world("6.10")
    del w.k.symbols["_job_cache"]
    found = job_caches(SlabMap(Memory(w.k.prog)))
    assert [cache.name for cache in found] == ["kcopyd_job"]
    assert job_caches(SlabMap(Memory(FakeKernel("6.10").prog))) == []


@pytest.mark.parametrize("seed", range(20))
def test_membership_of_lists_equals_a_walk(seed: int) -> None:
    random = np.random.default_rng(seed)
    number, lists = int(random.integers(1, 400)), 6
    address = random.permutation(10_000)[: number + lists].astype(np.uint64) * np.uint64(64)
    nodes, heads = address[:number], address[number:]
    on = random.integers(-1, lists, number)
    following = np.full(number, 7, np.uint64)
    before = np.full(number, 9, np.uint64)
    for each in range(lists):
        members = random.permutation(np.flatnonzero(on == each))
        ring = [heads[each], *nodes[members], heads[each]]
        for at, member in enumerate(members):
            before[member], following[member] = ring[at], ring[at + 2]
    # Stale links into a list lead nowhere.
    for stray in np.flatnonzero(on == -1)[:5]:
        following[stray] = nodes[random.integers(number)]
    assert list_heads(heads, nodes, following, before).tolist() == on.tolist()


def test_circles_end() -> None:
    nodes = np.array([64, 128, 192], np.uint64)
    heads = np.array([640], np.uint64)
    ends = list_heads(heads, nodes, np.roll(nodes, -1), np.roll(nodes, 1))
    assert ends.tolist() == [-1, -1, -1]
