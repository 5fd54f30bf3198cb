# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Dask cluster whose processes talk over TCP, as on machines of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kcensus.limits.children import environment

T = TypeVar("T")

ENVIRONMENT = environment()
_SECONDS = 60.0


def until(found: Callable[[], T], process: subprocess.Popen[bytes] | None = None) -> T:
    """Return the first true value of ``found``; fail if ``process`` ends before."""
    deadline = time.monotonic() + _SECONDS
    while not (value := found()):
        if process is not None and process.poll() is not None:
            raise AssertionError(process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


class Machines:
    """A scheduler and two workers with one thread each.

    :param options: of the workers
    """

    def __init__(self, place: Path, *options: str) -> None:
        self._file, self._log = place / "scheduler.json", (place / "log").open("wb")
        self.scheduler = self._started("scheduler", "--port", "0")
        self.workers = [
            self._started("worker", "--nthreads", "1", "--memory-limit", "0", *options)
            for _ in range(2)
        ]
        until(lambda: self._file.exists() and self._file.stat().st_size, self.scheduler)
        self.address = str(json.loads(self._file.read_text())["address"])

    def _started(self, role: str, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", f"distributed.cli.dask_{role}", "--host", "127.0.0.1"),
                *("--no-dashboard", "--scheduler-file", str(self._file), *options),
            ],
            env=ENVIRONMENT, stdout=self._log, stderr=self._log, cwd=self._file.parent,
        )  # fmt: skip

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # Dask waits for a worker that was killed
                process.kill()
                process.wait()
        self._log.close()
