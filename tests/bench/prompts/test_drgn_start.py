# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much longer drgn takes to start with the plugin than without."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

import pytest

from tests.bench.timing import report
from tests.lab import build

_RUNS = 20
_MAX_RATIO = 1.05


def started(words: list[str], *, plugin: bool) -> tuple[float, float]:
    """Start drgn and leave it; return the seconds that pass, and those of the CPU."""
    environment = {**os.environ, "DRGN_DISABLE_PLUGINS": "" if plugin else "kcensus"}
    command = [sys.executable, "-m", "drgn", "-q", *words, "-e", "pass"]
    before, start = _cpu_seconds(), time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return time.perf_counter() - start, _cpu_seconds() - before


def _cpu_seconds() -> float:
    """The time that all children so far have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("debug_info", [True, False])
def test_drgn_starts_as_fast_with_the_plugin(
    debug_info: bool, slack: float, bench_smoke: bool
) -> None:
    dump = build("6.1", "mixed")
    symbols = ["--main-symbols", "-s", str(dump.vmlinux)] if debug_info else []
    words = ["-c", str(dump.formats["elf"]), *(symbols or ["--no-default-symbols"])]
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for run in range(10 if bench_smoke else _RUNS):
        for plugin in (False, True) if run % 2 else (True, False):
            times[plugin].append(started(words, plugin=plugin))
    without, with_plugin = (
        [min(column) for column in zip(*times[plugin], strict=True)] for plugin in (False, True)
    )
    report(
        f"drgn's start {'with' if debug_info else 'without'} debug info",
        milliseconds=1000 * with_plugin[0],
        milliseconds_without=1000 * without[0],
        ratio=with_plugin[0] / without[0],
        cpu_ratio=with_plugin[1] / without[1],
    )
    # The time of the CPU, which depends less on what else the machine does.
    assert with_plugin[1] <= without[1] * (1 + (_MAX_RATIO - 1) * slack)
