# SPDX-License-Identifier: LGPL-2.1-or-later
"""Worker processes for bulk reads, and columns that they fill together."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from kcensus.limits.children import end_with

T = TypeVar("T")
Each: TypeAlias = Callable[[Callable[[int], Any], int, int], Iterator[Any]]
"""Form of :func:`each`, which other machines can do, too."""

_work: Callable[[int], Any] | None = None

_CAUSES = {
    int(signal.SIGBUS): "the file is damaged, shrank while it was read, or its disk fails; "
    "copy it again",
    int(signal.SIGKILL): "probably for lack of memory; pass a smaller --jobs",
}


class WorkersKilled(RuntimeError):
    """A signal killed a worker process; the message names it and the next step."""


def each(work: Callable[[int], T], tasks: int, jobs: int) -> Iterator[T]:
    """Yield results of ``work(0)`` … ``work(tasks - 1)``, in order.

    With more than one job, forked processes share the program, whose memory must be readable from
    several at once. ``work`` may be a closure, its result must be picklable. Where there can be no
    processes, this one does all.

    :raises WorkersKilled: a signal killed a process, as SIGBUS if a mapped file shrank
    """
    jobs = min(jobs, tasks)
    if jobs <= 1:
        yield from map(work, range(tasks))
        return
    global _work
    workers: list[ForkProcess] = []
    try:
        pool = ProcessPoolExecutor(jobs, _forking(workers), _begin, (os.getpid(),))
    except OSError:  # no semaphores: sandboxes and chroots can lack /dev/shm, or the right to write
        yield from map(work, range(tasks))
        return
    _work = work
    try:
        with warnings.catch_warnings():
            # Python warns of the threads of drgn's debug information loader, which is idle by now,
            # and unused by workers.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            futures = deque(pool.submit(_call, task) for task in range(tasks))
        while futures:
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        pool.shutdown(wait=True)
        codes = {-code for worker in workers if (code := worker.exitcode or 0) < 0}
        # The pool terminates the other workers when one of them dies.
        raise killed(min(codes - {signal.SIGTERM}, default=int(signal.SIGTERM))) from error
    except BaseException:  # nobody waits for further results
        for worker in workers:
            worker.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _work = None


def _begin(parent: int) -> None:
    """Begin a worker; it leaves signals to the parent, which handles Ctrl-C, and reports deaths.

    A worker ends with its parent, whatever ends that.
    """
    # A full garbage collection would write to, and so copy, each page with objects of the parent.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGBUS, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    end_with(parent)


def _forking(started: list[ForkProcess]) -> ForkContext:
    """Return a context that lists its processes: the pool forgets early ends."""

    class Listed(ForkProcess):
        def start(self) -> None:
            super().start()
            started.append(self)

    class Context(ForkContext):
        Process = Listed

    return Context()


def killed(number: int) -> WorkersKilled:
    """Return the error of a worker that signal ``number`` killed."""
    names = {each.value: each.name for each in signal.Signals}
    return WorkersKilled(
        f"{names.get(number, f'signal {number}')} killed a worker process while it read the "
        f"target: {_CAUSES.get(number, 'pass --jobs 1 to read without workers')}"
    )


def _call(task: int) -> Any:
    assert _work is not None
    return _work(task)


class Columns:
    """Columns for a fixed number of rows, filled in pieces, if ``shared`` by several processes.

    A task assigns to its own rows of a column, or to a slice of the column, so that these can be
    sent from another machine. Rows that no task fills are 0, and take no memory.
    """

    def __init__(
        self, dtypes: Mapping[str, np.dtype[Any]], room: int, *, shared: bool = False
    ) -> None:
        def column(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
            if shared and room * dtype.itemsize:
                return np.frombuffer(mmap.mmap(-1, room * dtype.itemsize), dtype)
            return np.zeros(room, dtype)

        self._columns = {name: column(dtype) for name, dtype in dtypes.items()}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    def compact(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Close the gaps between pieces, given their first rows, ascending, and numbers of rows."""
        for name, column in self._columns.items():
            position = 0
            for start, count in pieces:
                if position != start:
                    # NumPy handles the overlap of the two.
                    column[position : position + count] = column[start : start + count]
                position += count
            self._columns[name] = column[:position]
