# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work that is stopped at a time."""

from __future__ import annotations

import os
import time
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


@pytest.mark.slow
def test_cleanup_is_not_interrupted() -> None:
    is_clean = False
    with pytest.raises(OutOfTime), alarm(time.monotonic() + 0.1):
        try:
            _spin(_LONG)
        finally:
            _spin(1.5)  # longer than until the next look
            is_clean = True
    assert is_clean


@pytest.mark.slow
def test_a_dropped_exception_comes_again() -> None:
    begin = time.monotonic()
    with pytest.raises(OutOfTime), alarm(begin + 0.1):
        with suppress(BaseException):  # as a callback of a library does
            _spin(_LONG)
        _spin(_LONG)
    assert time.monotonic() - begin < _LONG / 2


def _children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_no_worker_is_left() -> None:
    before = _children()
    begin = time.monotonic()
    with pytest.raises(OutOfTime), alarm(begin + 0.3):
        for _ in each(lambda _: _spin(_LONG), 2, 2):
            pass
    assert time.monotonic() - begin < _LONG / 2
    assert _children() == before
