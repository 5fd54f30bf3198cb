# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files of *synthetic* kernels, and who has the other end of a pipe."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.waits import sleeps
from kcensus.kernel.vfs.pipes import open_files
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.graph import Builder, EdgeKind, NodeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from tests.unit.kernel.waiting.making import Sleepers, words

_NOWHERE = 0xFFFF_C900_0000_0000
_READ, _WRITE = 1, 2
_TYPES = {
    "struct task_struct": (64, "8 struct files_struct * files\n16 struct mm_struct * mm"),
    "struct files_struct": (64, "32 struct fdtable * fdt"),
    "struct fdtable": (32, "0 unsigned int max_fds\n8 struct file ** fd"),
    "struct file": (64, "8 unsigned int f_mode\n16 void * private_data"),
    "struct pipe_inode_info": (64, "8 unsigned int readers\n12 unsigned int writers"),
    "struct mm_struct": (64, "0 int mmap_lock"),
}


class Files(Sleepers):
    """Sleeping tasks with open files."""

    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        self.pipe = int(self.k.alloc("struct pipe_inode_info").address_)
        self.remember(sleeps, self.waits)

    def file(self, mode: int, private: int | None = None) -> int:
        file = self.k.alloc("struct file")
        self.k.set(file.f_mode, mode)
        self.k.set(file.private_data, self.pipe if private is None else private)
        return int(file.address_)

    def table(self, lanes: tuple[int, ...], *files: int) -> int:
        """Give tasks a descriptor table, and return where its ``struct fdtable`` is."""
        own, table = self.k.alloc("struct files_struct"), self.k.alloc("struct fdtable")
        entries = self.k.alloc("char", 8 * len(files))
        self.k.write_words(entries.address_, *files)
        self.k.set(table.max_fds, len(files))
        self.k.set(table.fd, entries)
        self.k.set(own.fdt, table)
        for lane in lanes:
            self.k.write_words(self.task[lane] + 8, own.address_)
        return int(table.address_)

    def counts(self, readers: int, writers: int) -> None:
        self.k.write_words(self.pipe + 8, readers | writers << 32)

    def graph(self) -> Waiting:
        return waiting(self.kernel)


def test_threads_share_a_table_and_kernel_threads_have_none() -> None:
    scene = Files("read", "read", "worker")
    first, second = scene.file(_READ), scene.file(_READ | _WRITE, private=0x10)
    scene.table((0, 1), 0, first, second)
    found = open_files(scene.kernel)
    assert found.descriptor.tolist() == [1, 2]
    assert found.address.tolist() == [first, second]
    assert found.reads.tolist() == [True, True]
    assert found.writes.tolist() == [False, True]
    assert found.tables[0] == found.tables[1] == found.files[0]
    assert found.tables[2] == 0
    index, rows = found.of(words(0x10, scene.pipe))
    assert (index.tolist(), rows.tolist()) == ([1, 0], [0, 1])
    assert (found.damaged, found.faults.total()) == (0, 0)


def test_tables_of_impossible_size_are_left_out() -> None:
    scene = Files("read", "read")
    own = scene.file(_READ)
    for lane, size in enumerate((0xFFFF_FFFF, 1)):
        scene.k.write_words(scene.table((lane,), own), size)
    found = open_files(scene.kernel)
    assert (found.damaged, found.address.tolist()) == (1, [own])


def test_unreadable_files_have_no_pipe() -> None:
    scene = Files("read")
    table = scene.table((0,), scene.file(_READ), _NOWHERE)
    found = open_files(scene.kernel)
    assert (found.private.tolist(), found.faults.total()) == ([scene.pipe, 0], 1)
    scene = Files("read")
    table = scene.table((0,), scene.file(_READ))
    scene.k.write_words(table + 8, _NOWHERE)
    found = open_files(scene.kernel)
    assert (len(found.address), found.faults.total()) == (0, 1)


@pytest.mark.parametrize(
    ("writers", "unseen", "strength"),
    [(1, 0, Strength.DERIVED), (0, 0, Strength.DERIVED), (3, 2, Strength.POSSIBLE)],
)
def test_ends_that_no_process_has(writers: int, unseen: int, strength: Strength) -> None:
    """The pipe counts more files that write than tables have: some may be in flight."""
    scene = Files("pipe_read", "writer")
    end = scene.file(_WRITE)
    # A child has the same file.
    scene.table((1,), end, end)
    scene.counts(readers=7, writers=writers)
    scene.wait(0, scene.pipe, "struct pipe_inode_info")
    found = scene.graph()
    graph = found.graph
    assert "pipes" not in found.missing
    (pipe,) = (node for node, kind in enumerate(graph.kind) if kind is NodeKind.PIPE)
    held = [edge for edge in graph.following[pipe] if graph.edge[edge] is EdgeKind.OTHER_END]
    assert {int(graph.strength[edge]) for edge in held} == {int(strength)}
    assert found.unseen_ends == unseen
    (process,) = {int(graph.target[edge]) for edge in held}
    threads = [int(graph.address[int(graph.target[e])]) for e in graph.following[process]]
    assert threads == [scene.task[1]]


def _ends(found: Waiting) -> dict[EdgeKind, int]:
    """The number of ends of each kind that edges lead to."""
    kinds = (EdgeKind.OTHER_END, EdgeKind.IDLE_END)
    return {kind: found.graph.edge.count(kind) for kind in kinds}


@pytest.mark.parametrize("function", ["do_wait", "ep_poll", "mutex_lock"])
def test_an_end_that_a_parent_has_kept(function: str) -> None:
    scene = Files("pipe_read", "mutex_lock", function)
    # A file of each, as of a FIFO that both have opened.
    for lane in (1, 2):
        scene.table((lane,), scene.file(_WRITE))
    scene.counts(readers=1, writers=2)
    scene.wait(0, scene.pipe, "struct pipe_inode_info")
    is_idle = function != "mutex_lock"
    assert _ends(scene.graph()) == {EdgeKind.OTHER_END: 2 - is_idle, EdgeKind.IDLE_END: is_idle}


def test_idle_ends_alone_are_who_a_pipe_waits_for() -> None:
    for functions, strengths in ((("do_wait",), [2]), (("do_wait", "mutex_lock"), [1, 2])):
        scene = Files("pipe_read", *functions)
        for lane in range(1, 1 + len(functions)):
            scene.table((lane,), scene.file(_WRITE))
        scene.counts(readers=1, writers=len(functions))
        scene.wait(0, scene.pipe, "struct pipe_inode_info")
        graph = scene.graph().graph
        ends = (EdgeKind.OTHER_END, EdgeKind.IDLE_END)
        kept = [
            int(sure) for sure, kind in zip(graph.strength, graph.edge, strict=True) if kind in ends
        ]
        assert sorted(kept) == strengths


def test_a_deadlock_besides_an_idle_end_is_possible() -> None:
    ring = [
        (EdgeKind.WAITS, NodeKind.TASK, 1, NodeKind.PIPE, 2, Strength.PROVEN),
        (EdgeKind.OTHER_END, NodeKind.PIPE, 2, NodeKind.PROCESS, 3, Strength.DERIVED),
        (EdgeKind.THREAD, NodeKind.PROCESS, 3, NodeKind.TASK, 4, Strength.PROVEN),
        (EdgeKind.WAITS, NodeKind.TASK, 4, NodeKind.MUTEX, 5, Strength.PROVEN),
        (EdgeKind.HELD, NodeKind.MUTEX, 5, NodeKind.TASK, 1, Strength.PROVEN),
    ]
    parent = [
        (EdgeKind.IDLE_END, NodeKind.PIPE, 2, NodeKind.PROCESS, 6, Strength.POSSIBLE),
        (EdgeKind.THREAD, NodeKind.PROCESS, 6, NodeKind.TASK, 7, Strength.PROVEN),
    ]
    for made, strength in ((ring, Strength.DERIVED), (ring + parent, Strength.POSSIBLE)):
        build = Builder()
        for edge, kind, source, other, target, sure in made:
            ends = (kind, words(source)), (other, words(target))
            build.edges(edge, *ends, strength=sure, evidence="said")
        (cycle,) = cycles(build.graph())
        assert (cycle.strength, len(cycle.nodes)) == (strength, 5)
    # Alone, it is who the pipe waits for.
    build = Builder()
    for edge, kind, source, other, target, sure in (ring[0], *ring[2:], *parent):
        ends = (kind, words(source)), (other, words(target))
        build.edges(edge, *ends, strength=sure, evidence="said")
    assert cycles(build.graph()) == []


def test_the_only_reader_of_a_fifo_that_has_both_ends_is_no_other_end() -> None:
    scene = Files("pipe_read")
    scene.table((0,), scene.file(_READ | _WRITE))
    scene.counts(readers=1, writers=1)
    scene.wait(0, scene.pipe, "struct pipe_inode_info")
    found = scene.graph()
    assert _ends(found) == {EdgeKind.OTHER_END: 0, EdgeKind.IDLE_END: 0}
    assert found.unseen_ends == 0
    # Another thread may write.
    scene = Files("pipe_read", "mutex_lock")
    scene.table((0, 1), scene.file(_READ | _WRITE))
    scene.wait(0, scene.pipe, "struct pipe_inode_info")
    assert _ends(scene.graph())[EdgeKind.OTHER_END] == 1


def test_a_pipe_that_only_interruptible_tasks_wait_for_is_of_no_interest() -> None:
    scene = Files("pipe_read", "writer")
    scene.known.state[:] = 1
    scene.counts(readers=1, writers=5)
    scene.wait(0, scene.pipe, "struct pipe_inode_info")
    found = scene.graph()
    assert len(found.graph) == 0
    assert found.unseen_ends == 0
    assert np.count_nonzero(found.objects) == 1
