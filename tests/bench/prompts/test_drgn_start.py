# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much longer drgn takes to start with the plugin than without."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bench.timing import Cost, cost, report
from tests.lab import build

_RUNS = 20
_MAX_RATIO = 1.05


def started(words: list[str], *, plugin: bool) -> Cost:
    environment = {**os.environ, "DRGN_DISABLE_PLUGINS": "" if plugin else "kcensus"}
    command = [sys.executable, "-m", "drgn", "-q", *words, "-e", "pass"]
    return cost(lambda: subprocess.run(command, env=environment, check=True))


@pytest.mark.parametrize("debug_info", [True, False])
def test_drgn_starts_as_fast_with_the_plugin(
    debug_info: bool, slack: float, bench_smoke: bool
) -> None:
    dump = build("6.1", "mixed")
    symbols = ["--main-symbols", "-s", str(dump.vmlinux)] if debug_info else []
    words = ["-c", str(dump.formats["elf"]), *(symbols or ["--no-default-symbols"])]
    times: dict[bool, list[Cost]] = {False: [], True: []}
    for run in range(10 if bench_smoke else _RUNS):
        for plugin in (False, True) if run % 2 else (True, False):
            times[plugin].append(started(words, plugin=plugin))
    (without, elapsed), (cpu_without, cpu) = (
        [min(getattr(each, clock) for each in times[plugin]) for plugin in (False, True)]
        for clock in ("elapsed", "cpu")
    )
    report(
        f"drgn's start {'with' if debug_info else 'without'} debug info",
        milliseconds=1000 * elapsed,
        milliseconds_without=1000 * without,
        ratio=elapsed / without,
        cpu_ratio=cpu / cpu_without,
    )
    assert cpu <= cpu_without * (1 + (_MAX_RATIO - 1) * slack)
