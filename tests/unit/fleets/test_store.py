# SPDX-License-Identifier: LGPL-2.1-or-later
"""The store of a fleet, where several processes write."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kcensus.fleets import FleetError
from kcensus.fleets.places import Bucket, Directory, place
from kcensus.fleets.store import FIGURES, Writer, _quiet, current, read, writer
from kcensus.fleets.tables import arrow, utc
from kcensus.store.layout import SCHEMA
from tests.unit.fleets import stores


def test_a_later_run_ends_an_earlier_one_where_there_is_no_lock(tmp_path: Path) -> None:
    """As in an object store: what the earlier one adds after that counts nowhere."""

    def rows(attempt: str) -> dict[str, pa.Table]:
        row = {"day": "2026-01-31", "attempt": attempt, "target": attempt}
        return {"findings": arrow("findings", [row], {}), "targets": arrow("targets", [row], {})}

    with writer(tmp_path) as earlier:
        earlier.add([rows("a")])
        later = Writer(place(tmp_path))
        later.begin()
        later.clean()
        with pytest.raises(FleetError):
            earlier.add([rows("b")])
        later.add([rows("c")])
    for table in ("targets", "findings"):
        assert sorted(read(tmp_path, table)["attempt"].to_pylist()) == ["a", "c"]


def test_of_two_runs_that_begin_at_a_time_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer(tmp_path):
        pass
    first, second = Writer(place(tmp_path)), Writer(place(tmp_path))
    append = Writer._append

    def after_the_other(self: Writer, name: str, rows: pa.Table) -> None:
        if self is first:
            append(second, name, rows)
        append(self, name, rows)

    monkeypatch.setattr(Writer, "_append", after_the_other)
    second._run = 2
    with pytest.raises(FleetError, match="another"):
        first.begin()


def test_a_run_leaves_one_file_of_each_day(tmp_path: Path) -> None:
    for run in range(2):
        with writer(tmp_path) as store:
            for number in range(3):
                store.add([stores.rows(stores.Target(f"{run}{number}"))])
    files = DeltaTable(place(tmp_path).uri("targets")).file_uris()
    assert len(files) == len({Path(file).parent for file in files}) > 0
    assert len(read(tmp_path, "targets")) == 6


def test_a_log_without_a_commit_is_no_table(tmp_path: Path) -> None:
    """As a full disk leaves it."""
    (tmp_path / "findings" / "_delta_log").mkdir(parents=True)
    with writer(tmp_path) as store:
        store.add([stores.rows(stores.Target("a"))])
    assert len(read(tmp_path, "targets")) == 1


def test_the_standard_error_is_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcensus.fleets.store.is_own_process", lambda: True)
    before, within = os.fstat(2), []
    with contextlib.suppress(KeyboardInterrupt), _quiet():
        within.append(os.fstat(2).st_rdev)
        raise KeyboardInterrupt
    assert within == [os.stat(os.devnull).st_rdev]
    assert os.path.samestat(before, os.fstat(2))
    monkeypatch.setattr("sys.stderr", None)
    with _quiet():
        assert os.path.samestat(before, os.fstat(2))


def test_records_are_added_once(tmp_path: Path) -> None:
    rows = [stores.rows(stores.Target("a", figures={"slab": 1}))]
    for _ in range(2):  # as after a killed writer
        with writer(tmp_path) as store:
            store.add(rows)
            store.add(rows)
    assert len(read(tmp_path, FIGURES)) == 1


def test_figures_of_another_kcensus_are_replaced(tmp_path: Path) -> None:
    for version, size in (("1", 3), ("2", 4), ("2", 5)):
        rows = stores.rows(stores.Target("a", figures={"slab": size}))
        place_of = SCHEMA.get_field_index("kcensus")
        rows[FIGURES] = rows[FIGURES].set_column(place_of, SCHEMA.field("kcensus"), [[version]])
        with writer(tmp_path) as store:
            store.add([rows, stores.rows(stores.Target("b", figures={"slab": 1}))])
    assert sorted(read(tmp_path, FIGURES)["value"].to_pylist()) == [1, 4]


def test_a_batch_costs_the_same_in_a_large_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a store has an entry for each host and day."""
    with writer(tmp_path) as store:
        for name in "abc":
            store.add([stores.rows(stores.Target(name, host=name, figures={"slab": 1}))])
        monkeypatch.delattr("deltalake.DeltaTable.to_pyarrow_dataset")
        monkeypatch.delattr("deltalake.DeltaTable.__init__")
        store.add([stores.rows(stores.Target("d", host="d", figures={"slab": 1}))])
        monkeypatch.undo()
    assert len(read(tmp_path, FIGURES)) == 4


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("s3://bucket/fleet", Bucket),
        ("gs://bucket/of/fleets/", Bucket),
        ("s3:/bucket/fleet", Directory),
        ("s3://bucket", Directory),
        ("a/s3://bucket/fleet", Directory),
        ("fleet", Directory),
    ],
)
def test_a_url_is_an_object_store(name: str, kind: type) -> None:
    assert isinstance(place(name), kind)


def row(attempt: str, started: int, state: str, sha256: str, step: str = "") -> dict[str, object]:
    known = {"attempt": attempt, "target": "a", "state": state, "sha256": sha256, "step": step}
    return known | {"started": utc(started), "day": "2026-01-31"}


def on(path: str, row: dict[str, object]) -> dict[str, object]:
    return row | {"target": path}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # A file that was mended; a report on what was under the name before stays.
        ([row("1", 1, "failed", "x", "open"), row("2", 2, "done", "y")], "2"),
        ([row("1", 1, "done", "x"), row("2", 2, "done", "y")], "12"),
        ([row("1", 1, "done", "x"), row("2", 2, "failed", "y", "open")], "12"),
        # A disk that was away for a time.
        ([row("1", 1, "failed", "x", "open"), row("2", 2, "failed", "", "content")], "1"),
        ([row("1", 1, "failed", "", "content"), row("2", 2, "failed", "", "content")], "2"),
        # What is on another path has its report there; a copy of what went is nothing.
        (
            [row("1", 1, "done", "x"), row("2", 2, "done", "y"), on("b", row("3", 3, "done", "x"))],
            "23",
        ),
        (
            [
                on("b", row("1", 1, "done", "x")),
                row("2", 2, "duplicate", "x"),
                row("3", 3, "done", "y"),
            ],
            "13",
        ),
    ],
)
def test_the_rows_of_a_target_that_count(rows: list[dict[str, object]], expected: str) -> None:
    found = current(arrow("targets", rows, {}))
    assert "".join(found["attempt"].to_pylist()) == expected
