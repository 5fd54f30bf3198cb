# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs with jobs that end as told: each target has one row, whatever becomes of it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from kcensus.fleets import FleetError, run, store
from kcensus.fleets.apart import Answer, Job
from kcensus.fleets.look import Looked
from kcensus.outputs import OutputError
from kcensus.progress import SilentProgress
from kcensus.store.layout import located
from tests.unit.fleets.told import Ended, Told, answered, content, died, ended, over, rows


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


class Late(Told):
    """An executor that returns the first content late, after the contents of later targets."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self.first: list[tuple[Future[Ended], Job]] = []

    def submit(self, job: Job) -> Future[Ended]:
        if not self.jobs:
            self.jobs.append((job.work, job.path))
            self.first.append((Future(), job))
            return self.first[0][0]
        future = super().submit(job)
        if len(self.jobs) == self.after:
            late, first = self.first.pop()
            late.set_result(content(first))
        return future


def test_each_target_has_one_row_and_its_findings(place: Path) -> None:
    paths = [f"t{number}" for number in range(70)]  # more than a batch
    assert over(place, paths) == {"done": 70}
    assert sorted(row["target"] for row in rows(place)) == sorted(paths)
    attempts = {row["attempt"] for row in rows(place)}
    assert {row["attempt"] for row in rows(place, "findings")} == attempts
    assert len(rows(place, "findings")) == 70


def test_equal_content_is_read_once(place: Path) -> None:
    told = Told()
    assert over(place, ["a=x", "b=x", "c=x", "d"], told) == {"done": 2, "duplicate": 2}
    assert [path for work, path in told.jobs if work == "report"] == ["a=x", "d"]
    known = {row["target"]: row for row in rows(place)}
    assert known["b=x"]["duplicate_of"] == known["a=x"]["attempt"]


def test_of_equal_contents_the_first_in_order_is_read(place: Path) -> None:
    told = Late(after=6)
    assert over(place, ["a=x", "b=x", *map(str, range(9))], told) == {"done": 10, "duplicate": 1}
    assert {row["target"]: row["state"] for row in rows(place)}["b=x"] == "duplicate"


def test_a_target_does_not_wait_long_for_earlier_ones(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_MAX_HELD", 0.0)
    told = Late(after=8)
    assert over(place, ["a=x", "b=x", *map(str, range(9))], told) == {"done": 10, "duplicate": 1}
    assert {row["target"]: row["state"] for row in rows(place)}["a=x"] == "duplicate"


@pytest.mark.parametrize(("how", "step"), [("time", "time"), ("killed", "killed")])
def test_an_end_without_an_answer_is_a_row_and_the_next_twin_is_tried(
    place: Path, how: str, step: str
) -> None:
    told = Told(a=ended(how))
    assert over(place, ["a=x", "b=x"], told) == {"failed": 1, "done": 1}
    assert {row["step"] for row in rows(place)} == {step, ""}


def test_many_copies_of_what_fails_are_tried_twice(place: Path) -> None:
    names = [f"{letter}=x" for letter in "abcdefgh"]  # more than are submitted at a time
    told = Told(**dict.fromkeys("abcdefgh", ended("time")))
    assert over(place, names, told) == {"failed": 8}
    assert [path for work, path in told.jobs if work == "report"] == ["a=x", "b=x"]
    assert {(row["step"], row["error"]) for row in rows(place)} == {
        ("time", "took longer than 600 s; pass a longer --timeout"),
    }  # fmt: skip


def test_a_copy_that_is_found_after_a_failure_is_no_duplicate_of_it(place: Path) -> None:
    names = ["a=x", *map(str, range(9)), "z=x"]
    assert over(place, names, Told(a=ended("time"))) == {"failed": 1, "done": 10}


def test_the_error_of_a_process_is_in_its_row(place: Path) -> None:
    told = Told(a=lambda job: (Answer("failed", content=b"OddError: {why}"), "w"))
    assert over(place, ["a"], told) == {"failed": 1}
    (row,) = rows(place)
    assert (row["step"], row["error"]) == ("killed", "its process failed: OddError: {why}")


def test_results_that_cannot_be_stored_are_a_row(place: Path) -> None:
    looked = Looked({"state": "done"}, {"findings": b"no stream"})
    told = Told(
        a=answered(time=1e300),
        b=lambda job: (Answer(content=msgspec.msgpack.encode(looked)), "w"),
        c=answered(ram_bytes=1 << 63),
    )
    assert over(place, ["a", "b", "c", "d"], told) == {"failed": 2, "done": 2}
    known = {row["target"]: row for row in rows(place)}
    assert [known[name]["step"] for name in "abcd"] == ["analyse", "analyse", "", ""]
    assert "cannot be stored" in known["a"]["error"]
    assert known["c"]["ram_bytes"] is None


def test_a_dead_worker_is_replaced_and_then_given_up(place: Path) -> None:
    limits = run.Limits(retries=2)
    states = over(place, ["a", "b"], Told(a=died(2), b=died(3)), limits=limits)
    assert states == {"done": 1, "failed": 1}
    assert {row["target"]: row["step"] for row in rows(place)} == {"a": "", "b": "worker"}


def test_attempts_are_counted(place: Path) -> None:
    over(place, ["a", "b"], Told(a=died(1)))
    assert {row["target"]: row["retries"] for row in rows(place)} == {"a": 1, "b": 0}


def test_a_run_ends_where_the_cluster_is_lost_and_keeps_what_is_done(place: Path) -> None:
    names = [f"t{number}" for number in range(9)]  # more than are submitted at a time
    told = Told(t7=died(1))
    told.lost = FleetError("lost")
    with pytest.raises(FleetError, match="lost"):
        over(place, names, told)
    kept = {row["target"] for row in rows(place)}
    assert {"t0", "t1"} <= kept < {*names} - {"t7"}
    assert over(place, names) == {"known": len(kept), "done": 9 - len(kept)}
    assert sorted(row["target"] for row in rows(place)) == names


def test_an_interrupt_stops_jobs_and_keeps_what_is_done(place: Path) -> None:
    told = Told()

    class Interrupted(SilentProgress):
        def advance(self, amount: int = 1) -> None:
            if told.finished == 2:
                raise KeyboardInterrupt
            told.finished += 1

    with pytest.raises(KeyboardInterrupt):
        over(place, [f"t{number}" for number in range(9)], told, step=Interrupted())
    assert 2 <= len(rows(place)) <= 3
    assert told.stopped
    over(place, [f"t{number}" for number in range(9)])
    assert len(rows(place)) == 9


def test_the_figures_of_a_fleet_are_a_store_of_records(place: Path) -> None:
    over(place, ["a"])
    assert located(place) == place / "figures"
    assert located(place / "figures") == place / "figures"


def test_the_first_failures_have_reasons(place: Path) -> None:
    told = Told(**{f"t{number}": ended("time") for number in range(5)})
    tally = run.fleet([f"t{number}" for number in range(5)], place, told)
    assert tally.states == {"failed": 5}
    assert [*tally.reasons] == ["t0", "t1", "t2"]
    assert all("--timeout" in why for why in tally.reasons.values())


def test_unreadable_directories_have_rows(place: Path) -> None:
    assert over(place, ["a"], unreadable={"/secret": "Permission denied"}) == {
        "failed": 1, "done": 1,
    }  # fmt: skip


@pytest.fixture
def killed_writer(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose writer was killed between the findings and the row of a target."""
    original = store.Writer._append

    def append(self: store.Writer, name: str, table: pa.Table) -> None:
        if name == "targets":
            raise OSError(28, "No space left on device")
        original(self, name, table)

    with monkeypatch.context() as patch:
        patch.setattr(store.Writer, "_append", append)
        with pytest.raises(OutputError):
            over(place, ["a", "b"])
    return place


def test_a_writer_that_was_stopped_leaves_nothing(killed_writer: Path) -> None:
    assert rows(killed_writer) == []
    assert rows(killed_writer, "findings") == []
    assert over(killed_writer, ["a", "b"]) == {"done": 2}
    assert len(rows(killed_writer, "findings")) == 2


def test_one_writer_at_a_time(place: Path) -> None:
    with store.writer(place), pytest.raises(FleetError):
        over(place, ["a"])


def test_another_table_is_not_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(FleetError):
        store.read(tmp_path, "targets")
