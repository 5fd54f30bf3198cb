# SPDX-License-Identifier: LGPL-2.1-or-later
"""What loop devices and stacks of disks are on, on *synthetic* memory."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.block import stacks
from kcensus.kernel.block.disks import BlockDevices, Partitions
from kcensus.kernel.block.stacks import Edge, Stacks, Via
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel

_TYPES = """
struct super_block 8 : 0 void * s_bdev
struct inode 16 : 0 struct super_block * i_sb; 8 unsigned int i_rdev; 12 unsigned short i_mode
struct address_space 8 : 0 struct inode * host
struct file 8 : 0 struct address_space * f_mapping
struct loop_device 8 : 0 struct file * lo_backing_file
"""
_SDA = 8 << 20
_BDEV = 0x1000
_LOST = None
"""The disk is not one of the kernel's list."""


def on(
    monkeypatch: pytest.MonkeyPatch,
    *,
    mode: int = stat.S_IFREG,
    number: int = 0,
    bdev: int = 0,
    is_known: bool = True,
) -> list[Any] | None:
    k = FakeKernel("6.13", _TYPES)
    block = k.alloc("struct super_block", s_bdev=bdev)
    inode = k.alloc("struct inode", i_sb=block, i_rdev=number, i_mode=mode)
    mapping = k.alloc("struct address_space", host=inode)
    file = k.alloc("struct file", f_mapping=mapping)
    loop = k.alloc("struct loop_device", lo_backing_file=file)
    address = int(inode.address_)
    blocks = SimpleNamespace(rows=lambda found: np.full(len(found), 0 if is_known else -1))
    monkeypatch.setattr(stacks, "super_blocks", lambda kernel: blocks)
    monkeypatch.setattr(stacks, "file_paths", lambda *_: {address: "/srv/image"})
    monkeypatch.setattr(stacks, "_row", lambda _, at: [(2, 1)] if int(at) == _BDEV else [])
    disk: Any = SimpleNamespace(private=int(loop.address_))
    numbers = np.array([7 << 20, _SDA, _SDA + 1, _SDA + 2, 0])
    of_disk, number_in = np.array([0, 1, 1, -1, 2]), np.array([0, 0, 1, 2, 0])
    parts = Partitions(np.arange(5).astype(np.uint64), of_disk, number_in, numbers)
    try:
        return stacks._loop(Kernel(k.prog), disk, BlockDevices((), parts), Faults())
    except LookupError as error:
        return _LOST if "/srv/image" in str(error) else ["without the name of the file"]


@pytest.mark.parametrize(
    ("number", "rows"),
    [(_SDA, [(1, 0)]), (_SDA + 1, [(1, 1)]), (_SDA + 2, _LOST), (_SDA + 3, _LOST), (0, _LOST)],
)
def test_on_a_block_device(
    number: int, rows: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on(monkeypatch, mode=stat.S_IFBLK, number=number) == rows


@pytest.mark.parametrize(
    ("bdev", "is_known", "rows"),
    [
        (_BDEV, True, [(2, 1)]),
        (0, True, []),  # tmpfs, NFS: it is on no disk, and nothing is missing
        (_BDEV + 8, True, _LOST),
        (_BDEV, False, _LOST),  # a damaged pointer
    ],
)
def test_on_a_file(
    bdev: int, is_known: bool, rows: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on(monkeypatch, bdev=bdev, is_known=is_known, number=_SDA) == rows


def test_stacks_end_at_the_bottom() -> None:
    """2 is on 0 and 1, 3 on 2 and itself, 4 and 5 on each other."""
    edges = [(2, 0), (2, 1), (3, 2), (3, 3), (4, 5), (5, 4)]
    found = Stacks(tuple(Edge(upper, lower, 0, Via.DM) for upper, lower in edges))
    assert found.below(3) == {0, 1, 2, 3}
    assert found.bottom(3) == {0, 1}
    assert found.bottom(0) == {0}
    assert found.bottom(4) == frozenset()


def test_edges_are_looked_at_once() -> None:
    class Edges(tuple[Edge, ...]):
        passes = 0

        def __iter__(self) -> Iterator[Edge]:
            Edges.passes += 1
            return super().__iter__()

    found = Stacks(Edges(Edge(upper, 0, 0, Via.DM) for upper in range(1, 1000)))
    assert all(found.bottom(row) == {0} for row in range(1000))
    assert Edges.passes == 1


@pytest.mark.parametrize(
    ("name", "below", "modules"),
    [
        ("dm-0", "vda", ["dm_mod", "dm_multipath"]),
        ("dm-0", "sda", ["dm_mod", "dm_multipath", "libiscsi", "scsi_mod"]),
        ("md0", "vda", ["raid1"]),
        ("loop0", "md0", ["loop", "raid1"]),
        ("nvme0n1", "vda", []),
    ],
)
def test_modules_without_types_that_serve_a_disk(
    name: str, below: str, modules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = [SimpleNamespace(name=each) for each in (name, below)]
    stack = Stacks((Edge(0, 1, 0, Via.DM),))
    monkeypatch.setattr(stacks, "block_devices", lambda _: SimpleNamespace(disks=disks))
    monkeypatch.setattr(stacks, "stacks", lambda _: stack)
    kernel = Kernel(FakeKernel().prog)
    assert stacks.untyped_below(kernel, 0) == []
    kernel.untyped_modules |= {"dm_mod", "dm_multipath", "raid1", "loop", "scsi_mod", "libiscsi"}
    assert stacks.untyped_below(kernel, 0) == modules
    assert stacks.untyped_below(kernel.renewed(), 0) == modules


def test_a_disk_below_that_is_on_no_list_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it was removed, or the kernel runs."""
    rows = {"vda": [(1, 0)], "lost": [], "removed": []}
    monkeypatch.setattr(stacks, "_row", lambda _, bdev: rows[bdev.bd_disk])
    monkeypatch.setattr(stacks, "is_removed", lambda disk: disk == "removed")
    bdevs: Any = [SimpleNamespace(bd_disk=name) for name in rows]
    devices: Any = None
    for live, lost in ((False, 1), (True, 0)):
        kernel: Any = SimpleNamespace(live=live)
        faults = Faults()
        assert stacks._below(kernel, devices, bdevs, faults) == [(1, 0)]
        assert faults.total() == lost
