# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` inside crash against the direct run, on a dump with 1.4 million dentries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.timing import cost, report
from tests.lab import build
from tests.vm.crash.session import Session

_RUNS = 5
_LIMIT = 16 << 20
"""Memory of crash's own process; the README of the extension states it."""


def _direct(session: Session, out: Path) -> None:
    command = [sys.executable, "-m", "kcensus", "dentries", session.name]
    subprocess.run(
        [*command, "-s", session.vmlinux, "--json", out],
        env={**os.environ, "KCENSUS_SYMBOLS": ""},
        check=True,
    )


@pytest.mark.long
@pytest.mark.usually("kdump-zlib")
@pytest.mark.parametrize("format_", ["kdump-elf", "kdump-lzo", "kdump-zlib"])
def test_overhead(format_: str, tmp_path: Path, slack: float) -> None:
    dump = build("6.1", "negatives")
    session = Session(dump.vmlinux, (dump.formats[format_],))
    out = tmp_path / "direct.json"
    inside = ["kcensus dentries --json inside.json"]
    direct, empty, through = [], [], []
    # In turns, so that what else the machine does at a time hits all of them.
    for _ in range(_RUNS):
        direct.append(cost(lambda: _direct(session, out)))
        empty.append(cost(lambda: session.script([], tmp_path)))
        through.append(cost(lambda: session.script(inside, tmp_path)))
    documents = [
        json.loads(path.read_text())["summary"] for path in (out, tmp_path / "inside.json")
    ]
    assert documents[0] == documents[1]
    assert documents[0]["negative"] >= 1_400_000
    figures = {}
    for clock in ("elapsed", "cpu"):
        without, start, both = (
            min(getattr(time, clock) for time in times) for times in (direct, empty, through)
        )
        figures[f"direct_{clock}_s"] = without
        figures[f"through_{clock}_s"] = both - start
        figures[f"{clock}_ratio"] = (both - start) / without
    report(f"dentries through crash, 6.1 {format_}", **figures)
    assert figures["cpu_ratio"] <= 2
    assert figures["elapsed_ratio"] <= 2 * slack


@pytest.mark.long
def test_memory(tmp_path: Path) -> None:
    dump = build("6.1", "negatives")
    session = Session(dump.vmlinux, (dump.formats["kdump-elf"],))
    commands = [
        "! echo 5 > /proc/$PPID/clear_refs",
        "! cat /proc/$PPID/status > before",
        "kcensus dentries --json inside.json",
        "! cat /proc/$PPID/status > after",
    ]
    session.script(commands, tmp_path)
    resident = _bytes(tmp_path / "before", "VmRSS")
    peak = _bytes(tmp_path / "after", "VmHWM")
    report("memory of crash for the extension, 6.1 negatives", MiB=(peak - resident) / 2**20)
    assert 0 <= peak - resident <= _LIMIT


def _bytes(status: Path, key: str) -> int:
    text = status.read_text()
    assert re.search(r"^Name:\s+crash$", text, re.MULTILINE)
    found = re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found
    return int(found[1]) * 1024
