# SPDX-License-Identifier: LGPL-2.1-or-later
"""The RAM and the super blocks of real kernels, against what the guest says and a slow walk."""

from __future__ import annotations

import time

import pytest
from drgn.helpers.linux.fs import for_each_mount, mount_dst

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.kernel.vfs.super_blocks import MountState, SuperBlocks, super_blocks
from kcensus.sources import Target
from tests.lab import Dump
from tests.lab.trials import meminfo_bytes
from tests.vm.oracles import entries

_SLACK = 1 << 20
"""What the guest allocates and frees between its last look and the dump."""


def test_memory_is_what_the_guest_counted(mixed_dump: Dump, mixed_target: Target) -> None:
    counted = meminfo_bytes(mixed_dump.truth["meminfo"])
    found = machine(Kernel(mixed_target.prog))
    expected = {
        "free": counted["MemFree"],
        "page_cache": counted["Cached"] + counted["Buffers"] - counted["Shmem"],
        "shmem": counted["Shmem"],
        "anonymous": counted["AnonPages"],
        "slab_reclaimable": counted["SReclaimable"],
        "slab_unreclaimable": counted["SUnreclaim"],
        "page_tables": counted["PageTables"],
        "kernel_stacks": counted["KernelStack"],
        "per_cpu": counted["Percpu"],
        "huge_pages": counted["Hugetlb"],
    }
    for use, size in expected.items():
        assert abs(found.memory[use] - size) <= _SLACK, use
    assert sum(found.memory.values()) == found.ram_bytes
    assert expected["free"] > 100 * _SLACK


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
    walked = [*entries(prog["super_blocks"], "struct super_block", "s_list")]
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
    start = time.process_time()
    assert len(super_blocks(Kernel(mixed_target.prog))) > 60
    assert time.process_time() - start < 0.2
