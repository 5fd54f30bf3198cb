# SPDX-License-Identifier: LGPL-2.1-or-later
"""Timing and memory of one call."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a call takes, seconds."""

    elapsed: float
    cpu: float
    """Of this process and its children, which other load of the machine changes little."""


def cost(call: Callable[[], object]) -> Cost:
    def cpu() -> float:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    start, before = time.perf_counter(), cpu()
    call()
    return Cost(time.perf_counter() - start, cpu() - before)


def best(
    call: Callable[[], Any], repeat: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The shortest of several runs, seconds: what else the machine does only adds."""
    times = []
    for _ in range(repeat):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def report(title: str, **figures: float | int | str) -> None:
    """Print one line of measurements; pytest shows it with ``-s``, and the summary always."""
    shown = "  ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in figures.items()
    )
    lines.append(f"{title}: {shown}")
    print(lines[-1])


lines: list[str] = []


def peak_memory(body: str, vmcore: Path, debug: list[Path]) -> int:
    """Peak resident memory of ``body`` in a process of its own, bytes above what it began with.

    :param body: statements that find ``prog``, a program with its debug information loaded
    """
    script = f"""
import json, sys
from pathlib import Path
import numpy, pandas, drgn.helpers.linux
import kcensus.api.objects, kcensus.analyses.slab.run
from tests.running import on, runner
from kcensus.api.objects import objects
from kcensus.sources import open_target

def status(key):
    text = Path("/proc/self/status").read_text()
    return int(text.split(key + ":")[1].split()[0]) * 1024

target = open_target(sys.argv[1], [Path(path) for path in sys.argv[2:]])
prog = target.prog
# The first use of a type makes drgn index the debug information of all.
prog.type("struct kmem_cache")
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
{body}
print(json.dumps(status("VmHWM") - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, vmcore, *debug], check=True, capture_output=True, text=True
    )
    return int(json.loads(done.stdout.splitlines()[-1]))
