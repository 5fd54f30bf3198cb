# SPDX-License-Identifier: LGPL-2.1-or-later
"""Direct I/O that holds the rwsem of its file for reading until it completes.

An rwsem counts its readers and names only the last one. XFS and ext4 keep the rwsem of the inode
while they call the common code for direct I/O that does not extend the file; the address of the
inode stays on the stack, since it is needed for the release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kcensus.engine.memory import Mask, Numbers, Words
from kcensus.kernel.locking.owners import Mode, Strength, holders
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.locks.locks import RWSEM
from kcensus.kernel.waiting.frames import runnable_stacks
from kcensus.kernel.waiting.graph import HELD, TASK, Graph
from kcensus.kernel.waiting.objects.queued import picked_words
from kcensus.results import Gap

_RWSEM = "struct rw_semaphore"
_DIRECT = frozenset({"iomap_dio_rw", "__iomap_dio_rw"})
_DIRECT |= {"__blockdev_direct_IO", "do_blockdev_direct_IO"}
_KEEPS = frozenset({"xfs_file_dio_read", "xfs_file_dio_aio_read", "xfs_file_read_iter"})
_KEEPS |= {"xfs_file_dio_write_aligned", "xfs_file_dio_write_unaligned", "xfs_file_dio_write"}
_KEEPS |= {"xfs_file_dio_aio_write", "xfs_file_write_iter"}
_KEEPS |= {"ext4_dio_read_iter", "ext4_dio_write_iter", "ext4_file_read_iter"}
_KEEPS |= {"ext4_file_write_iter"}
"""Functions that have the rwsem while they call one of :data:`_DIRECT`."""
_MAX_RUNNABLE = 1 << 10
"""Most runnable tasks to look at."""


class DirectReaders(Finder):
    """Finds the direct I/O that keeps writers from a file."""

    about = "direct I/O that holds rwsems"

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.left_out = 0
        """Runnable tasks beyond :data:`_MAX_RUNNABLE`."""
        self.stacks: dict[int, tuple[Stacks, int]] = {}
        """Stack of each task within direct I/O, by its row among all tasks."""

    def find(self) -> None:
        """Add edges from rwsems of inodes to tasks within direct I/O on these inodes.

        The tasks sleep, or wait for a CPU. They are derived if the rwsem counts just as many
        readers.
        """
        # Until Linux kernel commit 9902af79c01a ("parallel lookups: actual switch to rwsem") (in
        # v4.7), inodes have a mutex.
        if not self.kernel.prog.type("struct inode").has_member("i_rwsem"):
            return
        locks = np.unique(self.object[self._of_type(_RWSEM)])
        if not len(locks):
            return
        found = holders(self.kernel, _RWSEM, locks)
        self.faults += found.faults
        reads = ~found.is_write & (found.readers > 0)
        locks, readers = locks[reads], found.readers[reads]
        rows = self._rows() if len(locks) else np.empty(0, np.int64)
        if not len(rows):
            return
        inside = dict[int, set[int]]()
        waited = dict(zip(self.waits.task.tolist(), self.object.tolist(), strict=True))
        for row, lock in self._in_files(rows, locks):
            if waited.get(task := int(self.known.address[row])) != lock:
                inside.setdefault(lock, set()).add(task)
        for lock, count in zip(locks.tolist(), readers.tolist(), strict=True):
            tasks = np.array(sorted(inside.get(lock, ())), np.uint64)
            self.build.edges(
                HELD,
                (RWSEM, np.full(len(tasks), lock, np.uint64)),
                (TASK, tasks),
                f"{len(tasks):,} in direct I/O with the inode on the stack, of {count:,} readers",
                strength=Strength.DERIVED if len(tasks) == count else Strength.POSSIBLE,
                mode=Mode.READ.value,
            )

    def _rows(self) -> Numbers:
        """Return the tasks within direct I/O, as rows among all tasks."""
        known, waking = self.known, np.broadcast_to(self.known.is_waking, len(self.known))
        runnable = np.flatnonzero(
            ((known.state == 0) | waking) & ~known.is_on_cpu & ~known.has_exited
        )
        self.left_out = max(len(runnable) - _MAX_RUNNABLE, 0)
        runnable = runnable[:_MAX_RUNNABLE]
        found = [np.empty(0, np.int64)]
        for rows, stacks in (
            (runnable, runnable_stacks(self.kernel, known, runnable)),
            (self.rows, self.waits.stacks),
        ):
            lanes = _within(stacks)
            for row, lane in zip(rows[lanes].tolist(), lanes.tolist(), strict=True):
                self.stacks[row] = stacks, lane
            found.append(rows[lanes])
        return np.unique(np.concatenate(found))

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the number of runnable tasks whose stacks are not read."""
        if self.left_out:
            yield Gap(
                "runnable tasks",
                f"beyond the first {_MAX_RUNNABLE:,}",
                self.left_out,
                "their direct I/O may hold the rwsem of a file",
            )

    def _in_files(self, rows: Numbers, locks: Words) -> Iterable[tuple[int, int]]:
        """Yield the tasks with the inode of a lock in their frames of direct I/O, and the lock.

        Other frames may have it of an earlier call, for another file.
        """
        inode = locks - self._offset("struct inode", "i_rwsem")
        lock_of = dict(zip(inode.tolist(), locks.tolist(), strict=True))
        try:
            start = inode - self._offset("struct xfs_inode", "i_vnode")
        except LookupError:
            start = inode[:0]
        lock_of |= dict(zip(start.tolist(), locks.tolist(), strict=False))
        wanted = np.array(sorted(lock_of), np.uint64)

        def is_one(words: Words, _: Numbers) -> Mask:
            return np.isin(words, wanted)

        size = self.waits.stacks.size
        for index, words, places in picked_words(
            self.kernel.memory, self.known, rows, size, self.faults, is_one
        ):
            found = rows[index].tolist(), words.tolist(), places.tolist()
            for row, word, place in zip(*found, strict=True):
                stacks, lane = self.stacks[row]
                # Functions save registers of their caller.
                if plain(stacks.function_at(lane, place)) in _KEEPS | _DIRECT:
                    yield row, lock_of[word]


def _within(stacks: Stacks) -> Numbers:
    """Return the stacks with functions that keep an rwsem, and call direct I/O."""
    return np.intersect1d(stacks.having(_DIRECT), stacks.having(_KEEPS))


FINDER = DirectReaders
