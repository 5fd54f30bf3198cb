# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process for each target, forked from one that has imported everything.

A hostile dump can take all memory, hang, or end its process; the worker of the cluster stays. The
nurse, a child of the worker, imports once, forks a child for each job, and kills the child after
its time. Workers of Dask have threads, which must not be forked, and are daemons of
:mod:`multiprocessing`, which must not have children of that module.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from kcensus.limits.children import KEEP_MEMORY, connected, end_with

_GRACE = 5.0
"""Seconds for a killed child to end; one that waits for a dead server never does."""
_START = 120.0
"""Seconds for the nurse to import everything."""
_MAX_ANSWER = 16 << 20
"""Bytes; a report with all analyses takes 75 KB."""
_MAX_ERROR = 4096
"""Bytes of the text of an error."""
_FAILED = 3
_ENDS = {0: "", _FAILED: "failed"}
"""What the status of a child stands for; any other one is not ours."""
_PROGRAM = """
from kcensus.fleets import apart
apart.begin()
from kcensus.fleets import look
look.import_all()
apart.serve(look.WORK)
"""
"""Program of a nurse; :func:`begin` sets what libraries read while they are imported."""


class Job(msgspec.Struct, frozen=True):
    """Work on one target."""

    path: str
    work: str
    """``content`` or ``report``."""
    attempt: str
    """Identifies the job in the store."""
    seconds: float
    memory: int
    """Bytes of private memory."""
    symbols: tuple[str, ...] = ()
    analyses: tuple[str, ...] = ()
    """All if empty."""
    debuginfod: bool = False
    version: str = ""
    """That of kcensus at the client; workers with another one refuse the job."""
    known: tuple[int, int, str, str] = (0, 0, "", "")
    """Size, time of the last change (ns), sha256 and kind of digest of the file in the store."""


class Answer(msgspec.Struct):
    """What became of a job."""

    ended: str = ""
    """``time``, ``killed`` by a signal or a library, ``large`` answer, or ``failed``;
    empty if it did the job."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """Most resident memory of the child."""
    content: bytes = b""
    """What the child returned; the error of one that failed."""


class Nurse:
    """The process that forks a child for each job; its owner runs one job at a time."""

    def __init__(self) -> None:
        self._process, self._connection = connected(
            _PROGRAM, **KEEP_MEMORY
        )  # else a child loses a tenth of its time
        with contextlib.suppress(EOFError, OSError):
            if self._connection.poll(_START) and self._connection.recv_bytes() == b"ready":
                return
        self.close()
        raise RuntimeError("the process for targets did not start")

    def run(self, job: Job) -> Answer:
        """Do a job.

        :raises EOFError: the nurse was killed; :class:`OSError`, too
        """
        self._connection.send(job)  # pickled: the names of files may be no UTF-8
        return msgspec.msgpack.decode(self._connection.recv_bytes(), type=Answer)

    def kill(self) -> None:
        """Kill the nurse, and with it its child; :meth:`run` in another thread then fails."""
        self._process.kill()

    def close(self) -> None:
        """End the nurse, and release its resources."""
        self.kill()
        self._process.wait()
        self._connection.close()


class Nursery:
    """A nurse for each thread that runs jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nurses: dict[int, Nurse] = {}
        self._running: dict[str, Nurse] = {}
        self._stopped: set[str] = set()

    def run(self, job: Job) -> Answer:
        """Do a job with the nurse of this thread; a killed one is replaced once.

        :raises RuntimeError: the job was stopped, or nurses do not live here
        """
        me = threading.get_ident()
        for _ in range(2):
            self._check(job)
            nurse = self._nurses.get(me) or Nurse()
            with self._lock:
                self._nurses[me] = self._running[job.attempt] = nurse
            try:
                self._check(job)
                return nurse.run(job)
            except (EOFError, OSError):
                with self._lock:
                    self._nurses.pop(me, None)
                nurse.close()
            finally:
                with self._lock:
                    self._running.pop(job.attempt, None)  # Dask may run a job twice
        raise RuntimeError("the process for targets was killed twice")

    def _check(self, job: Job) -> None:
        if job.attempt in self._stopped:
            raise RuntimeError("the run was stopped")

    def stop(self, attempts: Collection[str]) -> None:
        """End jobs, also those that have not begun."""
        with self._lock:
            self._stopped.update(attempts)
            for attempt in self._running.keys() & {*attempts}:
                self._running[attempt].kill()

    def close(self) -> None:
        """End the nurses; no job is running."""
        with self._lock:
            while self._nurses:
                self._nurses.popitem()[1].close()


def begin() -> None:
    """Make this process a nurse: it ends with its owner, and keeps libraries small."""
    end_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: its owner ends it
    from kcensus.limits import memory, own_process

    own_process()
    memory.prepare()


def serve(works: Mapping[str, Callable[[Job], bytes]]) -> None:
    """Do the jobs of the owner, each in a child, until it ends."""
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages with objects
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        while True:
            job: Job = connection.recv()
            content = msgspec.msgpack.encode(_watched(job, works[job.work], connection))
            connection.send_bytes(content)


def _watched(job: Job, work: Callable[[Job], bytes], owner: Connection) -> Answer:
    """Do a job in a child, and return what became of it."""
    start, nurse = time.monotonic(), os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        owner.close()  # else it could not see the end of the nurse before that of this child
        _child(job, work, writer, nurse)
    os.close(writer)
    content, ended = _received(reader, start + job.seconds)
    os.close(reader)
    if ended:
        for kill in (os.killpg, os.kill):  # it may not have made its group yet
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
    answer = _waited(child)
    answer.seconds = time.monotonic() - start
    answer.ended = ended or answer.ended
    answer.content = content if answer.ended in ("", "failed") else b""
    return answer


def _child(job: Job, work: Callable[[Job], bytes], writer: int, nurse: int) -> None:
    """Do the work of a child, which ends here."""
    status = 1
    try:
        os.setpgid(0, 0)
        end_with(nurse)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with contextlib.suppress(OSError):  # if memory is short, the kernel takes this process
            Path("/proc/self/oom_score_adj").write_text("1000")
        try:
            made, ended = work(job), 0
        except Exception as error:  # a fault of kcensus; the owner tells it from a kill
            text = f"{type(error).__name__}: {error}"
            made, ended = text.encode("utf-8", "backslashreplace")[:_MAX_ERROR], _FAILED
        with open(writer, "wb") as file:
            file.write(made)
        status = ended
    finally:
        os._exit(status)


def _received(reader: int, deadline: float) -> tuple[bytes, str]:
    """Return what a child wrote until it ended, and why it has to be killed; usually empty."""
    parts, size = [], 0
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            part = os.read(reader, 1 << 20)
            parts.append(part)
            size += len(part)
            if not part or size > _MAX_ANSWER:
                return b"".join(parts), "large" if part else ""
    return b"", "time"


def _waited(child: int) -> Answer:
    """Return how a child ended, and what it took; one that does not end is left alone."""
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            ended = _ENDS.get(os.waitstatus_to_exitcode(status), "killed")
            cpu_seconds = usage.ru_utime + usage.ru_stime
            return Answer(ended, 0.0, cpu_seconds, usage.ru_maxrss << 10)
        time.sleep(0.001)
    return Answer("killed")
