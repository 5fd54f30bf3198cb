# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of guests that run: what is recorded of them, and what they counted meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from .dumps import Live, symbols
from .host import LabError

NAMES_PER_SECOND = 400
"""Names that the scenario ``growth`` looks up; none of them exists."""
CGROUPS_PER_SECOND = 0.5
"""Memory cgroups that it makes."""
_MAX_SECONDS = 900
_POLL = 0.05
"""Seconds between looks at the console of a guest with a simulated clock."""


class Work:
    """What a guest with the scenario ``growth`` did until now, by its own clock."""

    def __init__(self, guest: Live) -> None:
        self._times, self._names, self._cgroups = np.array(log(guest, "growth"), float).T
        self._times /= 100

    def rates(self, uptime: pd.Series[float]) -> tuple[float, float]:
        """Return names and cgroups per second, from the least uptime to the largest."""
        rows = (self._times >= uptime.min()) & (self._times <= uptime.max())
        names, cgroups = (
            float(np.polyfit(self._times[rows], counts[rows], 1)[0])
            for counts in (self._names, self._cgroups)
        )
        return names, cgroups


def log(guest: Live, scenario: str) -> list[list[str]]:
    """Return what a guest wrote to its console until now: times, names, cgroups."""
    text = guest.console.read_text(errors="replace") if guest.console.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [words[1:] for line in lines if len(words := line.split()) == 4 and words[0] == scenario]


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


def record_weeks(guest: Live, store: Path, count: int, analyses: str) -> None:
    """Record a guest with a simulated clock each time that it says what it did until now."""
    command = [sys.executable, "-m", "kcensus", "record", f"qmp:{guest.qmp}", f"--store={store}"]
    for done in range(count):
        guest.machine.extend(_MAX_SECONDS)
        deadline = time.monotonic() + _MAX_SECONDS
        while len(log(guest, "weeks")) <= done:
            guest.machine.check()
            if time.monotonic() > deadline:
                raise LabError(f"the guest took longer than {_MAX_SECONDS} s for its next hours")
            time.sleep(_POLL)
        guest.stop()
        if len(log(guest, "weeks")) != done + 1:
            raise LabError("the guest went on before it was stopped")
        # Its types are in BTF.
        options = [f"--analyses={analyses}"]
        subprocess.run([*command, *options], check=True, capture_output=True, timeout=_MAX_SECONDS)
        guest.resume()
