# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many targets: reports on a Dask cluster, kept in Delta Lake tables, and clustered by cause."""

from __future__ import annotations

from importlib.util import find_spec

from kcensus.text import how_to_install


class FleetError(Exception):
    """A fleet cannot be read; the message is one sentence for the user."""


def require_fleet(*more: str) -> None:
    """Check that the libraries for fleets, and ``more``, are installed.

    :raises FleetError: one is not
    """
    for name in ("distributed", "deltalake", "pyarrow", *more):
        if find_spec(name) is None:
            raise FleetError(f"a fleet needs {name}: {how_to_install('fleet')}")
