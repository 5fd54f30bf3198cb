# SPDX-License-Identifier: LGPL-2.1-or-later
"""Oldest items of XFS's logs in *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.requests import State, requests
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.io.requests import REQUEST
from kcensus.kernel.waiting.finders.io.xfs_ail import ITEM, XfsAil
from kcensus.kernel.waiting.finders.io.xfs_buffers import BUFFER_IO
from kcensus.kernel.waiting.graph import SERVED
from kcensus.kernel.xfs.mounts import mounts
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct xfs_buftarg 16
struct xfs_ail 64 : 0 struct task_struct * ail_task; 16 struct list_head ail_head
struct xfs_buf 64 : 0 struct xfs_buftarg * b_target; 8 unsigned int b_flags
struct xfs_log_item 64
    0 struct list_head li_ail; 16 struct xfs_ail * li_ailp; 24 unsigned int li_type
    32 struct xfs_buf * li_buf
struct xfs_buf_log_item 96 : 0 struct xfs_log_item bli_item; 64 struct xfs_buf * bli_buf
"""
_REQUEST, _VDA = 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000
_INODE, _BUF = 0x123B, 0x123C


class Pushing(Sleepers):
    """A file system whose oldest item has a buffer with these flags."""

    def __init__(self, type_: int, flags: int) -> None:
        super().__init__(_TYPES, "xfsaild")
        self.target = int(self.k.alloc("struct xfs_buftarg").address_)
        buffer = self.k.alloc("struct xfs_buf", b_target=self.target, b_flags=flags)
        self.buffer = int(buffer.address_)
        ail = self.k.alloc("struct xfs_ail", ail_task=self.task[0])
        self.ail = int(ail.address_)
        item = self.k.alloc("struct xfs_buf_log_item")
        self.item = int(item.address_)
        self.k.set(item.bli_item.li_type, type_)
        self.k.set(item.bli_item.li_ailp, self.ail)
        self.k.set(item.bli_buf if type_ == _BUF else item.bli_item.li_buf, self.buffer)
        self.ring(int(ail.ail_head.address_), self.item)
        none = words(0)
        target = {"data": words(self.target), "log": words(self.target), "realtime": none}
        self.remember(mounts, SimpleNamespace(ail=words(self.ail), target=target))
        joined = SimpleNamespace(
            origin_private=words(1, self.buffer), request=np.zeros(2, np.int64)
        )
        self.remember(bios, joined)
        known = SimpleNamespace(
            address=words(_REQUEST),
            disk=np.array([0]),
            sector=np.array([8]),
            state=[State.INSERTED],
        )
        self.remember(requests, known)
        disk = SimpleNamespace(address=_VDA, name="vda", private=0, queue=0)
        self.remember(block_devices, SimpleNamespace(disks=[disk]))
        self.remember(stacks, Stacks(()))


@pytest.mark.parametrize("type_", [_INODE, _BUF])
def test_xfsaild_waits_for_the_oldest_item(type_: int) -> None:
    scene = Pushing(type_, 0x32)
    graph, _ = scene.run(XfsAil)
    proven = int(Strength.PROVEN)
    assert links(graph) == {
        (ITEM, scene.item, SERVED, scene.buffer, proven),
        (BUFFER_IO, scene.buffer, SERVED, _REQUEST, proven),
        (REQUEST, _REQUEST, SERVED, _VDA, proven),
    }
    assert int(scene.waits.object[0]) == scene.item
    assert DISK in graph.kind


@pytest.mark.parametrize("damage", ["flags", "list", "target", "empty"])
def test_an_item_that_is_not_written(damage: str) -> None:
    scene = Pushing(_INODE, 0x20 if damage == "flags" else 0x32)
    if damage == "list":
        scene.k.write_words(scene.item + 16, scene.ail + 64)
    elif damage == "target":
        scene.k.write_words(scene.buffer, scene.target + 8)
    elif damage == "empty":
        scene.ring(scene.ail + 16)
    graph, _ = scene.run(XfsAil)
    assert links(graph) == set()
    assert int(scene.waits.object[0]) == 0
