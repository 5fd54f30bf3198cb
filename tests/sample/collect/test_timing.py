# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work that is stopped at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kcensus.commands.collect.timing import OutOfTime, alarm
from kcensus.engine.workers import each

_LONG = 20.0


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def _is_stopped(work: Callable[[], None]) -> bool:
    begin = time.monotonic()
    with pytest.raises(OutOfTime), alarm(begin + 0.3):
        work()
    return time.monotonic() - begin < _LONG / 2


@pytest.mark.slow
def test_cleanup_is_not_interrupted() -> None:
    cleaned = []

    def work() -> None:
        try:
            _spin(_LONG)
        finally:
            _spin(1.5)  # longer than until the next look
            cleaned.append(True)

    assert _is_stopped(work)
    assert cleaned == [True]


@pytest.mark.slow
def test_a_dropped_exception_comes_again() -> None:
    def work() -> None:
        with suppress(BaseException):  # as a callback of a library does
            _spin(_LONG)
        _spin(_LONG)

    assert _is_stopped(work)


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_no_worker_is_left() -> None:
    def work() -> None:
        for _ in each(lambda _: _spin(_LONG), 2, 2):
            pass

    before = _children()
    assert _is_stopped(work)
    assert _children() == before
