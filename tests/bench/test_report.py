# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a report takes, relative to the slowest analysis in it, and on arm64 to amd64."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from kcensus.analyses import analyses
from kcensus.sources import open_target
from tests.bench.timing import best, report
from tests.lab import build
from tests.running import on, runner


@pytest.mark.long
@pytest.mark.usually("6.12 negatives")
@pytest.mark.parametrize(
    ("release", "scenario"),
    [*((release, "mixed") for release in ("5.10", "6.1", "6.12", "7.3")), ("6.12", "negatives")],
)
def test_report(release: str, scenario: str, slack: float, bench_smoke: bool) -> None:
    """Whole commands: start, opening the dump, and output included."""
    dump = build(release, scenario)
    symbols = [word for path in dump.debug for word in ("-s", str(path))]

    def seconds(command: str) -> float:
        words = [sys.executable, "-m", "kcensus", command, str(dump.formats["elf"]), *symbols]
        return best(
            lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL),
            1 if bench_smoke else 3,
        )

    seconds("slab")  # into the page cache
    single = {name: seconds(name) for name in analyses()}
    whole = seconds("report")
    slowest = max(single.values())
    report(
        f"report, {release} {scenario}", times_the_slowest=whole / slowest, seconds=whole, **single
    )
    assert whole <= 3 * slowest * slack


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
def test_arm64_is_as_fast_as_amd64(scenario: str, slack: float, bench_smoke: bool) -> None:
    repeat = 1 if bench_smoke else 5
    amd64, own = _seconds("6.12", scenario, repeat), _seconds("6.12-arm64", scenario, repeat)
    report(f"6.12-arm64 to 6.12, {scenario}", ratio=own / amd64, seconds=own)
    assert own <= amd64 * 1.1 * slack
