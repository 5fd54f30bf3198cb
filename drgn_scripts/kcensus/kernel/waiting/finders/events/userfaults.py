# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that serve the page faults of others, with userfaultfd."""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Guess, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.vfs.files import open_files
from kcensus.kernel.waiting.finder import Finder
from kcensus.kernel.waiting.graph import PROCESS, SERVED, NodeKind
from kcensus.kernel.waiting.objects.queued import own_mentions
from kcensus.text import task_name

_CONTEXT, _WAITER = "struct userfaultfd_ctx", "struct userfaultfd_wait_queue"
USERFAULTS = NodeKind(
    "userfaultfd",
    (_CONTEXT,),
    is_any=True,
    shows_stopped=True,
    advice="Find the process that serves the page faults (QEMU during a postcopy migration, CRIU): "
    "the faults wait until it copies the pages, or until its userfaultfd is closed",
)
_WAITS = frozenset({"handle_userfault"})


class UserFaults(Finder):
    """Finds the processes that must serve page faults."""

    about = "userfaultfd"
    kinds = (USERFAULTS,)

    def note(self) -> None:
        """Note the contexts of page faults, which waiters name on their stack.

        :raises LookupError: the debug info lacks a type
        """
        lanes = self._having(_WAITS)
        if not len(lanes):
            return
        memory, rows, size = self.kernel.memory, self.rows[lanes], self.waits.stacks.size
        index, mention = own_mentions(memory, self.known, rows, size, self.faults)
        # Since Linux kernel commit 2055da97389a ("sched/wait: Disambiguate wq_entry->task_list and
        # wq_head->task_list naming") (in v4.13), the link is called `entry`.
        fields = layout(
            self.kernel.prog,
            _WAITER,
            {"context": "ctx", "next": ("wq.entry.next", "wq.task_list.next")},
        )
        waiter = mention - self._offset(_WAITER, "wq.private")
        read = gather(memory, waiter, fields, Guess())
        link = waiter + np.uint64(fields.fields["next"].offset)
        before = self._member("struct list_head", "prev", read["next"], is_guess=True)
        owner = self._member(_CONTEXT, "mm", read["context"], is_guess=True)
        # Another process may access the memory, too.
        spaces = self._member("struct task_struct", "mm", self.known.address)
        sound = read.readable & (before == link) & np.isin(owner, spaces[spaces != 0])
        for row in np.flatnonzero(sound).tolist():
            lane, proof = int(lanes[index[row]]), "userfaultfd_wait_queue.ctx"
            self._note(lane, int(read["context"][row]), _CONTEXT, proof)

    def find(self) -> None:
        """Add edges to the processes that have the file descriptor of a context."""
        lanes = self._of_type(_CONTEXT)
        if not len(lanes):
            return
        contexts = np.unique(self.object[lanes])
        files = open_files(self.kernel)
        operations = int(self.kernel.prog["userfaultfd_fops"].address_of_())
        index, rows = files.of(contexts)
        is_own = self._member("struct file", "f_op", files.address[rows]) == operations
        index, rows = index[is_own], rows[is_own]
        self.build.edges(
            SERVED,
            (USERFAULTS, contexts[index]),
            (PROCESS, files.files[rows]),
            [f"file descriptor {files.descriptor[row]}" for row in rows.tolist()],
            strength=Strength.DERIVED,
            place=files.address[rows],
        )
        self._name(contexts)
        self._add_threads(files.tables, files.files[rows])

    def _name(self, contexts: Words) -> None:
        """Name contexts by the process with the memory whose faults are served."""
        spaces = self._member("struct task_struct", "mm", self.known.address)
        owners = self._member(_CONTEXT, "mm", contexts)
        for context, owner in zip(contexts.tolist(), owners.tolist(), strict=True):
            rows = np.flatnonzero(spaces == np.uint64(owner))
            if owner and len(rows):
                row = rows[np.argmin(self.known.pid[rows])]
                name = task_name(self.known.comm[row], int(self.known.pid[row]))
                self.names[USERFAULTS, context] = f"of {name}"


FINDER = UserFaults
