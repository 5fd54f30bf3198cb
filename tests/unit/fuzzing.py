# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run programs with damaged input in processes of their own, and add up what they print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def peak_bytes() -> int:
    """Return the largest amount of memory of this process since it was forked."""
    # Not ru_maxrss, in which a process begins with the peak of the one that started it.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak
    return int(peak[1]) << 10


def add_up(
    module: str,
    seed: int,
    cases: int,
    *,
    max_bytes: int,
    input_: Path | None = None,
    more: tuple[Path, ...] = (),
) -> Counter[str]:
    """Return the tally of all cases; each of them must have ended well, within the memory.

    The program ``module`` gets ``[INPUT] SEED FIRST END [MORE…]``, prints the number of each case
    before it begins, and at last its tally as JSON, with ``refused``, ``opened`` and
    ``peak_bytes``.
    """
    processes = min(len(os.sched_getaffinity(0)), 8)
    bounds = [cases * number // processes for number in range(processes + 1)]

    def tally_of(first: int, end: int) -> Counter[str]:
        words = [*([input_] if input_ else []), seed, first, end, *more]
        command = [sys.executable, "-m", module, *map(str, words)]
        # Standard error is pytest's own, and shows tracebacks.
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        last = done.stdout.splitlines()[-1]
        assert done.returncode == 0, f"case {last} of seed {seed}: status {done.returncode}"
        tally = Counter(json.loads(last))
        assert tally["refused"] + tally["opened"] == end - first
        assert tally.pop("peak_bytes") < max_bytes
        return tally

    with ThreadPoolExecutor(processes) as pool:
        return sum(pool.map(tally_of, bounds, bounds[1:]), Counter[str]())
