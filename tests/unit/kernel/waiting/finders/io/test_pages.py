# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages that tasks of *synthetic* kernels wait for."""

from __future__ import annotations

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.pages import PAGE, REFERENCED, Pages
from tests.unit.kernel.waiting.making import Sleepers, links

_TYPES = """
struct task_struct 64
struct atomic_t 4 : 0 int counter
struct page 64 : 52 struct atomic_t _refcount
"""
_MAP = 0xFFFF_EA00_0000_0000
_PAGE = _MAP + 64 * 1000


def scene_of(*functions: str) -> Sleepers:
    scene = Sleepers(_TYPES, *functions)
    scene.k.constant("vmemmap", _MAP)
    return scene


def test_who_has_a_page_on_the_stack_has_a_reference_to_it() -> None:
    scene = scene_of("isolate", "pipe_write", "msleep")
    scene.wait(0, _PAGE + 52, "unsigned long")
    scene.put(0, _PAGE)
    scene.put(1, 7, _PAGE, _PAGE)
    graph, _ = scene.run(Pages)
    assert (int(scene.waits.object[0]), scene.waits.type[0]) == (_PAGE, "struct page")
    assert links(graph) == {(PAGE, _PAGE, REFERENCED, scene.task[1], int(Strength.DERIVED))}
    assert graph.frame == ["pipe_write"]


def test_another_word_is_no_page() -> None:
    scene = scene_of("wait_on_inode", "pipe_write", "wait_on_inode")
    scene.wait(0, _PAGE + 48, "unsigned long")
    scene.wait(2, 0xFFFF_8881_0000_0034, "unsigned long")
    scene.put(1, _PAGE)
    graph, _ = scene.run(Pages)
    assert len(graph) == 0
    assert scene.waits.type[0] == scene.waits.type[2] == "unsigned long"
