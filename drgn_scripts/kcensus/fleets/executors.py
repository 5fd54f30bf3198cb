# SPDX-License-Identifier: LGPL-2.1-or-later
"""Executors of jobs: a Dask cluster, or threads of this process for a few targets."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from kcensus.fleets import apart
from kcensus.fleets.apart import Answer, Job

if TYPE_CHECKING:
    import distributed


def work(job: Job) -> tuple[Answer, str]:
    """Do a job on a worker; return its answer, and the name of the worker."""
    return apart.run(job), f"{socket.gethostname()}:{os.getpid()}"


class Cluster:
    """A Dask cluster. A lost worker's jobs go to others; its own retries suspect all of them."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client

    @property
    def width(self) -> int:
        """Number of jobs that run at a time."""
        width: int = max(sum(self._client.nthreads().values()), 1)
        return width

    def submit(self, job: Job) -> distributed.Future:
        return self._client.submit(
            work, job, pure=False, key=f"{job.work}-{job.attempt}-{os.urandom(4).hex()}"
        )


class Threads:
    """Threads that wait for their targets' processes; there is no other process to start."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._pool = ThreadPoolExecutor(width)

    def submit(self, job: Job) -> Future[tuple[Answer, str]]:
        return self._pool.submit(work, job)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
