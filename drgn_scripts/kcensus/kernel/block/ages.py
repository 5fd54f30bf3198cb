# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ages of the requests of disks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcensus.kernel.block.requests import requests
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel


def oldest_request(kernel: Kernel, disks: Iterable[int]) -> float:
    """Return the seconds since the allocation of the oldest request; -1 if none is known.

    A task that waits for its own I/O wakes up in half the time of the hung task detector, and goes
    on to wait: its sleep tells less.

    :param disks: rows of the disks
    """
    try:
        found = requests(kernel)
    except LookupError:
        return -1.0  # a gap already
    stamps = found.allocated_ns[np.isin(found.disk, [*disks]) & (found.allocated_ns != 0)]
    return float(clock(kernel).since(stamps).max(initial=-1)) / 1e9
