# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writers that are killed at any moment, beside each other and readers.

Every record that was acknowledged is there once, and no reader ever sees a torn file, a record
twice, or one less than before.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from deltalake import DeltaTable

import kcensus
from kcensus.store import dataset
from tests.unit.store.making import NOON, ask, entry

_RECORDS = 200
"""Of each writer, at most."""
_SECONDS_APART = 433
"""Of the records of a writer, which so are of two days."""
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])  # so that a new writer starts in milliseconds


def _write(
    store: Path, writer: int, numbers: Sequence[int], done: Connection, life: float | None
) -> None:
    dataset._MERGED_EVERY = 8  # so that merges are killed, too
    if life is not None:
        signal.setitimer(signal.ITIMER_PROF, life)  # SIGPROF: as sudden as SIGKILL, no handler runs
    dataset.prepare(store)
    for number in numbers:
        time_ = NOON + number * _SECONDS_APART + writer
        dataset.add(store, entry(time=time_, used=writer * _RECORDS + number))
        done.send(number)


class _Writer:
    """A process that adds records, and is started again whenever it was killed.

    :param lives: CPU time in seconds after which each process is killed; those after them are not
    """

    def __init__(self, store: Path, number: int, records: int, lives: Sequence[float] = ()) -> None:
        self.store, self.number, self.records = store, number, records
        self.lives, self.kills = [*lives], 0
        self.acknowledged: list[int] = []
        self.start()

    def start(self) -> None:
        left = [number for number in range(self.records) if number not in self.acknowledged]
        life = self.lives.pop() if self.lives else None
        self.done, done = _processes.Pipe(duplex=False)
        arguments = (self.store, self.number, left, done, life)
        self.process = _processes.Process(target=_write, args=arguments)
        self.process.start()
        done.close()

    def goes_on(self) -> bool:
        """Return whether it has more to write; start it again if it was killed."""
        if self.process.is_alive():
            return True
        try:
            while True:
                self.acknowledged.append(self.done.recv())
        except EOFError:
            self.done.close()
        self.process.join()
        if self.process.exitcode == -signal.SIGPROF:
            self.kills += 1
            self.start()
            return True
        assert self.process.exitcode == 0
        return False


def _values(store: Path) -> list[int]:
    return sorted(map(int, kcensus.history(store, metric="used_bytes")["exact"]))


@pytest.mark.slow
def test_killed_writers_lose_and_repeat_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    records = _RECORDS if request.config.getoption("--all") else 80
    kills = records // 10
    store, dice = tmp_path / "series", random.Random(14)
    writers = [
        _Writer(store, number, records, [dice.uniform(0.01, 0.2) for _ in range(kills)])
        for number in range(2)
    ]
    seen: set[int] = set()
    running = writers
    while running := [writer for writer in running if writer.goes_on()]:
        values = _values(store) if DeltaTable.is_deltatable(str(store)) else []
        assert len({*values}) == len(values)
        assert seen <= {*values}
        seen = {*values}
    assert [writer.kills for writer in writers] == [kills, kills]
    for writer in writers:
        assert {*writer.acknowledged} == {*range(records)}
    expected = [writer * _RECORDS + number for writer in range(2) for number in range(records)]
    assert _values(store) == expected


@pytest.mark.slow
def test_raw_readers_see_each_record_once_while_files_are_merged(tmp_path: Path) -> None:
    """DuckDB knows nothing of stores."""
    store = tmp_path / "series"
    writer = _Writer(store, 0, 40)
    counts: list[tuple[int, int]] = []
    while writer.goes_on():
        if not DeltaTable.is_deltatable(str(store)):
            continue
        query = "select count(*), count(distinct record) from store where metric = 'used_bytes'"
        rows, records = ask(query, store).iloc[0]
        counts.append((rows, records))
    assert len(counts) > 3
    assert all(rows == distinct for rows, distinct in counts)
    distinct = [number for _, number in counts]
    assert distinct == sorted(distinct)
    assert len(DeltaTable(store).file_uris()) < 40 / 2
