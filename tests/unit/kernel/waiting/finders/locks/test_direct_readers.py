# SPDX-License-Identifier: LGPL-2.1-or-later
"""Direct I/O of *synthetic* kernels that holds the rwsem of its file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.waiting.finders.locks import direct_readers as module
from kcensus.kernel.waiting.finders.locks.direct_readers import DirectReaders
from kcensus.kernel.waiting.finders.locks.locks import RWSEM
from kcensus.kernel.waiting.graph import HELD
from tests.unit.kernel.waiting.making import SIZE, Sleepers, links

_TYPES = """
struct task_struct 64
struct atomic_long_t 8 : 0 long counter
struct rw_semaphore 40
    0 struct atomic_long_t count; 8 struct atomic_long_t owner; 16 struct list_head wait_list
struct inode 128 : 64 struct rw_semaphore i_rwsem
struct xfs_inode 256 : 96 struct inode i_vnode
"""
_READER = 0x100
_PC = 0xFFFF_FFFF_8200_0000
_OUTSIDE = 1400


class Reading(Sleepers):
    """A writer of a file, and tasks within direct I/O: the last one runs as soon as it can."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, readers: int) -> None:
        super().__init__(_TYPES, "xfs_ilock", *["__iomap_dio_rw"] * 3)
        inode = self.k.alloc("struct xfs_inode")
        self.inode, self.i_vnode = int(inode.address_), int(inode.i_vnode.address_)
        self.lock = int(inode.i_vnode.i_rwsem.address_)
        self.k.write_words(self.lock, readers * _READER)
        self.wait(0, self.lock, "struct rw_semaphore")
        names = {_PC: "__iomap_dio_rw", _PC + 1: "xfs_file_dio_write_aligned", _PC + 2: "read"}
        frames = np.array([1000, 1100, _OUTSIDE], np.uint64)

        def stacks(first: int, *tasks: int) -> Stacks:
            lane = np.repeat(first + np.arange(len(tasks)), len(names))
            pc = np.tile(np.array([*names], np.uint64), len(tasks))
            sp = np.concatenate([self.stack[task] + frames for task in tasks])
            return Stacks(lane, pc, sp, np.zeros(len(pc), np.bool_), names, SIZE)

        self.waits = replace(self.waits, stacks=stacks(1, 1, 2)).part(np.arange(3))
        self.known.state[3] = 0
        monkeypatch.setattr(module, "runnable_stacks", lambda *_: stacks(0, 3))


@pytest.mark.parametrize(("readers", "strength"), [(2, Strength.DERIVED), (3, Strength.POSSIBLE)])
def test_readers_of_a_file(
    monkeypatch: pytest.MonkeyPatch, readers: int, strength: Strength
) -> None:
    scene = Reading(monkeypatch, readers)
    scene.put(0, scene.inode)  # the writer
    scene.put(1, scene.inode)
    scene.put(2, scene.i_vnode + 8)  # of another file
    scene.put(3, scene.i_vnode)
    graph, _ = scene.run(DirectReaders)
    assert links(graph) == {
        (RWSEM, scene.lock, HELD, scene.task[lane], int(strength)) for lane in (1, 3)
    }


def test_an_inode_of_an_earlier_call_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Reading(monkeypatch, 1)
    scene.put(1, scene.inode, place=_OUTSIDE + 8)
    scene.put(3, scene.inode, place=512)
    graph, _ = scene.run(DirectReaders)
    assert links(graph) == set()


def test_runnable_tasks_beyond_the_limit_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Reading(monkeypatch, 1)
    monkeypatch.setattr(module, "_MAX_RUNNABLE", 1)
    scene.known.state[2] = 0
    graph, finder = scene.run(DirectReaders)
    assert [gap.count for gap in finder.gaps(graph)] == [1]


def test_a_writer_has_no_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Reading(monkeypatch, 0)
    scene.k.write_words(scene.lock, 1, scene.task[1])
    scene.put(1, scene.inode)
    graph, _ = scene.run(DirectReaders)
    assert links(graph) == set()
