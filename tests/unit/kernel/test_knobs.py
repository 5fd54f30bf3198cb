# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of a *synthetic* kernel, whole and damaged."""

from __future__ import annotations

import stat
from itertools import pairwise

import drgn
import pytest
from drgn import Object

from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.knobs import has_knob, knobs
from kcensus.results import Answer, Finding, Remedy, Severity
from tests.running import analysis_of
from tests.unit.fakekernel.machine import Machine

_TYPES = """
struct rb_node 24 : 0 unsigned long color; 8 struct rb_node * rb_right; 16 struct rb_node * rb_left
struct rb_root 8 : 0 struct rb_node * rb_node
struct ctl_table 16 : 0 char * procname; 8 unsigned short mode
struct ctl_table_header 24
    0 struct ctl_table * ctl_table; 8 struct ctl_node * node; 16 void * unregistering
struct ctl_node 32 : 0 struct rb_node node; 24 struct ctl_table_header * header
struct ctl_dir 32 : 0 struct ctl_table_header header; 24 struct rb_root root
struct ctl_table_set 40 : 8 struct ctl_dir dir
struct ctl_table_root 40 : 0 struct ctl_table_set default_set
struct kernfs_elem_dir 8 : 0 struct rb_root children
struct kernfs_elem_symlink 8 : 0 struct kernfs_node * target_kn
struct kernfs_node 64
    0 char * name; 8 struct rb_node rb; 32 unsigned short flags; 40 struct kernfs_elem_dir dir
    48 struct kernfs_elem_symlink symlink
struct kobject 8 : 0 struct kernfs_node * sd
struct kset 8 : 0 struct kobject kobj
struct cftype 96 : 0 char [64] name; 64 unsigned int flags; 80 struct list_head node
struct cgroup_root 8
struct cgroup_subsys 24 : 0 struct cgroup_root * root; 8 struct list_head cfts
"""
_DIR, _FILE, _LINK = 1, 2, 4
_ON_DFL, _NOT_ON_DFL = 1 << 16, 1 << 17

Tree = dict[str, "Tree | int"]


class Knobs:
    def __init__(self) -> None:
        self.machine = k = Machine(_TYPES)
        self.kernel = Kernel(k.prog)
        self.root = k.variable("sysctl_table_root", "struct ctl_table_root").default_set.dir
        self.nodes: dict[str, Object] = {}
        flags = {"KERNFS_DIR": _DIR, "KERNFS_FILE": _FILE, "KERNFS_LINK": _LINK}
        flags |= {"__CFTYPE_ONLY_ON_DFL": _ON_DFL, "__CFTYPE_NOT_ON_DFL": _NOT_ON_DFL}
        for name, flag in flags.items():
            k.constant(name, flag)

    def _tree(self, root: Object, nodes: list[Object]) -> None:
        k = self.machine
        k.set(root.rb_node, nodes[0])
        for number, (node, child) in enumerate(pairwise(nodes)):
            k.set(node.rb_left if number % 2 else node.rb_right, child)

    def sysctls(self, directory: Object, tree: Tree) -> None:
        """Register a table; numbers are modes."""
        k = self.machine
        count = len(tree)
        table, nodes = k.alloc(f"struct ctl_table [{count}]"), k.alloc(f"struct ctl_node [{count}]")
        header = k.alloc("struct ctl_table_header", ctl_table=table, node=nodes)
        linked = []
        for index, (name, entry) in enumerate(tree.items()):
            node, line = nodes[index], table[index]
            if isinstance(entry, dict):
                child = k.alloc("struct ctl_dir")
                line = k.alloc("struct ctl_table", mode=stat.S_IFDIR | 0o555)
                node = k.alloc("struct ctl_node", header=child)
                k.fill(child.header, ctl_table=line, node=node)
                self.sysctls(child, entry)
            else:
                k.set(node.header, header)
                k.set(line.mode, entry)
            k.set(line.procname, name.encode())
            linked.append(node.node)
            self.nodes[name] = node
        self._tree(directory.root, linked)

    def sysfs(self, kset: str, tree: Tree) -> None:
        k = self.machine
        variable = k.alloc("struct kset")
        k.set(k.variable(kset, "struct kset *"), variable)
        k.set(variable.kobj.sd, self._kernfs("", tree))

    def _kernfs(self, name: str, tree: Tree | int) -> Object:
        k = self.machine
        flags = _DIR if isinstance(tree, dict) else tree
        node = self.nodes[name] = k.alloc("struct kernfs_node", name=name.encode(), flags=flags)
        if isinstance(tree, dict):
            self._tree(node.dir.children, [self._kernfs(*item).rb for item in tree.items()])
        return node

    def cgroup_files(self, *arrays: dict[str, int], v2: bool = True) -> None:
        k = self.machine
        dfl, v1 = k.variable("cgrp_dfl_root", "struct cgroup_root"), k.alloc("struct cgroup_root")
        subsystem = k.variable("memory_cgrp_subsys", "struct cgroup_subsys")
        k.set(subsystem.root, dfl if v2 else v1)
        k.list_init(subsystem.cfts)
        for files in arrays:
            array = k.alloc(f"struct cftype [{len(files) + 1}]")
            for file, (name, flags) in zip(array, files.items(), strict=False):
                k.fill(file, name=name.encode(), flags=flags)
            k.list_add_tail(array[0].node, subsystem.cfts)


@pytest.fixture
def made() -> Knobs:
    made = Knobs()
    tree: Tree = {"vm": {"drop_caches": 0o200, "swappiness": 0o644, "empty": {"deep": 0o444}}}
    tree |= {"net": {"core": stat.S_IFLNK | 0o777}, "kernel": {"panic": 0o644}}
    made.sysctls(made.root, tree)
    made.sysfs("module_kset", {"zswap": {"parameters": {"enabled": _FILE}}, "brd": {"x": _FILE}})
    made.sysfs("slab_kset", {":256": {"shrink": _FILE}, "dentry": {"shrink": _FILE}, "job": _LINK})
    made.machine.set(made.nodes["job"].symlink.target_kn, made.nodes[":256"])
    made.cgroup_files({"reclaim": 0, "high": _ON_DFL, "limit": _NOT_ON_DFL}, {"zswap.max": 0})
    return made


def test_sysctls(made: Knobs) -> None:
    paths = "vm/drop_caches", "vm/swappiness", "vm/empty/deep", "kernel/panic"
    assert set(knobs(made.kernel)) == {f"/proc/sys/{path}" for path in paths}


_PATHS = {
    True: """
        /proc/sys/vm/drop_caches /proc/sys/vm/empty/deep /sys/module/zswap/parameters/enabled
        /sys/kernel/slab/dentry/shrink /sys/kernel/slab/job/shrink /sys/fs/cgroup/**/memory.reclaim
        /sys/fs/cgroup/a.slice/memory.high /sys/fs/cgroup/memory.zswap.max
    """,
    False: """
        /proc/sys/vm/drop_cache /proc/sys/vm/drop_caches/deeper /proc/sys/vm /proc/sys/fs/absent
        /sys/module/zswap/parameters/enable /sys/module/absent/parameters/enabled
        /sys/module/brd/x/y /sys/kernel/slab/dent/shrink /sys/fs/cgroup/memory.limit
    """,
    None: """
        /proc/sys/net/core/somaxconn /sys/fs/cgroup/memory.pressure /sys/fs/cgroup/cpu.max
        /sys/block/sda
    """,
}


@pytest.mark.parametrize(
    ("path", "expected"), [(path, known) for known in _PATHS for path in _PATHS[known].split()]
)
def test_a_file(made: Knobs, path: str, expected: bool | None) -> None:
    assert has_knob(made.kernel, path) is expected


def test_the_first_version_of_cgroups_has_other_files() -> None:
    made = Knobs()
    made.cgroup_files({"high": _ON_DFL, "limit": _NOT_ON_DFL}, v2=False)
    assert has_knob(made.kernel, "/sys/fs/cgroup/memory/memory.limit") is True
    assert has_knob(made.kernel, "/sys/fs/cgroup/memory/memory.high") is False


def test_without_debug_info_nothing_is_claimed() -> None:
    kernel = Kernel(drgn.Program())
    paths = "/proc/sys/vm/x", "/sys/module/x/y", "/sys/kernel/slab/x/y", "/sys/fs/cgroup/memory.x"
    assert [has_knob(kernel, path) for path in paths] == [None] * 4


def test_damage_is_never_taken_for_absence(made: Knobs) -> None:
    k = made.machine
    k.set(made.nodes["swappiness"].node.rb_right, made.nodes["drop_caches"].node)
    assert has_knob(made.kernel, "/proc/sys/vm/drop_caches") is None  # a cycle
    assert has_knob(made.kernel, "/proc/sys/kernel/absent") is False
    k.set(made.nodes["panic"].header, made.nodes["vm"].header)
    assert has_knob(made.kernel, "/proc/sys/kernel/absent") is None  # a header with other nodes
    k.fill(made.nodes[":256"].rb, rb_left=0x123, rb_right=0x123)
    assert has_knob(made.kernel, "/sys/kernel/slab/dentry/shrink") is None
    k.write_words(k.prog["memory_cgrp_subsys"].cfts.address_, 0x123, 0x123)
    assert has_knob(made.kernel, "/sys/fs/cgroup/memory.reclaim") is None


def test_a_remedy_without_its_file_is_left_out(made: Knobs) -> None:
    present, absent = "/proc/sys/vm/drop_caches", "/proc/sys/vm/absent"
    unknown = "/proc/sys/net/core"

    def finding(kind: str, *knobs: str) -> Finding:
        remedies = tuple(Remedy(effect="Sets it", knobs=(knob,)) for knob in knobs)
        return Finding(id=kind, severity=Severity.NOTICE, title=kind, remedies=remedies)

    def run(kernel: Kernel) -> Answer:
        return Answer(findings=[finding("some", present, absent, unknown), finding("none", absent)])

    some, none = Context(made.kernel).run(analysis_of("knobs", run)).findings
    assert [remedy.knobs for remedy in some.remedies] == [(present,), (unknown,)]
    assert (some.no_remedy, none.remedies) == ("", ())
    assert absent in none.no_remedy
