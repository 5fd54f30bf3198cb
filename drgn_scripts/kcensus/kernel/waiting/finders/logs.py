# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who keeps logs of file systems from going on: the transactions of ext4's jbd2 and of XFS.

A journal is committed when all handles of its transaction are closed. The log of XFS has space for
a transaction when others end, or when ``xfsaild`` has written back what its tail is about.
"""

from __future__ import annotations

from collections.abc import Iterator

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import decode_array
from kcensus.kernel.tasks.queued import stack_words
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.kernel.waiting.finders.finder import Finder, Numbers
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind
from kcensus.kernel.workqueues import workqueues
from kcensus.kernel.xfs.mounts import Mounts, log_waiters, mounts

_UPDATES = frozenset(
    {
        "jbd2_journal_wait_updates",
        "jbd2_journal_commit_transaction",
        "jbd2_journal_lock_updates",
    }
)
"""Functions that wait for the handles of a transaction to be closed."""
_BARRIER = frozenset({"start_this_handle"})
"""Functions that wait for the one that keeps new handles out."""
_SHADOW = frozenset({"do_get_write_access"})
"""Functions that wait for a buffer that is being written to the journal."""
_JOURNAL, _TRANSACTION = "struct journal_s", "struct transaction_s"
_HEADS = ("xlog.l_reserve_head", "xlog.l_write_head")
"""Queues for space in a log."""
_CIL = "struct xfs_cil"
_LOGS = frozenset(
    {"struct xlog", "struct xlog_ticket", "struct xlog_in_core", "struct xfs_ail", _CIL}
)


class Logs(Finder):
    """Finds who keeps the logs that tasks wait for."""

    # jbd2

    def journals(self) -> None:
        """Note transactions whose handles are waited for, and the tasks that have these handles.

        :raises LookupError: the debug info lacks a type
        """
        queues = ("struct wait_queue_head", "struct __wait_queue_head")
        updates, barrier = (
            np.concatenate([self._lanes(functions, type_) for type_ in queues])
            for functions in (_UPDATES, _BARRIER)
        )
        shadow = self._lanes(_SHADOW, "unsigned long")
        if len(updates):
            self._updates(updates)
        if len(barrier):
            self._barrier(barrier)
        if len(shadow):
            self._shadow(shadow)
        waited = [self.object[lane] for lane, type_ in enumerate(self.type) if type_ == _JOURNAL]
        if waited:
            self._name(NodeKind.LOG, *(2 * (np.unique(np.array(waited, np.uint64)),)))

    def _name(self, kind: NodeKind, nodes: Words, journals: Words) -> None:
        """Name nodes by the devices of their journals."""
        members = layout(self.kernel.prog, _JOURNAL, {"name": "j_devname"})
        read = gather(self.kernel.memory, journals, members, Faults())
        for node, name in zip(nodes.tolist(), read["name"].tolist(), strict=True):
            if text := decode_array(name):
                self.names[kind, node] = f"of {text}"

    def _of_queue(self, lanes: Numbers, queue: str) -> tuple[Numbers, Words]:
        """Return the tasks that wait on a queue of a journal, and that journal.

        It names the thread that commits it, which must be a task.
        """
        prog = self.kernel.prog
        inside = np.uint64(drgn.offsetof(prog.type(_JOURNAL), queue))
        journal = self.object[lanes] - inside
        members = layout(prog, _JOURNAL, {"task": "j_task"})
        read = gather(self.kernel.memory, journal, members, Faults())
        sound = read.readable & (self.known.rows(read["task"]) >= 0)
        return lanes[sound], journal[sound]

    def _updates(self, lanes: Numbers) -> None:
        prog, memory = self.kernel.prog, self.kernel.memory
        lanes, journal = self._of_queue(lanes, "j_wait_updates")
        running = layout(prog, _JOURNAL, {"transaction": "j_running_transaction"})
        transaction = gather(memory, journal, running, self.faults)["transaction"]
        paths: dict[str, Path] = {"journal": "t_journal", "updates": ("t_updates.counter",)}
        members = layout(prog, _TRANSACTION, paths)
        read = gather(memory, transaction, members, Faults())
        sound = read.readable & (read["journal"] == journal)
        self.torn += int(np.count_nonzero(~sound))
        lanes, journal, transaction = lanes[sound], journal[sound], transaction[sound]
        updates = dict(zip(transaction.tolist(), read["updates"][sound].tolist(), strict=True))
        for lane, each in zip(lanes.tolist(), transaction.tolist(), strict=True):
            self._note(lane, each, _TRANSACTION, "journal_s.j_wait_updates")
        wanted = np.unique(transaction)
        if not len(wanted):
            return
        self._name(NodeKind.TRANSACTION, transaction, journal)
        own = layout(prog, "struct task_struct", {"handle": "journal_info"})
        handle = gather(memory, self.known.address, own, self.faults)["handle"]
        rows = np.flatnonzero(handle)
        # Other file systems keep something else there, which names no transaction of a journal.
        of_handle = layout(prog, "struct jbd2_journal_handle", {"transaction": "h_transaction"})
        read = gather(memory, handle[rows], of_handle, Faults())
        rows = rows[read.readable & np.isin(read["transaction"], wanted)]
        found = gather(memory, handle[rows], of_handle, Faults())["transaction"]
        # It counts its handles.
        known, count = np.unique(found, return_counts=True)
        for each, handles in zip(known.tolist(), count.tolist(), strict=True):
            updates[each] -= handles
        self.torn += sum(max(int(left), 0) for left in updates.values())
        self.build.edges(
            EdgeKind.HELD,
            (NodeKind.TRANSACTION, found),
            (NodeKind.TASK, self.known.address[rows]),
            strength=Strength.PROVEN,
            evidence="task.journal_info",
            place=self.known.address[rows] + np.uint64(own.fields["handle"].offset),
        )

    def _barrier(self, lanes: Numbers) -> None:
        """Note the mutex of the one that keeps new handles out, until it lets go of it."""
        prog = self.kernel.prog
        lanes, journal = self._of_queue(lanes, "j_wait_transaction_locked")
        members = layout(prog, _JOURNAL, {"count": "j_barrier_count"})
        read = gather(self.kernel.memory, journal, members, self.faults)
        inside = drgn.offsetof(prog.type(_JOURNAL), "j_barrier")
        for row in np.flatnonzero(read["count"]).tolist():
            mutex = int(journal[row]) + inside
            self._note(int(lanes[row]), mutex, "struct mutex", "journal_s.j_barrier_count")

    def _shadow(self, lanes: Numbers) -> None:
        """Add the journal that a buffer is being written to."""
        prog, memory = self.kernel.prog, self.kernel.memory
        buffer = self.object[lanes] - np.uint64(
            drgn.offsetof(prog.type("struct buffer_head"), "b_state")
        )
        own = layout(prog, "struct buffer_head", {"head": "b_private"})
        head = gather(memory, buffer, own, self.faults)["head"]
        paths: dict[str, Path] = {"buffer": "b_bh", "transaction": "b_transaction"}
        read = gather(memory, head, layout(prog, "struct journal_head", paths), Faults())
        sound = np.flatnonzero(read.readable & (read["buffer"] == buffer))
        of = layout(prog, _TRANSACTION, {"journal": "t_journal"})
        journal = gather(memory, read["transaction"][sound], of, Faults())["journal"]
        members = layout(prog, _JOURNAL, {"task": "j_task"})
        task = gather(memory, journal, members, Faults())["task"]
        known = self.known.rows(task) >= 0
        sound, journal, task = sound[known], journal[known], task[known]
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.BIT, self.object[lanes[sound]]),
            (NodeKind.LOG, journal),
            strength=Strength.DERIVED,
            evidence="journal_head.b_transaction",
            place=head[sound],
        )
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.LOG, journal),
            (NodeKind.TASK, task),
            strength=Strength.PROVEN,
            evidence="journal_s.j_task",
            place=journal + np.uint64(members.fields["task"].offset),
        )
        self._name(NodeKind.LOG, journal, journal)
        for each in journal.tolist():
            self.types[NodeKind.LOG, each] = _JOURNAL

    # XFS

    def logs(self) -> None:
        """Note the logs whose space is waited for, and who takes it or may free it.

        :raises LookupError: the debug info lacks a type
        """
        if any(type_ in _LOGS for type_ in self.type):
            self._space(mounts(self.kernel))
            self._pushed()

    def _space(self, known: Mounts) -> None:
        prog, memory = self.kernel.prog, self.kernel.memory
        waiting = log_waiters(self.kernel)
        is_space = np.array([member in _HEADS for member in waiting.member], np.bool_)
        rows = np.flatnonzero(is_space)
        mount_of = dict(
            zip(waiting.object[rows].tolist(), waiting.mount[rows].tolist(), strict=True)
        )
        names, used = self._mount_points(), set[int]()
        for row, member in enumerate(waiting.member):
            if member not in _HEADS and (name := names.get(int(known.address[waiting.mount[row]]))):
                self.names[NodeKind.LOG, int(waiting.object[row])] = f"of {name} ({member})"
        for lane in np.flatnonzero(self.object != 0).tolist():
            mount = mount_of.get(int(self.object[lane]))
            if mount is None or self.evidence[lane] not in _HEADS:
                continue
            self._note(lane, int(known.log[mount]), "struct xlog", self.evidence[lane])
            used.add(mount)
        if not used:
            return
        mount = np.array(sorted(used), np.int64)
        for row in mount.tolist():
            if name := names.get(int(known.address[row])):
                self.names[NodeKind.LOG_SPACE, int(known.log[row])] = f"on {name}"
        # Since Linux kernel commit 57e809561118 ("xfs: Rename xa_ elements to ail_") (in v4.17).
        members = layout(prog, "struct xfs_ail", {"task": ("ail_task", "xa_task")})
        task = gather(memory, known.ail[mount], members, self.faults)["task"]
        has = np.flatnonzero(self.known.rows(task) >= 0)
        self.torn += len(task) - len(has)
        self.build.edges(
            EdgeKind.SERVED,
            (NodeKind.LOG_SPACE, known.log[mount[has]]),
            (NodeKind.TASK, task[has]),
            strength=Strength.PROVEN,
            evidence="xfs_ail.ail_task",
            place=known.ail[mount[has]] + np.uint64(members.fields["task"].offset),
        )
        self._transactions(known, mount, waiting.task[rows])

    def _transactions(self, known: Mounts, mount: Numbers, waiters: Words) -> None:
        """Add the tasks that have reserved space: those in a transaction that do not wait for it.

        Their transaction is ``task.journal_info`` since v5.11, and on their stack only since v6.9
        (commits not verified). It names the mount, and a ticket that names the task; other file
        systems keep something else there.
        """
        prog, memory = self.kernel.prog, self.kernel.memory
        own = layout(prog, "struct task_struct", {"transaction": "journal_info"})
        noted = gather(memory, self.known.address, own, self.faults)["transaction"]
        owners, transactions = [self.known.address], [noted]
        places = [self.known.address + np.uint64(own.fields["transaction"].offset)]
        for lanes, start, words in self._stacks_in_xfs():
            lane, column = np.nonzero(words >= np.uint64(1 << 63))
            owners.append(self.waits.task[lanes[lane]])
            transactions.append(words[lane, column])
            places.append(start[lane] + np.uint64(8) * column.astype(np.uint64))
        owner, place = np.concatenate(owners), np.concatenate(places)
        transaction = np.concatenate(transactions)
        paths: dict[str, Path] = {"mount": "t_mountp", "ticket": "t_ticket"}
        read = gather(memory, transaction, layout(prog, "struct xfs_trans", paths), Faults())
        sound = np.flatnonzero(read.readable & np.isin(read["mount"], known.address[mount]))
        task = layout(prog, "struct xlog_ticket", {"task": "t_task"})
        named = gather(memory, read["ticket"][sound], task, Faults())["task"]
        sound = sound[(named == owner[sound]) & ~np.isin(owner[sound], waiters)]
        log = dict(zip(known.address[mount].tolist(), known.log[mount].tolist(), strict=True))
        logs = np.array([log[each] for each in read["mount"][sound].tolist()], np.uint64)
        self.build.edges(
            EdgeKind.HELD,
            (NodeKind.LOG_SPACE, logs),
            (NodeKind.TASK, owner[sound]),
            strength=Strength.DERIVED,
            evidence="xlog_ticket.t_task",
            place=place[sound],
        )

    def _stacks_in_xfs(self) -> Iterator[tuple[Numbers, Words, Words]]:
        """Yield the stacks of tasks that sleep in XFS, as :func:`stack_words` does, by lane."""
        stacks = self.waits.stacks
        places = [pc for pc, name in stacks.names.items() if name.startswith("xfs_")]
        lanes = np.unique(stacks.lane[np.isin(stacks.pc, np.array(places, np.uint64))])
        memory, rows = self.kernel.memory, self.rows[lanes]
        for some, start, words in stack_words(memory, self.known, rows, stacks.size, self.faults):
            yield lanes[some], start, words

    def _mount_points(self) -> dict[int, str]:
        """Return where each XFS is mounted, by its ``struct xfs_mount``; not safe to print."""
        blocks = super_blocks(self.kernel)
        info = layout(self.kernel.prog, "struct super_block", ["s_fs_info"])
        read = gather(self.kernel.memory, blocks.address, info, Faults())
        return dict(zip(read["s_fs_info"].tolist(), blocks.mount, strict=True))

    def _pushed(self) -> None:
        """Add the workers that write the lists of changes that tasks wait for to the log."""
        lanes = np.array([row for row, type_ in enumerate(self.type) if type_ == _CIL], np.int64)
        if not len(lanes):
            return
        prog, memory = self.kernel.prog, self.kernel.memory
        items = workqueues(self.kernel).items
        running = items[items["state"] == "in-flight"]
        work = np.array(running["work"].tolist(), np.uint64)
        # Since v5.14 (commit not verified), each checkpoint has a work item of its own.
        if prog.type(_CIL).has_member("xc_push_work"):
            cil = work - np.uint64(drgn.offsetof(prog.type(_CIL), "xc_push_work"))
        else:
            type_ = prog.type("struct xfs_cil_ctx")
            context = work - np.uint64(drgn.offsetof(type_, "push_work"))
            cil = gather(memory, context, layout(prog, type_, ["cil"]), Faults())["cil"]
        rows = {int(pid): row for row, pid in enumerate(self.known.pid.tolist())}
        wanted = self.object[lanes].tolist()
        waiting = set(zip(wanted, self.waits.task[lanes].tolist(), strict=True))
        pushing: dict[int, list[int]] = {each: [] for each in wanted}
        for each, pid in zip(cil.tolist(), running["pid"].tolist(), strict=True):
            if each in pushing and int(pid) in rows:
                task = int(self.known.address[rows[int(pid)]])
                # One that waits for its turn is not who the others, or it itself, wait for.
                if (each, task) not in waiting:
                    pushing[each].append(task)
        for each, workers in pushing.items():
            self.build.edges(
                EdgeKind.RUN_BY,
                (NodeKind.LOG, np.full(len(workers), each, np.uint64)),
                (NodeKind.TASK, np.array(workers, np.uint64)),
                # Of several, each writes a list of its own.
                strength=Strength.PROVEN if len(workers) == 1 else Strength.POSSIBLE,
                evidence="worker.current_work",
            )
