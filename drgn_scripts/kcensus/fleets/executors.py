# SPDX-License-Identifier: LGPL-2.1-or-later
"""Executors of jobs: a Dask cluster, or threads of this process for a few targets."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import socket
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from kcensus.fleets import FleetError, clients
from kcensus.fleets.apart import Answer, Job, Nursery
from kcensus.render.plain import installed_version

if TYPE_CHECKING:
    import distributed

_MAX_WITHOUT = 600.0
"""Seconds to wait for a worker when all have gone."""

_nursery = Nursery()
"""That of a worker, whose threads are those of Dask."""


class Future(Protocol):
    """What Dask and :mod:`concurrent.futures` have in common."""

    def result(self) -> Any: ...
    def cancel(self) -> Any: ...
    def add_done_callback(self, call: Callable[[Any], Any], /) -> Any: ...


class Executor(Protocol):
    """Runs jobs elsewhere."""

    @property
    def width(self) -> int:
        """Number of jobs that run at a time."""
        ...

    def submit(self, job: Job) -> Future: ...

    def check(self) -> None:
        """Raise :class:`FleetError` if no job can be done any more."""
        ...

    def stop(self, attempts: Collection[str]) -> None:
        """End jobs that run."""
        ...


def work(job: Job) -> tuple[Answer, str]:
    """Do a job on a worker; return its answer, and the name of the worker.

    :raises RuntimeError: the worker has another kcensus, or its processes are killed
    """
    if job.version != installed_version():
        raise RuntimeError(f"has kcensus {installed_version()}, not {job.version}")
    return _nursery.run(job), f"{socket.gethostname()}:{os.getpid()}"


def _stop(attempts: Collection[str]) -> None:
    _nursery.stop(attempts)


class Cluster:
    """A Dask cluster. A lost worker's jobs go to others; its own retries suspect all of them."""

    def __init__(self, client: distributed.Client) -> None:
        """Check the workers that the cluster has.

        :raises FleetError: it has none, or one has another kcensus
        """
        self._client = client
        self._seen = time.monotonic()
        try:
            client.wait_for_workers(1, timeout=clients.PATIENCE)
        except TimeoutError:
            raise FleetError(
                f"the cluster has no worker: start some with `dask worker {self._address} "
                "--nthreads 1`"
            ) from None
        own = installed_version()
        versions = client.run(importlib.metadata.version, "kcensus", on_error="return")
        for worker, version in versions.items():
            if version != own and own != "unknown":
                has = f"has kcensus {version}" if isinstance(version, str) else "lacks kcensus"
                raise FleetError(
                    f"the worker {worker} {has}: install version {own}, that of this machine, on "
                    "all workers"
                )

    @property
    def _address(self) -> str:
        return str(self._client.scheduler.address) if self._client.scheduler else "SCHEDULER"

    @property
    def width(self) -> int:
        """Number of jobs that run at a time; 0 while the cluster has no worker."""
        try:
            return sum(self._client.nthreads().values())
        except OSError:  # the scheduler is gone, which check() finds
            return 0

    def submit(self, job: Job) -> distributed.Future[tuple[Answer, str]]:
        """Give a job to the cluster."""
        return self._client.submit(
            work, job, pure=False, key=f"{job.work}-{job.attempt}-{os.urandom(4).hex()}"
        )

    def check(self) -> None:
        """Raise :class:`FleetError` if the cluster is lost."""
        if self._client.status != "running":
            raise FleetError(
                "the connection to the scheduler is lost; run the same command again to go on"
            )
        if self.width:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _MAX_WITHOUT:
            raise FleetError(
                f"the cluster has had no worker for {_MAX_WITHOUT / 60:.0f} minutes; start some, "
                "and run the same command again to go on"
            )

    def stop(self, attempts: Collection[str]) -> None:
        """End jobs that run, so that workers are free at once."""
        with contextlib.suppress(Exception):  # the cluster is gone, too
            if attempts and self._client.status == "running":
                self._client.run(_stop, [*attempts], on_error="ignore")


class Threads:
    """Threads that wait for their targets' processes; there is no other process to start."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._pool, self._nursery = ThreadPoolExecutor(width), Nursery()

    def submit(self, job: Job) -> Future:
        """Give a job to the next free thread."""
        return self._pool.submit(lambda: (self._nursery.run(job), socket.gethostname()))

    def check(self) -> None:
        """Do nothing: threads are not lost."""

    def stop(self, attempts: Collection[str]) -> None:
        """End jobs that run."""
        self._nursery.stop(attempts)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._nursery.close()
