# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frozen file systems of *synthetic* kernels, whose writers wait."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.locks.frozen import FREEZER, FROZEN, FrozenFileSystems
from kcensus.kernel.waiting.finders.locks.locks import PERCPU_RWSEM
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_PERCPU = "struct percpu_rw_semaphore"
_TYPES = f"""
struct task_struct 64
{_PERCPU} 32
struct sb_writers 104 : 0 unsigned short frozen; 8 {_PERCPU} [3] rw_sem
struct atomic_long_t 8 : 0 long counter
struct rw_semaphore 40
    0 struct atomic_long_t count; 8 struct atomic_long_t owner; 16 struct list_head wait_list
struct super_block 256 : 64 struct sb_writers s_writers; 200 struct rw_semaphore s_umount
"""


class Mounted(Sleepers):
    """Two tasks that write to a file system each, of which the first one is frozen."""

    def __init__(
        self, *states: int, mount: str = "/srv", function: str = "percpu_rwsem_wait"
    ) -> None:
        super().__init__(_TYPES, function, "percpu_rwsem_wait")
        self.blocks = [self.k.alloc("struct super_block") for _ in states]
        for lane, (block, state) in enumerate(zip(self.blocks, states, strict=True)):
            self.k.set(block.s_writers.frozen, state)
            self.wait(lane, int(block.s_writers.rw_sem[0].address_), _PERCPU)
        found = SimpleNamespace(
            address=words(*(int(block.address_) for block in self.blocks)), mount=[mount, "/other"]
        )
        self.remember(super_blocks, found)


def test_the_locks_of_a_frozen_file_system_have_no_task_as_holder() -> None:
    scene = Mounted(4, 1)
    graph, finder = scene.run(FrozenFileSystems)
    lock, block = int(scene.waits.object[0]), int(scene.blocks[0].address_)
    assert links(graph) == {(PERCPU_RWSEM, lock, FROZEN, block, int(Strength.PROVEN))}
    assert finder.names == {(FREEZER, block): "on /srv"}
    assert finder.draft.kept == {lock}


@pytest.mark.parametrize(
    ("mount", "seconds", "severity", "commands"),
    [
        ("/srv/a b", 12.0, Severity.WARNING, ["fsfreeze --unfreeze '/srv/a b'"]),
        ("/srv", 2.0, Severity.NOTICE, ["fsfreeze --unfreeze /srv"]),
        ("", 0.5, Severity.INFO, []),
        ("/srv/\x1b", 12.0, Severity.WARNING, []),
    ],
)
def test_the_finding(mount: str, seconds: float, severity: Severity, commands: list[str]) -> None:
    _, finder = Mounted(4, 4, mount=mount).run(FrozenFileSystems)
    address = int(super_blocks(finder.kernel).address[0])
    stall = Stall(frozenset({100}), 1, seconds)
    found = finder.finding(FREEZER, address, stall)
    assert found is not None
    assert (found.kind, found.severity) == ("waits-frozen", severity)
    assert [remedy.command for remedy in found.remedies] == commands
    assert bool(found.no_remedy) == (not commands)
    assert finder.finding(PERCPU_RWSEM, address, stall) is None


@pytest.mark.parametrize(
    ("count", "owner", "who"),
    [
        (1, True, "task (PID 101) holds"),
        (1, False, "an unknown writer holds"),
        (0x200, False, "2 readers hold"),
    ],
)
@pytest.mark.parametrize("is_stuck", [True, False])
def test_a_thaw_that_would_hang_is_not_advised(
    count: int, owner: bool, who: str, is_stuck: bool
) -> None:
    scene = Mounted(4, 1, function="iterate_supers")
    lock = int(scene.blocks[0].s_umount.address_)
    scene.k.write_words(lock, count, scene.task[1] if owner else 0)
    _, finder = scene.run(FrozenFileSystems)
    address = int(scene.blocks[0].address_)
    stall = Stall(frozenset({100, 101} if is_stuck else {102}), 1, 12.0)
    found = finder.finding(FREEZER, address, stall)
    assert found is not None
    # Others release it soon.
    text = found.no_remedy if is_stuck else found.remedies[0].risk
    assert f"{who} s_umount" in text
    assert bool(found.remedies) == (not is_stuck)


@pytest.mark.parametrize(("function", "warns"), [("do_page_mkwrite", True), ("vfs_write", False)])
def test_what_hangs_with_the_root_file_system(function: str, warns: bool) -> None:
    scene = Mounted(4, 1, mount="/", function=function)
    _, finder = scene.run(FrozenFileSystems)
    address = int(scene.blocks[0].address_)
    found = finder.finding(FREEZER, address, Stall(frozenset({100}), 1, 12.0))
    assert found is not None
    assert "root file system" in found.evidence
    assert ("`ps` and `top`" in found.evidence) == warns
