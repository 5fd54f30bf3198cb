# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus watch``, of a recorded kernel as if it ran."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest

from kcensus import cli
from kcensus.analyses import AnalysisError
from kcensus.analyses import analyses as real_analyses
from kcensus.analyses.runner import Context
from kcensus.commands import Exit
from kcensus.commands.shared.ticks import ticks
from kcensus.commands.watch import address
from kcensus.commands.watch import loop as watch
from kcensus.progress import SilentProgress, Step
from kcensus.render.schema import error
from kcensus.watch import MAX_ROWS
from kcensus.watch.exposition import MetricsFile
from kcensus.watch.sampler import Sampler
from kcensus.watch.samples import Sample
from tests.unit.watch import making
from tests.unit.watch.making import MADE, clock, state


class Steps(SilentProgress):
    running: ClassVar[list[str]] = []

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        with super().step(title, total) as step:
            self.running.append(title)
            try:
                yield step
            finally:
                self.running.pop()


@pytest.fixture(autouse=True)
def _as_if_live(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"made-up": MADE, **real_analyses()}
    monkeypatch.setattr(watch, "analyses", lambda: known)
    monkeypatch.setattr(watch, "chosen_analyses", lambda text: [known[x] for x in text.split(",")])
    monkeypatch.setattr(watch, "opened", lambda *_: nullcontext((making.target(), Steps())))
    times = functools.partial(ticks, now=clock.time, sleep=lambda time: clock.sleep(time))
    monkeypatch.setattr(watch, "ticks", lambda every, late, sleep: times(every, late))


def run(*words: str, count: int = 3) -> int:
    return cli.main(["watch", "made-up", *words, "--count", str(count)])


def test_json_is_as_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--census", "2") == Exit.DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["sample"] for line in lines] == [1, 2, 3]
    assert [line["census"] is not None for line in lines] == [True, False, True]
    assert [error(line, "watch_sample") for line in lines] == [""] * 3
    assert lines[1]["gauges"] == {"made-up": {"nr_made": 100}}
    assert lines[1]["rates"] == {"made-up": {"nr_made": 0}}
    assert lines[2]["census"]["summary"]["made-up"]["used_bytes"] == 4096


def test_a_pipe_gets_lines_or_a_file_that_stays_after_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == Exit.DONE
    assert "nr_made 100" in capsys.readouterr().out
    path = tmp_path / "kcensus.prom"
    assert run("--metrics", str(path)) == Exit.DONE
    assert b"kcensus_samples 3.0" in path.read_bytes()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["notes.txt", "kcensus.prom"])
def test_a_file_that_it_did_not_write_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    path.write_text("mine")
    monkeypatch.undo()
    assert cli.main(["watch", "sample", "--metrics", str(path)]) == Exit.USAGE
    assert path.read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_file_goes_when_it_is_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    path, seen = tmp_path / "kcensus.prom", []

    def sleep(seconds: float) -> None:
        seen.append(path.exists())
        if len(seen) == 2:
            signal.raise_signal(number)
        clock.now += seconds

    monkeypatch.setattr(clock, "sleep", sleep)
    assert run("--metrics", str(path), count=9) == Exit.DONE
    assert seen == [True, True]
    assert [*tmp_path.iterdir()] == []
    assert "after 2 samples" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_are_ignored_stay_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    path = tmp_path / "kcensus.prom"

    def sleep(seconds: float) -> None:
        signal.raise_signal(number)
        clock.now += seconds

    monkeypatch.setattr(clock, "sleep", sleep)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert run("--metrics", str(path)) == Exit.DONE
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert b"kcensus_samples 3.0" in path.read_bytes()


def test_a_second_signal_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, original, seen = tmp_path / "kcensus.prom", MetricsFile.remove, []

    def remove(self: MetricsFile) -> None:
        signal.raise_signal(signal.SIGTERM)
        original(self)

    monkeypatch.setattr(MetricsFile, "remove", remove)
    monkeypatch.setattr(clock, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert run("--metrics", str(path)) == Exit.DONE
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == []
    assert not path.exists()


def test_progress_is_shown_while_debug_info_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = Sampler.attach, []

    def attach(self: Sampler, context: Context) -> None:
        seen.append(len(Steps.running))
        original(self, context)

    monkeypatch.setattr(Sampler, "attach", attach)
    assert run() == Exit.DONE
    assert (seen, Steps.running) == ([1], [])
    # The status is that of the last sample.
    state.fault = AnalysisError("no such type")
    assert run() == Exit.INCOMPLETE


def test_a_full_disk_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no" / "kcensus.prom"
    assert run("--metrics", str(path)) == Exit.FAILED
    monkeypatch.setattr(watch, "check_writable", lambda path: None)
    assert run("--metrics", str(path)) == Exit.DONE
    assert capsys.readouterr().err.count("No such file") == 2


@pytest.mark.slow
def test_a_guest_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = [making.target(), ValueError("refused"), making.target()]
    opened = [
        each if isinstance(each, ValueError) else nullcontext((each, SilentProgress()))
        for each in targets
    ]
    monkeypatch.setattr(watch, "opened", mock.Mock(side_effect=opened))
    original = Sampler.sample

    def sample(self: Sampler) -> Sample:
        made = original(self)
        if made.number == 2:
            self._context, self._lost = None, "it ended"
            return replace(made, gauges={}, unreadable="it ended")
        return made

    monkeypatch.setattr(Sampler, "sample", sample)
    assert run("--json", count=5) == Exit.DONE
    out, err = capsys.readouterr()
    gone = [bool(json.loads(line)["unreadable"]) for line in out.splitlines()]
    assert gone == [False, True, True, False, False]
    assert err.count("refused") == 1


@pytest.mark.parametrize(
    "words",
    [
        *("no-such-thing", "dentries sample sample", "sample sample", "--interval 0s", "--count 0"),
        *("--census -1", "--listen 127.0.0.1", "--listen 127.0.0.1:99999"),
        f"--rows {MAX_ROWS + 1}",
    ],
)
def test_arguments_that_make_no_sense(words: str) -> None:
    assert cli.main(["watch", *words.split()]) == Exit.USAGE


def test_guests_have_a_label() -> None:
    assert watch._labels("qmp:/run/guest.qmp") == {"guest": "qmp:/run/guest.qmp"}
    assert watch._labels("/proc/kcore") == watch._labels(None) == {}


def test_a_dump_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    assert cli.main(["watch", "sample"]) == Exit.USAGE
    assert "'sample'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("9750", ("127.0.0.1", 9750)),
        (":9750", ("127.0.0.1", 9750)),
        ("0.0.0.0:9750", ("0.0.0.0", 9750)),
        ("[::1]:9750", ("::1", 9750)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_addresses(text: str, pair: tuple[str, int]) -> None:
    assert address(text) == pair
