# SPDX-License-Identifier: LGPL-2.1-or-later
"""Flushers and limits of dirty pages of *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from kcensus.kernel.block.bios import Bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.throttles import Throttles, throttles
from kcensus.kernel.block.limits.writeback import Flushers, flushers
from kcensus.kernel.block.stacks import Stacks, stacks
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finders.io.devices import DISK
from kcensus.kernel.waiting.finders.writeback import flushers as module
from kcensus.kernel.waiting.finders.writeback.flushers import (
    DIRTY,
    FLUSHED,
    FLUSHER,
    WRITEBACK,
    WRITTEN,
    Writeback,
)
from kcensus.kernel.waiting.graph import HELD, SERVED
from kcensus.kernel.workqueues import workqueues
from tests.unit.kernel.waiting.making import Sleepers, links, words

_TYPES = """
struct task_struct 64
struct request_queue 64
struct wait_queue_head 16
struct address_space 8 : 0 struct inode * host
struct inode 64
    0 struct super_block * i_sb; 8 struct address_space i_data; 16 unsigned int i_state
struct super_block 64 : 0 struct backing_dev_info * s_bdi
struct fprop_local_percpu 16
struct bdi_writeback 128 : 0 struct backing_dev_info * bdi; 64 struct fprop_local_percpu completions
struct backing_dev_info 256 : 0 struct bdi_writeback wb; 128 struct wait_queue_head wb_waitq
struct wb_domain 64 : 0 unsigned long dirty_limit
struct dirty_throttle_control 64
    8 struct bdi_writeback * wb; 16 struct fprop_local_percpu * wb_completions
"""
_CONTROL = """8 struct bdi_writeback * wb; 16 struct fprop_local_percpu * wb_completions
"""
_OF_BOTH = """0 struct wb_domain * dom; 8 struct dirty_throttle_control * gdtc
    16 struct bdi_writeback * wb; 24 struct fprop_local_percpu * wb_completions
    32 unsigned long dirty; 40 unsigned long thresh; 48 unsigned long bg_thresh
    56 unsigned long pos_ratio
"""
_OF_MEMCG = """completions
    80 struct fprop_local_percpu memcg_completions
struct mem_cgroup 128 : 64 struct wb_domain cgwb_domain
struct back"""
_CGROUPS = """
struct throtl_data 64
struct cgroup_subsys_state 16
struct blkcg 32 : 0 struct cgroup_subsys_state css
struct blkcg_gq 64 : 0 struct blkcg * blkcg
"""
_QUEUE, _VDA, _VDB = "struct wait_queue_head", 0xFFFF_8881_0000_0000, 0xFFFF_8881_0000_1000
_DERIVED, _PROVEN = int(Strength.DERIVED), int(Strength.PROVEN)
_SYNC, _WRITE = "wb_wait_for_completion", "balance_dirty_pages"
_OLD_SYNC = "sync_inodes_sb"


class Written(Sleepers):
    """Flushers of vda and vdb, of which the first has most dirty pages.

    :param states: of the work item of each: ``in-flight`` by the last task, ``pending`` or none
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *functions: str,
        states: tuple[str, str] = ("", ""),
        types: str = _TYPES,
    ) -> None:
        super().__init__(types, *functions)
        bdis = [self.k.alloc("struct backing_dev_info") for _ in states]
        self.bdi = [int(bdi.address_) for bdi in bdis]
        if bdis[0].type_.has_member("wb_waitq"):
            self.queue = [int(bdi.wb_waitq.address_) for bdi in bdis]
        self.wb = [int(bdi.wb.address_) for bdi in bdis]
        self.share = [int(bdi.wb.completions.address_) for bdi in bdis]
        self.domain = self.k.variable("global_wb_domain", "struct wb_domain")
        self.k.set(self.domain.dirty_limit, 100)
        known = Flushers(
            words(*self.wb), words(*self.bdi), ["254:0", "254:16"], np.arange(2), words(1, 2)
        )
        self.remember(flushers, known)
        rows = [
            {"work": at, "state": state, "pid": 99 + len(functions)}
            for at, state in enumerate(states, 1)
            if state
        ]
        items = pd.DataFrame(rows, columns=["work", "state", "pid"])
        self.remember(workqueues, SimpleNamespace(items=items))
        disks = [
            SimpleNamespace(address=address, name=name, private=0, queue=0)
            for address, name in ((_VDA, "vda"), (_VDB, "vdb"))
        ]
        self.remember(block_devices, SimpleNamespace(disks=disks))
        self.remember(stacks, Stacks(()))
        block = self.k.alloc("struct super_block", s_bdi=self.bdi[0])
        self.block = int(block.address_)
        mounted = SimpleNamespace(
            address=words(self.block),
            type=["xfs"],
            mount=["/srv"],
            rows=lambda wanted: np.where(wanted == self.block, 0, -1),
        )
        self.remember(super_blocks, mounted)
        self.dirty = 200
        monkeypatch.setattr(module, "node_page_state", lambda *_: self.dirty // 2)
        pages = {self.wb[0]: 90, self.wb[1]: 5}
        monkeypatch.setattr(
            module,
            "dirty_pages",
            lambda _, flushers, __: (
                np.array([pages[each] for each in flushers.tolist()]),
                np.zeros(len(flushers), np.int64),
            ),
        )
        monkeypatch.setattr(
            module, "file_paths", lambda _, inodes, __: dict.fromkeys(inodes.tolist(), "/srv/file")
        )

    def write_inode(self, lane: int, state: int) -> None:
        inode = self.k.alloc("struct inode", i_sb=self.block, i_state=state)
        self.k.set(inode.i_data.host, int(inode.address_))
        self.put(lane, int(inode.address_), place=1024 + 64 * bool(state))


@pytest.mark.parametrize(("state", "bit"), [("unsigned int", 1), ("unsigned long", 7)])
def test_a_task_that_syncs_waits_for_the_worker(
    monkeypatch: pytest.MonkeyPatch, state: str, bit: int
) -> None:
    types = _TYPES.replace("unsigned int i_state", f"{state} i_state")
    functions = _SYNC, _SYNC, "rq_qos_wait"
    scene = Written(monkeypatch, *functions, states=("in-flight", ""), types=types)
    scene.wait(0, scene.queue[0], _QUEUE)
    scene.wait(1, scene.queue[0] + 16, _QUEUE)  # of something else
    scene.write_inode(2, 1 << bit)
    scene.write_inode(2, 0)  # that it has written before
    graph, finder = scene.run(Writeback)
    assert links(graph) == {
        (WRITEBACK, scene.bdi[0], SERVED, scene.wb[0], _DERIVED),
        (FLUSHER, scene.wb[0], FLUSHED, scene.task[2], _PROVEN),
    }
    name = "of vda (xfs on /srv)"
    assert finder.names[WRITEBACK, scene.bdi[0]] == name
    amount = "360.0 KiB dirty or in writeback"
    assert finder.names[FLUSHER, scene.wb[0]] == f"{name}: {amount}, now /srv/file"
    assert finder.hint(FLUSHER, scene.wb[0]) == f"flusher {name}: {amount}, now /srv/file"
    assert scene.waits.type[1] == _QUEUE


def test_a_task_that_waits_for_its_own_work_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until v4.1, each sync has a work item and a completion on its stack."""
    types = _TYPES.replace("; 128 struct wait_queue_head wb_waitq", "")
    types += """
struct completion 32
struct wb_writeback_work 80
    8 struct super_block * sb; 48 struct list_head list; 64 struct completion * done
"""
    scene = Written(monkeypatch, _OLD_SYNC, "rq_qos_wait", states=("in-flight", ""), types=types)
    completion = scene.stack[0] + 3000
    scene.wait(0, completion, "struct completion")
    scene.put(0, completion, place=512)  # a pointer to it that is no part of the structure
    scene.put(0, scene.block, *[0] * 6, completion)
    graph, _ = scene.run(Writeback)
    assert links(graph) == {
        (WRITEBACK, scene.bdi[0], SERVED, scene.wb[0], _DERIVED),
        (FLUSHER, scene.wb[0], FLUSHED, scene.task[1], _PROVEN),
    }


@pytest.mark.parametrize("state", ["", "pending"])
def test_a_flusher_without_a_worker(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """What it wrote is on its way to the disk, or it waits for a worker."""
    scene = Written(monkeypatch, _SYNC, states=("", state))
    scene.wait(0, scene.queue[1], _QUEUE)
    graph, finder = scene.run(Writeback)
    assert links(graph) == {
        (WRITEBACK, scene.bdi[1], SERVED, scene.wb[1], _DERIVED)
        if state
        else (WRITEBACK, scene.bdi[1], SERVED, _VDB, _DERIVED)
    }
    assert ((DISK, _VDB) in finder.names) != bool(state)


@pytest.mark.parametrize("dirty", [200, 40])
def test_a_writer_at_the_limit(monkeypatch: pytest.MonkeyPatch, dirty: int) -> None:
    """Below the limit, only the device of the writer can be at a limit of its own."""
    scene = Written(monkeypatch, _WRITE, "rq_qos_wait", states=("in-flight", ""))
    scene.dirty = dirty
    scene.put(0, scene.wb[1], place=512)  # a word that is no part of the structure
    scene.put(0, 0, scene.wb[1], scene.share[1])
    graph, finder = scene.run(Writeback)
    domain = int(scene.domain.address_)
    if dirty == 40:
        assert links(graph) == {(FLUSHER, scene.wb[1], SERVED, _VDB, _DERIVED)}
        assert scene.waits.type[0] == "struct bdi_writeback"
        return
    assert links(graph) == {
        (DIRTY, domain, WRITTEN, scene.wb[0], _DERIVED),
        (FLUSHER, scene.wb[0], FLUSHED, scene.task[1], _PROVEN),
    }
    assert int(scene.waits.object[0]) == domain
    name = "(400.0 KiB dirty, 400.0 KiB in writeback, limit 400.0 KiB)"
    assert finder.names[DIRTY, domain] == name
    assert name in finder.hint(DIRTY, domain)


@pytest.mark.parametrize("why", ["own", "below", "ratio", "equal", "domain", "flusher"])
def test_a_writer_at_the_limit_of_its_memory_cgroup(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its domain, flusher and figures must agree, and its ratio be the smaller one."""
    types = _TYPES.replace("completions\nstruct back", _OF_MEMCG).replace(_CONTROL, _OF_BOTH)
    scene = Written(monkeypatch, _WRITE, "rq_qos_wait", states=("in-flight", ""), types=types)
    scene.dirty = 40
    scene.k.variable("memory_cgrp_subsys", "struct bdi_writeback")
    memcg = scene.k.alloc("struct mem_cgroup")
    address, domain = int(memcg.address_), int(memcg.cgwb_domain.address_)
    scene.remember(
        memcgs, SimpleNamespace(rows=lambda at: np.where(at == address, 0, -1), path=["/small"])
    )
    of_all = scene.k.alloc("struct dirty_throttle_control", wb=scene.wb[why != "flusher"])
    scene.k.set(of_all.pos_ratio, 500)
    scene.put(0, 0, 0, scene.wb[1], scene.share[1], place=512)
    scene.put(
        0,
        domain + 64 * (why == "domain"),
        int(of_all.address_),
        scene.wb[1],
        scene.share[1] + 16,
        300 if why != "below" else 100,  # dirty
        200,
        100,
        {"ratio": 600, "equal": 500}.get(why, 400),
    )
    graph, finder = scene.run(Writeback)
    if why == "own":
        assert links(graph) == {
            (DIRTY, domain, WRITTEN, scene.wb[1], _DERIVED),
            (FLUSHER, scene.wb[1], SERVED, _VDB, _DERIVED),
        }
        assert "/small (1.2 MiB dirty or in writeback, limit 800.0 KiB" in finder.hint(
            DIRTY, domain
        )
    else:
        assert links(graph) == {(FLUSHER, scene.wb[1], SERVED, _VDB, _DERIVED)}


@pytest.mark.parametrize("disk", [0, 1])
def test_a_limit_holds_the_pages_of_a_flusher(monkeypatch: pytest.MonkeyPatch, disk: int) -> None:
    types = _TYPES.replace(
        "struct request_queue 64", "struct request_queue 64 : 0 struct throtl_data * td"
    ).replace(
        "0 struct backing_dev_info * bdi;", "0 struct backing_dev_info * bdi; 8 void * blkcg_css;"
    )
    scene = Written(monkeypatch, _SYNC, types=types + _CGROUPS)
    scene.wait(0, scene.queue[0], _QUEUE)
    cgroups = [scene.k.alloc("struct blkcg") for _ in range(2)]
    blocks = [int(scene.k.alloc("struct blkcg_gq", blkcg=each).address_) for each in cgroups]
    none, chain = words(), np.arange(2)
    bios = Bios(words(1, 2), chain, words(*blocks), none, none, none, none, chain, none, none)
    groups = words(0x1000, 0x2000) + np.uint64(0xFFFF_8881_0000_0000)
    rates = np.zeros((2, 2), np.uint64)
    held = Throttles(
        groups, np.array([disk, disk]), words(*blocks), rates, rates, chain, bios, chain
    )
    scene.remember(throttles, held)
    scene.k.write_words(scene.wb[0] + 8, int(cgroups[1].css.address_))
    graph, _ = scene.run(Writeback)
    assert links(graph) == {(WRITEBACK, scene.bdi[0], SERVED, _VDA, _DERIVED)}
    # A writer waits for the flusher itself.
    scene.wait(0, scene.wb[0], "struct bdi_writeback")
    graph, _ = scene.run(Writeback)
    assert links(graph) == {
        (FLUSHER, scene.wb[0], HELD, int(groups[1]), _DERIVED)
        if disk == 0
        else (FLUSHER, scene.wb[0], SERVED, _VDA, _DERIVED)
    }


def test_pointers_that_do_not_fit_are_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Written(monkeypatch, _WRITE)
    scene.put(0, 0, scene.wb[1], scene.share[0])
    graph, _ = scene.run(Writeback)
    assert len(graph) == 0
    assert scene.waits.type == [""]
