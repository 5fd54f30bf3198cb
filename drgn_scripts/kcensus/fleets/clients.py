# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients of Dask clusters."""

from __future__ import annotations

import logging
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
