# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of guests that run: what is recorded of them, and what they counted meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from .dumps import Live, symbols

NAMES_PER_SECOND = 400
"""Names that the scenario ``growth`` looks up; none of them exists."""
CGROUPS_PER_SECOND = 0.5
"""Memory cgroups that it makes."""
_MAX_SECONDS = 900


class Work:
    """What a guest with the scenario ``growth`` did until now, by its own clock."""

    def __init__(self, guest: Live) -> None:
        words = (line.split() for line in guest.console.read_text(errors="replace").splitlines())
        log = [each[1:] for each in words if len(each) == 4 and each[0] == "growth"]
        self._times, self._names, self._cgroups = np.array(log, float).T
        self._times /= 100

    def rates(self, uptime: pd.Series[float]) -> tuple[float, float]:
        """Return names and cgroups per second, from the least uptime to the largest."""
        rows = (self._times >= uptime.min()) & (self._times <= uptime.max())
        names, cgroups = (
            float(np.polyfit(self._times[rows], counts[rows], 1)[0])
            for counts in (self._names, self._cgroups)
        )
        return names, cgroups


def record(guest: Live, store: Path, every: int, count: int, analyses: str | None = None) -> None:
    """Record a guest while it runs.

    :param every: seconds between records
    :param analyses: all where None
    """
    command = [sys.executable, "-m", "kcensus", "record", f"qmp:{guest.qmp}", f"--store={store}"]
    options = [f"--every={every}s", f"--count={count}", *symbols(guest.debug)]
    if analyses is not None:
        options.append(f"--analyses={analyses}")
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=_MAX_SECONDS)
