# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long all analyses take on the dump of another machine, relative to amd64."""

from __future__ import annotations

import time

import pytest

from kcensus.analyses import analyses
from kcensus.sources import open_target
from tests.bench.timing import best, report
from tests.lab import build
from tests.running import on, runner


def _seconds(release: str, scenario: str, repeat: int) -> float:
    """Return the CPU time of all analyses."""
    dump = build(release, scenario)
    target = open_target(str(dump.formats["elf"]), dump.debug)

    def run() -> None:
        # A kernel of its own each time: what the analyses share is read again.
        context = on(target.prog)
        for name in analyses():
            runner(name)(context)

    return best(run, repeat, time.process_time)


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["mixed", "kcopyd-unlimited", "waits-freeze"])
def test_arm64(scenario: str, slack: float, bench_smoke: bool) -> None:
    repeat = 1 if bench_smoke else 5
    amd64, own = _seconds("6.12", scenario, repeat), _seconds("6.12-arm64", scenario, repeat)
    report(f"6.12-arm64 to 6.12, {scenario}", ratio=own / amd64, seconds=own)
    assert own <= amd64 * 1.1 * slack
