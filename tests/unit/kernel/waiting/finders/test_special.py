# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tasks wait for besides locks, in words of *synthetic* kernels."""

from __future__ import annotations

from typing import Any

import drgn
import numpy as np
import pandas as pd
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.pipes import OpenFiles, open_files
from kcensus.kernel.waiting.finders.special import Special
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.workqueues import Workqueues, workqueues
from tests.unit.kernel.waiting.making import Sleepers, edges, words

_NOWHERE = 0xFFFF_C900_0000_0000
_CORE = {
    "struct core_state": (32, "0 struct core_thread dumper"),
    "struct core_thread": (16, "0 struct task_struct * task"),
}
_CORES = {
    "5.10": {
        **_CORE,
        "struct task_struct": (64, "8 struct signal_struct * signal\n16 struct mm_struct * mm"),
        "struct signal_struct": (64, ""),
        "struct mm_struct": (64, "8 struct core_state * core_state"),
    },
    "5.16": {
        **_CORE,
        "struct task_struct": (64, "8 struct signal_struct * signal\n16 struct mm_struct * mm"),
        "struct signal_struct": (64, "8 struct core_state * core_state"),
        "struct mm_struct": (64, ""),
    },
}


@pytest.mark.parametrize("era", _CORES)
def test_threads_wait_for_the_one_that_dumps(era: str) -> None:
    scene = Sleepers(
        _CORES[era], "coredump_task_exit", "do_exit", "coredump_task_exit", "pipe_write"
    )
    own = {"5.10": "mm_struct", "5.16": "signal_struct"}[era]
    owner, state = scene.k.alloc(f"struct {own}"), scene.k.alloc("struct core_state")
    for lane, address in enumerate([owner.address_, owner.address_, _NOWHERE, owner.address_]):
        scene.k.write_words(scene.task[lane] + (16 if era == "5.10" else 8), address)
    scene.k.set(owner.core_state, state)
    scene.k.set(state.dumper.task, scene.task[3])
    graph = scene.special(Special.core_dumps)
    # The third one's owner is unreadable; the fourth one is the one that dumps.
    assert scene.waits.object.tolist() == [state.address_, state.address_, 0, 0]
    assert edges(graph) == [(state.address_, EdgeKind.HELD, scene.task[3])]
    assert scene.waits.evidence[0] == f"{own}.core_state"


def test_a_core_dump_that_is_unreadable_proves_nothing() -> None:
    scene = Sleepers(_CORES["5.16"], "coredump_task_exit")
    signal = scene.k.alloc("struct signal_struct")
    scene.k.write_words(scene.task[0] + 8, signal.address_)
    scene.k.set(signal.core_state, _NOWHERE)
    assert len(scene.special(Special.core_dumps)) == 0
    assert scene.waits.object.tolist() == [0]


_WORK = {
    "struct wq_barrier": (64, "0 struct work_struct work\n32 struct completion done"),
    "struct work_struct": (32, ""),
    "struct completion": (32, ""),
    "struct wq_flusher": (48, "16 struct completion done"),
    "struct workqueue_struct": (64, "8 struct wq_flusher * first_flusher"),
}
_ITEM, _NEXT, _BARRIER, _QUEUE = (0xFFFF_8881_0000_0000 + step * 256 for step in range(4))


def _items(*items: tuple[int, str, int]) -> Workqueues:
    """A workqueue's items: address, state, and PID of the worker."""
    rows: list[dict[str, Any]] = [
        {"pool": 0, "wq": _QUEUE, "work": work, "func": 0, "state": state, "pid": pid, "seconds": 0}
        for work, state, pid in items
    ]
    return Workqueues(items=pd.DataFrame(rows), names={_QUEUE: "events"})


@pytest.mark.parametrize(
    ("items", "object_", "evidence", "wanted"),
    [
        # The worker runs it, and the barrier comes next.
        (
            [(_ITEM, "in-flight", 101), (_BARRIER, "scheduled", 101)],
            _ITEM,
            "worker.scheduled",
            [(_ITEM, EdgeKind.RUN_BY)],
        ),
        # It waits for a worker, too, behind which nothing runs that has to end first.
        (
            [(_NEXT, "in-flight", 101), (_ITEM, "pending", 0), (_BARRIER, "pending", 0)],
            _ITEM,
            "list of pending work",
            [],
        ),
        # The workqueue runs as many as it may.
        (
            [(_NEXT, "in-flight", 101), (_ITEM, "inactive", 0), (_BARRIER, "inactive", 0)],
            _ITEM,
            "list of inactive work",
            [(_ITEM, EdgeKind.QUEUED), (_NEXT, EdgeKind.RUN_BY)],
        ),
        # Nothing is before the barrier, or it is on no list.
        ([(_BARRIER, "pending", 0)], _BARRIER + 32, "", []),
        ([(_ITEM, "in-flight", 101)], _BARRIER + 32, "", []),
        # Its worker is on no list of tasks.
        ([(_ITEM, "in-flight", 999), (_BARRIER, "scheduled", 999)], _ITEM, "worker.scheduled", []),
    ],
)
def test_work_that_is_flushed(
    items: list[tuple[int, str, int]],
    object_: int,
    evidence: str,
    wanted: list[tuple[int, EdgeKind]],
) -> None:
    scene = Sleepers(_WORK, "__flush_work", "worker")
    scene.wait(0, _BARRIER + 32, "struct completion")
    scene.remember(workqueues, _items(*items))
    graph = scene.special(Special.works)
    assert (int(scene.waits.object[0]), scene.waits.evidence[0]) == (object_, evidence)
    assert [(source, edge) for source, edge, _ in edges(graph)] == wanted
    assert all(
        target == scene.task[1] for _, edge, target in edges(graph) if edge is EdgeKind.RUN_BY
    )


@pytest.mark.parametrize("state", ["pending", "scheduled", "inactive"])
def test_work_that_two_tasks_flush(state: str) -> None:
    """Barriers follow the work item, the last one first."""
    scene = Sleepers(_WORK, "__flush_work", "__flush_work", "worker")
    for lane, barrier in enumerate((_BARRIER, _BARRIER + 64)):
        scene.wait(lane, barrier + 32, "struct completion")
    function = 0xFFFF_FFFF_8110_0000
    kinds = drgn.SymbolBinding.LOCAL, drgn.SymbolKind.FUNC

    def find(
        _: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        is_it = name in (None, "wq_barrier_func") and address in (None, function)
        return [drgn.Symbol("wq_barrier_func", function, 16, *kinds)] if is_it else []

    scene.k.prog.register_symbol_finder("barriers", find, enable_index=0)
    pid = 102 if state == "scheduled" else 0
    found = _items(
        (_NEXT, "in-flight", 102),
        (_ITEM, state, pid),
        (_BARRIER + 64, state, pid),
        (_BARRIER, state, pid),
    )
    found.items["func"] = np.array([0, 0, function, function], np.uint64)
    scene.remember(workqueues, found)
    graph = scene.special(Special.works)
    assert scene.waits.object[:2].tolist() == [_ITEM, _ITEM]
    # One that a worker has taken along comes after what it runs.
    behind = [] if state == "pending" else [(_ITEM, EdgeKind.QUEUED), (_NEXT, EdgeKind.RUN_BY)]
    assert [(source, edge) for source, edge, _ in edges(graph)] == behind


_COLORS = {
    **_WORK,
    "struct wq_flusher": (
        48,
        "0 struct list_head list\n16 int flush_color\n24 struct completion done",
    ),
    "struct workqueue_struct": (
        64,
        "0 int flush_color\n8 struct wq_flusher * first_flusher\n"
        "16 struct list_head flusher_queue\n32 struct list_head flusher_overflow",
    ),
}


def test_colors_of_flushes() -> None:
    """A flush waits for works of its own color and earlier ones, modulo the number of colors."""
    scene = Sleepers(_COLORS, *["__flush_workqueue"] * 3, "worker")
    scene.k.constant("WORK_NR_COLORS", 16)
    queue = scene.k.alloc("struct workqueue_struct")
    scene.k.set(queue.flush_color, 15)
    flushers = [scene.k.alloc("struct wq_flusher") for _ in range(3)]
    scene.k.set(queue.first_flusher, flushers[0])
    for lane, (flusher, color) in enumerate(zip(flushers, (15, 0, -1), strict=True)):
        scene.k.set(flusher.flush_color, color)
        scene.wait(lane, flusher.done.address_, "struct completion")
    # The second one waits for its turn, the third one even for a color.
    for flusher, head in (
        (flushers[1], queue.flusher_queue),
        (flushers[2], queue.flusher_overflow),
    ):
        scene.k.set(flusher.list.next, head.address_)
    works = [0xFFFF_8881_0100_0000 + 256 * number for number in range(3)]
    found = _items(*((work, "in-flight", 103) for work in works))
    found.items["wq"], found.items["color"] = queue.address_, [15, 0, 1]
    found.names = {queue.address_: "events"}
    scene.remember(workqueues, found)
    graph = scene.special(Special.works)
    nodes = [queue.address_, flushers[1].address_, flushers[2].address_]
    assert scene.waits.object[:3].tolist() == nodes
    kept: dict[int, dict[int, Strength]] = {node: {} for node in nodes}
    for row, edge in enumerate(graph.edge):
        if edge is EdgeKind.QUEUED:
            source = int(graph.address[graph.source[row]])
            work = works.index(int(graph.address[graph.target[row]]))
            kept[source][work] = Strength(int(graph.strength[row]))
    proven, derived = Strength.PROVEN, Strength.DERIVED
    assert kept == {
        nodes[0]: {0: proven},
        nodes[1]: {0: proven, 1: proven},
        nodes[2]: {0: derived, 1: derived, 2: derived},
    }


@pytest.mark.parametrize(
    ("ages", "strength"),
    [((5, 9), Strength.DERIVED), ((9, 5), Strength.POSSIBLE), ((-1, 5), Strength.POSSIBLE)],
)
def test_works_without_a_color(ages: tuple[int, int], strength: Strength) -> None:
    """What a worker has slept in since before the flush was queued before it."""
    scene = Sleepers(_COLORS, "__flush_workqueue", "worker")
    scene.waits.since_ns[:] = scene.known.off_cpu_ns[:] = ages
    queue, flusher = scene.k.alloc("struct workqueue_struct"), scene.k.alloc("struct wq_flusher")
    scene.k.set(queue.first_flusher, flusher)
    scene.wait(0, flusher.done.address_, "struct completion")
    found = _items((_ITEM, "in-flight", 101))
    found.items["wq"] = queue.address_
    found.names = {queue.address_: "events"}
    scene.remember(workqueues, found)
    graph = scene.special(Special.works)
    (row,) = (row for row, edge in enumerate(graph.edge) if edge is EdgeKind.QUEUED)
    assert int(graph.strength[row]) == int(strength)


def test_a_workqueue_that_is_flushed() -> None:
    scene = Sleepers(_WORK, "__flush_workqueue", "__flush_workqueue", "worker")
    queue, flusher = scene.k.alloc("struct workqueue_struct"), scene.k.alloc("struct wq_flusher")
    scene.k.set(queue.first_flusher, flusher)
    for lane, place in enumerate((flusher.address_ + 16, flusher.address_ + 512)):
        scene.wait(lane, place, "struct completion")
    found = _items((_ITEM, "in-flight", 102), (_NEXT, "pending", 0))
    found.items["wq"] = queue.address_
    found.names = {queue.address_: "events"}
    scene.remember(workqueues, found)
    graph = scene.special(Special.works)
    # The second one is not the first in line.
    assert scene.waits.type == ["struct workqueue_struct", "struct completion", ""]
    assert sorted(edges(graph), key=lambda each: each[1].value) == [
        (queue.address_, EdgeKind.QUEUED, _ITEM),
        (_ITEM, EdgeKind.RUN_BY, scene.task[2]),
    ]


def test_a_parent_waits_for_the_child_that_vfork_made() -> None:
    types = {
        "struct task_struct": (64, "8 struct completion * vfork_done"),
        "struct completion": (32, ""),
    }
    scene = Sleepers(types, "wait_for_vfork_done", "exec", "read")
    # The third one is the child of a task that waits for no more.
    for lane, done in ((1, _ITEM), (2, _NEXT)):
        scene.k.write_words(scene.task[lane] + 8, done)
    scene.wait(0, _ITEM, "struct completion")
    graph = scene.special(Special.children)
    assert edges(graph) == [(_ITEM, EdgeKind.COMPLETED_BY, scene.task[1])]
    assert graph.strength.tolist() == [int(Strength.PROVEN)]
    assert scene.faults.total() == 0


def test_journals() -> None:
    types = {"struct journal_s": (64, "8 struct task_struct * j_task")}
    scene = Sleepers(types, *["jbd2_log_wait_commit"] * 4)
    journals = [scene.k.alloc("struct journal_s", alone=True) for _ in range(3)]
    scene.k.set(journals[0].j_task, scene.task[3])
    scene.k.drop(journals[2].address_)
    for lane, journal in enumerate(journals):
        scene.wait(lane, journal.address_, "struct journal_s")
    graph = scene.special(Special.journals)
    # The second one is being unmounted.
    assert edges(graph) == [(journals[0].address_, EdgeKind.SERVED, scene.task[3])]
    assert scene.faults.total() == 1


_FUSES = {
    "5.9": {"struct fuse_dev": (16, "0 struct fuse_conn * fc"), "struct fuse_req": (64, "")},
    "5.10": {
        "struct fuse_dev": (16, "0 struct fuse_conn * fc"),
        "struct fuse_req": (64, "8 struct fuse_mount * fm"),
        "struct fuse_mount": (16, "8 struct fuse_conn * fc"),
    },
    "7.3": {
        "struct fuse_dev": (16, "0 struct fuse_chan * chan"),
        "struct fuse_req": (64, "8 struct fuse_chan * chan"),
    },
}


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("era", _FUSES)
def test_fuse_requests(era: str, connections: int) -> None:
    types = {
        "struct file": (32, "8 void * f_op"),
        "struct fuse_conn": (64, "8 unsigned int dev"),
        "struct fuse_chan": (64, "8 struct fuse_conn * conn"),
        **_FUSES[era],
    }
    scene = Sleepers(types, "request_wait_answer", "server", "server")
    k, tables = scene.k, [0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000]
    operations = k.variable("fuse_dev_operations", "char [8]")
    request = k.alloc("struct fuse_req")
    connection = [int(k.alloc("struct fuse_conn").address_) for _ in range(connections)]
    devices, files = [], []
    for each in connection:
        devices.append(k.alloc("struct fuse_dev"))
        files.append(k.alloc("struct file"))
        k.write_words(devices[-1].address_, each)
        k.set(files[-1].f_op, operations)
    if era == "5.10":
        mount = k.alloc("struct fuse_mount")
        k.set(mount.fc, connection[0])
        k.set(request.fm, mount)
    elif era == "7.3":
        k.set(request.chan, connection[0])
    scene.wait(0, request.address_, "struct fuse_req")
    # The file of another file system has the same private data.
    other = k.alloc("struct file")
    private = [int(each.address_) for each in [*devices, devices[0]]]
    count = len(private)
    scene.remember(
        open_files,
        OpenFiles(
            files=words(*tables[:connections], 0xFFFF_8881_0000_2000),
            descriptor=3 + np.arange(count),
            address=words(*[int(each.address_) for each in [*files, other]]),
            private=words(*private),
            reads=np.ones(count, np.bool_),
            writes=np.ones(count, np.bool_),
            tables=words(0, *tables),
        ),
    )
    graph = scene.special(Special.fuse_requests)
    if era == "5.9" and connections == 2:
        # The request does not say to which one it belongs.
        assert len(graph) == 0
        return
    assert set(edges(graph)) == {
        (request.address_, EdgeKind.SERVED, tables[0]),
        (tables[0], EdgeKind.THREAD, scene.task[1]),
    }


_AREA = {
    "struct task_struct": (64, "8 struct mm_struct * mm"),
    "struct mm_struct": (64, "8 struct rcuwait vma_writer_wait"),
    "struct rcuwait": (8, "0 struct task_struct * task"),
    "struct refcount_t": (4, "0 int refs"),
    "struct atomic_t": (4, "0 int counter"),
    "struct refcount_struct": (4, "0 struct atomic_t refs"),
    "struct vm_area_struct": (
        64,
        "16 struct mm_struct * vm_mm\n32 struct refcount_struct vm_refcnt",
    ),
}


@pytest.mark.parametrize("count", [0x40000002, 2])
def test_areas_of_memory_maps(count: int) -> None:
    scene = Sleepers(_AREA, "__vma_start_write", "handle_mm_fault", "handle_mm_fault", "read")
    k = scene.k
    memory, others = k.alloc("struct mm_struct"), k.alloc("struct mm_struct")
    area = k.alloc("struct vm_area_struct")
    k.set(memory.vma_writer_wait.task, scene.task[0])
    k.set(area.vm_mm, memory)
    k.set(area.vm_refcnt.refs.counter, count)
    for lane, mm in enumerate((memory, memory, others, memory)):
        k.write_words(scene.task[lane] + 8, mm.address_)
        # The last of them has no page fault, the one before it is in another memory map.
        scene.put(lane, _NOWHERE, area.address_)
    graph = scene.special(Special.areas)
    if count == 2:
        # No writer keeps readers out.
        assert (len(graph), scene.waits.object.tolist()) == (0, [0] * 4)
        return
    assert int(scene.waits.object[0]) == area.address_
    assert edges(graph) == [(area.address_, EdgeKind.HELD, scene.task[1])]
    assert graph.kind.count(NodeKind.AREA) == 1
