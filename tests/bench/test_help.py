# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long help takes, relative to an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench.timing import best, report

_MAX_SECONDS = 0.3
"""Above what ``python -c pass`` takes."""


@pytest.mark.parametrize("words", [["--help"], ["slab", "--help"], ["report", "--help"]])
def test_help(words: list[str], slack: float) -> None:
    def seconds(*arguments: str) -> float:
        command = [sys.executable, *arguments]
        return best(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), 10)

    nothing = seconds("-c", "pass")
    shown = seconds("-m", "kcensus", *words)
    report(
        f"kcensus {' '.join(words)}",
        milliseconds=1000 * shown,
        python_milliseconds=1000 * nothing,
        times_python=shown / nothing,
    )
    assert shown - nothing <= _MAX_SECONDS * slack
