# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bios behind limits of block cgroups, on *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Words
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits import throttles as module
from kcensus.kernel.block.limits.throttles import UNLIMITED, Throttles, throttles
from kcensus.kernel.clock import Clock, clock
from tests.unit.kernel.waiting.making import Sleepers

_TYPES = """
struct task_struct 64
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct bio 64
struct bio_list 16 : 0 struct bio * head; 8 struct bio * tail
struct request_queue 64 : 0 struct throtl_data * td; 16 struct list_head blkg_list
struct throtl_data 64 : 0 struct request_queue * queue; 8 unsigned int [2] nr_queued
struct blkg_policy_data 16 : 0 struct blkcg_gq * blkg
struct blkcg_gq 64 : 0 struct list_head q_node; 16 struct blkg_policy_data * [6] pd
struct blkcg_policy 8 : 0 int plid
"""
_OLD = """
struct throtl_service_queue 64 : 0 struct list_head [2] queued; 32 unsigned int [2] nr_queued
struct throtl_qnode 64
    0 struct list_head node; 16 struct bio_list bios; 32 struct throtl_grp * tg
struct throtl_grp 256
    0 struct blkg_policy_data pd; 16 struct throtl_data * td
    32 struct throtl_service_queue service_queue; 96 unsigned long disptime
    104 unsigned long [2][2] bps; 136 unsigned int [2][2] iops
"""
_NEW = """
struct throtl_service_queue 64
    0 struct list_head [2] queued; 32 unsigned int [2] nr_queued_bps
    40 unsigned int [2] nr_queued_iops
struct throtl_qnode 64
    0 struct list_head node; 16 struct bio_list bios_bps; 32 struct bio_list bios_iops
    48 struct throtl_grp * tg
struct throtl_grp 256
    0 struct blkg_policy_data pd; 16 struct throtl_data * td
    32 struct throtl_service_queue service_queue; 96 unsigned long disptime
    104 unsigned long [2] bps; 120 unsigned int [2] iops
"""
_BIO, _LAST = 0xFFFF_8881_0000_3000, 0xFFFF_8881_0000_3040
_READ, _WRITE = 0, 1


class Limited(Sleepers):
    """A disk with two cgroups; the first one holds a chain of reads, and of writes below it."""

    def __init__(self, *, is_new: bool) -> None:
        super().__init__(_TYPES + (_NEW if is_new else _OLD))
        self.is_new = is_new
        self.k.set(self.k.variable("blkcg_policy_throtl", "struct blkcg_policy").plid, 3)
        self.queue = self.k.alloc("struct request_queue")
        self.data = self.k.alloc("struct throtl_data", queue=self.queue)
        self.k.set(self.queue.td, int(self.data.address_))
        self.blocks = [self.k.alloc("struct blkcg_gq") for _ in range(2)]
        self.groups = [self.k.alloc("struct throtl_grp", td=self.data) for _ in range(2)]
        for block, group in zip(self.blocks, self.groups, strict=True):
            self.k.set(block.pd[3], int(group.pd.address_))
            self.k.set(group.pd.blkg, int(block.address_))
            for way in (_READ, _WRITE):
                self.ring(int(group.service_queue.queued[way].address_))
        nodes = [int(block.q_node.address_) for block in self.blocks]
        self.ring(int(self.queue.blkg_list.address_), *nodes)
        self.hold(_READ, self.groups[0])
        self.hold(_WRITE, self.groups[1])
        disk = SimpleNamespace(address=1, queue=int(self.queue.address_), name="sda")
        self.remember(block_devices, SimpleNamespace(disks=[disk]))
        self.remember(clock, Clock(0, 5000, 1000, "jiffies"))

    def hold(self, way: int, owner: Any) -> None:
        """Let the first cgroup hold the bios of one, its own or one below it."""
        queue = self.groups[0].service_queue
        node = self.k.alloc("struct throtl_qnode", tg=owner)
        bios = (node.bios_iops if way else node.bios_bps) if self.is_new else node.bios
        self.k.set(bios.head, _BIO + way)
        self.k.set(bios.tail, _LAST + way)
        self.ring(int(queue.queued[way].address_), int(node.node.address_))
        counts = (queue.nr_queued_iops if way else queue.nr_queued_bps) if self.is_new else (
            queue.nr_queued
        )  # fmt: skip
        self.k.set(counts[way], 2)
        self.k.set(self.data.nr_queued[way], 2)

    def read(self, monkeypatch: pytest.MonkeyPatch) -> tuple[Throttles, list[Words]]:
        seen: list[Words] = []

        def bios_of(_: Any, heads: Words, tails: Words, **__: int) -> SimpleNamespace:
            seen.extend((heads, tails))
            request = np.repeat(np.arange(len(heads)), 2)  # each chain has two bios
            return SimpleNamespace(torn=0, faults=Faults(), request=request)

        monkeypatch.setattr(module, "bios_of", bios_of)
        return throttles(self.kernel), seen


@pytest.mark.parametrize("is_new", [False, True])
def test_limits_and_their_bios(monkeypatch: pytest.MonkeyPatch, *, is_new: bool) -> None:
    scene = Limited(is_new=is_new)
    group = scene.groups[0]
    last = [] if is_new else [1]
    for name, way, value in (("bps", 0, 1000), ("bps", 1, UNLIMITED[0]), ("iops", 1, 7)):
        place = group.member_(name)[way]
        for index in last:
            place = place[index]
        scene.k.set(place, value)
    scene.k.set(group.disptime, 7000)
    found, (heads, tails) = scene.read(monkeypatch)
    assert found.address.tolist() == [int(group.address_)]
    assert found.group.tolist() == [int(scene.blocks[0].address_)]
    assert found.disk.tolist() == [0]
    assert found.rates.tolist() == [[1000, UNLIMITED[0]]]
    assert found.operations.tolist() == [[0, 7]]
    assert found.next_ns.tolist() == [2_000_000_000]
    assert sorted(heads.tolist()) == [_BIO, _BIO + 1]
    assert sorted(tails.tolist()) == [_LAST, _LAST + 1]
    assert found.chain.tolist() == [0, 0]
    assert found.torn == 0


def test_damaged_pointers_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Limited(is_new=True)
    scene.k.set(scene.groups[1].pd.blkg, 0)  # so that the node of the writes is of no cgroup
    found, (heads, _) = scene.read(monkeypatch)
    assert (heads.tolist(), found.torn) == ([_BIO], 3)
    scene = Limited(is_new=True)
    scene.k.set(scene.data.queue, 0)
    found, (heads, _) = scene.read(monkeypatch)
    assert (len(found), len(heads), found.torn) == (0, 0, 1)
    scene = Limited(is_new=False)
    scene.k.set(scene.groups[0].td, 0)
    found, (heads, _) = scene.read(monkeypatch)
    assert (len(found), len(heads), found.torn) == (0, 0, 1)


def test_a_disk_without_held_bios(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Limited(is_new=True)
    scene.k.set(scene.data.nr_queued[_READ], 0)
    assert len(scene.read(monkeypatch)[0]) == 1
    scene = Limited(is_new=True)
    for way in (_READ, _WRITE):
        scene.k.set(scene.data.nr_queued[way], 0)
    assert len(scene.read(monkeypatch)[0]) == 0


def test_a_kernel_without_limits() -> None:
    scene = Sleepers("struct task_struct 64\nstruct request_queue 64")
    scene.remember(block_devices, SimpleNamespace(disks=[]))
    with pytest.raises(LookupError):
        throttles(scene.kernel)
