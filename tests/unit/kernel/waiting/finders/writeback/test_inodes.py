# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inodes in writeback of *synthetic* kernels."""

from __future__ import annotations

import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.writeback.inodes import WRITING, WrittenInodes
from kcensus.kernel.waiting.graph import BIT
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct address_space 8 : 0 struct inode * host
struct inode 64 : 8 struct address_space i_data; 16 unsigned long i_state
"""
_WAIT, _WRITE = "__inode_wait_for_writeback", "__writeback_single_inode"


class Written(Sleepers):
    """The first task waits for a bit of an inode."""

    def __init__(self, *functions: str, bit: int = 0) -> None:
        super().__init__(_TYPES, _WAIT, *functions)
        inode = self.k.alloc("struct inode")
        self.inode, self.state = int(inode.address_), int(inode.i_state.address_)
        self.k.set(inode.i_data.host, self.inode)
        self.wait(0, self.state + bit, "unsigned long")
        self.put(0, self.inode)


@pytest.mark.parametrize("bit", [0, 1])
def test_the_task_that_writes_the_inode(bit: int) -> None:
    scene = Written(_WRITE, "io_schedule", bit=bit)
    scene.put(1, scene.inode)
    scene.put(2, scene.inode)  # not to write it
    graph, _ = scene.run(WrittenInodes)
    derived = int(Strength.DERIVED)
    assert links(graph) == {(BIT, scene.state + bit, WRITING, scene.task[1], derived)}


def test_several_may_write_it() -> None:
    scene = Written(_WRITE, _WRITE)
    scene.put(1, scene.inode)
    scene.put(2, scene.inode)
    graph, _ = scene.run(WrittenInodes)
    assert set(graph.strength.tolist()) == {int(Strength.POSSIBLE)}
    assert len(graph.source) == 2


def test_no_inode_and_no_writer() -> None:
    scene = Written("io_schedule")
    scene.put(1, scene.inode)
    assert len(scene.run(WrittenInodes)[0]) == 0
    scene = Written(_WRITE)
    scene.put(1, scene.inode + 64)
    scene.wait(0, scene.state + 64, "unsigned long")
    assert len(scene.run(WrittenInodes)[0]) == 0
