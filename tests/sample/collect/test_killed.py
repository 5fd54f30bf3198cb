# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` stopped at any moment leaves no process, and no file or the old one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_MOMENTS = 5
_SECONDS = 20.0


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(word) for word in text.split()]


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.mark.parametrize("moment", range(_MOMENTS))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed(moment: int, number: signal.Signals, tmp_path: Path) -> None:
    """The moments are amounts of CPU time of the process that reads, from 0 to the rendering."""
    out = tmp_path / "case.tar.zst"
    out.write_text("old")
    process = subprocess.Popen(
        [sys.executable, "-m", "kcensus", "collect", "sample-waits", "-o", str(out), "--force"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    reader, until = 0, time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < until:
        if children := _children(process.pid):
            reader = children[0]
            try:
                if _cpu_seconds(reader) >= 0.4 * moment:
                    break
            except (FileNotFoundError, ProcessLookupError):
                break
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=_SECONDS)
    assert "Traceback" not in told
    assert process.returncode in (-number, 128 + number, 0)
    assert os.listdir(tmp_path) == [out.name]
    is_done = process.returncode == 0
    assert (out.read_bytes() == b"old") is not is_done
    while _is_alive(reader) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _is_alive(reader)
