# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the runner says of checks of a kernel that changes while an analysis runs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import drgn
import numpy as np
import pytest

from kcensus.analyses import Analysis, AnalysisError
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, Check, CheckStatus, Gauge

_values: Iterator[int] = iter(())
_error: Exception | None = None


def run(_kernel: Kernel) -> Answer:
    if _error is not None:
        raise _error
    return Answer(
        checks=[
            Check("moves", 105, next(_values), source="counter"),
            Check("differs", 1, 2, source="other", note="Why."),
            Check("agrees", 1, 1, source="other"),
        ]
    )


def gauges(_kernel: Kernel) -> Iterator[Gauge]:
    yield Gauge("counter", next(_values), source="counter")


ANALYSIS = Analysis("drifting", "does it move?", f"{__name__}:run", gauges=f"{__name__}:gauges")

Checks = Callable[..., list[Check]]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    """Run the analysis with counters of these values, and other parts of this module."""

    def checks(values: Iterator[int], *, live: bool = True, **parts: Any) -> list[Check]:
        for name, part in {"_values": values, **parts}.items():
            monkeypatch.setattr(f"{__name__}.{name}", part)
        return Context(Kernel(drgn.Program(), live=live)).run(ANALYSIS).checks

    return checks


def test_a_counter_is_read_before_and_after(checks: Checks) -> None:
    moves, differs, agrees = checks(iter((100, 103, 110)))
    assert (moves.counter, moves.moved, moves.status) == (110, 10, CheckStatus.EXPLAINED)
    assert (differs.moved, differs.status) == (None, CheckStatus.DIFFER)
    assert differs.note not in ("", "Why.")
    assert (agrees.moved, agrees.note) == (None, "")
    # The counter of the analysis counts, too.
    moves = checks(iter((100, 130, 101)))[0]
    assert (moves.counter, moves.moved) == (130, 30)


def test_a_dump_does_not_move(checks: Checks) -> None:
    moves, differs, _ = checks(itertools.count(100), live=False)
    assert (moves.counter, moves.moved, moves.status) == (100, None, CheckStatus.DIFFER)
    assert differs.note == "Why."

    # Gauges that fail leave the checks.
    def broken(_kernel: Kernel) -> Iterator[Gauge]:
        raise ZeroDivisionError

    moves = checks(iter((105,)), gauges=broken)[0]
    assert (moves.moved, moves.status) == (None, CheckStatus.AGREE)


ERRORS = [ValueError("x"), IndexError("x"), RecursionError("x"), OverflowError("x")]
EXPECTED = [drgn.FaultError("short read", 1 << 63), MemoryError()]


@pytest.mark.parametrize("error", ERRORS + EXPECTED)
def test_what_fails_on_torn_memory_is_repeated_once(error: Exception, checks: Checks) -> None:
    kernels: list[Kernel] = []

    def torn_once(kernel: Kernel) -> Answer:
        kernels.append(kernel)
        if len(kernels) == 1:
            raise error
        return Answer()

    checks(itertools.count(), run=torn_once)
    first, second = kernels
    assert first is not second


def test_what_the_first_run_took_is_free_when_it_is_repeated(checks: Checks) -> None:
    taken: list[weakref.ref[Any]] = []

    def greedy(_kernel: Kernel) -> Answer:
        if taken:
            assert taken[0]() is None
            return Answer()
        array = np.zeros(1)
        taken.append(weakref.ref(array))
        raise MemoryError

    checks(itertools.count(), run=greedy)
    assert taken


def test_a_symbol_that_is_missing_is_not_looked_for_again(checks: Checks) -> None:
    runs: list[Kernel] = []

    def missing(kernel: Kernel) -> Answer:
        runs.append(kernel)
        return Answer(nothing=str(kernel.prog["absent"]))

    with pytest.raises(AnalysisError, match="absent"):
        checks(itertools.count(), run=missing)
    assert len(runs) == 1


@pytest.mark.parametrize("error", EXPECTED)
def test_what_cannot_be_read_twice_is_a_sentence(error: Exception, checks: Checks) -> None:
    with pytest.raises(AnalysisError) as caught:
        checks(itertools.count(), _error=error)
    assert "dump" not in str(caught.value)
    assert isinstance(caught.value.__cause__, type(error))


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("error", ERRORS)
def test_what_fails_again_is_unexpected(error: Exception, live: bool, checks: Checks) -> None:
    with pytest.raises(type(error)):
        checks(itertools.count(), live=live, _error=error)
