# SPDX-License-Identifier: LGPL-2.1-or-later
"""Super blocks and mounts of a *synthetic* kernel, in places that no test machine has."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from drgn import Object

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.super_blocks import MountState, SuperBlocks, super_blocks
from tests.unit.fakekernel import FakeKernel
from tests.unit.fakekernel.files import FakeFiles

ERR_PTR_EINVAL = (1 << 64) - 22


@pytest.fixture(params=["4.18", "6.12", "7.3"])
def files(request: pytest.FixtureRequest) -> FakeFiles:
    return FakeFiles(FakeKernel(request.param))


def read(files: FakeFiles) -> SuperBlocks:
    return super_blocks(Kernel(files.machine.prog))


def test_names_and_numbers(files: FakeFiles) -> None:
    assert len(read(files)) == 0
    assert read(files).rows(np.array([7], np.uint64)).tolist() == [-1]
    made = [
        files.super_block("xfs", b"dm-3", 253 << 20 | 3),
        files.super_block("fuse", b"0:51", 51, b"ssh\xfffs"),
        files.super_block("tmpfs", b"a\nb\xe9\x1b" + b"x" * 26, 1 << 20 | 0xFFFFF),
    ]
    found = read(files)
    assert found.address.tolist() == [super_block.address_ for super_block in made]
    assert found.type == ["xfs", "fuse.ssh\\xfffs", "tmpfs"]
    assert found.id == ["dm-3", "0:51", "a\nb\\xe9\x1b" + "x" * 26]
    assert [found.device_name(row) for row in range(3)] == ["253:3", "0:51", "1:1048575"]
    assert found.root.tolist() == [int(super_block.s_root) for super_block in made]
    assert found.rows(found.address[[2, 0, 1]]).tolist() == [2, 0, 1]
    assert found.rows(found.address + np.uint64(8)).tolist() == [-1, -1, -1]
    assert (found.damaged, found.faults) == (0, {})


def test_mount_points(files: FakeFiles) -> None:
    """Mounts on mounts, over each other, of parts, twice, in other namespaces, and none at all."""
    names = b"root srv deep over part twice guest pipe lazy bytes gone".split()
    made = [files.super_block("t", name) for name in names]
    root, srv, deep, over, part, twice, guest, pipe, lazy, of_bytes, gone = made
    top = files.mount(root, None)
    files.mount(of_bytes, (top, files.path("caf\udce9 [bold]\x1b\n", root)))
    on_srv = files.mount(srv, (top, files.path("srv", root)))
    files.mount(deep, (on_srv, files.path("a/b", srv)))
    files.mount(over, (on_srv, srv.s_root[0]))
    inner = files.path("sub/volume", part)
    files.mount(part, (top, files.path("volume", root)), root=inner)
    files.mount(twice, (top, files.path("var/lib/x", root)))
    files.mount(twice, (top, files.path("x/y", root)))
    files.mount(twice, (top, files.path("x", root)), root=files.path("below", twice))
    other = files.machine.alloc("struct mnt_namespace")
    elsewhere = files.mount(guest, None, namespace=other)
    files.mount(twice, (elsewhere, files.path("z", guest)), namespace=other)
    files.mount(pipe, None, namespace=ERR_PTR_EINVAL)
    files.mount(lazy, None, namespace=0)
    found = read(files)
    mounted = MountState.MOUNTED
    assert dict(zip(found.id, zip(found.state, found.mount, strict=True), strict=True)) == {
        "root": (mounted, "/"),
        "srv": (mounted, "/srv"),
        "deep": (mounted, "/srv/a/b"),
        "over": (mounted, "/srv"),
        "part": (mounted, "/volume"),
        "twice": (mounted, "/x/y"),
        "guest": (MountState.ELSEWHERE, "/"),
        "pipe": (MountState.KERNEL, ""),
        "lazy": (MountState.DETACHED, ""),
        "bytes": (mounted, "/caf\\xe9 [bold]\x1b\n"),
        "gone": (MountState.UNMOUNTED, ""),
    }
    assert found.mounts.tolist() == [1, 1, 1, 1, 1, 4, 1, 1, 1, 1, 0]
    assert found.mount_roots[inner.address_] == "/volume"
    assert int(part.s_root) not in found.mount_roots
    assert found.damaged == 0
    assert gone.address_ == int(found.address[-1])


def mounted_in_a_row(files: FakeFiles, count: int) -> tuple[list[Object], list[Object]]:
    """Each super block is mounted on ``m`` of the one before."""
    made = [files.super_block("t", f"{number}".encode()) for number in range(count)]
    mounts = [files.mount(made[0], None)]
    for above, below in pairwise(made):
        mounts.append(files.mount(below, (mounts[-1], files.path("m", above))))
    return made, mounts


def test_a_lost_super_block_costs_itself(files: FakeFiles) -> None:
    made, _ = mounted_in_a_row(files, 5)
    files.machine.drop(made[2].address_)
    found = read(files)
    assert found.damaged == 2
    # What was mounted on it has only the end of its path.
    paths = {"0": "/", "1": "/m", "3": "?/m", "4": "?/m/m"}
    assert dict(zip(found.id, found.mount, strict=True)) == paths


def test_lost_mounts(files: FakeFiles) -> None:
    made, mounts = mounted_in_a_row(files, 3)
    files.machine.drop(mounts[1].address_)
    found = read(files)
    assert (found.mount, found.damaged) == (["/", "", "?/m"], 1)
    assert found.address.tolist() == [super_block.address_ for super_block in made]


def test_pointers_that_skip_a_super_block(files: FakeFiles) -> None:
    """The list ends as it should, so only its other direction shows what is missing."""
    made, _ = mounted_in_a_row(files, 5)
    files.machine.set(made[1].s_list.next, made[3].s_list)
    found = read(files)
    assert (sorted(found.id), found.damaged) == (["0", "1", "2", "3", "4"], 1)


def test_pointers_that_skip_a_mount(files: FakeFiles) -> None:
    made, mounts = mounted_in_a_row(files, 2)
    more = [files.mount(made[1], (mounts[0], files.path(name, made[0]))) for name in "abc"]
    if files.era.own_mount_list:
        # The last is first.
        files.machine.set(more[2].mnt_next_for_sb, more[0])
    else:
        files.machine.set(more[0].mnt_instance.next, more[2].mnt_instance)
    found = read(files)
    assert found.mounts.tolist() == [1, 3]
    # What betrays it where mounts are not listed both ways.
    assert found.mounts_at_home in ((4, 5), (4, None))
    assert found.damaged == int(not files.era.own_mount_list)


def test_cycles_end(files: FakeFiles) -> None:
    made, mounts = mounted_in_a_row(files, 4)
    k = files.machine
    k.set(mounts[1].mnt_parent, mounts[3])
    loop = files.path("a/b", made[3])
    k.set(loop.d_parent[0].d_parent, loop)
    k.set(mounts[3].mnt_mountpoint, loop)
    k.set(made[3].s_list.next, made[2].s_list)
    found = read(files)
    assert (found.id, found.damaged) == (["0", "1", "2", "3"], 1)
    assert [path[0] for path in found.mount] == ["/", "?", "?", "?"]


def test_a_list_of_mounts_that_bites_its_tail(files: FakeFiles) -> None:
    _, mounts = mounted_in_a_row(files, 3)
    if files.era.own_mount_list:
        files.machine.set(mounts[1].mnt_next_for_sb, mounts[1])
    else:
        files.machine.set(mounts[1].mnt_instance.next, mounts[1].mnt_instance)
    found = read(files)
    assert (found.mounts.tolist(), found.damaged) == ([1, 1, 1], 1)
    assert found.mount == ["/", "/m", "/m/m"]


@pytest.mark.parametrize("era", ["6.12", "7.3"])
def test_the_time_of_hundreds_is_linear(era: str) -> None:
    def seconds(count: int) -> float:
        files = FakeFiles(FakeKernel(era))
        files.alone = False
        root = files.super_block("t", b"root")
        on = files.mount(root, None), files.path("run/user", root)
        for number in range(count):
            files.mount(files.super_block("t", b"%d" % number), on)
        start = time.process_time()
        found = read(files)
        taken = time.process_time() - start
        assert found.mounts.tolist() == [1] * (count + 1)
        assert found.id[1:] == [f"{number}" for number in range(count)]
        return taken

    few, many = (min(seconds(count) for _ in range(3)) for count in (100, 500))
    assert many < 15 * few


def test_each_is_on_the_list_of_its_file_system_type() -> None:
    """A damaged ``s_type`` leads to another type; one that is being unmounted is on no list."""
    files = FakeFiles(FakeKernel("6.12"))
    k = files.machine
    for name in (b"one", b"two", b"gone"):
        files.super_block("xfs" if name != b"two" else "proc", name)
    one, two, _ = (
        Object(k.prog, "struct super_block", address=each) for each in read(files).address
    )
    for each in (one, two):
        head = each.s_type.fs_supers
        k.set(head.first, each.s_instances.address_)
        k.set(each.s_instances.pprev, head.first.address_)
    assert read(files).faults == {}
    k.set(one.s_type, two.s_type)
    assert read(files).faults == {"the file system type does not list the super block": 1}
