# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs on a store that has targets already."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from kcensus.fleets import run, store
from kcensus.fleets.apart import Answer, Job
from kcensus.fleets.look import Content
from kcensus.fleets.tables import COLUMNS
from kcensus.fleets.targets import find
from kcensus.progress import SilentProgress
from tests.unit.fleets.told import Ended, Told, content, died, ended, looked, over, rows, told_facts

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


def test_a_second_run_reads_only_what_is_new_or_may_go_better(place: Path) -> None:
    over(place, ["a", "b", "c"], Told(b=ended("time"), c=ended("killed")))
    told = Told(c=ended("killed"))
    assert over(place, ["a", "b", "c", "d"], told) == {"known": 1, "done": 2, "failed": 1}
    assert [path for work, path in told.jobs if work == "report"] == ["b", "c", "d"]
    assert sorted(row["target"] for row in rows(place)) == ["a", "b", "c", "d"]


def test_what_is_known_does_not_count_for_the_speed(place: Path) -> None:
    class Step(SilentProgress):
        advanced = skipped = 0

        def advance(self, amount: int = 1) -> None:
            self.advanced += amount

        def skip(self, amount: int = 1) -> None:
            self.skipped += amount

    over(place, ["a", "b"], step=(first := Step()))
    over(place, ["a", "b", "c"], step=(second := Step()))
    assert [(step.advanced, step.skipped) for step in (first, second)] == [(2, 0), (1, 2)]


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


GIB = 1 << 30


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
    more = more if facts["state"] == "failed" else more[:1]
    for each in more:
        limits = run.Limits(memory=each.pop("memory", 2 * GIB))
        assert over(place, paths, told, limits=limits, **each) == again
    assert over(place, paths, told, limits=limits, **each) == {"known": 3}
    assert len(rows(place)) == 3


def test_new_debug_info_in_a_known_directory_is_a_reason_to_read_again(
    place: Path, tmp_path: Path
) -> None:
    debug = tmp_path / "debug"
    debug.mkdir()
    told = Told(a=told_facts(state="failed", step="types", analyses=""))
    assert over(place, ["a", "b"], told, symbols=[str(debug)]) == {"failed": 1, "done": 1}
    assert over(place, ["a", "b"], told, symbols=[str(debug)]) == {"known": 2}
    (debug / "vmlinux").touch()
    os.utime(debug / "vmlinux", (1, 1))  # an old file that was moved there
    assert over(place, ["a", "b"], symbols=[str(debug)]) == {"known": 1, "done": 1}
    assert over(place, ["a", "b"], symbols=[str(debug)]) == {"known": 2}


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


def test_the_frame_has_the_present_row_of_each_target(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("kcensus.api.fleet")
    path = tmp_path / "a"
    told = Told()
    told.content = lambda job: content(msgspec.structs.replace(job, path=path.read_text()))
    monkeypatch.setattr(module, "_executor", lambda *_: nullcontext(told))
    for text in ("x", "y"):
        path.write_text(text)
        frame = module.fleet(path, store=place, analyses=["slab"])
        assert frame["sha256"].tolist() == [digest(text)]
        assert {*frame} == {*COLUMNS["targets"]}


def test_a_changed_file_has_two_rows(place: Path) -> None:
    over(place, ["a"])
    other = Told(a=looked)
    other.content = lambda job: content(msgspec.structs.replace(job, path="a=new"))
    assert over(place, ["a"], other) == {"done": 1}
    before, after = sorted(rows(place), key=lambda row: row["started"])
    assert (before["target"], after["target"]) == ("a", "a")
    assert (before["present"], after["present"]) == (False, True)
    assert over(place, ["a"], other) == {"known": 1}


def test_a_file_with_its_earlier_content_again_has_its_earlier_report(place: Path) -> None:
    over(place, ["a"])
    other = Told()
    other.content = lambda job: content(msgspec.structs.replace(job, path="a=new"))
    over(place, ["a"], other)
    (first,) = (row["attempt"] for row in rows(place) if not row["present"])
    (second,) = (row["attempt"] for row in rows(place) if row["present"])
    for told, states, now in (
        (Told(), {"duplicate": 1}, first), (Told(), {"known": 1}, first),
        (other, {"duplicate": 1}, second), (other, {"known": 1}, second),
        (Told(), {"duplicate": 1}, first),
    ):  # fmt: skip
        assert over(place, ["a"], told) == states
        assert {row["attempt"]: row["present"] for row in rows(place)} == {
            each: each == now for each in (first, second)
        }


def test_a_report_is_of_the_path_that_has_its_content_now(place: Path) -> None:
    """As where older dumps get another name."""
    over(place, ["a=x"])
    told = Told()
    told.content = lambda job: content(
        msgspec.structs.replace(job, path={"a=x": "a=new", "b": "b=x"}[job.path])
    )
    assert over(place, ["a=x", "b"], told) == {"done": 1, "duplicate": 1}
    assert {(row["target"], row["sha256"], row["state"]) for row in rows(place)} == {
        ("b", digest("x"), "done"), ("a=x", digest("new"), "done"),
    }  # fmt: skip
    assert all(row["present"] for row in rows(place))
    assert over(place, ["a=x", "b"], told) == {"known": 2}


def test_a_run_leaves_one_row_of_a_target_that_was_read_again(place: Path) -> None:
    told = Told(b=ended("time"))
    for _ in range(3):
        over(place, ["a", "b"], told)
        found = DeltaTable(str(place / "targets")).to_pyarrow_table()["target"].to_pylist()
        assert sorted(found) == ["a", "b"]


def copied(job: Job) -> Ended:
    """Return the content of a path, the same for its copy ``…-2``."""
    return content(msgspec.structs.replace(job, path=job.path.removesuffix("-2")))


def below(place: Path, root: Path, told: Told, *, named: Sequence[str] = ()) -> Counter[str]:
    """Run over a directory, and what is named besides."""
    found = find([str(root), *named])
    return over(place, found.targets, told, roots=found.roots)


def dumps(root: Path, *names: str) -> list[str]:
    root.mkdir(exist_ok=True)
    for name in names:
        (root / name).touch()
    return [str(root / name) for name in names]


def states(place: Path) -> set[tuple[str, str, bool]]:
    return {(Path(row["target"]).name, row["state"], row["present"]) for row in rows(place)}


def test_a_file_that_is_gone_is_not_present_any_more(place: Path, tmp_path: Path) -> None:
    """A failure on it is forgotten, and the report on it is of its copy, if there is one."""
    root = tmp_path / "dumps"
    _, moved, lost, bad = dumps(root, "vmcore", "vmcore-moved", "vmcore-lost", "vmcore-bad")
    told = Told(**{bad: ended("killed")})
    told.content = copied
    below(place, root, told)
    for path in (moved, lost, bad):
        Path(path).unlink()
    dumps(root, "vmcore-moved-2")
    assert below(place, root, told) == {"known": 1, "duplicate": 1}
    assert states(place) == {
        ("vmcore", "done", True), ("vmcore-moved-2", "done", True), ("vmcore-lost", "done", False),
    }  # fmt: skip
    dumps(root, "vmcore-lost")
    assert below(place, root, told) == {"known": 2, "duplicate": 1}
    assert ("vmcore-lost", "done", True) in states(place)


def test_a_failure_on_a_file_that_was_moved_stays(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    _, bad = dumps(root, "vmcore", "vmcore-bad")
    told = Told(**{bad: told_facts(state="failed", step="open")})
    told.content = copied
    below(place, root, told)
    Path(bad).rename(f"{bad}-2")
    assert below(place, root, told) == {"known": 1, "duplicate": 1}
    assert states(place) == {("vmcore", "done", True), ("vmcore-bad-2", "failed", True)}


def test_a_file_that_is_back_and_fails_has_a_row(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    _, bad = dumps(root, "vmcore", "vmcore-bad")
    told = Told()
    told.content = lambda job: (ended("time") if job.path == bad else content)(job)
    below(place, root, told)
    Path(bad).unlink()
    below(place, root, told)
    assert states(place) == {("vmcore", "done", True)}
    dumps(root, "vmcore-bad")
    below(place, root, told)
    assert states(place) == {("vmcore", "done", True), ("vmcore-bad", "failed", True)}


def test_only_what_a_run_looks_through_is_gone(place: Path, tmp_path: Path) -> None:
    """Not what is elsewhere, what is named, and what lies on a disk that may be away."""
    one, other = tmp_path / "one", tmp_path / "other"
    (kept,), (away, named) = dumps(one, "vmcore-1"), dumps(other, "vmcore-2", "vmcore-3")
    told = Told(**{named: ended("killed")})
    over(place, [kept, away, named, "sample"], told)
    for path in (away, named):
        Path(path).unlink()
    before = states(place)
    below(place, one, told, named=["sample"])
    below(place, other, told, named=[kept])
    assert states(place) == before
    dumps(other, "vmcore-4")
    below(place, other, told, named=[named])
    assert states(place) == {
        ("vmcore-1", "done", True), ("vmcore-2", "done", False), ("vmcore-3", "failed", True),
        ("vmcore-4", "done", True), ("sample", "done", True),
    }  # fmt: skip


def test_all_dumps_of_a_directory_may_be_new(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    for day in range(3):
        (path,) = dumps(root, f"vmcore-{day}")
        below(place, root, Told(**{path: ended("killed")} if day == 1 else {}))
        Path(path).unlink()
    assert {name for name, _, is_present in states(place) if is_present} == {"vmcore-2"}
    assert "failed" not in {state for _, state, _ in states(place)}
