# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of XFS's buffers and files, and what xfsaild waits for, as drgn's own walk has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from drgn import Object, Program
from drgn.helpers.linux.list import list_first_entry
from drgn.helpers.linux.pid import for_each_task

from kcensus.analyses.waits.figures import Figures
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.io.xfs_ail import ITEM
from kcensus.kernel.waiting.finders.io.xfs_buffers import BUFFER
from kcensus.kernel.waiting.finders.locks.locks import RWSEM
from kcensus.kernel.waiting.graph import TASK, NodeKind
from tests.lab import build
from tests.vm.cases import opened

_READER_SHIFT = 8
"""Of the number of readers in ``rw_semaphore.count``."""


def figures_of(release: str, scenario: str) -> Figures:
    return Figures(Kernel(opened(build(release, scenario), "xfs").prog))


def holders(figures: Figures, kind: NodeKind) -> dict[int, set[int]]:
    """Return the surely known holders of objects of a kind, by address."""
    graph = figures.graph
    found: dict[int, set[int]] = {}
    for edge in np.flatnonzero(graph.strength >= int(Strength.DERIVED)).tolist():
        source, target = int(graph.source[edge]), int(graph.target[edge])
        if graph.kind[source] is kind and graph.kind[target] is TASK:
            found.setdefault(int(graph.address[source]), set()).add(int(graph.address[target]))
    return found


def named_in_frames(prog: Program, function: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield the tasks with a function on their stack, and the value of its local variable."""
    for task in for_each_task(prog):
        try:
            frames = list(prog.stack_trace(task))
        except ValueError:
            continue  # it runs
        for frame in frames:
            if frame.name == function and name in frame.locals():
                value = frame[name]
                if not value.absent_:
                    yield int(task), int(value)


@pytest.mark.parametrize(
    ("release", "scenario"),
    [("6.1", "iosched-deadline"), ("7.3", "iosched-none"), ("7.3", "iosched-kyber")],
)
def test_a_look_up_holds_the_leaf_of_its_directory(release: str, scenario: str) -> None:
    figures = figures_of(release, scenario)
    found = holders(figures, BUFFER)
    leaves: dict[int, set[int]] = {}
    for task, buffer in named_in_frames(figures.kernel.prog, "xfs_dir2_leaf_lookup_int", "lbp"):
        leaves.setdefault(buffer, set()).add(task)
    own = {buffer: tasks for buffer, tasks in found.items() if buffer in leaves}
    assert own
    assert own == {buffer: leaves[buffer] for buffer in own}


def test_direct_writes_hold_their_file() -> None:
    figures = figures_of("6.1", "waits-healthy")
    prog = figures.kernel.prog
    waited = {
        int(figures.graph.address[node])
        for node, kind in enumerate(figures.graph.kind)
        if kind is RWSEM
    }
    inside: dict[int, set[int]] = {}
    for task, iocb in named_in_frames(prog, "__iomap_dio_rw", "iocb"):
        inode = Object(prog, "struct kiocb *", iocb).ki_filp.f_inode
        inside.setdefault(int(inode.i_rwsem.address_of_()), set()).add(task)
    found = {lock: tasks for lock, tasks in holders(figures, RWSEM).items() if lock in inside}
    assert found == {lock: tasks for lock, tasks in inside.items() if lock in waited} != {}
    for lock, tasks in found.items():
        count = Object(prog, "struct rw_semaphore", address=lock).count.counter
        assert len(tasks) == int(count) >> _READER_SHIFT


def test_xfsaild_waits_for_the_disk() -> None:
    figures = figures_of("6.1", "iosched-starved")
    prog, graph = figures.kernel.prog, figures.graph
    (node,) = (node for node, kind in enumerate(graph.kind) if kind is ITEM)
    (source,) = (int(graph.source[edge]) for edge in graph.preceding[node])
    task = Object(prog, "struct task_struct *", int(graph.address[source]))
    (ail,) = (value for of, value in named_in_frames(prog, "xfsaild", "ailp") if of == int(task))
    first = list_first_entry(
        Object(prog, "struct xfs_ail *", ail).ail_head.address_of_(),
        "struct xfs_log_item",
        "li_ail",
    )
    assert int(graph.address[node]) == int(first)
    ends = [graph.kind[each] for each in np.flatnonzero(graph.sure.reached([source])).tolist()]
    assert DISK in ends
