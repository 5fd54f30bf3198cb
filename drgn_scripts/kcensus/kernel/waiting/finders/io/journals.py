# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transactions and threads that hold up the journals of jbd2.

A journal is committed when all handles of its transaction are closed.
"""

from __future__ import annotations

import numpy as np

from kcensus.engine.memory import Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import decode_array
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import BIT, HELD, SERVED, TASK, NodeKind

LOG = NodeKind("log", ("struct journal_s",), (WaitKind.LOG,), is_io=True)
TRANSACTION = NodeKind("transaction", ("struct transaction_s",))
"""A transaction of a journal, held by its open handles."""
_UPDATES = frozenset(
    {"jbd2_journal_wait_updates", "jbd2_journal_commit_transaction", "jbd2_journal_lock_updates"}
)
"""Functions that wait for all handles of a transaction to be closed."""
_BARRIER = frozenset({"start_this_handle"})
"""Functions that wait for the task that locks out new handles."""
_SHADOW = frozenset({"do_get_write_access"})
"""Functions that wait for a buffer on its way to the journal."""
_JOURNAL, _TRANSACTION = "struct journal_s", "struct transaction_s"


class Journals(Finder):
    """Finds the tasks with open handles, and the threads that commit journals."""

    about = "journals"
    kinds = (LOG, TRANSACTION)
    modules = ("ext4", "jbd2")
    sleeps = {
        WaitKind.LOG: """
            jbd2_log_wait_commit wait_transaction_locked wait_transaction_switching
            jbd2_journal_commit_transaction jbd2_journal_wait_updates __jbd2_log_wait_for_space
            add_transaction_credits start_this_handle jbd2_journal_lock_updates
            """,
        WaitKind.BIT: "do_get_write_access",
    }
    queues = {
        "wait_transaction_locked": (_JOURNAL, ("j_wait_transaction_locked",)),
        "jbd2_log_wait_commit": (_JOURNAL, ("j_wait_done_commit",)),
        "add_transaction_credits": (_JOURNAL, ("j_wait_transaction_locked",)),
    }

    def note(self) -> None:
        """Note the awaited transactions, and the tasks with their open handles.

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
        waited = np.unique(self.object[self._of_type(_JOURNAL)])
        if len(waited):
            self._name(LOG, waited, waited)

    def _name(self, kind: NodeKind, nodes: Words, journals: Words) -> None:
        names = self._member(_JOURNAL, "j_devname", journals, is_guess=True)
        for node, name in zip(nodes.tolist(), names.tolist(), strict=True):
            if text := decode_array(name):
                self.names[kind, node] = f"of {text}"

    def _of_queue(self, lanes: Numbers, queue: str) -> tuple[Numbers, Words]:
        """Return the tasks that wait on a queue of a journal, and their journals.

        The journal names its commit thread, which must be a task.
        """
        journal = self.object[lanes] - self._offset(_JOURNAL, queue)
        read = self._read(_JOURNAL, journal, ["j_task"], is_guess=True)
        sound = read.readable & (self.known.rows(read["j_task"]) >= 0)
        return lanes[sound], journal[sound]

    def _updates(self, lanes: Numbers) -> None:
        lanes, journal = self._of_queue(lanes, "j_wait_updates")
        transaction = self._member(_JOURNAL, "j_running_transaction", journal)
        members = {"journal": "t_journal", "updates": "t_updates.counter"}
        read = self._read(_TRANSACTION, transaction, members, is_guess=True)
        sound = read.readable & (read["journal"] == journal)
        self.draft.torn += int(np.count_nonzero(~sound))
        lanes, journal, transaction = lanes[sound], journal[sound], transaction[sound]
        updates = dict(zip(transaction.tolist(), read["updates"][sound].tolist(), strict=True))
        for lane, each in zip(lanes.tolist(), transaction.tolist(), strict=True):
            self._note(lane, each, _TRANSACTION, "journal_s.j_wait_updates")
        wanted = np.unique(transaction)
        if not len(wanted):
            return
        self._name(TRANSACTION, transaction, journal)
        tasks = self.known.address
        handle = self._member("struct task_struct", "journal_info", tasks)
        rows = np.flatnonzero(handle)
        # journal_info of other file systems does not lead to a transaction of a journal.
        found = self._member(
            "struct jbd2_journal_handle", "h_transaction", handle[rows], is_guess=True
        )
        is_wanted = np.isin(found, wanted)
        rows, found = rows[is_wanted], found[is_wanted]
        # The transaction has a count of its handles.
        known, count = np.unique(found, return_counts=True)
        for each, handles in zip(known.tolist(), count.tolist(), strict=True):
            updates[each] -= handles
        self.draft.torn += sum(max(int(left), 0) for left in updates.values())
        place = tasks[rows] + self._offset("struct task_struct", "journal_info")
        source, target = (TRANSACTION, found), (TASK, tasks[rows])
        self.build.edges(HELD, source, target, "task.journal_info", place=place)

    def _barrier(self, lanes: Numbers) -> None:
        """Note the mutex j_barrier, whose holder locks out new handles, as the awaited object."""
        lanes, journal = self._of_queue(lanes, "j_wait_transaction_locked")
        mutex = journal + self._offset(_JOURNAL, "j_barrier")
        for row in np.flatnonzero(self._member(_JOURNAL, "j_barrier_count", journal)).tolist():
            lane, proof = int(lanes[row]), "journal_s.j_barrier_count"
            self._note(lane, int(mutex[row]), "struct mutex", proof)

    def _shadow(self, lanes: Numbers) -> None:
        """Add the journals to which buffers are being written."""
        buffer = self.object[lanes] - self._offset("struct buffer_head", "b_state")
        head = self._member("struct buffer_head", "b_private", buffer)
        read = self._read("struct journal_head", head, ["b_bh", "b_transaction"], is_guess=True)
        sound = np.flatnonzero(read.readable & (read["b_bh"] == buffer))
        transaction = read["b_transaction"][sound]
        journal = self._member(_TRANSACTION, "t_journal", transaction, is_guess=True)
        task = self._member(_JOURNAL, "j_task", journal, is_guess=True)
        known = self.known.rows(task) >= 0
        sound, journal, task = sound[known], journal[known], task[known]
        self.build.edges(
            SERVED,
            (BIT, self.object[lanes[sound]]),
            (LOG, journal),
            "journal_head.b_transaction",
            strength=Strength.DERIVED,
            place=head[sound],
        )
        self._served(journal, task)
        self._name(LOG, journal, journal)
        for each in journal.tolist():
            self.types[LOG, each] = _JOURNAL

    def find(self) -> None:
        """Find the commit threads of awaited journals."""
        journals = np.unique(self.object[self._of_type(_JOURNAL)])
        if len(journals):
            task = self._member(_JOURNAL, "j_task", journals)
            self._served(journals[task != 0], task[task != 0])

    def _served(self, journals: Words, threads: Words) -> None:
        place = journals + self._offset(_JOURNAL, "j_task")
        self.build.edges(SERVED, (LOG, journals), (TASK, threads), "journal_s.j_task", place=place)


FINDER = Journals
