# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes with the other end of a pipe that tasks wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.tasks.functions import WaitKind, common, plain
from kcensus.kernel.vfs.files import OpenFiles, open_files
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.graph import PROCESS, EdgeKind, Graph, NodeKind
from kcensus.results import Gap

_PIPE = "struct pipe_inode_info"
PIPE = NodeKind("pipe", (_PIPE,), is_any=True)
OTHER_END = EdgeKind("other end open in", "has open the other end of")
IDLE_END = EdgeKind("other end also open in", "also has open the other end of", is_idle=True)
"""An edge to a process that is busy with something else, and may just have inherited the end."""
_IDLE = frozenset(
    {"do_wait", "__do_wait", "do_poll", "do_sys_poll", "ep_poll", "do_epoll_wait", "do_select"}
    | {"core_sys_select", "poll_schedule_timeout", "do_sigtimedwait", "sigsuspend"}
    | {"do_nanosleep", "hrtimer_nanosleep", "sys_pause"}
)
"""Functions in which processes wait for an event of any kind, or for a child."""


class Pipes(Finder):
    """Finds the processes with the other ends of pipes."""

    about = "pipes"
    kinds = (PIPE,)
    sleeps = {
        WaitKind.PIPE: """
            pipe_read pipe_write pipe_wait anon_pipe_read anon_pipe_write fifo_open wait_for_partner
            """
    }
    # Since Linux kernel commit 0ddad21d3e99 ("pipe: use exclusive waits when reading or writing")
    # (in v5.6), readers and writers have a queue each.
    queues = {
        "pipe_read": (_PIPE, ("rd_wait", "wait")),
        "anon_pipe_read": (_PIPE, ("rd_wait", "wait")),
        "pipe_write": (_PIPE, ("wr_wait", "wait")),
        "anon_pipe_write": (_PIPE, ("wr_wait", "wait")),
        "pipe_wait": (_PIPE, ("wait",)),
    }

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.unseen: dict[int, int] = {}
        """Files of a pipe's other end that are in no descriptor table, by pipe."""

    def find(self) -> None:
        """Note the other ends of the pipes that tasks read or write.

        :raises LookupError: the debug info lacks a type
        """
        lanes = self._of_type(_PIPE)
        if not len(lanes):
            return
        files = open_files(self.kernel)
        self.faults += files.faults
        reads = np.array(["read" in self.waits.function[lane] for lane in lanes.tolist()])
        # Readers and writers call `pipe_wait`.
        for at, lane in enumerate(lanes.tolist()):
            if self.waits.function[lane] == "pipe_wait":
                reads[at] = "pipe_read" in map(plain, self.waits.stacks.functions(lane))
        for is_reader in (False, True):
            pipes = np.unique(self.object[lanes[reads == is_reader]])
            index, rows = files.of(pipes)
            ends = files.writes[rows] if is_reader else files.reads[rows]
            index, rows = index[ends], rows[ends]
            unseen = self._unseen(pipes, index, files.address[rows], is_reader=is_reader)
            waiters, all_wait = self._waiters(
                files, lanes[reads == is_reader], pipes[index], files.files[rows]
            )
            # If all threads of a process wait for the pipe, they wait for another process.
            index, rows, waiters = index[~all_wait], rows[~all_wait], waiters[~all_wait]
            is_idle = np.isin(files.files[rows], self._idle(files))
            # A thread that reads from others of its process waits for an event, not for all of
            # them. An idle process is only possibly awaited if a busy one has the end, too.
            is_likely = (unseen[index] > 0) | (waiters > 0)
            is_likely |= is_idle & np.isin(index, index[~is_idle])
            sure = np.where(is_likely, int(Strength.POSSIBLE), int(Strength.DERIVED))
            for kind, mask in ((OTHER_END, ~is_idle), (IDLE_END, is_idle)):
                some = rows[mask]
                self.build.edges(
                    kind,
                    (PIPE, pipes[index[mask]]),
                    (PROCESS, files.files[some]),
                    [f"file descriptor {files.descriptor[row]}" for row in some.tolist()],
                    strength=sure[mask],
                    mode="write" if is_reader else "read",
                    place=files.address[some],
                )
            self._add_threads(files.tables, files.files[rows])

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the open files of the other ends that are in no descriptor table."""
        pipes = [node for node, kind in enumerate(graph.kind) if kind is PIPE]
        yield Gap(
            "files of pipes",
            "open in no process that was read",
            sum(self.unseen.get(int(graph.address[pipe]), 0) for pipe in pipes),
            "processes with these files may still read or write",
        )

    def _idle(self, files: OpenFiles) -> Words:
        """Return the descriptor tables of processes with all threads asleep until an event.

        A shell or a service manager that waits for its children has ends of their pipes open
        without any use for them.
        """
        is_idle = np.zeros(len(self.known), np.bool_)
        idle = [common(plain(name)) in _IDLE for name in self.waits.function]
        is_idle[self.rows[np.array(idle, np.bool_)]] = True
        return np.setdiff1d(files.tables[is_idle], files.tables[~is_idle])

    def _waiters(
        self, files: OpenFiles, lanes: Numbers, pipes: Words, processes: Words
    ) -> tuple[Numbers, Mask]:
        """Return the threads per process that wait for a pipe, and whether these are all."""
        tables = files.tables[self.rows[lanes]].tolist()
        waiting = Counter(zip(self.object[lanes].tolist(), tables, strict=True))
        threads = Counter(files.tables.tolist())
        ends = list(zip(pipes.tolist(), processes.tolist(), strict=True))
        count = np.array([waiting[end] for end in ends], np.int64)
        return count, count == [threads[process] for _, process in ends]

    def _unseen(self, pipes: Words, pipe: Numbers, files: Words, *, is_reader: bool) -> Numbers:
        """Return the number of missing files of each pipe's other end, by the pipe's own count.

        :param pipe: row of the pipe of each of ``files``
        """
        name = "writers" if is_reader else "readers"
        count = self._member(_PIPE, name, pipes).astype(np.int64)
        # A process and its children share files.
        seen = {*zip(pipe.tolist(), files.tolist(), strict=True)}
        np.subtract.at(count, np.array([row for row, _ in seen], np.int64), 1)
        unseen = np.maximum(count, 0)
        for address, missing in zip(pipes.tolist(), unseen.tolist(), strict=True):
            self.unseen[address] = self.unseen.get(address, 0) + missing
        return unseen


FINDER = Pipes
