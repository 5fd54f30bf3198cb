# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the terminal shows of samples, at any size."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions

from kcensus.analyses import AnalysisError
from kcensus.human import human_change, human_rate
from kcensus.results import Unit
from kcensus.watch import screen
from kcensus.watch.history import History
from kcensus.watch.lines import lines
from kcensus.watch.sampler import Sampler
from kcensus.watch.screen import Display, View, shows_unicode, sparkline
from tests.unit.watch import making
from tests.unit.watch.making import MADE, clock, state


@pytest.fixture
def history() -> History:
    return History((MADE,))


@pytest.fixture
def view(history: History) -> View:
    return View("a target", ["made-up"], 10, history)


def shown(view: View, sampler: Sampler, history: History) -> str:
    clock.now += 10
    view.sample = sampler.take()
    history.add(view.sample)
    return text(view)


def text(view: View, width: int = 100, height: int = 30) -> str:
    made = [line.plain for line in view.lines(width, height)]
    assert len(made) <= height
    assert max(map(cell_len, made)) <= width
    return "\n".join(made)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 8), (20, 3), (5, 1)])
def test_it_fits(width: int, height: int, history: History, view: View) -> None:
    sampler = making.sampler(census=1)
    assert text(view, width, height)
    state.findings = tuple(f"full:{number}" for number in range(30))
    for counter in (1, 1 << 62, 0):
        state.counter = counter
        shown(view, sampler, history)
        text(view, width, height)


def test_before_the_first_sample_it_says_what_goes_on(view: View) -> None:
    assert not text(view).endswith(": ")
    view.busy = "census, 1 of 7"
    assert text(view).endswith(view.busy)


def test_figures_that_move_have_numbers_and_bars(history: History, view: View) -> None:
    sampler = making.sampler(census=2)
    assert "▁" not in shown(view, sampler, history)
    state.counter, state.used = 200, 8192
    seen = shown(view, sampler, history)
    row = next(line for line in seen.splitlines() if "nr_made" in line)
    assert row.split()[-4:] == ["200", "+7.7/s", "+100", "▁█"]


def test_failures_and_problems_are_shown_and_go(history: History, view: View) -> None:
    sampler = making.sampler(census=1)
    state.fault = AnalysisError("no such \x1b[31mtype")
    view.problems["metrics"] = "the disk is full"
    seen = shown(view, sampler, history)
    assert "no such \\x1b[31mtype" in seen
    assert "the disk is full" in seen
    state.fault, view.problems["metrics"] = None, ""
    seen = shown(view, sampler, history)
    assert "no such" not in seen
    assert "disk" not in seen


def test_findings_that_appear_and_go_are_shown(history: History, view: View) -> None:
    sampler = making.sampler(census=1)
    state.findings = ("old",)
    shown(view, sampler, history)
    state.findings = ("new",)
    seen = shown(view, sampler, history).splitlines()
    assert [line[0] for line in seen if "old is full" in line] == ["-"]
    assert [line[0] for line in seen if "new is full" in line] == ["+"]


def test_a_terminal_that_changes_its_size_is_drawn_again(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "_POLL_SECONDS", 0.001)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24)
    display = Display(view, console)
    with display.shown():
        display.draw()
        before = out.tell()
        display.wait(0.01)
        assert out.tell() == before
        console.size = ConsoleDimensions(40, 10)
        display.wait(0)  # as if the whole time passed before it looks
        assert out.tell() > before


def test_terminals_that_have_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert shows_unicode(console)
    assert not shows_unicode(Console(file=io.TextIOWrapper(io.BytesIO(), "ascii")))
    monkeypatch.setenv("TERM", "linux")
    assert not shows_unicode(console)
    # Bars, where there are some.
    assert sparkline([0, 7, 3.5], 8, is_unicode=True) == "▁█▅"
    assert sparkline([0, 7, 3.5], 2, is_unicode=False) == "#_"
    assert sparkline([5, 5], 8, is_unicode=False) == "__"
    assert sparkline(range(60), 60, is_unicode=False).isascii()


def test_rates_and_changes() -> None:
    for rate, words in ((0, "0"), (2.5, "+2.5/s"), (-0.5, "-30.0/min"), (0.001, "+3.6/h")):
        assert human_rate(rate, Unit.COUNT) == words
    for rate, words in ((4096, "+4.0 KiB/s"), (-100, "-5.9 KiB/min")):
        assert human_rate(rate, Unit.BYTES) == words
    assert human_rate(0.0001, Unit.RATIO) == "+0.6%/min"
    assert human_change(-1536, Unit.BYTES) == "-1.5 KiB"
    assert human_change(1234, Unit.PAGES) == "+1,234"
    assert human_change(0, Unit.COUNT) == "0"


def test_lines_have_what_moved(history: History) -> None:
    sampler = making.sampler(census=2)
    seen = []
    for counter in (100, 120, 120):
        clock.now += 10
        state.counter = counter
        sample = sampler.take()
        history.add(sample)
        seen.append(" ".join(lines(sample, history, ["made-up"])))
    assert "nr_made 100" in seen[0]
    assert "used 4.0 KiB" in seen[0]
    assert "nr_made 120 (+" in seen[1]
    assert ("used" in seen[1], seen[2]) == (False, "")
