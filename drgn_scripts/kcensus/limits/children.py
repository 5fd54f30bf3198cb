# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that end with their parent, and run Python without the current directory."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment for glibc: a process uses freed memory again, which the system need not clear. That
of Dask's workers, which their children inherit, gives back all but 64 KiB."""
_GRACE = 5.0
"""Seconds for a killed process to end; one that waits for a dead server never does."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
_WITHOUT_DIRECTORY = "import sys; sys.path[:] = filter(None, sys.path); "
"""Python statements after which nothing is imported from the current directory: as that of a
customer's dump, it may have a ``drgn.py`` of its own."""


def python(statements: str) -> list[str]:
    """Return a command that runs statements, without imports from the current directory."""
    return [sys.executable, "-c", _WITHOUT_DIRECTORY + statements]


def environment() -> dict[str, str]:
    """Return an environment in which the process imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def connected(
    statements: str, *files: int, **variables: str
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start Python, and return the process and this end of a connection to it.

    The process has the file descriptor of its end as ``sys.argv[1]``.

    :param files: further file descriptors that it has, by the same numbers
    :param variables: of its environment, besides those of :func:`environment`
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*python(statements), str(theirs.fileno())],
            pass_fds=[theirs.fileno(), *files],
            stdin=subprocess.DEVNULL,
            # Ours may carry a protocol, or JSON.
            stdout=subprocess.DEVNULL,
            env=environment() | variables,
        )
    return process, Connection(ours.detach())


def end(process: subprocess.Popen[bytes]) -> int | None:
    """Kill a process, and return its status; None if it does not end in time."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    return process.returncode


def end_with(parent: int) -> None:
    """Be killed when the thread that started this process ends; end if ``parent`` has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
