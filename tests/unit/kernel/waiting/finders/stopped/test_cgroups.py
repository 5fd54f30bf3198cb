# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frozen cgroups of *synthetic* kernels, whose tasks others wait for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finder import Stall
from kcensus.kernel.waiting.finders.stopped.cgroups import CGROUP, FROZEN, FrozenCgroups
from kcensus.kernel.waiting.graph import TASK
from kcensus.results import Severity
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64 : 8 struct css_set * cgroups
struct cgroup_subsys_state 32 : 0 struct cgroup * cgroup; 8 struct cgroup_subsys_state * parent
struct cgroup_freezer_state 16 : 0 unsigned char freeze
struct kernfs_node 32 : 0 struct kernfs_node * parent; 8 char * name
struct kernfs_root 8
struct cgroup_root 16 : 0 struct kernfs_root * kf_root
struct cgroup 128
    0 struct cgroup_subsys_state self; 40 struct kernfs_node * kn; 48 struct cgroup_root * root
    56 struct cgroup_freezer_state freezer
struct freezer 40 : 0 struct cgroup_subsys_state css; 32 unsigned int state
struct css_set 64 : 0 struct cgroup_subsys_state * [4] subsys; 32 struct cgroup * dfl_cgrp
struct kernfs_super_info 16 : 8 struct kernfs_root * root
struct super_block 64 : 8 void * s_fs_info
"""
_FREEZING_SELF, _FREEZING_PARENT = 2, 4


class Frozen(Sleepers):
    """A task in the cgroup /a/b, and a waiter.

    :param frozen: the path of the cgroup that is frozen itself
    """

    def __init__(self, frozen: str, *, is_v2: bool, mount: str = "/sys/fs/cgroup") -> None:
        super().__init__(_TYPES, "get_signal", "waits")
        k, self.is_v2 = self.k, is_v2
        k.constant("freezer_cgrp_id", 1)
        tree = k.alloc("struct kernfs_root").address_
        unified = k.variable("cgrp_dfl_root", "struct cgroup_root")
        root = unified if is_v2 else k.alloc("struct cgroup_root")
        k.set(root.kf_root, tree)
        node, css, self.cgroup = 0, 0, {}
        for path, name in (("/", b""), ("/a", b"a"), ("/a/b", b"b")):
            node = k.alloc("struct kernfs_node", parent=node, name=k.string(name)).address_
            group = k.alloc("struct cgroup", kn=node, root=root.address_)
            k.set(group.freezer.freeze, path == frozen)
            freezer = k.alloc("struct freezer")
            k.set(freezer.state, _FREEZING_SELF if path == frozen else _FREEZING_PARENT)
            own = group.self if is_v2 else freezer.css
            k.fill(own, cgroup=group.address_, parent=css)
            css, self.cgroup[path] = int(own.address_), int(group.address_)
        places = k.alloc("struct css_set", dfl_cgrp=self.cgroup["/a/b"])
        k.write_words(int(places.address_) + 8, css)
        k.write_words(self.task[0] + 8, int(places.address_))
        mask = np.array([True, False])
        object.__setattr__(self.known, "is_trapped" if is_v2 else "is_frozen", mask)
        info = k.alloc("struct kernfs_super_info", root=tree).address_
        block = k.alloc("struct super_block", s_fs_info=info).address_
        other = k.alloc("struct super_block").address_
        found = SimpleNamespace(
            address=words(int(other), int(block)),
            type=["cgroup2", "cgroup2" if is_v2 else "cgroup"],
            mount=["/elsewhere", mount],
        )
        self.remember(super_blocks, found)

    def stall(self, seconds: float) -> Stall:
        return Stall(frozenset({100, 101}), 2, seconds)


@pytest.mark.parametrize("is_v2", [True, False])
@pytest.mark.parametrize("frozen", ["/a", "/a/b"])
def test_the_cgroup_that_is_frozen_itself(frozen: str, is_v2: bool) -> None:
    scene = Frozen(frozen, is_v2=is_v2)
    graph, finder = scene.run(FrozenCgroups)
    cgroup = scene.cgroup[frozen]
    assert links(graph) == {(TASK, scene.task[0], FROZEN, cgroup, int(Strength.PROVEN))}
    assert finder.names == {(CGROUP, cgroup): f"/sys/fs/cgroup{frozen}"}


@pytest.mark.parametrize("is_v2", [True, False])
def test_tasks_that_suspend_has_frozen(is_v2: bool) -> None:
    graph, _ = Frozen("", is_v2=is_v2).run(FrozenCgroups)
    assert links(graph) == set()


def test_a_task_that_is_blocked_before_it_freezes() -> None:
    scene = Frozen("/a", is_v2=True)
    scene.waits.function[0] = "request_wait_answer"
    graph, _ = scene.run(FrozenCgroups)
    assert links(graph) == set()


@pytest.mark.parametrize(
    ("is_v2", "command"),
    [
        (True, "echo 0 > '/sys/fs/c group/a/cgroup.freeze'"),
        (False, "echo THAWED > '/sys/fs/c group/a/freezer.state'"),
    ],
)
def test_the_finding(is_v2: bool, command: str) -> None:
    scene = Frozen("/a", is_v2=is_v2, mount="/sys/fs/c group")
    _, finder = scene.run(FrozenCgroups)
    finding = finder.finding(CGROUP, scene.cgroup["/a"], scene.stall(12.0))
    assert finding is not None
    assert finding.id == "waits-frozen-cgroup:/sys/fs/c group/a"
    assert "1 task waits for 1 task of the frozen cgroup" in finding.title
    least = finder.finding(CGROUP, scene.cgroup["/a"], replace(scene.stall(12.0), is_least=True))
    assert least is not None
    assert "for at least 12.0 s" in least.title
    # The frozen task itself is no waiter.
    assert finding.figures["tasks"].value == 1
    assert [each.command for each in finding.remedies] == [command]
    assert finding.severity is Severity.WARNING


def test_no_task_in_state_d_waits() -> None:
    scene = Frozen("/a", is_v2=True)
    scene.known.state[1] = 1
    _, finder = scene.run(FrozenCgroups)
    finding = finder.finding(CGROUP, scene.cgroup["/a"], scene.stall(12.0))
    assert finding is not None
    assert finding.severity is Severity.NOTICE


@pytest.mark.parametrize("mount", ["", "/sys/\x1b"])
def test_no_command_without_a_plain_path(mount: str) -> None:
    scene = Frozen("/a", is_v2=True, mount=mount)
    _, finder = scene.run(FrozenCgroups)
    finding = finder.finding(CGROUP, scene.cgroup["/a"], scene.stall(2.0))
    assert finding is not None
    assert (finding.remedies, finding.severity) == ((), Severity.NOTICE)
    assert finding.no_remedy
