# SPDX-License-Identifier: LGPL-2.1-or-later
"""Super blocks of real kernels, against the guest's own list of mounts and a slow walk."""

from __future__ import annotations

import time

import pytest
from drgn.helpers.linux.fs import for_each_mount, mount_dst
from drgn.helpers.linux.list import list_for_each_entry

from kcensus.engine.memory import Memory
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.super_blocks import MountState, SuperBlocks, super_blocks
from kcensus.sources import Target
from tests.lab import Dump


@pytest.fixture(scope="module")
def found(mixed_target: Target) -> SuperBlocks:
    return super_blocks(Kernel(mixed_target.prog))


def test_mount_points_are_those_of_the_guest(mixed_dump: Dump, found: SuperBlocks) -> None:
    lines = [line.split() for line in mixed_dump.truth["mounts"].splitlines()]
    expected = sorted((target, type_) for _, target, type_, *_ in lines)
    mounted = sorted(
        (mount, type_)
        for mount, type_, state in zip(found.mount, found.type, found.state, strict=True)
        # What the root is mounted on (7.3) is hidden from /proc/mounts.
        if state is MountState.MOUNTED and type_ != "nullfs"
    )
    assert mounted == expected
    assert len(mounted) > 40


def test_every_super_block_equals_the_slow_walk(mixed_target: Target, found: SuperBlocks) -> None:
    prog = mixed_target.prog
    walked = list(
        list_for_each_entry("struct super_block", prog["super_blocks"].address_of_(), "s_list")
    )
    assert found.address.tolist() == [int(super_block) for super_block in walked]
    assert found.type == [super_block.s_type.name.string_().decode() for super_block in walked]
    assert found.id == [super_block.s_id.string_().decode() for super_block in walked]
    assert found.device.tolist() == [int(super_block.s_dev) for super_block in walked]
    assert found.root.tolist() == [int(super_block.s_root) for super_block in walked]
    assert found.rows(found.address).tolist() == list(range(len(walked)))
    assert found.damaged == 0
    assert not found.faults
    # Mounts of init's namespace, one by one.
    for mount in for_each_mount(prog):
        row = found.address.tolist().index(int(mount.mnt.mnt_sb))
        assert found.mount[row].encode() == mount_dst(mount)
        assert found.mount_roots[int(mount.mnt.mnt_root)].encode() == mount_dst(mount)


def test_states(found: SuperBlocks) -> None:
    state = dict(zip(found.type, found.state, strict=True))
    assert state["xfs"] is MountState.MOUNTED
    assert state["pipefs"] is MountState.KERNEL
    assert state["bdev"] is MountState.KERNEL
    # The kernel keeps a mount of it for those who will mount it.
    assert state["debugfs"] is MountState.DETACHED


def test_fast(mixed_target: Target) -> None:
    memory = Memory(mixed_target.prog)
    start = time.process_time()
    rows = len(super_blocks(Kernel(memory.prog)))
    assert rows > 60
    assert time.process_time() - start < 0.2
