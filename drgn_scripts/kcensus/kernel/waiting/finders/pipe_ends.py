# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which processes have the other end of a pipe that tasks wait for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.vfs.pipes import OpenFiles, open_files
from kcensus.kernel.waiting.finders.finder import Finder, Numbers
from kcensus.kernel.waiting.graph import EdgeKind, NodeKind

_IDLE = frozenset(
    [
        "do_wait",
        "__do_wait",
        "do_poll",
        "do_sys_poll",
        "ep_poll",
        "do_epoll_wait",
        "do_select",
        "core_sys_select",
        "poll_schedule_timeout",
        "do_sigtimedwait",
        "sigsuspend",
        "do_nanosleep",
        "hrtimer_nanosleep",
        "sys_pause",
    ]
)
"""Functions in which processes wait for an event of any kind, or for a child."""


class PipeEnds(Finder):
    """Finds the processes that have the other ends of pipes open."""

    def __init__(self, *of_finder: Any) -> None:
        super().__init__(*of_finder)
        self.unseen: dict[int, int] = {}
        """By pipe: how many files of the other end are in no descriptor table."""

    def find(self) -> None:
        """Note the other ends of the pipes that tasks read or write.

        :raises LookupError: the debug info lacks a type
        """
        lanes = self._of_type("struct pipe_inode_info")
        if not len(lanes):
            return
        files = open_files(self.kernel)
        self.faults += files.faults
        reads = np.array(["read" in self.waits.function[lane] for lane in lanes.tolist()])
        # `pipe_wait` is called by both.
        for at, lane in enumerate(lanes.tolist()):
            if self.waits.function[lane] == "pipe_wait":
                reads[at] = "pipe_read" in map(plain, self.waits.stacks.functions(lane))
        for is_reader in (False, True):
            pipes = np.unique(self.object[lanes[reads == is_reader]])
            index, rows = files.of(pipes)
            ends = files.writes[rows] if is_reader else files.reads[rows]
            index, rows = index[ends], rows[ends]
            unseen = self._unseen(pipes, index, files.address[rows], is_reader=is_reader)
            waiters = lanes[reads == is_reader]
            # Where all threads of a process wait for the pipe, none of them is who they wait for.
            others = ~self._all_wait(files, waiters, pipes[index], files.files[rows])
            index, rows = index[others], rows[others]
            own = self._own(files, waiters, pipes[index], files.files[rows])
            is_idle = np.isin(files.files[rows], self._idle(files))
            # Alone, an idle one is who they wait for.
            is_likely = (unseen[index] > 0) | own | (is_idle & np.isin(index, index[~is_idle]))
            sure = np.where(is_likely, int(Strength.POSSIBLE), int(Strength.DERIVED))
            for kind, mask in ((EdgeKind.OTHER_END, ~is_idle), (EdgeKind.IDLE_END, is_idle)):
                some = rows[mask]
                self.build.edges(
                    kind,
                    (NodeKind.PIPE, pipes[index[mask]]),
                    (NodeKind.PROCESS, files.files[some]),
                    strength=sure[mask],
                    evidence=[f"file descriptor {files.descriptor[row]}" for row in some.tolist()],
                    mode="write" if is_reader else "read",
                    place=files.address[some],
                )
            processes = np.unique(files.files[rows])
            members = np.flatnonzero(np.isin(files.tables, processes))
            self.build.edges(
                EdgeKind.THREAD,
                (NodeKind.PROCESS, files.tables[members]),
                (NodeKind.TASK, self.known.address[members]),
                strength=Strength.PROVEN,
                evidence="task.files",
            )

    def _all_wait(self, files: OpenFiles, lanes: Numbers, pipes: Words, processes: Words) -> Mask:
        """Return which ends of pipes are in processes all threads of which wait for that pipe."""
        tables = files.tables[self.rows[lanes]].tolist()
        waiting = Counter(zip(self.object[lanes].tolist(), tables, strict=True))
        threads = Counter(files.tables.tolist())
        ends = zip(pipes.tolist(), processes.tolist(), strict=True)
        return np.array([waiting[end] == threads[end[1]] for end in ends], np.bool_)

    def _idle(self, files: OpenFiles) -> Words:
        """Return the descriptor tables of processes that sleep until an event, in all threads.

        A shell or a service manager that waits for its children has ends of their pipes open
        without any use for them.
        """
        is_idle = np.zeros(len(self.known), np.bool_)
        names = map(plain, self.waits.function)
        idle = [name.removeprefix("__x64_") in _IDLE for name in names]
        is_idle[self.rows[np.array(idle, np.bool_)]] = True
        idle_tables: Words = np.setdiff1d(files.tables[is_idle], files.tables[~is_idle])
        return idle_tables

    def _own(self, files: OpenFiles, lanes: Numbers, pipes: Words, processes: Words) -> Mask:
        """Return which ends of pipes are in the process of a thread that waits for that pipe.

        A thread that reads what others of its process write, waits for an event, and not for all
        of these.
        """
        tables = files.tables[self.rows[lanes]].tolist()
        waiting = {*zip(self.object[lanes].tolist(), tables, strict=True)}
        ends = zip(pipes.tolist(), processes.tolist(), strict=True)
        return np.array([end in waiting for end in ends], np.bool_)

    def _unseen(self, pipes: Words, pipe: Numbers, files: Words, *, is_reader: bool) -> Numbers:
        """Return how many files of each pipe's other end are missing, by the pipe's own count.

        :param pipe: row of the pipe that each of ``files`` is for
        :param is_reader: whether writers are what to count
        """
        name = "writers" if is_reader else "readers"
        members = layout(self.kernel.prog, "struct pipe_inode_info", {"count": name})
        count = gather(self.kernel.memory, pipes, members, self.faults)["count"].astype(np.int64)
        # A process and its children share files.
        seen = {*zip(pipe.tolist(), files.tolist(), strict=True)}
        np.subtract.at(count, np.array([row for row, _ in seen], np.int64), 1)
        unseen = np.maximum(count, 0)
        for address, missing in zip(pipes.tolist(), unseen.tolist(), strict=True):
            self.unseen[address] = self.unseen.get(address, 0) + missing
        return unseen
