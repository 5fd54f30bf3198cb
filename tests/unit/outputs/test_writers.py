# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writers of one file at once, which are killed, find the disk full, or find a planted link."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import Gauge
from pyarrow import parquet

from kcensus.outputs import OutputError, replacing
from kcensus.sources.capsule.container import writing
from kcensus.watch.exposition import MetricsFile
from tests.unit.outputs.test_outputs import _open_like_nfs

_REFUSED = 7
"""Exit status of a writer with an OutputError."""
_FULL = 30_000
"""Bytes that a full disk takes; each content is longer."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


def _words(number: int) -> list[str]:
    dice = random.Random(number)
    return [f"{number}:{dice.random()}\n" for _ in range(4000)]


def _text(path: Path, number: int) -> None:
    with replacing(path) as part:
        part.write_text("".join(_words(number)))


def _lines(path: Path, number: int) -> None:
    with replacing(path) as part, part.open("w") as file:
        file.writelines(_words(number))


def _bytes(path: Path, number: int) -> None:
    with replacing(path) as part:
        part.write_bytes("".join(_words(number)).encode())


def _parquet(path: Path, number: int) -> None:
    with replacing(path) as part:
        parquet.write_table(pa.table({"words": _words(number)}), part)


def _capsule(path: Path, number: int) -> None:
    with writing(path) as writer:
        writer.section("lookups", "".join(_words(number)).encode())
        writer.manifest({"number": number})


def _metrics(path: Path, number: int) -> None:
    gauge = Gauge("kcensus_made_up", "", ["word"], registry=None)
    for word in _words(number)[:2000]:
        gauge.labels(word).set(number)
    MetricsFile(path).write(gauge)


_FORMS: tuple[Callable[[Path, int], None], ...] = (
    _text, _lines, _bytes, _parquet, _capsule, _metrics
)  # fmt: skip


def _write(form: int, path: Path, number: int, start: Event, full: bool, named: bool) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, until the process ends
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, _FULL))
    if named:
        os.open = _open_like_nfs(os.open)  # type: ignore[assignment]
    start.wait()
    try:
        _FORMS[form](path, number)
    except OutputError:
        sys.exit(_REFUSED)


@pytest.mark.slow
def test_the_last_complete_one_wins(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = 500 if request.config.getoption("--all") else 60
    dice, victim, lone = random.Random(26), tmp_path / "victim", tmp_path / "lone"
    seen = {"won": 0, "killed": 0, "full": 0, "link": 0}
    for number in range(rounds):
        form = number % len(_FORMS)
        expected = []
        for each in range(4):
            _FORMS[form](lone, each)
            expected.append(lone.read_bytes())
        assert min(map(len, expected)) > _FULL
        shared = tmp_path / f"shared{number}"
        shared.mkdir()
        path, before = shared / "out", b"before" if dice.random() < 0.5 else None
        victim.write_bytes(b"precious")
        if planted := dice.random() < 0.2:
            shared.chmod(0o1777)
            path.symlink_to(victim)
        elif before:
            path.write_bytes(before)
        start, full = _processes.Event(), [dice.random() < 0.2 for _ in range(4)]
        writers = [
            _processes.Process(
                target=_write, args=(form, path, each, start, full[each], dice.random() < 0.5)
            )
            for each in range(dice.choice((2, 3, 4)))
        ]
        for writer in writers:
            writer.start()
        start.set()
        time.sleep(dice.uniform(0, 0.03))
        for writer in writers:
            if dice.random() < 0.4 and writer.pid is not None:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(writer.pid, dice.choice(_SIGNALS))
        for writer in writers:
            writer.join()

        statuses = [writer.exitcode for writer in writers]
        assert victim.read_bytes() == b"precious"
        killed = any(status == -signal.SIGKILL for status in statuses)
        left = [name for name in os.listdir(shared) if name != "out"]
        assert not left or killed, left
        if planted:
            assert 0 not in statuses
            assert path.is_symlink()
            seen["link"] += 1
            continue
        done = [each for each, status in enumerate(statuses) if status == 0]
        assert not any(full[each] for each in done)
        found = path.read_bytes() if path.exists() else None
        # One that was killed may have written all of it.
        stopped = [each for each, status in enumerate(statuses) if status not in (0, _REFUSED)]
        assert found in [expected[each] for each in (*done, *stopped)] + [before] * (not done)
        seen["won"] += bool(done)
        seen["killed"] += bool(stopped)
        seen["full"] += _REFUSED in statuses
    assert min(seen.values()) > rounds // 20, seen
