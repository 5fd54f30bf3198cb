# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who keeps journals and logs, in words of *synthetic* kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd

from kcensus.engine.memory import Faults
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finders.io import journals as finders
from kcensus.kernel.waiting.finders.io.journals import LOG, TRANSACTION
from kcensus.kernel.waiting.finders.io.xfs_logs import LOG_SPACE, XfsLogs
from kcensus.kernel.waiting.graph import BIT, HELD, RUN_BY, SERVED
from kcensus.kernel.workqueues import Workqueues, workqueues
from kcensus.kernel.xfs.mounts import LogWaiters, Mounts, log_waiters, mounts
from tests.unit.kernel.waiting.making import Sleepers, edges, links, words

_TYPES = """
struct task_struct 64 : 16 struct list_head tasks; 32 void * journal_info
struct wait_queue_head 24
struct mutex 16
struct journal_s 256
    0 struct task_struct * j_task; 8 struct transaction_s * j_running_transaction
    16 int j_barrier_count; 24 struct mutex j_barrier; 40 char [16] j_devname
    64 struct wait_queue_head j_wait_updates; 96 struct wait_queue_head j_wait_transaction_locked
struct atomic_t 4 : 0 int counter
struct transaction_s 64 : 0 struct journal_s * t_journal; 8 struct atomic_t t_updates
struct jbd2_journal_handle 64 : 0 struct transaction_s * h_transaction
struct buffer_head 64 : 0 unsigned long b_state; 8 struct journal_head * b_private
struct journal_head 64 : 0 struct buffer_head * b_bh; 8 struct transaction_s * b_transaction
struct super_block 64 : 0 void * s_fs_info
struct xfs_ail 64 : 0 struct task_struct * ail_task
struct xfs_trans 64 : 8 struct xlog_ticket * t_ticket; 16 void * t_mountp
struct xlog_ticket 64 : 16 struct task_struct * t_task
struct xfs_cil 64 : 8 struct xlog * xc_log
struct xfs_cil_ctx 64 : 0 struct xfs_cil * cil; 32 struct work_struct push_work
struct work_struct 32
"""
_QUEUE = "struct wait_queue_head"
_PROVEN, _DERIVED = int(Strength.PROVEN), int(Strength.DERIVED)


class Journals(Sleepers):
    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        self.journal = self.k.alloc("struct journal_s", j_devname=b"vda-8")
        self.transaction = self.k.alloc("struct transaction_s", t_journal=self.journal)
        self.k.fill(self.journal, j_task=self.task[-1], j_running_transaction=self.transaction)

    def handle(self, lane: int, transaction: int) -> None:
        handle = self.k.alloc("struct jbd2_journal_handle", h_transaction=transaction)
        self.k.write_words(self.task[lane] + 32, handle.address_)


def test_handles_of_the_transaction_that_is_to_be_committed() -> None:
    scene = Journals("open", "open", "open", "jbd2_journal_commit_transaction")
    transaction = scene.transaction.address_
    scene.wait(3, scene.journal.address_ + 64, _QUEUE)
    scene.handle(0, transaction)
    scene.k.set(scene.transaction.t_updates.counter, 3)
    # That of another transaction, and what no journal keeps there.
    scene.handle(1, scene.k.alloc("struct transaction_s").address_)
    scene.k.write_words(scene.task[2] + 32, 0xFFFF_C900_0000_0000)
    graph, found = scene.run(finders.Journals)
    assert (scene.waits.object[3], scene.waits.type[3]) == (transaction, "struct transaction_s")
    assert links(graph) == {(TRANSACTION, transaction, HELD, scene.task[0], _PROVEN)}
    assert found.names == {(TRANSACTION, transaction): "of vda-8"}
    # Two more handles are open, of which no task says so.
    assert found.draft.torn == 2
    assert not scene.faults


def test_another_queue_of_the_same_function_is_of_no_journal() -> None:
    scene = Journals("jbd2_journal_commit_transaction", "kjournald2")
    queue = scene.k.alloc("struct journal_s").address_ + 64
    scene.wait(0, queue, _QUEUE)
    graph, _ = scene.run(finders.Journals)
    assert (int(scene.waits.object[0]), len(graph.source)) == (queue, 0)


def test_a_barrier_is_the_mutex_of_who_made_it() -> None:
    scene = Journals("start_this_handle", "start_this_handle", "kjournald2")
    scene.wait(0, scene.journal.address_ + 96, _QUEUE)
    scene.run(finders.Journals)
    assert scene.waits.type[0] == _QUEUE  # there is none
    scene.k.set(scene.journal.j_barrier_count, 1)
    scene.run(finders.Journals)
    mutex = scene.journal.address_ + 24
    assert (scene.waits.object[0], scene.waits.type[0]) == (mutex, "struct mutex")


def test_a_buffer_that_is_being_written_to_the_journal() -> None:
    scene = Journals("do_get_write_access", "do_get_write_access", "kjournald2")
    buffer, other = scene.k.alloc("struct buffer_head"), scene.k.alloc("struct buffer_head")
    head = scene.k.alloc("struct journal_head")
    for each in (buffer, other):
        scene.k.set(each.b_private, head)
    scene.k.fill(head, b_bh=buffer, b_transaction=scene.transaction)
    for lane, each in enumerate((buffer, other)):
        scene.wait(lane, each.address_, "unsigned long")
    graph, _ = scene.run(finders.Journals)
    journal = scene.journal.address_
    assert links(graph) == {
        (BIT, buffer.address_, SERVED, journal, _DERIVED),
        (LOG, journal, SERVED, scene.task[2], _PROVEN),
    }


class Space(Journals):
    """Tasks that wait for space in the log of an XFS on /srv."""

    def __init__(self, *functions: str) -> None:
        super().__init__(*functions)
        self.mount, self.log, self.ail = (
            self.k.alloc(name).address_ for name in ("char [64]", "char [64]", "struct xfs_ail")
        )
        self.k.write_words(self.ail, self.task[-1])
        none = np.full(1, -1)
        known = Mounts(
            words(self.mount), {}, words(self.log), none, words(0), words(self.ail), 0, Faults()
        )
        self.remember(mounts, known)
        block = self.k.alloc("struct super_block", s_fs_info=self.mount)
        blocks = SimpleNamespace(address=words(block.address_), mount=["/srv"])
        self.remember(super_blocks, blocks)

    def ticket(self, lane: int) -> int:
        return int(self.k.alloc("struct xlog_ticket", t_task=self.task[lane]).address_)

    def transaction_of(self, lane: int, mount: int) -> int:
        own = {"t_ticket": self.ticket(lane), "t_mountp": mount}
        return int(self.k.fill(self.k.alloc("struct xfs_trans"), **own).address_)

    def line(self, *lanes: int) -> None:
        tickets = [self.ticket(lane) for lane in lanes]
        tasks = words(*(self.task[lane] for lane in lanes))
        row = np.zeros(len(lanes), np.int64)
        members = ["xlog.l_reserve_head"] * len(lanes)
        self.remember(log_waiters, LogWaiters(tasks, row, words(*tickets), members))
        for lane, ticket in zip(lanes, tickets, strict=True):
            self.wait(lane, ticket, "struct xlog_ticket")
            self.waits.evidence[lane] = "xlog.l_reserve_head"


def test_who_has_reserved_the_space_of_a_log() -> None:
    scene = Space("xlog_grant_head_wait", "xfs_create", "xfs_create", "xfs_create", "xfsaild")
    scene.line(0)
    # In the task, on the stack, and of another mount.
    scene.k.write_words(scene.task[1] + 32, scene.transaction_of(1, scene.mount))
    scene.put(2, scene.transaction_of(2, scene.mount))
    scene.put(3, scene.transaction_of(3, scene.log))
    # The address of another task's transaction proves nothing.
    scene.put(3, scene.transaction_of(1, scene.mount), place=2048)
    # Who waits has a transaction, too.
    scene.k.write_words(scene.task[0] + 32, scene.transaction_of(0, scene.mount))
    graph, found = scene.run(XfsLogs)
    log = scene.log
    assert int(scene.waits.object[0]) == log
    assert links(graph) == {
        (LOG_SPACE, log, SERVED, scene.task[4], _PROVEN),
        (LOG_SPACE, log, HELD, scene.task[1], _DERIVED),
        (LOG_SPACE, log, HELD, scene.task[2], _DERIVED),
    }
    assert found.names[LOG_SPACE, log] == "on /srv"


def test_workers_that_write_changes_to_the_log() -> None:
    scene = Space("xlog_cil_force_seq", "xlog_cil_push_work", "other_work", "xfsaild")
    scene.line()
    cil, other = scene.k.alloc("struct xfs_cil").address_, scene.k.alloc("struct xfs_cil").address_
    scene.wait(0, cil, "struct xfs_cil")
    works = [scene.k.alloc("struct xfs_cil_ctx", cil=each).address_ + 32 for each in (cil, other)]
    items = pd.DataFrame(
        {"state": ["in-flight", "in-flight", "pending"], "pid": [101, 102, 0], "work": [*works, 1]}
    )
    known = Workqueues.__new__(Workqueues)
    object.__setattr__(known, "items", items)
    scene.remember(workqueues, known)
    graph, _ = scene.run(XfsLogs)
    assert links(graph) == {(LOG, cil, RUN_BY, scene.task[1], _PROVEN)}


def test_threads_that_commit_journals() -> None:
    scene = Sleepers(_TYPES, *["jbd2_log_wait_commit"] * 4)
    journals = [scene.k.alloc("struct journal_s", alone=True) for _ in range(3)]
    scene.k.set(journals[0].j_task, scene.task[3])
    scene.k.drop(journals[2].address_)
    for lane, journal in enumerate(journals):
        scene.wait(lane, journal.address_, "struct journal_s")
    graph, _ = scene.run(finders.Journals)
    # The second one is being unmounted.
    assert edges(graph) == [(journals[0].address_, SERVED, scene.task[3])]
    assert scene.faults.total() == 1
