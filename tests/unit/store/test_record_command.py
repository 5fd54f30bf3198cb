# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus record``: what it prints and returns, without a kernel."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import kcensus
from kcensus import cli
from kcensus.commands import Exit
from kcensus.commands.series import record
from kcensus.commands.shared.ticks import ticks
from kcensus.outputs import OutputError
from kcensus.sources import TargetError


class Clock:
    """A clock that advances only by sleep() and work, or when it is set."""

    def __init__(self, now: float) -> None:
        self.now, self.passed = now, 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.passed += seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.work(seconds)


def ticking(clock: Clock, every: int, late: Callable[[], object]) -> Iterator[None]:
    return ticks(
        every, late, now=lambda: clock.now, monotonic=lambda: clock.passed, sleep=clock.sleep
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1002.0)
    monkeypatch.setattr(record, "ticks", functools.partial(ticking, made))
    return made


@pytest.mark.parametrize(
    ("start", "expected"),
    [(1002, [1002, 1200, 1500, 1800]), (1190, [1190, 1500, 1800])],  # 1200 is too near
)
def test_ticks_are_now_and_at_multiples(clock: Clock, start: float, expected: list[float]) -> None:
    clock.now = start
    each = itertools.islice(ticking(clock, 300, pytest.fail), len(expected))
    assert [clock.now for _ in each] == expected


def test_missed_ticks_are_left_out(clock: Clock) -> None:
    late: list[float] = []
    seen = []
    for _ in itertools.islice(ticking(clock, 10, lambda: late.append(clock.now)), 4):
        seen.append(clock.now)
        clock.work(25)
    assert seen == [1002, 1030, 1060, 1090]
    assert late == [1027, 1055, 1085]


@pytest.mark.parametrize(("work", "by", "most"), [(0, -500, 20), (1, 500, 10)])
def test_a_clock_that_is_set_delays_nothing_and_makes_nothing_late(
    clock: Clock, work: float, by: float, most: float
) -> None:
    each = ticking(clock, 10, pytest.fail)
    next(each)
    next(each)
    clock.work(work)
    clock.now += by
    before = clock.now
    next(each)
    assert clock.now - before <= most


def test_work_that_takes_too_long_is_late_wherever_the_clock_is_set(clock: Clock) -> None:
    late: list[float] = []
    each = ticking(clock, 10, lambda: late.append(clock.passed))
    next(each)
    clock.work(11)
    clock.now -= 500
    next(each)
    assert late == [11]


Outcome = Exit | BaseException


Recorded = Callable[..., int]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorded:
    """Run the command where each target has these outcomes, one after another."""

    def recorded(outcomes: dict[str, list[Outcome]], *options: str) -> int:
        left = {name: iter(each) for name, each in outcomes.items()}

        def outcome(spec: str, *_: object, needs_live: bool) -> Exit:
            assert needs_live == ("--every" in options)
            made = next(left[spec])
            if isinstance(made, BaseException):
                raise made
            return made

        monkeypatch.setattr(record, "_record", outcome)
        return cli.main(["record", *outcomes, "--store", str(tmp_path), *options])

    return recorded


def full() -> OutputError:
    return OutputError("cannot write to the store 's': No space left on device")


@pytest.mark.slow
def test_failures_do_not_stop_it(
    clock: Clock, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"guest": [Exit.DONE, full(), Exit.INCOMPLETE, KeyboardInterrupt()]}
    assert recorded(outcomes, "--every", "10s") == Exit.FAILED
    assert clock.now == 1030
    lines = capsys.readouterr().err.splitlines()
    assert sum("No space left" in line for line in lines) == 1
    assert "3 rounds, 2 with problems" in lines[-1]


@pytest.mark.slow
def test_it_starts_if_one_of_several_targets_can_be_read(clock: Clock, recorded: Recorded) -> None:
    outcomes = {"down": [TargetError("it is down"), Exit.DONE], "up": [Exit.DONE, Exit.DONE]}
    assert recorded(outcomes, "--every", "10s", "--count", "2") == Exit.TARGET
    assert clock.now == 1010


@pytest.mark.parametrize("count", [1, 2])
def test_it_does_not_start_if_no_target_can_be_read(
    clock: Clock, recorded: Recorded, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    outcomes = {f"down{row}": [TargetError(f"it is down {row}")] for row in range(count)}
    assert recorded(outcomes, "--every", "10s") == Exit.TARGET
    assert clock.now == 1002
    assert capsys.readouterr().err.count("it is down") == count


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ((full(), Exit.INCOMPLETE, Exit.DONE), Exit.FAILED),
        ((Exit.INCOMPLETE, TargetError("no")), Exit.TARGET),
        ((Exit.DONE, Exit.INCOMPLETE), Exit.INCOMPLETE),
        ((Exit.DONE, Exit.DONE), Exit.DONE),
    ],
)
def test_the_status_is_the_worst(
    recorded: Recorded, outcomes: tuple[Outcome, ...], status: Exit
) -> None:
    assert recorded({f"target{row}": [each] for row, each in enumerate(outcomes)}) == status


@pytest.mark.slow
def test_it_stops_after_count(clock: Clock) -> None:
    work = Mock(return_value=Exit.DONE)
    assert record._repeat(10, 3, work) is Exit.DONE
    assert [called.args for called in work.mock_calls] == [(True,), (False,), (False,)]


@pytest.mark.slow
def test_samples_and_documents_are_recorded_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "series"
    assert cli.main(["record", "sample", "sample-after", "--store", str(store)]) == 0
    assert capsys.readouterr().out.count("recorded ") == 2
    assert cli.main(["report", "sample", "--json"]) == 0
    document = tmp_path / "sample.json"
    document.write_text(capsys.readouterr().out)
    assert cli.main(["record", "sample", str(document), "--store", str(store)]) == 0
    assert capsys.readouterr().out.count("in the store already") == 2
    assert kcensus.history(store).attrs["records"] == 2
    assert all(path.stat().st_size < 20_000 for path in store.rglob("*.parquet"))
    # A target that cannot be read does not stop the others.
    targets, store = [str(tmp_path / "none"), "sample"], tmp_path / "other"
    assert cli.main(["record", *targets, "--store", str(store)]) == Exit.TARGET
    unreadable, unnamed = capsys.readouterr().err.splitlines()
    assert "none" in unreadable
    assert "--host NAME" in unnamed
    assert kcensus.history(store).attrs["records"] == 1
    assert cli.main(["record", "sample", "--store", str(store), "--host", "web7"]) == 0
    assert "--host" not in capsys.readouterr().err
    assert kcensus.history(store).attrs["hosts"] == ["(none)", "web7"]


@pytest.mark.parametrize(
    "option", ["--count=3", "--every=5m", "--every=0s", "--every=5", "--every=99999999d"]
)
def test_options_that_make_no_sense(tmp_path: Path, option: str) -> None:
    store = tmp_path / "series"
    assert cli.main(["record", "sample", "--store", str(store), option]) == Exit.USAGE
    assert not [*tmp_path.rglob("*.parquet")]
