# SPDX-License-Identifier: LGPL-2.1-or-later
"""Series of guests that run: what is recorded of them, and what they counted meanwhile."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .dumps import Live

NAMES_PER_SECOND = 400
"""Names that the scenario ``growth`` looks up; none of them exists."""
CGROUPS_PER_SECOND = 0.5
"""Memory cgroups that it makes."""
_MAX_SECONDS = 900


@dataclass(frozen=True)
class Rates:
    """How fast the scenario ``growth`` did its work, by the uptime of the guest."""

    names: float
    """Per second, as the cgroups."""
    cgroups: float


def record(guest: Live, store: Path, every: int, count: int, analyses: str | None = None) -> None:
    """Record a guest while it runs.

    :param every: seconds between records
    :param analyses: all where None
    """
    command = [sys.executable, "-m", "kcensus", "record", f"qmp:{guest.qmp}", f"--store={store}"]
    options = [f"--every={every}s", f"--count={count}"]
    if analyses is not None:
        options.append(f"--analyses={analyses}")
    symbols = [word for path in guest.debug for word in ("-s", str(path))]
    subprocess.run(
        [*command, *options, *symbols], check=True, capture_output=True, timeout=_MAX_SECONDS
    )


def rates(guest: Live, first: float, last: float) -> Rates:
    """Return what a guest with the scenario ``growth`` did between two uptimes, in seconds."""
    lines = (line.split() for line in guest.console.read_text(errors="replace").splitlines())
    log = [
        tuple(map(int, words[1:])) for words in lines if len(words) == 4 and words[0] == "growth"
    ]
    times, *counts = np.array(log, float).T
    times /= 100
    rows = (times >= first) & (times <= last)
    return Rates(*(float(np.polyfit(times[rows], count[rows], 1)[0]) for count in counts))
