# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write a store in a process of its own, without a memory limit.

delta-rs starts threads, which reserve memory, and ends the process when it gets none.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from kcensus.limits import is_own_process, memory
from kcensus.outputs import OutputError

P = ParamSpec("P")
T = TypeVar("T")


def apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work`` in a child process; directly inside another program, which must not be forked.

    :raises OutputError: the child was killed
    """
    if not is_own_process():
        return work(*args, **kwargs)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin) as pool:
        try:
            with warnings.catch_warnings():
                # Of other threads: the child calls none of the libraries that started them.
                warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
                future = pool.submit(work, *args, **kwargs)
            return future.result()
        except BrokenProcessPool:
            raise OutputError(
                "cannot write to the store: its writer was killed, probably for lack of memory"
            ) from None


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, after this record
    memory.lift()
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")  # of delta-rs; one per CPU by default
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for its threads, which write when a disk is full
