# SPDX-License-Identifier: LGPL-2.1-or-later
"""Queue depths by io.latency on *synthetic* kernels: no kernel of the lab has it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.cgroups import BlockCgroup
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.limits import io_latency
from kcensus.kernel.waiting.finders.limits.io_latency import DEPTH, IoLatencies
from kcensus.kernel.waiting.graph import SERVED
from kcensus.kernel.waiting.joined import Joins, joined
from tests.unit.kernel.waiting.making import Sleepers, links

_PLAIN = """
struct task_struct 64
struct wait_queue_head 16
"""
_TYPES = (
    _PLAIN
    + """
struct list_head 16 : 0 struct list_head * next; 8 struct list_head * prev
struct rq_wait 32 : 0 struct wait_queue_head wait
struct blkg_policy_data 16 : 0 struct blkcg_gq * blkg; 8 int plid
struct request_queue 64
struct blkcg_gq 64 : 0 struct request_queue * q; 16 struct blkg_policy_data * [6] pd
struct iolatency_grp 128
    0 struct blkg_policy_data pd; 32 struct rq_wait rq_wait; 64 unsigned int max_depth
"""
)
_VDA, _QUEUE = 0xFFFF_8881_0000_0000, "struct wait_queue_head"


class Scene(Sleepers):
    def __init__(self, types: str, *functions: str) -> None:
        super().__init__(types, *functions)
        self.remember(stacks, Stacks(()))
        none = np.empty(0, np.int64)
        self.remember(joined, Joins(none, none, np.empty(0, np.bool_), []))


def test_the_disk_ends_the_wait_of_a_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(_TYPES, "rq_qos_wait", "rq_qos_wait", "rq_qos_wait")
    queue = scene.k.alloc("struct request_queue")
    block = scene.k.alloc("struct blkcg_gq", q=queue)
    group = scene.k.alloc("struct iolatency_grp", max_depth=3)
    scene.k.set(group.pd.blkg, int(block.address_))
    scene.k.set(group.pd.plid, 2)
    scene.k.set(block.pd[2], int(group.pd.address_))
    # A group whose block cgroup has another one in its place, and no group at all.
    other = scene.k.alloc("struct iolatency_grp")
    scene.k.set(other.pd.blkg, int(block.address_))
    scene.k.set(other.pd.plid, 2)
    head = int(group.rq_wait.address_)
    for lane, place in enumerate((head, int(other.rq_wait.address_), scene.stack[0])):
        scene.wait(lane, place, _QUEUE)
    disk = SimpleNamespace(address=_VDA, name="vda", private=0, queue=0)
    devices = SimpleNamespace(
        disks=[disk], disk_rows=lambda queues: np.where(queues == int(queue.address_), 0, -1)
    )
    scene.remember(block_devices, devices)
    cgroup = BlockCgroup("/slow", "/sys/fs/cgroup", is_unified=True)
    monkeypatch.setattr(
        io_latency, "block_cgroups", lambda _, groups: dict.fromkeys(groups.tolist(), cgroup)
    )
    graph, finder = scene.run(IoLatencies)
    node = int(group.address_)
    assert links(graph) == {(DEPTH, node, SERVED, _VDA, int(Strength.DERIVED))}
    assert finder.names[DEPTH, node] == "3 of cgroup /slow on vda (io.latency)"
    assert "misses the target" in finder.hint(DEPTH, node)
    assert scene.waits.type[1:] == [_QUEUE, _QUEUE]


def test_a_kernel_without_it() -> None:
    scene = Scene(_PLAIN, "rq_qos_wait")
    scene.wait(0, scene.stack[0], _QUEUE)
    graph, finder = scene.run(IoLatencies)
    assert len(graph) == 0
    assert finder.draft.missing == []
