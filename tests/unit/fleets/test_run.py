# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs with jobs that end as told: each target has one row, whatever becomes of it."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kcensus.fleets import FleetError, run, store
from kcensus.fleets.apart import Answer, Job
from kcensus.fleets.look import Content, Looked
from kcensus.fleets.tables import arrow
from kcensus.outputs import OutputError
from kcensus.store.layout import located
from kcensus.text import printable

Ended = tuple[Answer, str]


def content(job: Job) -> Ended:
    """Return the content of ``NAME`` or ``NAME=CONTENT``."""
    digest = hashlib.sha256(os.fsencode(job.path.partition("=")[2] or job.path)).hexdigest()
    return Answer(content=msgspec.msgpack.encode(Content(digest, "whole", 1, 1))), "w"


def looked(job: Job) -> Ended:
    host = printable(job.path)
    common = {"day": "2026-01-02", "attempt": job.attempt, "host": host}
    names = ",".join(job.analyses)
    row = {"analysis": "slab", "finding": "x", "kind": "x", "severity": "notice", "title": host}
    sink = pa.BufferOutputStream()
    rows = arrow("findings", [row], common)
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    facts = {**common, "time": 1767312000.0, "state": "done", "step": "", "analyses": names}
    made = Looked(facts, {"findings": sink.getvalue().to_pybytes()})
    return Answer(content=msgspec.msgpack.encode(made)), "w"


class Told:
    """An executor that does each job at once; ``ends`` has other ends by path."""

    width = 2

    def __init__(self, **ends: Callable[[Job], Ended]) -> None:
        self.ends, self.content = ends, content
        self.jobs: list[tuple[str, str]] = []
        self.given: list[Job] = []
        self.stopped: Collection[str] = ()
        self.lost: Exception | None = None
        self.finished = 0

    def check(self) -> None:
        if self.lost:
            raise self.lost

    def stop(self, attempts: Collection[str]) -> None:
        self.stopped = attempts

    def submit(self, job: Job) -> Future[Ended]:
        self.jobs.append((job.work, job.path))
        self.given.append(job)
        future: Future[Ended] = Future()
        try:
            end = self.ends.get(job.path.partition("=")[0]) if job.work == "report" else None
            future.set_result((end or (self.content if job.work == "content" else looked))(job))
        except Exception as error:
            future.set_exception(error)
        return future


def ended(how: str) -> Callable[[Job], Ended]:
    return lambda job: (Answer(how), "w")


def died(times: int) -> Callable[[Job], Ended]:
    left = [times]

    def work(job: Job) -> Ended:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("KilledWorker")
        return looked(job)

    return work


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


def over(place: Path, paths: list[str], told: Told | None = None, **more: Any) -> Counter[str]:
    return run.fleet(paths, place, told or Told(), **{"analyses": ["slab"], **more}).states


def rows(place: Path, table: str = "targets") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.read(place, table).to_pylist()
    return found


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


def answered(**facts: Any) -> Callable[[Job], Ended]:
    made = {"state": "done", "step": "", "analyses": "slab", **facts}
    return lambda job: (Answer(content=msgspec.msgpack.encode(Looked(made))), "w")


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


def test_a_second_run_reads_only_what_is_new_or_may_go_better(place: Path) -> None:
    over(place, ["a", "b", "c"], Told(b=ended("time"), c=ended("killed")))
    told = Told(c=ended("killed"))
    assert over(place, ["a", "b", "c", "d"], told) == {"known": 1, "done": 2, "failed": 1}
    assert [path for work, path in told.jobs if work == "report"] == ["b", "c", "d"]
    assert sorted(row["target"] for row in rows(place)) == ["a", "b", "c", "d"]


def test_a_second_run_tells_workers_what_is_known(place: Path) -> None:
    over(place, ["a=x", "b=x"])
    told = Told()
    over(place, ["a=x", "b=x", "c"], told)
    digest = hashlib.sha256(b"x").hexdigest()
    known = {job.path: job.known for job in told.given if job.work == "content"}
    assert known["a=x"] == known["b=x"] == (1, 1, digest, "whole")
    assert known["c"] == (0, 0, "", "")


def test_more_analyses_are_a_reason_to_read_again_and_the_last_row_counts(place: Path) -> None:
    over(place, ["a", "b"])
    (first,) = {row["attempt"] for row in rows(place) if row["target"] == "a"}
    assert over(place, ["a"], analyses=["slab", "waits"]) == {"done": 1}
    found = {row["target"]: row["attempt"] for row in rows(place)}
    assert sorted(found) == ["a", "b"]
    assert found["a"] != first
    assert {row["attempt"] for row in rows(place, "findings")} == {*found.values()}
    with store.writer(place) as writer:  # which removes those of before
        kept = writer._read("findings", ["attempt"])["attempt"].to_pylist()
    assert sorted(kept) == sorted(found.values())


def test_a_copy_names_the_row_of_its_content_that_counts(place: Path) -> None:
    over(place, ["a=x", "b=x", "c=x"])
    more = ["slab", "waits"]
    assert over(place, ["a=x", "b=x"], analyses=more) == {"done": 1, "duplicate": 1}
    known = {row["target"]: row for row in rows(place)}
    assert len(known) == len(rows(place)) == 3
    (original,) = (row["attempt"] for row in known.values() if row["state"] == "done")
    copies = [row["duplicate_of"] for row in known.values() if row["state"] == "duplicate"]
    assert copies == [original, original]
    assert over(place, ["a=x", "b=x", "c=x"], analyses=more) == {"known": 3}


def told_facts(**facts: str) -> Callable[[Job], Ended]:
    def work(job: Job) -> Ended:
        made = msgspec.msgpack.decode(looked(job)[0].content, type=Looked)
        return Answer(content=msgspec.msgpack.encode(Looked(made.facts | facts, made.tables))), "w"

    return work


GIB = 1 << 30


@pytest.mark.parametrize("facts", [
    {"state": "failed", "step": "types", "analyses": "", "error": "no debug info; pass -s"},
    {"state": "incomplete"},
])  # fmt: skip
def test_more_memory_or_debug_info_is_a_reason_to_read_again(
    place: Path, facts: dict[str, str]
) -> None:
    paths, told = ["a=x", "b=x", "c"], Told(a=told_facts(**facts))
    first = {facts["state"]: 1, "duplicate": 1, "done": 1}
    assert over(place, paths, told, symbols=["/d"], limits=run.Limits(memory=GIB)) == first
    assert over(place, paths, limits=run.Limits(memory=GIB)) == {"known": 3}
    less = run.Limits(memory=GIB >> 1)
    assert over(place, paths, symbols=["/d"], limits=less) == {"known": 3}
    again = {facts["state"]: 1, "duplicate": 1, "known": 1}
    more: list[dict[str, Any]] = [{"memory": 2 * GIB}, {"symbols": ["/e"]}, {"debuginfod": True}]
    for each in more:
        limits = run.Limits(memory=each.pop("memory", 2 * GIB))
        for states in again, {"known": 3}:
            assert over(place, paths, told, limits=limits, **each) == states
    assert len(rows(place)) == 3


def away(job: Job) -> Ended:
    return Answer(content=msgspec.msgpack.encode(Content(error="Stale file handle"))), "w"


def test_a_failure_that_passes_does_not_replace_a_report(place: Path) -> None:
    over(place, ["a", "b"], Told(b=died(9)))
    told = Told()
    told.content = away
    assert over(place, ["a", "b"], told) == {"failed": 2}
    assert {row["target"]: row["step"] for row in rows(place)} == {"a": "", "b": "content"}
    more = ["slab", "waits"]
    assert over(place, ["a"], Told(a=ended("time")), analyses=more) == {"failed": 1}
    assert over(place, ["a", "b"]) == {"known": 1, "done": 1}
    assert sorted((row["target"], row["state"]) for row in rows(place)) == [
        ("a", "done"), ("b", "done"),
    ]  # fmt: skip
    assert sorted(row["host"] for row in rows(place, "findings")) == ["a", "b"]


def test_a_failure_on_another_content_is_a_row(place: Path) -> None:
    over(place, ["a"])
    told = Told(a=ended("time"))
    told.content = lambda job: content(msgspec.structs.replace(job, path="a=new"))
    assert over(place, ["a"], told) == {"failed": 1}
    assert sorted(row["state"] for row in rows(place)) == ["done", "failed"]


@pytest.mark.parametrize("path", ["/a\x01", "/a\udcff", f"/{'a' * 3000}"])
def test_paths_that_the_store_writes_in_another_way_are_known_again(place: Path, path: str) -> None:
    assert over(place, [path]) == {"done": 1}
    told = Told()
    assert over(place, [path], told) == {"known": 1}
    assert told.given[0].known[:2] == (1, 1)
    assert [row["state"] for row in rows(place)] == ["done"]
    assert len(rows(place, "findings")) == 1


def test_the_frame_has_paths_that_are_no_utf_8(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("kcensus.api.fleet")
    monkeypatch.setattr(module, "_executor", lambda *_: nullcontext(Told()))
    paths = [f"{tmp_path}/{name}" for name in ("b\udcff", "a\x01")]
    for path in paths:
        Path(path).touch()
    frame = module.fleet(paths, store=place, analyses=["slab"])
    assert frame["target"].tolist() == [f"{tmp_path}/b\\xff", f"{tmp_path}/a\\x01"]


def test_a_changed_file_has_two_rows(place: Path) -> None:
    over(place, ["a"])
    other = Told(a=looked)
    other.content = lambda job: content(msgspec.structs.replace(job, path="a=new"))
    assert over(place, ["a"], other) == {"done": 1}
    assert [row["target"] for row in rows(place)] == ["a", "a"]
    # Whatever is there now, it is known.
    assert over(place, ["a"], other) == over(place, ["a"]) == {"known": 1}
    assert [row["state"] for row in rows(place)] == ["done", "done"]


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

    def interrupt(number: int) -> None:
        if told.finished == 2:
            raise KeyboardInterrupt
        told.finished += 1

    with pytest.raises(KeyboardInterrupt):
        over(place, [f"t{number}" for number in range(9)], told, done=interrupt)
    assert 2 <= len(rows(place)) <= 3
    assert told.stopped
    over(place, [f"t{number}" for number in range(9)])
    assert len(rows(place)) == 9


def test_the_figures_of_a_fleet_are_a_store_of_records(place: Path) -> None:
    over(place, ["a"])
    assert located(place) == place / "figures"
    assert located(place / "figures") == place / "figures"


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
