# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process that reads a target: stopped analyses, and the report of a killed process."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.commands.collect.child import _Work
from kcensus.commands.collect.files import Bounded, TooLarge
from kcensus.commands.collect.order import CAPSULE, FORMS, TIME, Order
from kcensus.commands.shared.options import Reading
from kcensus.results import Result
from kcensus.sources import open_target

_SECONDS = 30.0


@pytest.fixture
def order() -> Iterator[Order]:
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(tempfile.TemporaryFile()).fileno()
            for name in (*FORMS, CAPSULE, "sections", "pages")
        }
        yield Order("record", "sample-waits", Reading(), files)


class Told(list[tuple[str, Any]]):
    """What a process has told."""

    def __call__(self, key: str, value: Any) -> None:
        self.append((key, value))

    def of(self, key: str) -> list[Any]:
        return [value for each, value in self if each == key]


def test_a_slow_analysis_is_stopped(order: Order) -> None:
    def slow() -> Result:
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            sum(range(1000))
        raise AssertionError

    told = Told()
    begin = time.monotonic()
    work = _Work(replace(order, analyses_until=begin + 0.1), told)
    stopped, late = work._section("slab", slow), work._section("dentries", slow)
    assert time.monotonic() - begin < _SECONDS / 2
    assert stopped.result is late.result is None
    assert TIME in stopped.error
    assert TIME in late.error
    assert [value[0] for value in told.of("analysis")] == ["slab", "dentries"]


@pytest.mark.slow
def test_a_killed_process_has_left_a_report(order: Order) -> None:
    """Analyses that were done are in it, although the last part is incomplete."""
    first = _Work(order, Told())
    target = open_target("sample-waits")
    first._examined(target)
    file = order.files["sections"]
    os.ftruncate(file, os.fstat(file).st_size - 100)
    told = Told()
    _Work(replace(order, work="rescue"), told).run()
    assert told.of("form") == [*FORMS]
    size = os.fstat(order.files["report.json"]).st_size
    document = json.loads(os.pread(order.files["report.json"], size, 0))
    assert {*document["analyses"]} == {*analyses()}
    assert {*document["failed"]} == {"patches"}
    assert [finding["id"] for finding in document["findings"]]
    assert all(os.fstat(order.files[name]).st_size for name in FORMS)


def test_a_file_does_not_grow_beyond_its_limit() -> None:
    with tempfile.TemporaryFile() as file:
        bounded = Bounded(file, 10)
        bounded.write(bytes(8))
        with pytest.raises(TooLarge):
            bounded.write(bytes(3))
        assert bounded.tell() == 8
