# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers of XFS that tasks of *synthetic* kernels wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.xfs_buffers import (
    BUFFER,
    BUFFER_IO,
    BUFFER_LOCK,
    XfsBuffers,
    contradictions,
)
from kcensus.kernel.waiting.graph import HELD, SERVED
from kcensus.kernel.waiting.joined import Joins, held, joined
from kcensus.kernel.xfs.buffers import Buffers, _references, buffers
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct xfs_buf 256
"""
_NONE = np.empty(0, np.bool_)
_BUFFERS = words(0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000, 0xFFFF_8881_0000_2000)


def scene_of(*functions: str, in_io: bool = False, references: int = -1) -> Sleepers:
    scene = Sleepers(_TYPES, *functions)
    none, zero = np.full(3, -1), words(0, 0, 0)
    has_transaction = np.array([True, False, False])
    io, counts = np.full(3, in_io), np.full(3, references)
    known = Buffers(_BUFFERS, none, none, zero, zero, none, zero, has_transaction, io, counts)
    scene.remember(buffers, known)
    return scene


def test_holders_of_buffers() -> None:
    scene = scene_of("xfs_buf_lock", "xfs_buf_lock", "xfs_buf_lock", "xfs_buf_iowait", "msleep")
    for lane, buffer in enumerate((0, 1, 2, 2)):
        scene.wait(lane, int(_BUFFERS[buffer]), "struct xfs_buf")
        scene.waits.evidence[lane] = BUFFER_LOCK if lane < 3 else "xfs_buf.b_iowait"
    # The first has a transaction, the second was last held by a task, the third is under I/O.
    scene.waits.holder[:2] = words(scene.task[4], scene.task[3])
    graph, finder = scene.run(XfsBuffers)
    assert links(graph) == {
        (BUFFER, int(_BUFFERS[0]), HELD, scene.task[4], int(Strength.PROVEN)),
        (BUFFER, int(_BUFFERS[1]), HELD, scene.task[3], int(Strength.POSSIBLE)),
        (BUFFER, int(_BUFFERS[2]), HELD, scene.task[3], int(Strength.DERIVED)),
    }
    assert [finder.draft.kind_of(lane) for lane in range(4)] == [BUFFER] * 3 + [BUFFER_IO]


def test_a_buffer_on_a_stack_is_probably_held_by_the_task() -> None:
    scene = scene_of("xfs_buf_lock", "xfs_buf_lock", "xfs_buf_lock", "msleep", "msleep")
    for lane, buffer in enumerate((1, 1, 2)):
        scene.wait(lane, int(_BUFFERS[buffer]), "struct xfs_buf")
        scene.waits.evidence[lane] = BUFFER_LOCK
        scene.put(lane, int(_BUFFERS[buffer]))  # waiters have it there, too
    scene.put(3, int(_BUFFERS[1]), int(_BUFFERS[2]))
    scene.put(4, int(_BUFFERS[2]))
    scene.waits.holder[2] = scene.task[4]
    graph, _ = scene.run(XfsBuffers)
    possible = int(Strength.POSSIBLE)
    assert links(graph) == {
        (BUFFER, int(_BUFFERS[1]), HELD, scene.task[3], possible),
        (BUFFER, int(_BUFFERS[2]), HELD, scene.task[3], possible),
        (BUFFER, int(_BUFFERS[2]), HELD, scene.task[4], possible),
    }


@pytest.mark.parametrize(
    ("frame", "references", "in_io", "is_sure"),
    [
        ("xfs_da_read_buf", 3, False, True),
        ("xfs_da_read_buf", 4, False, False),  # of another task
        ("xfs_da_read_buf", 3, True, False),  # of the I/O
        ("iput", 3, False, False),
    ],
)
def test_the_only_reference_that_is_not_of_a_waiter(
    frame: str, references: int, in_io: bool, is_sure: bool
) -> None:
    functions = "xfs_buf_lock", "xfs_buf_lock", frame
    scene = scene_of(*functions, references=references, in_io=in_io)
    for lane in range(2):
        scene.wait(lane, int(_BUFFERS[1]), "struct xfs_buf")
        scene.waits.evidence[lane] = BUFFER_LOCK
    scene.put(2, int(_BUFFERS[1]))
    graph, _ = scene.run(XfsBuffers)
    strength = int(Strength.DERIVED if is_sure else Strength.POSSIBLE)
    assert links(graph) == {(BUFFER, int(_BUFFERS[1]), HELD, scene.task[2], strength)}


def test_the_last_holder_with_the_buffer_on_its_stack() -> None:
    scene = scene_of("xfs_buf_lock", "xfs_dir2_leaf_lookup_int", "xfs_dir2_leaf_lookup_int")
    scene.wait(0, int(_BUFFERS[1]), "struct xfs_buf")
    scene.waits.evidence[0], scene.waits.holder[0] = BUFFER_LOCK, scene.task[2]
    for lane in (1, 2):
        scene.put(lane, int(_BUFFERS[1]))
    graph, _ = scene.run(XfsBuffers)
    derived, possible = int(Strength.DERIVED), int(Strength.POSSIBLE)
    assert links(graph) == {
        (BUFFER, int(_BUFFERS[1]), HELD, scene.task[1], possible),
        (BUFFER, int(_BUFFERS[1]), HELD, scene.task[2], derived),
    }


def test_references_that_are_not_of_tasks() -> None:
    lru = words(0x1000, 0x2000, 0x3000)
    columns: dict[str, Any] = {
        "references": np.array([4, 4, 4], np.int32),
        "item": words(0, 1, 0),
        "lru": words(0x1000, 0x2000, 0x9000),  # the last one is on the list
    }
    assert _references(columns, lru).tolist() == [4, 3, -1]
    assert _references({"lru": lru}, lru).tolist() == [-1] * 3


def test_io_without_a_request_leads_to_the_device() -> None:
    scene = scene_of("xfs_buf_iowait", "xfs_buf_wait_unpin")
    vda = 0xFFFF_8881_0000_8000
    disks = [SimpleNamespace(address=vda, name="vda")]
    scene.remember(block_devices, SimpleNamespace(disks=disks))
    scene.remember(joined, Joins(np.empty(0, np.int64), np.empty(0, np.int64), _NONE, []))
    scene.remember(held, Joins(np.empty(0, np.int64), np.empty(0, np.int64), _NONE, []))
    for lane, member in enumerate(("b_iowait", "b_waiters")):
        scene.wait(lane, int(_BUFFERS[lane]), "struct xfs_buf")
        scene.waits.evidence[lane], scene.waits.disk[lane] = f"xfs_buf.{member}", vda
    graph, _ = scene.run(XfsBuffers)
    derived = int(Strength.DERIVED)
    assert links(graph) == {(BUFFER_IO, int(_BUFFERS[0]), SERVED, vda, derived)}


def test_a_stack_that_contradicts_the_list_of_waiters() -> None:
    scene = scene_of("xfs_buf_lock", "xfs_buf_lock", "xfs_buf_lock")
    reading = SimpleNamespace(
        kernel=scene.kernel,
        missing=[],
        object=_BUFFERS,
        links=SimpleNamespace(
            lane=np.array([0, 1]), head=words(int(_BUFFERS[0]) + 8, 0xFFFF_8882_0000_0000)
        ),
        contradicted=0,
    )
    contradictions(reading)  # type: ignore[arg-type]
    assert reading.contradicted == 1
    reading.links = None
    contradictions(reading)  # type: ignore[arg-type]
    assert reading.contradicted == 1
