# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes of a worker that hold a dump open, and do shares of its tasks.

drgn does not run in the worker itself: a damaged dump can end the process that reads it, and the
worker's threads must not be forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from kcensus.fleets.split import Opened, Order, Outcome, identity, versions
from kcensus.limits.children import KEEP_MEMORY, connected

if TYPE_CHECKING:
    from kcensus.fleets.split import travel
    from kcensus.sources import Target

_START = 120.0
"""Seconds to open a target."""
_IDLE = 60.0
"""Seconds without a share after which a process ends; the leader may have been killed."""
_LOOK = 1.0
"""Seconds between two looks at whether the worker has ended."""
_END = 5.0
"""Seconds for a killed process to end."""


class Follower:
    """A process that opens a target; one thread at a time uses it."""

    def __init__(self, order: Order) -> None:
        self._process, self._connection = connected(
            "from kcensus.fleets.split.follower import main; main()",
            KCENSUS_SYMBOLS=order.places,
            **KEEP_MEMORY,  # of an answer: 3.5 s of system time for 55 million dentries, not 11
        )  # fmt: skip
        self._connection.send(order)
        self._work = ""

    def opened(self) -> Opened:
        """Wait until the target is open."""
        try:
            if not self._connection.poll(_START):
                return Opened(f"the target was not open after {_START:.0f} seconds")
            opened: Opened = self._connection.recv()
        except (EOFError, OSError):
            return Opened("its process was killed while it opened the target")
        return opened

    def do(self, work: str, content: bytes, tasks: range) -> Outcome:
        """Do tasks of a packed function, which ``work`` identifies.

        :raises EOFError, OSError: the process has ended
        """
        self._connection.send((work, None if work == self._work else content, tasks))
        self._work = work
        outcome: Outcome = self._connection.recv()
        return outcome

    def signal(self) -> int:
        """Return the signal that killed the process, or 0; call it when the connection is lost."""
        try:
            return max(-self._process.wait(_END), 0)
        except subprocess.TimeoutExpired:
            return 0

    def is_alive(self) -> bool:
        """Return whether the process runs: it ends by itself when it has nothing to do."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process; the thread that waits for its answer closes it."""
        self._process.kill()

    def close(self) -> None:
        """End the process, which no thread uses."""
        self._connection.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END)


class _Group:
    """The processes of one command on this worker."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.idle: list[Follower] = []
        self.all: list[Follower] = []
        self.is_closed = False

    def keep(self, *followers: Follower) -> None:
        """Keep processes for further shares, unless the command has ended meanwhile."""
        with _lock:
            if not self.is_closed:
                self.idle += followers
                return
        for each in followers:
            each.close()


_groups: dict[str, _Group] = {}
_lock = threading.Lock()


def prepare(order: Order, processes: int) -> Opened:
    """Open the target of a command in some processes of this worker."""
    with _lock:
        group = _groups.setdefault(order.id, _Group(order))
        if group.is_closed:
            return Opened("the command has ended")
        started = [Follower(order) for _ in range(processes)]
        group.all += started
    opened = [each.opened() for each in started]
    failed = next((each for each in opened if each.error), None)
    if failed is not None:
        close(order.id)
    group.keep(*started)
    return failed or opened[0]


def share(order: Order, work: str, content: bytes, first: int, end: int) -> Outcome:
    """Do the tasks from ``first`` to before ``end``; a process that was killed is replaced once."""
    outcome = Outcome(error="the command has ended")
    for _ in range(2):
        with _lock:
            group = _groups.setdefault(order.id, _Group(order))
            if group.is_closed:
                return outcome
            follower = next((each for each in group.idle if each.is_alive()), None)
            if follower is not None:
                group.idle.remove(follower)
            is_new = follower is None
            if follower is None:
                follower = Follower(order)
                group.all.append(follower)
        if is_new and (error := follower.opened().error):
            outcome = Outcome(error=error)
        else:
            try:
                outcome = follower.do(work, content, range(first, end))
            except (EOFError, OSError):
                outcome = Outcome(error="its process ended", signal=follower.signal())
            else:
                group.keep(follower)
                return outcome
        with _lock:
            if follower in group.all:
                group.all.remove(follower)
        follower.close()
    return outcome


def close(id_: str) -> None:
    """End the processes of a command; a share in them fails."""
    with _lock:
        group = _groups.setdefault(id_, _Group(Order(id_, "")))
        group.is_closed = True
        followers, idle, group.all, group.idle = group.all, group.idle, [], []
    for follower in followers:
        follower.kill()
    for follower in idle:
        follower.close()


def main() -> None:
    """Run a follower, until its worker ends, or needs it no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the leader ends it
    from kcensus.limits import memory, own_process

    own_process()
    memory.prepare()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):
        order: Order = connection.recv()
        with memory.limited(_share_of_memory()):
            try:
                target = _open(order)
                files = identity((order.path, *map(os.path.abspath, target.paths)))
                connection.send(Opened("", versions(), files))
            except Exception as error:  # of a damaged dump, too; the leader leaves the worker out
                connection.send(Opened(str(error) or type(error).__name__, versions()))
                return
            _serve(connection, target)


def _share_of_memory() -> int | None:
    """Return the bytes that each of as many processes as CPUs can have; None if unknown."""
    from kcensus.limits.memory import MIN_BYTES, available_bytes

    available = available_bytes()
    if available is None:
        return None
    return max(available // (len(os.sched_getaffinity(0)) + 1), MIN_BYTES)


def _end_with_parent(parent: int) -> None:
    """End this process when the worker has ended, also within a share.

    The signal of prctl(2) would come when the thread that started it ends, and threads of a Dask
    worker come and go.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


def _open(order: Order) -> Target:
    from kcensus.progress import SilentProgress
    from kcensus.sources import open_target
    from kcensus.sources.debuginfo import debuginfod

    with debuginfod.allowed(SilentProgress()) if order.debuginfod else nullcontext():
        return open_target(
            order.path,
            order.symbols,
            allow_truncated=order.allow_truncated,
            vmcoreinfo=order.vmcoreinfo,
        )


def _serve(connection: Connection[Any, Any], target: Target) -> None:
    from kcensus.fleets.split import travel

    work: travel.Work | None = None
    columns: list[Any] = []
    while connection.poll(_IDLE):
        _, content, tasks = connection.recv()
        try:
            if content is not None:
                work, columns = None, []  # frees memory
                work, columns = _unpacked(content, target)
            assert work is not None
            outcome = Outcome(travel.answer(work, columns, tasks))
        except Exception as error:  # the leader does the tasks, and meets the same error
            outcome = Outcome(error=f"{type(error).__name__}: {error}")
        connection.send(outcome)


def _unpacked(content: bytes, target: Target) -> tuple[travel.Work, list[Any]]:
    from kcensus.fleets.split import travel

    try:
        return travel.unpacked(content, target.prog)
    except LookupError:  # the leader has loaded the debug info of modules, which takes a second
        from kcensus.analyses import analyses

        known = analyses().values()
        target.need_modules(*sorted({name for each in known for name in each.needed_modules}))
        return travel.unpacked(content, target.prog)
