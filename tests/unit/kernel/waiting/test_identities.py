# SPDX-License-Identifier: LGPL-2.1-or-later
"""What locks and pages belong to, in *synthetic* memory; the layouts are invented."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drgn import Object

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.kernel.waiting.identities import lock_names, page_names
from tests.unit.fakekernel import FakeKernel

TYPES = """
struct rw_semaphore 40 : 0 long count
struct mm_struct 256 : 120 struct rw_semaphore mmap_lock
struct task_struct 64 : 8 struct mm_struct * mm
struct super_block 256 : 96 struct rw_semaphore s_umount
struct address_space 64 : 8 struct inode * host; 16 struct rw_semaphore invalidate_lock
struct inode 256
    16 struct super_block * i_sb; 40 struct rw_semaphore i_rwsem; 96 struct address_space i_data
struct page 64 : 24 void * mapping
struct anon_vma 64 : 0 struct anon_vma * root
"""


@pytest.fixture
def k() -> FakeKernel:
    return FakeKernel("6.10", TYPES)


@pytest.fixture
def block(k: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> Object:
    block = k.alloc("struct super_block")
    address = np.array([block.address_], np.uint64)
    blocks = SimpleNamespace(
        address=address,
        type=["xfs"],
        mount=["/srv"],
        id=["vda"],
        rows=lambda wanted: np.where(wanted == address[0], 0, -1),
    )
    room = "kcensus.kernel.waiting.identities"
    monkeypatch.setattr(f"{room}.super_blocks", lambda _: blocks)
    monkeypatch.setattr(
        f"{room}._files", lambda _, inodes: dict.fromkeys(inodes.tolist(), "/srv/spool")
    )
    return block


def _tasks(*addresses: int) -> Any:
    return SimpleNamespace(
        address=np.array(addresses, np.uint64),
        pid=np.arange(len(addresses), 0, -1),
        comm=[f"thread-{number}" for number in range(len(addresses))],
        owned={name: np.zeros(len(addresses), np.uint64) for name in ("mm", "signal")},
    )


def _inode(k: FakeKernel, block: Any) -> Object:
    inode = k.alloc("struct inode", i_sb=block)
    k.set(inode.i_data.host, inode)
    return inode


def test_locks_of_processes_and_super_blocks(k: FakeKernel, block: Object) -> None:
    mm = k.alloc("struct mm_struct")
    threads = [k.alloc("struct task_struct", mm=mm) for _ in range(2)]
    known: Tasks = _tasks(*(int(thread.address_) for thread in threads))
    known.owned["mm"][:] = int(mm.address_)
    wanted = {
        int(mm.mmap_lock.address_): "mmap_lock of thread-1 (PID 1)",
        int(block.s_umount.address_): "s_umount of xfs on /srv",
    }
    # An address within the same object that is no lock of it has no name.
    others = [int(mm.address_), int(block.address_) + 8]
    assert lock_names(Kernel(k.prog), known, [*wanted, *others]) == wanted


def test_a_lock_of_an_inode_needs_proof(k: FakeKernel, block: Object) -> None:
    inode, foreign, torn = _inode(k, block), _inode(k, 0x1000), _inode(k, block)
    k.set(torn.i_data.host, inode)
    wanted = [int(each.i_rwsem.address_) for each in (inode, foreign, torn)]
    pages = int(inode.i_data.invalidate_lock.address_)
    assert lock_names(Kernel(k.prog), _tasks(), [*wanted, pages]) == {
        wanted[0]: "i_rwsem of /srv/spool",
        pages: "invalidate_lock of /srv/spool",
    }


def test_pages(k: FakeKernel, block: Object) -> None:
    inode = _inode(k, block)
    root, nowhere = k.alloc("struct anon_vma"), k.alloc("struct anon_vma")
    k.set(root.root, root)
    area = k.alloc("struct anon_vma", root=root)
    file = k.alloc("struct page", mapping=inode.i_data)
    anonymous = k.alloc("struct page", mapping=int(area.address_) + 1)
    slab = k.alloc("struct page", mapping=root)
    damaged = k.alloc("struct page", mapping=int(nowhere.address_) + 1)
    pages = [int(page.address_) for page in (file, anonymous, slab, damaged)]
    assert page_names(Kernel(k.prog), pages) == {
        pages[0]: "of /srv/spool",
        pages[1]: f"0x{pages[1]:x} (anonymous)",
    }
