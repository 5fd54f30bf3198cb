# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stalls of disks whose server or host does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from kcensus.kernel.block.requests import requests
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.waiting.finder import Stall


def as_old_as_requests(kernel: Kernel, stall: Stall, disks: Iterable[int]) -> Stall:
    """Return a stall that is at least as old as the oldest request of the disks.

    A task that waits for its own I/O wakes up in half the time of the hung task detector, and goes
    on to wait.

    :param disks: rows of the disks
    """
    try:
        found = requests(kernel)
    except LookupError:
        return stall  # a gap already
    stamps = found.allocated_ns[np.isin(found.disk, [*disks]) & (found.allocated_ns != 0)]
    oldest = float(clock(kernel).since(stamps).max(initial=-1)) / 1e9
    return replace(stall, seconds=max(stall.seconds, oldest))
