# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a report takes, relative to the slowest analysis in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kcensus.analyses import analyses
from tests.bench.timing import best, report
from tests.lab import build


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
