# SPDX-License-Identifier: LGPL-2.1-or-later
"""CFQ in jiffies and legacy deadline, on *synthetic* memory: no kernel of the lab has them."""

from __future__ import annotations

import numpy as np
import pytest
from drgn import Object

from kcensus.kernel.block.schedulers import cfq, deadline
from kcensus.kernel.block.schedulers.model import NEVER
from tests.unit.kernel.block.fake import IDLE_WINDOW, SYNC, TYPES, FakeScheduler

MS = 1_000_000


class FakeCfq(FakeScheduler):
    """CFQ as of v4.4: two queues in trees, an asynchronous one, and the active one."""

    def __init__(self, is_btf: bool = False) -> None:
        flat = TYPES.replace("[2][3] service_trees", "[6] service_trees")
        types = flat.replace("[2][8] async_cfqq", "[16] async_cfqq") if is_btf else TYPES
        super().__init__("cfq", "struct cfq_data", types)
        k = self.k
        for index, jiffies in enumerate((250, 125)):
            k.set(self.data.cfq_fifo_expire[index], jiffies)
        k.set(self.data.cfq_slice_idle, 8)
        k.list_init(self.data.oom_cfqq.fifo)
        k.set(self.data.oom_cfqq.cfqd, self.data)
        self.group = k.alloc("struct cfq_group")
        k.set(self.data.root_group, self.group)
        self.tree(self.data.grp_service_tree.rb, [self.group.rb_node])
        self.reader = self.queue(1618, SYNC, [-20])
        self.idler = self.queue(1619, SYNC | IDLE_WINDOW, [])
        self.writer = self.queue(767, 0, [15_376, 15_000, -100])
        nodes = [each.rb_node for each in (self.reader, self.idler)]
        trees, queues = self.group.service_trees, self.group.async_cfqq
        first, second = (trees[3], trees[4]) if is_btf else (trees[1][0], trees[1][1])
        self.tree(second.rb, nodes)
        self.tree(first.rb, [self.writer.rb_node])
        k.set(queues[12] if is_btf else queues[1][4], self.writer)
        self.active = self.queue(1700, SYNC, [])
        k.set(self.data.active_queue, self.active)

    def queue(self, pid: int, flags: int, ages: list[int]) -> Object:
        queue = self.k.alloc("struct cfq_queue", cfqd=self.data, pid=pid, flags=flags)
        self.k.set(queue.queued[0], len(ages))
        self.requests(queue.fifo, ages)
        return queue


@pytest.mark.parametrize("is_btf", [False, True])
def test_cfq_in_jiffies(is_btf: bool) -> None:
    """BTF has an array of arrays as a single one."""
    fake = FakeCfq(is_btf)
    found = cfq.queues(fake.kernel(), fake.disk)
    rows = {label: row for row, label in enumerate(found.label)}
    assert rows.keys() == {"cfq1618SN", "cfq1619S", "cfq767A", "cfq1700SN", "cfq0A"}
    writer, reader = rows["cfq767A"], rows["cfq1618SN"]
    assert found.address[writer] == int(fake.writer.address_)
    assert found.late_ns[found.row == writer].tolist() == [15_376 * MS, 15_000 * MS, -100 * MS]
    assert found.late_ns[found.row == reader].tolist() == [-20 * MS]
    assert found.waiting_ns[found.row == writer][0] == (15_376 + 250) * MS
    assert found.expiry_ns[[writer, reader]].tolist() == [250 * MS, 125 * MS]
    assert found.counted.tolist() == found.lengths.tolist()
    assert found.is_in_service.tolist() == [label == "cfq1700SN" for label in found.label]
    assert found.tunables == {"fifo_expire_async": 250, "fifo_expire_sync": 125, "slice_idle": 8}
    assert found.torn == 0


@pytest.mark.parametrize("damaged", ["queue", "tree", "list"])
def test_damage_costs_cfq_no_other_queue(damaged: str) -> None:
    fake = FakeCfq()
    if damaged == "queue":
        # It is of another disk.
        fake.k.set(fake.idler.cfqd, 0xFFFF_8880_0000_2000)
    elif damaged == "tree":
        # Asynchronous queues belong to their group, too.
        fake.k.set(fake.writer.rb_node.member_("__rb_parent_color"), 0xFFFF_8880_0000_2000)
    else:
        # The other end of the list leads to all of its requests.
        fake.k.write_words(int(fake.writer.fifo.next), 0xDEAD_0000_0000_0100)
    found = cfq.queues(fake.kernel(), fake.disk)
    assert ("cfq1619S" in found.label, "cfq767A" in found.label) == (damaged != "queue", True)
    assert (found.torn, len(found.request)) == (1, 4)


def test_legacy_deadline() -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    for index, jiffies in enumerate((500, 5000)):
        fake.k.set(fake.data.fifo_expire[index], jiffies)
    fake.k.fill(fake.data, writes_starved=2, starved=1)
    reads = fake.requests(fake.data.fifo_list[0], [-499])
    writes = fake.requests(fake.data.fifo_list[1], [3000, 1])
    found = deadline.queues(fake.kernel(), fake.disk)
    assert found.label == ["read", "write"]
    assert found.request.tolist() == reads + writes
    assert found.row.tolist() == [0, 1, 1]
    assert found.late_ns.tolist() == [-499 * MS, 3000 * MS, MS]
    assert found.waiting_ns.tolist() == [MS, 8000 * MS, 5001 * MS]
    expected = {"read_expire": 500, "write_expire": 5000, "writes_starved": 2}
    assert found.tunables == expected | {"front_merges": 0, "fifo_batch": 0}


@pytest.mark.parametrize("broken", ["fifo_time", "request"])
def test_a_request_that_is_unreadable_or_freed(broken: str) -> None:
    fake = FakeScheduler("deadline", "struct deadline_data")
    fake.requests(fake.data.fifo_list[0], [])
    lone = fake.k.alloc("struct request", alone=True)
    fake.k.list_init(fake.data.fifo_list[1])
    fake.k.list_add_tail(lone.queuelist, fake.data.fifo_list[1])
    if broken == "fifo_time":
        fake.k.set(lone.q, 1 << 63)
        found = deadline.queues(fake.kernel(), fake.disk)
        assert np.array_equal(found.late_ns, [NEVER])
        assert np.array_equal(found.waiting_ns, [NEVER])
    else:
        fake.k.drop(int(lone.address_))
        found = deadline.queues(fake.kernel(), fake.disk)
        assert len(found.request) == 0
        assert (found.torn, found.faults.total() > 0) == (1, True)
