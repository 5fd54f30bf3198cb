# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loop devices of *synthetic* kernels: their workers, and what is no loop device."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import requests
from kcensus.kernel.block.stacks import Edge, Stacks, Via, stacks
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finders.io.devices import DEVICE, DISK
from kcensus.kernel.waiting.finders.stacked.loops import BACKED, FILE, LoopDevices
from kcensus.kernel.waiting.graph import RUN_BY, SERVED, TASK, EdgeKind
from tests.unit.kernel.waiting.making import Sleepers, edges, words

_TYPES = """
struct task_struct 64
struct gendisk 64
struct file 64 : 0 struct address_space * f_mapping
struct address_space 64 : 0 struct inode * host
struct inode 64
struct loop_device 128
    0 struct gendisk * lo_disk; 8 struct file * lo_backing_file; 16 int lo_flags
    24 struct task_struct * worker_task
"""
_VDA, _LOOP = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000
_DIRECT_IO = 16


class Loops(Sleepers):
    """loop0 is on a file of vda; a task waits for it, and another is its worker."""

    def __init__(self, worker: str, *, flags: int = 0, disk: int = _LOOP) -> None:
        super().__init__(_TYPES, "submit_bio_wait", worker)
        self.inode = self.k.alloc("struct inode")
        mapping = self.k.alloc("struct address_space", host=self.inode)
        file = self.k.alloc("struct file", f_mapping=mapping)
        loop = self.k.alloc(
            "struct loop_device", lo_disk=disk, lo_backing_file=file, lo_flags=flags,
            worker_task=self.task[1],
        )  # fmt: skip
        disks = [
            SimpleNamespace(address=_VDA, name="vda", private=0),
            SimpleNamespace(address=_LOOP, name="loop0", private=int(loop.address_)),
        ]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        self.remember(stacks, Stacks((Edge(1, 0, 0, Via.LOOP),)))
        empty = words(), np.empty(0, np.int64)
        self.remember(requests, SimpleNamespace(address=empty[0], disk=empty[1]))
        self.remember(
            bios, SimpleNamespace(ends_in=lambda *_: np.empty(0, np.bool_), origin_private=empty[0])
        )
        self.waits.kind[0], self.waits.disk[0] = WaitKind.REQUEST, _LOOP

    def found(self) -> tuple[set[tuple[int, EdgeKind, int]], LoopDevices]:
        paths = {int(self.inode.address_): "/image"}
        with mock.patch(
            "kcensus.kernel.waiting.finders.stacked.loops.file_paths", return_value=paths
        ):
            graph, finder = self.run(LoopDevices)
        return set(edges(graph)), finder


def test_a_worker_in_its_function_serves_the_device() -> None:
    scene = Loops("loop_queue_work")
    found, finder = scene.found()
    assert (_LOOP, RUN_BY, scene.task[1]) in found
    assert (_LOOP, BACKED, int(scene.inode.address_)) in found
    assert finder.names[FILE, int(scene.inode.address_)] == "/image"
    assert not any(edge is SERVED for _, edge, _ in found)


@pytest.mark.parametrize("flags", [0, _DIRECT_IO])
def test_without_a_worker_direct_io_waits_for_the_disk(flags: int) -> None:
    found, _ = Loops("kthread_worker_fn", flags=flags).found()
    assert not any(edge is RUN_BY for _, edge, _ in found)
    assert ((_LOOP, SERVED, _VDA) in found) == bool(flags)


def test_a_device_that_names_another_disk_is_none() -> None:
    found, finder = Loops("loop_queue_work", disk=_VDA, flags=_DIRECT_IO).found()
    assert found == set()
    assert not {FILE, DEVICE, DISK, TASK} & {kind for kind, _ in finder.names}


def test_a_device_without_waiters_is_not_read() -> None:
    scene = Loops("loop_queue_work")
    scene.waits.disk[0] = _VDA
    assert scene.found()[0] == set()
