# SPDX-License-Identifier: LGPL-2.1-or-later
"""*Synthetic* block devices: legacy schedulers of kernels that the lab cannot boot."""

from __future__ import annotations

from collections.abc import Sequence

import drgn
from drgn import Object, Program, TypeEnumerator, TypeKind

from kcensus.kernel.block.disks import Disk, QueueKind
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel

HZ = 1000
JIFFIES = (1 << 32) - 1000
"""Shortly before 32 bits run over."""
NOW_NS = 50_000_000_000

TYPES = """
struct rb_node 24
    0 unsigned long __rb_parent_color; 8 struct rb_node * rb_right; 16 struct rb_node * rb_left
struct rb_root 8 : 0 struct rb_node * rb_node
struct request 64
    0 struct request_queue * q; 8 struct list_head queuelist; 24 unsigned long fifo_time
struct clocksource 8 : 0 unsigned int mult; 4 unsigned int shift
struct tk_read_base 24 : 0 unsigned int shift; 8 unsigned long xtime_nsec; 16 unsigned long base
struct timekeeper 24 : 0 struct tk_read_base tkr_mono
struct tk_core 24 : 0 struct timekeeper timekeeper
struct deadline_data 88
    0 struct list_head [2] fifo_list; 32 unsigned int batching; 36 unsigned int starved
    40 int [2] fifo_expire; 48 int fifo_batch; 52 int writes_starved; 56 int front_merges
struct cfq_rb_root 16 : 0 struct rb_root rb; 8 unsigned int count
struct cfq_data 512
    0 struct cfq_rb_root grp_service_tree; 16 struct cfq_group * root_group
    24 unsigned int busy_queues; 28 unsigned int busy_sync_queues; 32 int rq_queued
    40 struct cfq_queue * active_queue; 48 unsigned int [2] cfq_fifo_expire
    56 unsigned int cfq_slice_idle; 64 struct cfq_queue oom_cfqq
struct cfq_queue 160
    0 unsigned int flags; 8 struct cfq_data * cfqd; 16 struct rb_node rb_node; 40 int [2] queued
    48 struct list_head fifo; 64 int dispatched; 68 unsigned short ioprio
    70 unsigned short ioprio_class; 72 int pid; 80 unsigned long slice_end
    88 unsigned int slice_dispatch; 96 struct cfq_group * cfqg
struct cfq_group 400
    0 struct rb_node rb_node; 32 struct cfq_rb_root [2][3] service_trees
    128 struct cfq_rb_root service_tree_idle; 144 struct cfq_queue * [2][8] async_cfqq
    272 struct cfq_queue * async_idle_cfqq
"""
_FLAGS = (
    *("on_rr", "wait_request", "must_dispatch", "must_alloc_slice", "fifo_expire", "idle_window"),
    *("prio_changed", "slice_new", "sync"),
)
"""Of ``enum cfqq_state_flags`` in v4.4."""
SYNC, IDLE_WINDOW = 1 << 8, 1 << 5


class FakeScheduler:
    def __init__(self, scheduler: str, data_type: str, types: str = TYPES) -> None:
        self.k = FakeKernel("6.10", types)
        self.k.prog.register_type_finder("flags", self._enum, enable_index=0)
        clock = self.k.variable("clocksource_jiffies", "struct clocksource")
        self.k.fill(clock, mult=(10**9 // HZ) << 8, shift=8)
        core = self.k.variable("tk_core", "struct tk_core")
        self.k.set(core.timekeeper.tkr_mono.base, NOW_NS)
        self.k.variable("jiffies_64", "unsigned long", JIFFIES)
        self.data = self.k.alloc(data_type)
        self.disk = Disk(
            *(1, 2, "sda", 8 << 20, 3, QueueKind.SINGLE, scheduler),
            scheduler_data=int(self.data.address_),
            hardware_queues=0,
            freeze_depth=0,
            quiesce_depth=-1,
            counted_in_flight=(0, 0),
        )

    @staticmethod
    def _enum(
        prog: Program, kinds: drgn.TypeKindSet, name: str, file: str | None
    ) -> drgn.Type | None:
        if TypeKind.ENUM not in kinds or name != "cfqq_state_flags":
            return None
        named = [TypeEnumerator(f"CFQ_CFQQ_FLAG_{flag}", at) for at, flag in enumerate(_FLAGS)]
        return prog.enum_type(name, prog.int_type("unsigned int", 4, False), named)

    def kernel(self) -> Kernel:
        return Kernel(self.k.prog)

    def requests(self, head: Object, ages: Sequence[int]) -> list[int]:
        """Put requests on a list; each has expired so many jiffies ago."""
        self.k.list_init(head)
        found = []
        for age in ages:
            rq = self.k.alloc("struct request")
            self.k.fill(rq, q=0xFFFF_8880_0000_1000, fifo_time=(JIFFIES - age) % (1 << 64))
            self.k.list_add_tail(rq.queuelist, head)
            found.append(int(rq.address_))
        return found

    def tree(self, root: Object, nodes: Sequence[Object]) -> None:
        self.k.set(root.rb_node, nodes[0])
        for side, node in zip(("rb_left", "rb_right"), nodes[1:], strict=False):
            self.k.set(nodes[0].member_(side), node)
            self.k.set(node.member_("__rb_parent_color"), int(nodes[0].address_) | 1)
