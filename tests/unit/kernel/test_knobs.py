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

_TYPES = {
    "struct rb_node": (
        24,
        "0 unsigned long color\n8 struct rb_node * rb_right\n16 struct rb_node * rb_left",
    ),
    "struct rb_root": (8, "0 struct rb_node * rb_node"),
    "struct ctl_table": (16, "0 char * procname\n8 unsigned short mode"),
    "struct ctl_table_header": (
        24,
        "0 struct ctl_table * ctl_table\n8 struct ctl_node * node\n16 void * unregistering",
    ),
    "struct ctl_node": (32, "0 struct rb_node node\n24 struct ctl_table_header * header"),
    "struct ctl_dir": (32, "0 struct ctl_table_header header\n24 struct rb_root root"),
    "struct ctl_table_set": (40, "8 struct ctl_dir dir"),
    "struct ctl_table_root": (40, "0 struct ctl_table_set default_set"),
    "struct kernfs_elem_dir": (8, "0 struct rb_root children"),
    "struct kernfs_elem_symlink": (8, "0 struct kernfs_node * target_kn"),
    "struct kernfs_node": (
        64,
        "0 char * name\n8 struct rb_node rb\n32 unsigned short flags\n"
        "40 struct kernfs_elem_dir dir\n48 struct kernfs_elem_symlink symlink",
    ),
    "struct kobject": (8, "0 struct kernfs_node * sd"),
    "struct kset": (8, "0 struct kobject kobj"),
    "struct cftype": (96, "0 char [64] name\n64 unsigned int flags\n80 struct list_head node"),
    "struct cgroup_root": (8, ""),
    "struct cgroup_subsys": (24, "0 struct cgroup_root * root\n8 struct list_head cfts"),
}
_DIR, _FILE, _LINK = 1, 2, 4
_ON_DFL, _NOT_ON_DFL = 1 << 16, 1 << 17

Tree = dict[str, "Tree | int"]


class Knobs:
    """Writes sysctls, a sysfs and the files of the memory controller into a machine."""

    def __init__(self) -> None:
        self.machine = k = Machine(_TYPES)
        self.kernel = Kernel(k.prog)
        self.root = k.variable("sysctl_table_root", "struct ctl_table_root").default_set.dir
        self.nodes: dict[str, Object] = {}
        for name, flag in {"KERNFS_DIR": _DIR, "KERNFS_FILE": _FILE, "KERNFS_LINK": _LINK}.items():
            k.constant(name, flag)
        k.constant("__CFTYPE_ONLY_ON_DFL", _ON_DFL)
        k.constant("__CFTYPE_NOT_ON_DFL", _NOT_ON_DFL)

    def _tree(self, root: Object, nodes: list[Object]) -> None:
        """Make a tree of nodes, of which every second one has a child on the other side."""
        k = self.machine
        k.set(root.rb_node, nodes[0])
        for number, (node, child) in enumerate(pairwise(nodes)):
            k.set(node.rb_left if number % 2 else node.rb_right, child)

    def sysctls(self, directory: Object, tree: Tree) -> None:
        """Register a table; numbers are modes."""
        k = self.machine
        count = len(tree)
        table = k.alloc(f"struct ctl_table [{count}]")
        header, nodes = k.alloc("struct ctl_table_header"), k.alloc(f"struct ctl_node [{count}]")
        k.set(header.ctl_table, table)
        k.set(header.node, nodes)
        linked = []
        for index, (name, entry) in enumerate(tree.items()):
            node, line = nodes[index], table[index]
            if isinstance(entry, dict):
                child = k.alloc("struct ctl_dir")
                line, node = k.alloc("struct ctl_table"), k.alloc("struct ctl_node")
                k.set(child.header.ctl_table, line)
                k.set(child.header.node, node)
                k.set(node.header, child)
                self.sysctls(child, entry)
                k.set(line.mode, stat.S_IFDIR | 0o555)
            else:
                k.set(node.header, header)
                k.set(line.mode, entry)
            k.set(line.procname, k.string(name.encode()))
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
        node = self.nodes[name] = k.alloc("struct kernfs_node")
        k.set(node.name, k.string(name.encode()))
        k.set(node.flags, _DIR if isinstance(tree, dict) else tree)
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
                k.write(file.name.address_, name.encode())
                k.set(file.flags, flags)
            k.list_add_tail(array[0].node, subsystem.cfts)


@pytest.fixture
def made() -> Knobs:
    made = Knobs()
    made.sysctls(
        made.root,
        {
            "vm": {"drop_caches": 0o200, "swappiness": 0o644, "empty": {"deep": 0o444}},
            "net": {"core": stat.S_IFLNK | 0o777},
            "kernel": {"panic": 0o644},
        },
    )
    made.sysfs("module_kset", {"zswap": {"parameters": {"enabled": _FILE}}, "brd": {"x": _FILE}})
    made.sysfs("slab_kset", {":256": {"shrink": _FILE}, "dentry": {"shrink": _FILE}, "job": _LINK})
    made.machine.set(made.nodes["job"].symlink.target_kn, made.nodes[":256"])
    made.cgroup_files({"reclaim": 0, "high": _ON_DFL, "limit": _NOT_ON_DFL}, {"zswap.max": 0})
    return made


def test_sysctls(made: Knobs) -> None:
    assert set(knobs(made.kernel)) == {
        "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/swappiness",
        "/proc/sys/vm/empty/deep",
        "/proc/sys/kernel/panic",
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/proc/sys/vm/drop_caches", True),
        ("/proc/sys/vm/empty/deep", True),
        ("/proc/sys/vm/drop_cache", False),
        ("/proc/sys/vm/drop_caches/deeper", False),
        ("/proc/sys/vm", False),
        ("/proc/sys/fs/absent", False),
        ("/proc/sys/net/core/somaxconn", None),
        ("/sys/module/zswap/parameters/enabled", True),
        ("/sys/module/zswap/parameters/enable", False),
        ("/sys/module/absent/parameters/enabled", False),
        ("/sys/module/brd/x/y", False),
        ("/sys/kernel/slab/dentry/shrink", True),
        ("/sys/kernel/slab/job/shrink", True),
        ("/sys/kernel/slab/dent/shrink", False),
        ("/sys/fs/cgroup/**/memory.reclaim", True),
        ("/sys/fs/cgroup/a.slice/memory.high", True),
        ("/sys/fs/cgroup/memory.zswap.max", True),
        ("/sys/fs/cgroup/memory.limit", False),
        ("/sys/fs/cgroup/memory.pressure", None),
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/block/sda", None),
    ],
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
    k.set(made.nodes[":256"].rb.rb_left, 0x123)
    k.set(made.nodes[":256"].rb.rb_right, 0x123)
    assert has_knob(made.kernel, "/sys/kernel/slab/dentry/shrink") is None
    k.write_words(k.prog["memory_cgrp_subsys"].cfts.address_, 0x123, 0x123)
    assert has_knob(made.kernel, "/sys/fs/cgroup/memory.reclaim") is None


def test_a_remedy_without_its_file_is_left_out(made: Knobs) -> None:
    present, absent, unknown = (
        "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/absent",
        "/proc/sys/net/core",
    )

    def finding(kind: str, *knobs: str) -> Finding:
        remedies = tuple(Remedy(effect="Sets it", knobs=(knob,)) for knob in knobs)
        return Finding(id=kind, severity=Severity.NOTICE, title=kind, remedies=remedies)

    def run(kernel: Kernel) -> Answer:
        return Answer(findings=[finding("some", present, absent, unknown), finding("none", absent)])

    some, none = Context(made.kernel).run(analysis_of("knobs", run)).findings
    assert [remedy.knobs for remedy in some.remedies] == [(present,), (unknown,)]
    assert some.no_remedy == ""
    assert none.remedies == ()
    assert absent in none.no_remedy
