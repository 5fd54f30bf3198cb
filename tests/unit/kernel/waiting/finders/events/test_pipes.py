# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files of *synthetic* kernels, and who has the other end of a pipe."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.files import open_files
from kcensus.kernel.waiting.cycles import cycles
from kcensus.kernel.waiting.finders.events.pipes import IDLE_END, OTHER_END, PIPE
from kcensus.kernel.waiting.finders.locks.locks import MUTEX
from kcensus.kernel.waiting.graph import HELD, PROCESS, TASK, THREAD, WAITS, Builder, EdgeKind
from kcensus.kernel.waiting.reader import Waiting, waiting
from kcensus.kernel.waiting.sleeps import sleeps
from tests.unit.kernel.waiting.making import Sleepers, edges, links, words

_NOWHERE = 0xFFFF_C900_0000_0000
_READ, _WRITE = 1, 2
_TYPES = """
struct task_struct 64 : 8 struct files_struct * files; 16 struct mm_struct * mm
struct files_struct 64 : 32 struct fdtable * fdt
struct fdtable 32 : 0 unsigned int max_fds; 8 struct file ** fd
struct file 64 : 8 unsigned int f_mode; 16 void * private_data
struct pipe_inode_info 64 : 8 unsigned int readers; 12 unsigned int writers
struct mm_struct 64 : 0 int mmap_lock
"""


class Files(Sleepers):
    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        self.pipe = int(self.k.alloc("struct pipe_inode_info").address_)
        self.remember(sleeps, self.waits)
        self.wait(0, self.pipe, "struct pipe_inode_info")

    def file(self, mode: int, private: int | None = None) -> int:
        private = self.pipe if private is None else private
        return int(self.k.alloc("struct file", f_mode=mode, private_data=private).address_)

    def table(self, lanes: tuple[int, ...], *files: int) -> int:
        """Give tasks a descriptor table, and return where its ``struct fdtable`` is."""
        entries = self.k.alloc("char", 8 * len(files))
        self.k.write_words(entries.address_, *files)
        table = self.k.alloc("struct fdtable", max_fds=len(files), fd=entries)
        own = self.k.alloc("struct files_struct", fdt=table)
        for lane in lanes:
            self.k.write_words(self.task[lane] + 8, own.address_)
        return int(table.address_)

    def counts(self, readers: int, writers: int) -> None:
        self.k.write_words(self.pipe + 8, readers | writers << 32)

    def graph(self) -> Waiting:
        return waiting(self.kernel)


def _unseen(found: Waiting) -> int:
    gaps = [gap for finder in found.finders for gap in finder.gaps(found.graph)]
    return sum(gap.count for gap in gaps if gap.what == "files of pipes")


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


@pytest.mark.parametrize(
    ("member", "value", "lost"), [(0, 0xFFFF_FFFF, (1, 0)), (8, _NOWHERE, (0, 1))]
)
def test_tables_that_are_damaged_are_left_out(
    member: int, value: int, lost: tuple[int, int]
) -> None:
    """Their size is impossible, or their entries are unreadable; so may be files of others."""
    scene = Files("read", "read")
    own = scene.file(_READ)
    scene.k.write_words(scene.table((0,), own) + member, value)
    scene.table((1,), own, _NOWHERE)
    found = open_files(scene.kernel)
    assert (found.damaged, found.faults.total() - 1) == lost
    assert found.private.tolist() == [scene.pipe, 0]


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
    found = scene.graph()
    graph = found.graph
    assert "pipes" not in found.missing
    (open_end,) = [each for each in links(graph) if each[2] is OTHER_END]
    process, sure = open_end[3:]
    assert (sure, _unseen(found)) == (int(strength), unseen)
    assert (process, THREAD, scene.task[1]) in edges(graph)


def _ends(found: Waiting) -> dict[EdgeKind, int]:
    kinds = (OTHER_END, IDLE_END)
    return {kind: found.graph.edge.count(kind) for kind in kinds}


@pytest.mark.parametrize("function", ["do_wait", "ep_poll", "mutex_lock"])
def test_an_end_that_a_parent_has_kept(function: str) -> None:
    scene = Files("pipe_read", "mutex_lock", function)
    # A file of each, as of a FIFO that both have opened.
    for lane in (1, 2):
        scene.table((lane,), scene.file(_WRITE))
    scene.counts(readers=1, writers=2)
    is_idle = function != "mutex_lock"
    assert _ends(scene.graph()) == {OTHER_END: 2 - is_idle, IDLE_END: is_idle}


@pytest.mark.parametrize(
    ("functions", "strengths"), [(("do_wait",), [2]), (("do_wait", "mutex_lock"), [1, 2])]
)
def test_idle_ends_alone_are_who_a_pipe_waits_for(
    functions: tuple[str, ...], strengths: list[int]
) -> None:
    scene = Files("pipe_read", *functions)
    for lane in range(1, 1 + len(functions)):
        scene.table((lane,), scene.file(_WRITE))
    scene.counts(readers=1, writers=len(functions))
    graph = scene.graph().graph
    kept = np.array([kind in (OTHER_END, IDLE_END) for kind in graph.edge])
    assert sorted(graph.strength[kept].tolist()) == strengths


def test_a_deadlock_besides_an_idle_end_is_possible() -> None:
    ring = [
        (WAITS, TASK, 1, PIPE, 2, Strength.PROVEN),
        (OTHER_END, PIPE, 2, PROCESS, 3, Strength.DERIVED),
        (THREAD, PROCESS, 3, TASK, 4, Strength.PROVEN),
        (WAITS, TASK, 4, MUTEX, 5, Strength.PROVEN),
        (HELD, MUTEX, 5, TASK, 1, Strength.PROVEN),
    ]
    parent = [
        (IDLE_END, PIPE, 2, PROCESS, 6, Strength.POSSIBLE),
        (THREAD, PROCESS, 6, TASK, 7, Strength.PROVEN),
    ]
    for made, found in (
        (ring, [Strength.DERIVED]),
        (ring + parent, [Strength.POSSIBLE]),
        # Alone, it is who the pipe waits for.
        ([ring[0], *ring[2:], *parent], []),
    ):
        build = Builder()
        for edge, kind, source, other, target, sure in made:
            build.edges(edge, (kind, words(source)), (other, words(target)), "x", strength=sure)
        assert [cycle.strength for cycle in cycles(build.graph())] == found


def test_the_only_reader_of_a_fifo_that_has_both_ends_is_no_other_end() -> None:
    scene = Files("pipe_read")
    scene.table((0,), scene.file(_READ | _WRITE))
    scene.counts(readers=1, writers=1)
    found = scene.graph()
    assert _ends(found) == {OTHER_END: 0, IDLE_END: 0}
    assert _unseen(found) == 0
    # Another thread may write.
    scene = Files("pipe_read", "mutex_lock")
    scene.table((0, 1), scene.file(_READ | _WRITE))
    assert _ends(scene.graph())[OTHER_END] == 1


def test_a_pipe_that_only_interruptible_tasks_wait_for_is_of_no_interest() -> None:
    scene = Files("pipe_read", "writer")
    scene.known.state[:] = 1
    scene.counts(readers=1, writers=5)
    found = scene.graph()
    assert len(found.graph) == 0
    assert _unseen(found) == 0
    assert np.count_nonzero(found.waits.object) == 1
