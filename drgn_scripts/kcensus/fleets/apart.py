# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process for each target, forked from one that has imported everything.

A hostile dump can take all memory, hang, or end its process; it ends no worker of the cluster. The
nurse, a child of the worker, imports once, forks a child for each job, and ends the child after its
time. Workers of Dask have threads, which must not be forked, and are daemons of
:mod:`multiprocessing`, which must not have children of that module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

_GRACE = 5.0
"""Seconds for a killed child to end; one that waits for a dead server never does."""
_START = 120.0
"""Seconds for the nurse to import everything."""
_MAX_ANSWER = 64 << 20
_PR_SET_PDEATHSIG = 1


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


class Answer(msgspec.Struct):
    """What became of a job."""

    ended: str = ""
    """``time``, or ``killed`` by a signal, or an empty text."""
    seconds: float = 0.0
    peak_bytes: int = 0
    """Most resident memory of the child."""
    content: bytes = b""
    """What the child returned."""


class Nurse:
    """The process that forks a child for each job; its owner runs one job at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from kcensus.fleets.apart import main; main()",
                 str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        if not self._connection.poll(_START) or self._connection.recv_bytes() != b"ready":
            self.close()
            raise RuntimeError("the process for targets did not start")

    def run(self, job: Job) -> Answer:
        """Do a job.

        :raises EOFError: the nurse was killed
        """
        self._connection.send_bytes(msgspec.msgpack.encode(job))
        return msgspec.msgpack.decode(self._connection.recv_bytes(), type=Answer)

    def close(self) -> None:
        """End the nurse and its child."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _environment() -> dict[str, str]:
    """Return the environment of a nurse, in which this module can be imported."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


_own = threading.local()


def run(job: Job) -> Answer:
    """Do a job with the nurse of this thread; a killed one is replaced once."""
    for is_last in (False, True):
        nurse: Nurse | None = getattr(_own, "nurse", None)
        if nurse is None:
            nurse = _own.nurse = Nurse()
        try:
            return nurse.run(job)
        except (EOFError, OSError):
            nurse.close()
            del _own.nurse
            if is_last:
                raise
    raise AssertionError


def main() -> None:
    """Run the nurse, until its owner ends."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: its owner ends it
    from kcensus.limits import memory, own_process

    own_process()
    memory.prepare()
    from kcensus.fleets import look

    connection = Connection(int(sys.argv[1]))
    connection.send_bytes(b"ready")
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = msgspec.msgpack.decode(connection.recv_bytes(), type=Job)
            connection.send_bytes(msgspec.msgpack.encode(_watched(job, look.WORK[job.work])))


def _end_with_parent() -> None:
    """Be killed when the thread that started this process ends; Linux only."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watched(job: Job, work: Callable[[Job], bytes]) -> Answer:
    """Do a job in a child, and return what became of it."""
    start = time.monotonic()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _child(job, work, writer)
    os.close(writer)
    content, is_late = _received(reader, start + job.seconds)
    os.close(reader)
    if is_late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status, peak = _ended(child)
    killed = "time" if is_late else "killed" if status and os.WIFSIGNALED(status) else ""
    return Answer(killed, time.monotonic() - start, peak, b"" if killed else content)


def _child(job: Job, work: Callable[[Job], bytes], writer: int) -> None:
    """Do the work of a child, which ends here."""
    status = 1
    try:
        os.setpgid(0, 0)
        _end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with open(writer, "wb") as file:
            file.write(work(job))
        status = 0
    finally:
        os._exit(status)


def _received(reader: int, deadline: float) -> tuple[bytes, bool]:
    """Return what a child wrote until it ended, and whether its time was over."""
    parts, size = [], 0
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            part = os.read(reader, 1 << 20)
            parts.append(part)
            size += len(part)
            if not part or size > _MAX_ANSWER:
                return b"".join(parts), bool(part)
    return b"", True


def _ended(child: int) -> tuple[int | None, int]:
    """Return the status of a child and its most resident bytes; None if it does not end."""
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage.ru_maxrss << 10
        time.sleep(0.005)
    return None, 0
