# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups at their limits, in *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Numbers
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.memcg.limits import Limits, limits
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from kcensus.kernel.memcg.processes import Members, below, members
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.memory.cgroups import FREED, LIMITED, MEMCG, MemoryCgroups
from kcensus.results import Finding, Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64 : 8 struct mem_cgroup * memcg_in_oom; 16 struct signal_struct * signal
struct signal_struct 64 : 8 struct mm_struct * oom_mm
struct mm_struct 64 : 8 unsigned long flags
struct mem_cgroup 64
struct kernfs_root 8
struct cgroup_root 16 : 0 struct kernfs_root * kf_root
struct cgroup 64 : 48 struct cgroup_root * root
"""
_MIB = 1 << 20
_ROOT, _SHOP, _WEB = (0xFFFF_8881_0000_0000 + at for at in (0, 0x1000, 0x2000))
_HIGH, _OOM = "mem_cgroup_handle_over_high", "mem_cgroup_oom_synchronize"


def _bytes(row: tuple[int, ...]) -> Numbers:
    return np.array([each * _MIB if each >= 0 else -1 for each in row])


class Groups(Sleepers):
    """All tasks are in /shop/web; uses and limits are in MiB, from the root on, -1 for none."""

    def __init__(
        self,
        *functions: str,
        usage: tuple[int, int, int] = (90, 50, 30),
        high: tuple[int, int, int] = (-1, -1, -1),
        most: tuple[int, int, int] = (-1, -1, -1),
        swap: tuple[int, int, int] = (-1, -1, -1),
        name: str = "web",
    ) -> None:
        super().__init__(_TYPES, *functions)
        zero, flags = words(0, 0, 0), np.array([True] * 3)
        legacy = self.k.alloc("struct cgroup", root=self.k.alloc("struct cgroup_root").address_)
        groups = Memcgs(
            address=words(_ROOT, _SHOP, _WEB),
            parent=np.array([-1, 0, 1]),
            path=["/", "/shop", f"/shop/{name}"],
            online=flags,
            has_id=flags,
            kmemcg_id=np.array([-1, 1, 2]),
            serial=zero,
            cgroup=words(*[int(legacy.address_)] * 3),
            online_children=np.zeros(3, np.int64),
        )
        self.remember(memcgs, groups)
        above, below_it = (_bytes(row) for row in (high, most))
        oom = np.array([False, True, False])
        self.remember(
            limits, Limits(_bytes(usage), above, below_it, oom, _bytes(usage), _bytes(swap))
        )
        count = len(functions)
        self.remember(members, Members(np.full(count, 2), words(*[0] * count), Faults()))
        self.remember(super_blocks, SimpleNamespace(address=words(), mount=[], type=[]))

    def oom(self, lane: int, memcg: int) -> None:
        self.k.write_words(self.task[lane] + 8, memcg)

    def kill(self, lane: int, flags: int = 0) -> None:
        space = self.k.alloc("struct mm_struct", flags=flags)
        signal = self.k.alloc("struct signal_struct", oom_mm=space)
        self.k.write_words(self.task[lane] + 16, int(signal.address_))

    def found(self, address: int, seconds: float = 1.5) -> Finding:
        _, finder = self.run(MemoryCgroups)
        found = finder.finding(MEMCG, address, Stall(frozenset({100}), 1, seconds))
        assert found is not None
        return found


@pytest.mark.parametrize(
    ("high", "limiting"),
    [
        ((-1, 20, -1), _SHOP),
        ((-1, 40, 10), None),  # its own is exceeded most
        ((-1, 20, 29), _SHOP),
        ((-1, 60, 60), None),  # none is exceeded by now
        ((-1, -1, -1), None),
    ],
)
def test_a_throttled_task_leads_to_the_limit_exceeded_most(
    high: tuple[int, int, int], limiting: int | None
) -> None:
    scene = Groups(_HIGH, high=high)
    graph, finder = scene.run(MemoryCgroups)
    assert scene.waits.object[0] == _WEB
    wanted = {(MEMCG, _WEB, LIMITED, limiting, int(Strength.DERIVED))} if limiting else set()
    assert links(graph) == wanted
    assert finder.names[MEMCG, _WEB] == "/shop/web"


@pytest.mark.parametrize(
    ("most", "limiting"),
    [
        ((-1, 50, -1), {_SHOP: Strength.DERIVED}),
        ((90, 50, -1), {_SHOP: Strength.POSSIBLE, _ROOT: Strength.POSSIBLE}),
        ((-1, 50, 30), {}),  # its own is full
        ((-1, 60, -1), {}),  # none is full by now
    ],
)
def test_a_task_in_reclaim_leads_to_the_cgroup_that_is_full(
    most: tuple[int, int, int], limiting: dict[int, Strength]
) -> None:
    scene = Groups("reclaim_throttle", most=most)
    scene.waits.stacks.names[int(scene.waits.stacks.pc[0])] = "try_to_free_mem_cgroup_pages"
    graph, _ = scene.run(MemoryCgroups)
    assert scene.waits.object[0] == _WEB
    assert links(graph) == {
        (MEMCG, _WEB, LIMITED, address, int(strength)) for address, strength in limiting.items()
    }


@pytest.mark.parametrize("memcg", [_SHOP, _SHOP + 8, 0])
def test_a_task_without_the_oom_killer_names_its_cgroup(memcg: int) -> None:
    scene = Groups(_OOM)
    scene.oom(0, memcg)
    graph, _ = scene.run(MemoryCgroups)
    assert scene.waits.object[0] == (_SHOP if memcg == _SHOP else 0)
    assert not len(graph.source)


@pytest.mark.parametrize(("flags", "is_waited_for"), [(0, True), (1 << 21, False)])
def test_a_victim_frees_memory_unless_it_is_reaped(flags: int, is_waited_for: bool) -> None:
    scene = Groups(_OOM, "xfs_buf_lock", "io_schedule")
    scene.oom(0, _SHOP)
    scene.kill(1, flags)
    graph, _ = scene.run(MemoryCgroups)
    edge = (MEMCG, _SHOP, FREED, scene.task[1], int(Strength.DERIVED))
    assert links(graph) == ({edge} if is_waited_for else set())


def test_the_cgroups_below_one() -> None:
    scene = Groups(_HIGH)
    assert below(scene.kernel, 1).tolist() == [False, True, True]


def test_the_finding_about_memory_high() -> None:
    found = Groups(_HIGH, high=(-1, 20, -1), most=(-1, 60, -1)).found(_SHOP)
    assert (found.id, found.severity) == ("waits-memory:/shop", Severity.NOTICE)
    (remedy,) = found.remedies
    file = "/sys/fs/cgroup/memory/shop/memory.high"
    assert remedy.command == f"echo {63 * _MIB} > {file}"
    assert remedy.undo == f"echo {20 * _MIB} > {file}"
    assert "memory.max (60.0 MiB)" in remedy.risk
    assert found.figures["limit"].value == 20 * _MIB


def test_the_finding_about_a_limit_without_the_oom_killer() -> None:
    scene = Groups(_OOM, most=(-1, 50, -1))
    scene.oom(0, _SHOP)
    found = scene.found(_SHOP)
    assert found.severity is Severity.WARNING  # it does not end by itself
    assert [remedy.command for remedy in found.remedies] == [
        f"echo {63 * _MIB} > /sys/fs/cgroup/memory/shop/memory.limit_in_bytes",
        "echo 0 > /sys/fs/cgroup/memory/shop/memory.oom_control",
    ]


@pytest.mark.parametrize(
    ("most", "swap", "commands"),
    [
        # The limit with swap must not be lower, so it is raised first.
        (50, 50, ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]),
        (50, 100, ["memory.limit_in_bytes"]),
        (60, 50, ["memory.memsw.limit_in_bytes"]),
        (-1, 50, ["memory.memsw.limit_in_bytes"]),
    ],
)
def test_the_limits_with_and_without_swap(most: int, swap: int, commands: list[str]) -> None:
    scene = Groups(_OOM, most=(-1, most, -1), swap=(-1, swap, -1))
    scene.oom(0, _SHOP)
    command = scene.found(_SHOP).remedies[0].command
    assert command == "\n".join(
        f"echo {63 * _MIB} > /sys/fs/cgroup/memory/shop/{name}" for name in commands
    )


@pytest.mark.parametrize(("name", "high"), [("x\x1b", 20), ("web", 40)])
def test_no_command_for_a_strange_name_or_below_the_limit(name: str, high: int) -> None:
    found = Groups(_HIGH, high=(-1, -1, high), name=name).found(_WEB)
    assert not found.remedies
    assert found.no_remedy
