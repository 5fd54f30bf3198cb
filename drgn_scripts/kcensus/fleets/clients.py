# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients of Dask clusters."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from kcensus.fleets import FleetError
from kcensus.text import printable

if TYPE_CHECKING:
    import distributed

PATIENCE = 6.0
"""Seconds to wait for the answer of a scheduler."""
LEAN = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
"""Settings of a cluster whose tasks take a second: statistics about itself, which take 2 % of a CPU
in each process by default, are off or rare."""


def silence() -> None:
    """Keep Dask from printing tracebacks of lost connections: sentences of ours say it."""
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def client(cluster: Any, **options: Any) -> distributed.Client:
    """Return a client of a cluster, given as the address of its scheduler or as an object.

    :param options: of :class:`distributed.Client`
    :raises FleetError: the scheduler does not answer
    """
    from distributed import Client  # takes 0.4 s

    try:
        return Client(cluster, timeout=PATIENCE, **options)
    except Exception as error:  # another service may answer anything
        why = printable(str(error).partition("\n")[0]) or type(error).__name__
        raise FleetError(
            f"the scheduler '{printable(str(cluster))}' cannot be reached ({why}); pass the "
            "address that `dask scheduler` shows, such as tcp://host:8786"
        ) from None


@contextmanager
def local_cluster(width: int) -> Iterator[distributed.LocalCluster]:
    """Yield a cluster of workers with one thread each on this machine, which Ctrl-C does not reach.

    A terminal sends SIGINT to all of its processes. It is blocked while the cluster starts: the
    threads and processes of the cluster, and later workers in place of lost ones, inherit that from
    the first instruction on, and this thread gets it afterwards.
    """
    from distributed import LocalCluster

    resource_tracker.ensure_running()  # it would be started later, and then unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        cluster = LocalCluster(
            n_workers=width, threads_per_worker=1, dashboard_address="127.0.0.1:0",
            memory_limit=0,  # targets have their own limit
            silence_logs=logging.CRITICAL,
        )  # fmt: skip
        with cluster:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield cluster
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
