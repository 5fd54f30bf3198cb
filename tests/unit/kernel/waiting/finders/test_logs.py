# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who keeps journals and logs, in words of *synthetic* kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd

from kcensus.engine.memory import Faults
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finders.logs import Logs
from kcensus.kernel.waiting.graph import Builder, EdgeKind, Graph, NodeKind
from kcensus.kernel.workqueues import Workqueues, workqueues
from kcensus.kernel.xfs.mounts import LogWaiters, Mounts, log_waiters, mounts
from tests.unit.kernel.waiting.making import Sleepers, words

_TYPES = {
    "struct task_struct": (64, "16 struct list_head tasks\n32 void * journal_info"),
    "struct wait_queue_head": (24, ""),
    "struct mutex": (16, ""),
    "struct journal_s": (
        256,
        "0 struct task_struct * j_task\n8 struct transaction_s * j_running_transaction\n"
        "16 int j_barrier_count\n24 struct mutex j_barrier\n40 char [16] j_devname\n"
        "64 struct wait_queue_head j_wait_updates\n"
        "96 struct wait_queue_head j_wait_transaction_locked",
    ),
    "struct atomic_t": (4, "0 int counter"),
    "struct transaction_s": (64, "0 struct journal_s * t_journal\n8 struct atomic_t t_updates"),
    "struct jbd2_journal_handle": (64, "0 struct transaction_s * h_transaction"),
    "struct buffer_head": (64, "0 unsigned long b_state\n8 struct journal_head * b_private"),
    "struct journal_head": (
        64,
        "0 struct buffer_head * b_bh\n8 struct transaction_s * b_transaction",
    ),
    "struct super_block": (64, "0 void * s_fs_info"),
    "struct xfs_ail": (64, "0 struct task_struct * ail_task"),
    "struct xfs_trans": (64, "8 struct xlog_ticket * t_ticket\n16 void * t_mountp"),
    "struct xlog_ticket": (64, "16 struct task_struct * t_task"),
    "struct xfs_cil": (64, "8 struct xlog * xc_log"),
    "struct xfs_cil_ctx": (64, "0 struct xfs_cil * cil\n32 struct work_struct push_work"),
    "struct work_struct": (32, ""),
}
_QUEUE = "struct wait_queue_head"
_PROVEN, _DERIVED = int(Strength.PROVEN), int(Strength.DERIVED)


class Journals(Sleepers):
    """Tasks that wait for a journal, which the last task commits."""

    def __init__(self, *functions: str) -> None:
        super().__init__(_TYPES, *functions)
        self.journal = self.k.alloc("struct journal_s")
        self.transaction = self.k.alloc("struct transaction_s")
        self.k.set(self.journal.j_task, self.task[-1])
        self.k.set(self.journal.j_running_transaction, self.transaction)
        self.k.write(self.journal.address_ + 40, b"vda-8\0")
        self.k.set(self.transaction.t_journal, self.journal)

    def handle(self, lane: int, transaction: int) -> None:
        """Give a task a handle of a transaction."""
        handle = self.k.alloc("struct jbd2_journal_handle")
        self.k.write_words(handle.address_, transaction)
        self.k.write_words(self.task[lane] + 32, handle.address_)

    def run(self, work: Callable[[Logs], None]) -> tuple[Graph, Logs]:
        build, rows = Builder(), np.arange(len(self.task))
        found = Logs(self.kernel, self.known, self.waits, rows, build, self.faults)
        work(found)
        return build.graph(), found


def _edges(graph: Graph) -> set[tuple[NodeKind, int, EdgeKind, int, int]]:
    return {
        (graph.kind[source], int(graph.address[source]), edge, int(graph.address[target]), strength)
        for source, edge, target, strength in zip(
            graph.source.tolist(),
            graph.edge,
            graph.target.tolist(),
            graph.strength.tolist(),
            strict=True,
        )
    }


def test_handles_of_the_transaction_that_is_to_be_committed() -> None:
    scene = Journals("open", "open", "open", "jbd2_journal_commit_transaction")
    transaction = scene.transaction.address_
    scene.wait(3, scene.journal.address_ + 64, _QUEUE)
    scene.handle(0, transaction)
    scene.k.set(scene.transaction.t_updates.counter, 3)
    # That of another transaction, and what no journal keeps there.
    scene.handle(1, scene.k.alloc("struct transaction_s").address_)
    scene.k.write_words(scene.task[2] + 32, 0xFFFF_C900_0000_0000)
    graph, found = scene.run(Logs.journals)
    assert (int(scene.waits.object[3]), scene.waits.type[3]) == (
        transaction,
        "struct transaction_s",
    )
    held = NodeKind.TRANSACTION, transaction, EdgeKind.HELD, scene.task[0], _PROVEN
    assert _edges(graph) == {held}
    assert found.names == {(NodeKind.TRANSACTION, transaction): "of vda-8"}
    # Two more handles are open, of which no task says so.
    assert found.torn == 2
    assert not scene.faults


def test_another_queue_of_the_same_function_is_of_no_journal() -> None:
    scene = Journals("jbd2_journal_commit_transaction", "kjournald2")
    queue = scene.k.alloc("struct journal_s").address_ + 64
    scene.wait(0, queue, _QUEUE)
    graph, _ = scene.run(Logs.journals)
    assert (int(scene.waits.object[0]), len(graph.source)) == (queue, 0)


def test_a_barrier_is_the_mutex_of_who_made_it() -> None:
    scene = Journals("start_this_handle", "start_this_handle", "kjournald2")
    scene.wait(0, scene.journal.address_ + 96, _QUEUE)
    scene.run(Logs.journals)
    assert scene.waits.type[0] == _QUEUE  # there is none
    scene.k.set(scene.journal.j_barrier_count, 1)
    scene.run(Logs.journals)
    assert (int(scene.waits.object[0]), scene.waits.type[0]) == (
        scene.journal.address_ + 24,
        "struct mutex",
    )


def test_a_buffer_that_is_being_written_to_the_journal() -> None:
    scene = Journals("do_get_write_access", "do_get_write_access", "kjournald2")
    buffer, other = scene.k.alloc("struct buffer_head"), scene.k.alloc("struct buffer_head")
    head = scene.k.alloc("struct journal_head")
    for each in (buffer, other):
        scene.k.set(each.b_private, head)
    scene.k.set(head.b_bh, buffer)
    scene.k.set(head.b_transaction, scene.transaction)
    for lane, each in enumerate((buffer, other)):
        scene.wait(lane, each.address_, "unsigned long")
    graph, _ = scene.run(Logs.journals)
    journal = scene.journal.address_
    assert _edges(graph) == {
        (NodeKind.BIT, buffer.address_, EdgeKind.SERVED, journal, _DERIVED),
        (NodeKind.LOG, journal, EdgeKind.SERVED, scene.task[2], _PROVEN),
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
        block = self.k.alloc("struct super_block")
        self.k.write_words(block.address_, self.mount)
        blocks = SimpleNamespace(address=words(block.address_), mount=["/srv"])
        self.remember(super_blocks, blocks)

    def ticket(self, lane: int) -> int:
        """Give a task a ticket."""
        ticket = self.k.alloc("struct xlog_ticket")
        self.k.set(ticket.t_task, self.task[lane])
        return int(ticket.address_)

    def transaction_of(self, lane: int, mount: int) -> int:
        """Give a task a transaction with reserved space."""
        transaction = self.k.alloc("struct xfs_trans")
        self.k.write_words(transaction.address_ + 8, self.ticket(lane), mount)
        return int(transaction.address_)

    def line(self, *lanes: int) -> None:
        """Let tasks wait for space."""
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
    graph, found = scene.run(Logs.logs)
    log = scene.log
    assert int(scene.waits.object[0]) == log
    assert _edges(graph) == {
        (NodeKind.LOG_SPACE, log, EdgeKind.SERVED, scene.task[4], _PROVEN),
        (NodeKind.LOG_SPACE, log, EdgeKind.HELD, scene.task[1], _DERIVED),
        (NodeKind.LOG_SPACE, log, EdgeKind.HELD, scene.task[2], _DERIVED),
    }
    assert found.names[NodeKind.LOG_SPACE, log] == "on /srv"


def test_workers_that_write_changes_to_the_log() -> None:
    scene = Space("xlog_cil_force_seq", "xlog_cil_push_work", "other_work", "xfsaild")
    scene.line()
    cil, other = scene.k.alloc("struct xfs_cil").address_, scene.k.alloc("struct xfs_cil").address_
    scene.wait(0, cil, "struct xfs_cil")
    works = []
    for each in (cil, other):
        context = scene.k.alloc("struct xfs_cil_ctx")
        scene.k.write_words(context.address_, each)
        works.append(context.address_ + 32)
    items = pd.DataFrame(
        {"state": ["in-flight", "in-flight", "pending"], "pid": [101, 102, 0], "work": [*works, 1]}
    )
    known = Workqueues.__new__(Workqueues)
    object.__setattr__(known, "items", items)
    scene.remember(workqueues, known)
    graph, _ = scene.run(Logs.logs)
    run = NodeKind.LOG, cil, EdgeKind.RUN_BY, scene.task[1], _PROVEN
    assert _edges(graph) == {run}
