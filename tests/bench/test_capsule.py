# SPDX-License-Identifier: LGPL-2.1-or-later
"""What recording a capsule costs on top of the analyses themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.reports import report as run_all
from tests.bench.timing import best, report
from tests.lab import build
from tests.vm.cases import opened


@pytest.mark.parametrize("name", [pytest.param("", marks=pytest.mark.long), "slab"])
def test_creating(name: str, tmp_path: Path, slack: float) -> None:
    """One analysis, or all of them, on a dump with 1.4 million dentries."""
    target = opened(build("6.12", "negatives"), form="elf")
    wanted = [analyses()[name]] if name else list(analyses().values())

    def run() -> None:
        made = run_all(Context.of(target, jobs=1), wanted)
        assert all(section.result for section in made.sections), made.sections

    run()  # into the page cache
    alone = best(run, 3)
    recording = best(lambda: create(target, tmp_path / "capsule", wanted), 3)
    report(
        f"capsule create, 6.12 ELF, {name or 'all analyses'}",
        times_the_analyses=recording / alone,
        analyses_seconds=alone,
        MB=(tmp_path / "capsule").stat().st_size / 1e6,
    )
    assert recording / alone <= 4 * slack
