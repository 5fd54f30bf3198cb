# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arrays of md on *synthetic* kernels: who changes them, and what is late."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.io.devices import DEVICE
from kcensus.kernel.waiting.finders.stacked.arrays import (
    BARRIER,
    STATE,
    SUPERBLOCK,
    SUSPENDED_ARRAY,
    Arrays,
)
from kcensus.kernel.waiting.graph import HELD, SERVED
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct atomic_long_t 8 : 0 long counter
struct mutex 16 : 0 struct atomic_long_t owner
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct wait_queue_head 24
struct gendisk 64
struct block_device 64 : 0 struct gendisk * bd_disk; 8 unsigned int bd_dev; 16 u64 bd_start_sect
struct bio 64 : 0 struct block_device * bi_bdev
struct md_personality 64 : 0 char * name
struct md_thread 64 : 0 struct task_struct * tsk
struct md_rdev 64 : 0 struct list_head same_set
struct r1conf 128 : 64 struct wait_queue_head wait_barrier
struct r1bio 64 : 0 struct mddev * mddev
struct resync_pages 64 : 0 void * raid_bio
struct mddev 512
    0 void * private; 8 struct md_personality * pers; 16 struct list_head disks; 32 int suspended
    36 int external; 40 struct gendisk * gendisk; 48 struct md_thread * thread; 56 u64 suspend_lo
    64 u64 suspend_hi; 72 struct mutex reconfig_mutex; 96 struct wait_queue_head sb_wait
    128 struct wait_queue_head recovery_wait; 200 char[17] metadata_type; 504 u64 reshape_position
"""
_MD = 0xFFFF_8881_0000_0000
_DERIVED = int(Strength.DERIVED)


class Array(Sleepers):
    """md0 is a mirror; a task waits for it in a function."""

    def __init__(self, function: str, **members: int) -> None:
        super().__init__(_TYPES, function, "other")
        self.conf = self.k.alloc("struct r1conf")
        level = self.k.alloc("struct md_personality", name=b"raid1")
        self.mddev = self.k.alloc("struct mddev", private=self.conf, pers=level, gendisk=_MD)
        self.k.fill(self.mddev, **members)
        self.k.list_init(self.mddev.disks)
        disk = SimpleNamespace(address=_MD, name="md0", private=int(self.mddev.address_))
        self.remember(block_devices, SimpleNamespace(disks=[disk]))
        self.remember(stacks, Stacks(()))
        empty = words()
        self.remember(
            bios,
            SimpleNamespace(
                ends_in=lambda *_: np.empty(0, np.bool_),
                origin=empty,
                origin_private=empty,
                request=np.empty(0, np.int64),
            ),
        )
        self.remember(requests, SimpleNamespace(address=empty, disk=np.empty(0, np.int64)))
        self.address = int(self.mddev.address_)

    def on(self, member: str) -> int:
        queue = int(self.mddev.member_(member).address_)
        self.wait(0, queue, "struct wait_queue_head")
        return queue


def test_a_barrier_without_a_request_leads_to_the_device() -> None:
    scene = Array("_wait_barrier")
    queue = int(scene.conf.wait_barrier.address_)
    scene.wait(0, queue, "struct wait_queue_head")
    graph, finder = scene.run(Arrays)
    assert links(graph) == {(BARRIER, queue, SERVED, _MD, _DERIVED)}
    assert finder.names[BARRIER, queue] == "md0 (wait_barrier)"
    assert finder.evidence[0] == "r1conf.wait_barrier"


def test_another_queue_of_an_array_leads_to_the_device() -> None:
    scene = Array("md_do_sync")
    queue = scene.on("recovery_wait")
    assert links(scene.run(Arrays)[0]) == {(BARRIER, queue, SERVED, _MD, _DERIVED)}


@pytest.mark.parametrize("is_blocked", [True, False])
def test_superblocks_are_written_by_the_thread_or_by_who_keeps_it(is_blocked: bool) -> None:
    scene = Array("md_write_start")
    thread = scene.k.alloc("struct md_thread", tsk=scene.task[1])
    scene.k.set(scene.mddev.thread, thread)
    scene.k.write_words(int(scene.mddev.reconfig_mutex.address_), scene.task[0])
    scene.on("sb_wait")
    scene.known.state[1] = 2 if is_blocked else 1
    found = links(scene.run(Arrays)[0])
    if is_blocked:
        assert found == {(STATE, scene.address, SERVED, scene.task[1], _DERIVED)}
    else:
        assert found == {(STATE, scene.address, HELD, scene.task[0], _DERIVED)}


def test_superblocks_without_a_request_lead_to_the_device() -> None:
    scene = Array("md_super_wait")
    scene.on("sb_wait")
    assert links(scene.run(Arrays)[0]) == {(SUPERBLOCK, scene.address, SERVED, _MD, _DERIVED)}


@pytest.mark.parametrize(
    ("metadata", "command"),
    [(b"", ""), (b"none", ""), (b"/md127/0", "mdmon --takeover md127"), (b"/md1;x/0", "")],
)
def test_mdmon_has_to_mark_an_array_as_dirty(metadata: bytes, command: str) -> None:
    scene = Array("md_write_start", external=1)
    scene.k.set(scene.mddev.metadata_type, metadata)
    scene.on("sb_wait")
    graph, finder = scene.run(Arrays)
    assert len(graph.edge) == 0
    found = finder.finding(STATE, scene.address, Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    assert found.id == "waits-mdmon:md0"
    commands = [each.command for each in found.remedies]
    assert commands == [command, "echo active > /sys/block/md0/md/array_state"]


@pytest.mark.parametrize(
    ("position", "commands"),
    # Its program has to continue a reshape.
    [(2048, []), ((1 << 64) - 1, ["echo 0 > /sys/block/md0/md/suspend_hi"])],
)
def test_a_range_is_suspended_by_a_program(position: int, commands: list[str]) -> None:
    members = {"suspend_lo": 8, "suspend_hi": 4096, "reshape_position": position}
    scene = Array("md_handle_request", **members)
    scene.on("sb_wait")
    graph, finder = scene.run(Arrays)
    assert len(graph.edge) == 0
    found = finder.finding(SUSPENDED_ARRAY, scene.address, Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    assert "sectors 8 to 4,096 of the array md0" in found.title
    assert [each.command for each in found.remedies] == commands
    assert ("reshape" in found.no_remedy) == (not commands)


def test_an_array_is_suspended_by_who_changes_it() -> None:
    scene = Array("md_handle_request", suspended=1)
    scene.k.write_words(int(scene.mddev.reconfig_mutex.address_), scene.task[1])
    scene.on("sb_wait")
    graph, finder = scene.run(Arrays)
    assert links(graph) == {(SUSPENDED_ARRAY, scene.address, HELD, scene.task[1], _DERIVED)}
    found = finder.finding(SUSPENDED_ARRAY, scene.address, Stall(frozenset({1}), 1, 300.0))
    assert found is not None
    assert (found.remedies, bool(found.no_remedy)) == ((), True)


def test_an_array_that_names_another_disk_is_none() -> None:
    scene = Array("md_write_start", gendisk=_MD + 64)
    queue = scene.on("sb_wait")
    graph, finder = scene.run(Arrays)
    assert len(graph.edge) == 0
    assert (int(finder.object[0]), finder.arrays) == (queue, {})


def test_other_queues_are_of_no_array() -> None:
    scene = Array("io_schedule")
    scene.wait(0, scene.address + 4096, "struct wait_queue_head")
    graph, finder = scene.run(Arrays)
    assert len(graph.edge) == 0
    assert finder.arrays == {}
    assert finder.finding(DEVICE, _MD, Stall(frozenset(), 0, -1.0)) is None
    assert finder.faults == Faults()
