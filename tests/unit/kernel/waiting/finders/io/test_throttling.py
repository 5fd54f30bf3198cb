# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writeback throttling on *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.throttling import THROTTLING, Throttling
from kcensus.kernel.waiting.graph import SERVED
from kcensus.kernel.waiting.joined import Joins, joined
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct request_queue 64 : 8 struct rq_qos * rq_qos
struct rq_qos 32 : 0 unsigned int id; 8 struct rq_qos * next
struct atomic_t 4 : 0 int counter
struct rq_wait 32 : 0 struct wait_queue_head wait; 16 struct atomic_t inflight
struct wait_queue_head 16
struct rq_wb 256 : 128 struct rq_qos rqos; 32 struct rq_wait [3] rq_wait
    160 unsigned long min_lat_nsec; 0 unsigned int wb_background; 4 unsigned int wb_normal
"""
_VDA = 0xFFFF_8881_0000_0000
_QUEUE = "struct wait_queue_head"


class Throttled(Sleepers):
    """vda has a limit of latency, and then wbt."""

    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        self.k.enum("rq_qos_id", ["RQ_QOS_WBT", "RQ_QOS_LATENCY", "RQ_QOS_COST"])
        self.wbt = self.k.alloc("struct rq_wb")
        latency = self.k.alloc("struct rq_qos", id=1, next=int(self.wbt.rqos.address_))
        queue = self.k.alloc("struct request_queue", rq_qos=latency)
        disk = SimpleNamespace(address=_VDA, name="vda", queue=int(queue.address_), private=0)
        self.remember(block_devices, SimpleNamespace(disks=[disk]))
        self.remember(stacks, Stacks(()))
        none = np.empty(0, np.int64)
        self.remember(joined, Joins(none, none, np.empty(0, np.bool_), []))


def test_the_disk_ends_the_wait_for_fewer_writes() -> None:
    scene = Throttled("rq_qos_wait", "rq_qos_wait", "io_schedule")
    place = int(scene.wbt.rq_wait[1].address_)
    scene.wait(0, place, _QUEUE)
    scene.wait(1, int(scene.wbt.address_) + 4096, _QUEUE)  # of another policy
    scene.wait(2, place, _QUEUE)  # whatever that is
    graph, finder = scene.run(Throttling)
    assert links(graph) == {(THROTTLING, place, SERVED, _VDA, int(Strength.DERIVED))}
    assert finder.names[THROTTLING, place] == "of vda (wbt)"
    scene.k.set(scene.wbt.rq_wait[1].inflight.counter, 3)
    scene.k.set(scene.wbt.min_lat_nsec, 2_000_000)
    scene.k.set(scene.wbt.wb_background, 2)
    scene.k.set(scene.wbt.wb_normal, 4)
    hint = "write throttling of vda (wbt): 3 writes in flight, at most 2 in the background and 4"
    found = finder.hint(THROTTLING, place)
    assert found.startswith(hint)
    assert "/sys/block/vda/queue/wbt_lat_usec is 2000; do not write it now" in found
    assert scene.waits.type[1:] == [_QUEUE, _QUEUE]
