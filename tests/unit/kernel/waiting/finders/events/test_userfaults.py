# SPDX-License-Identifier: LGPL-2.1-or-later
"""Page faults that a process serves, in words of *synthetic* kernels."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.files import OpenFiles, open_files
from kcensus.kernel.waiting.finders.events.userfaults import USERFAULTS, UserFaults
from kcensus.kernel.waiting.graph import SERVED
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64 : 8 struct mm_struct * mm
struct mm_struct 64
struct file 32 : 8 void * f_op
struct wait_queue_entry 40 : 8 void * private; 24 struct list_head entry
struct userfaultfd_ctx 128 : 96 struct mm_struct * mm
struct userfaultfd_wait_queue 96 : 32 struct wait_queue_entry wq; 72 struct userfaultfd_ctx * ctx
"""
_TABLES = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000
_PLACE = 1024


def _scene(*, operations: int = 0) -> tuple[Sleepers, int]:
    """Two tasks that wait for a page of one of them, and a process with the file descriptor.

    :param operations: of its file, if this is none of userfaultfd
    """
    scene = Sleepers(_TYPES, "handle_userfault", "handle_userfault", "serves")
    k, spaces = scene.k, [int(scene.k.alloc("struct mm_struct").address_) for _ in range(3)]
    for task, space in zip(scene.task, spaces, strict=True):
        k.write_words(task + 8, space)
    context = int(k.alloc("struct userfaultfd_ctx").address_)
    k.write_words(context + 96, spaces[0])
    links_ = [scene.stack[lane] + _PLACE + 56 for lane in (0, 1)]
    for lane in (0, 1):
        place = scene.stack[lane] + _PLACE
        k.write_words(place + 40, scene.task[lane])
        k.write_words(place + 72, context)
    scene.ring(context + 16, *links_)
    fops = int(k.variable("userfaultfd_fops", "char [8]").address_)
    file = int(k.alloc("struct file", f_op=operations or fops).address_)
    scene.remember(
        open_files,
        OpenFiles(
            files=words(_TABLES[1]),
            descriptor=np.array([5]),
            address=words(file),
            private=words(context),
            reads=np.ones(1, np.bool_),
            writes=np.ones(1, np.bool_),
            tables=words(_TABLES[0], _TABLES[0], _TABLES[1]),
        ),
    )
    return scene, context


def test_the_process_with_the_file_descriptor_serves_faults() -> None:
    scene, context = _scene()
    graph, finder = scene.run(UserFaults)
    assert scene.waits.object.tolist() == [context, context, 0]
    served = {each for each in links(graph) if each[2] is SERVED}
    assert served == {(USERFAULTS, context, SERVED, _TABLES[1], int(Strength.DERIVED))}
    assert finder.names == {(USERFAULTS, context): "of task (PID 100)"}


def test_a_file_of_another_kind() -> None:
    scene, _ = _scene(operations=0x1234)
    graph, _ = scene.run(UserFaults)
    assert links(graph) == set()


@pytest.mark.parametrize("damage", ["link", "context", "space"])
def test_words_that_are_no_waiter(damage: str) -> None:
    scene, context = _scene()
    place = scene.stack[0] + _PLACE
    if damage == "link":
        scene.k.write_words(place + 56, place + 56 + 8)
    elif damage == "context":
        scene.k.write_words(place + 72, 0x5A5A_5A5A)
    else:
        scene.k.write_words(context + 96, 0xFFFF_8881_7777_0000)
    scene.run(UserFaults)
    assert scene.waits.object[0] == 0
