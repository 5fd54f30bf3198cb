# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hierarchies of cgroups of *synthetic* kernels, and where these are mounted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.cgroup_mounts import CgroupMount, cgroup_mount
from kcensus.kernel.vfs.super_blocks import super_blocks
from tests.unit.fakekernel import FakeKernel
from tests.unit.readers import set_read

_TYPES = """
struct cgroup_root 64 : 0 struct kernfs_root * kf_root
struct cgroup 64 : 8 struct cgroup_root * root
struct kernfs_root 64
struct super_block 64 : 8 struct kernfs_super_info * s_fs_info
struct kernfs_super_info 64 : 8 struct kernfs_root * root
"""
_OF_RHEL7 = """
struct cgroupfs_root 64 : 0 struct super_block * sb
struct cgroup 64 : 8 struct cgroupfs_root * root
struct super_block 64 : 8 void * s_fs_info
"""


@pytest.mark.parametrize(
    ("type_", "mount", "is_unified"), [("cgroup2", "/cg", True), ("cgroup", "/blkio", False)]
)
def test_the_mount_point_of_a_hierarchy(type_: str, mount: str, is_unified: bool) -> None:
    k = FakeKernel("6.10", _TYPES)
    tree = k.alloc("struct kernfs_root")
    default = k.variable("cgrp_dfl_root", "struct cgroup_root")
    root = default if is_unified else k.alloc("struct cgroup_root")
    k.set(root.kf_root, tree)
    info = k.alloc("struct kernfs_super_info", root=tree)
    block = k.alloc("struct super_block", s_fs_info=info)
    kernel = Kernel(k.prog)
    blocks = SimpleNamespace(type=[type_], address=np.array([block.address_]), mount=[mount])
    set_read(kernel, super_blocks, blocks)
    cgroup = int(k.alloc("struct cgroup", root=root).address_)
    assert cgroup_mount(kernel, cgroup, "blkio") == CgroupMount(mount, is_unified)


def test_a_kernel_without_kernfs_has_the_usual_mount_points() -> None:
    k = FakeKernel("6.10", _OF_RHEL7)
    cgroup = int(k.alloc("struct cgroup", root=k.alloc("struct cgroupfs_root")).address_)
    found = cgroup_mount(Kernel(k.prog), cgroup, "blkio")
    assert found == CgroupMount("/sys/fs/cgroup/blkio", is_unified=False)
