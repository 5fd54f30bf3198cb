# SPDX-License-Identifier: LGPL-2.1-or-later
"""What loop devices are on, on *synthetic* memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.block import stacks
from kcensus.kernel.block.disks import BlockDevices, Partitions
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel, add_types

_TYPES = {
    "struct super_block": (8, "0 void * s_bdev"),
    "struct inode": (16, "0 struct super_block * i_sb\n8 unsigned int i_rdev"),
    "struct address_space": (8, "0 struct inode * host"),
    "struct file": (8, "0 struct address_space * f_mapping"),
    "struct loop_device": (8, "0 struct file * lo_backing_file"),
}
_SDA = 8 << 20


@pytest.mark.parametrize(
    ("number", "rows"),
    [(_SDA, [(1, 0)]), (_SDA + 1, [(1, 1)]), (_SDA + 2, None), (_SDA + 3, None), (0, None)],
)
def test_a_loop_device_on_a_block_device(
    number: int, rows: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk, on partitions, of which one has lost its disk, and on a file system without."""
    k = FakeKernel("6.13")
    add_types(k.prog, _TYPES, "loop")
    loop, file, mapping, inode, block = (
        k.alloc(f"struct {name}")
        for name in ("loop_device", "file", "address_space", "inode", "super_block")
    )
    k.set(loop.lo_backing_file, file)
    k.set(file.f_mapping, mapping)
    k.set(mapping.host, inode)
    k.set(inode.i_sb, block)
    k.set(inode.i_rdev, number)
    blocks = SimpleNamespace(rows=lambda addresses: np.zeros(len(addresses), np.int64))
    monkeypatch.setattr(stacks, "super_blocks", lambda kernel: blocks)
    disk: Any = SimpleNamespace(private=int(loop.address_))
    numbers = np.array([7 << 20, _SDA, _SDA + 1, _SDA + 2, 0])
    parts = Partitions(
        np.arange(5).astype(np.uint64),
        np.array([0, 1, 1, -1, 2]),
        np.array([0, 0, 1, 2, 0]),
        numbers,
    )
    devices = BlockDevices((), parts)
    if rows is None:
        with pytest.raises(LookupError):
            stacks._loop(Kernel(k.prog), disk, devices, Faults())
    else:
        assert stacks._loop(Kernel(k.prog), disk, devices, Faults()) == rows
