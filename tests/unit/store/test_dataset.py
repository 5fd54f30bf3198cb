# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that are added to a store are read from it, each once."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kcensus
from kcensus.render.directory import OutputError
from kcensus.store import StoreError, compaction, dataset
from kcensus.store.layout import COLUMNS, MARKER, PATTERN, STAGING, day_directory
from kcensus.store.records import record
from tests.unit.store.making import ANALYSIS, DAY, NOON, ask, entry, report

HOSTS = (
    "..",
    "a/../../b",
    "(none)",
    "007",
    "",
    "host=x",
    "%2e%2e",
    "a b+c&d=é",
    "\x1b[31m\u202e\udcff\n",
    "<script>",
    "x" * 4096,
    "x" * 4095 + "y",
    "é" * 300,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "series"
    dataset.prepare(path)
    return path


def names(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*.parquet"))


def records(store: Path) -> list[str]:
    """Return the records of a store; fails if one is there twice."""
    rows = kcensus.history(store, metric="used_bytes")
    assert rows["record"].is_unique
    return list(rows["record"])


def test_a_record_is_added_once(store: Path) -> None:
    assert dataset.add(store, entry()) is True
    assert dataset.add(store, entry()) is False
    assert len(names(store)) == 1
    assert names(store)[0].startswith("host=web1/day=2023-11-15/120000-")


def test_a_dump_without_a_time_is_added_once(store: Path) -> None:
    def add(now: float) -> bool:
        return dataset.add(store, record(report(time=None), [ANALYSIS], now))

    assert [add(NOON), add(NOON + 3), add(NOON + DAY)] == [True, False, False]
    dataset.add(store, entry())
    day = store / "host=web1" / "day=2023-11-15"
    assert compaction.compact(day, compaction.Extent.WHOLE)
    assert [add(NOON), add(NOON + DAY)] == [False, False]
    assert len(records(store)) == 2


def test_a_failed_record_does_not_keep_a_good_one_out(store: Path) -> None:
    failed = record(report(error="it broke"), [ANALYSIS], NOON)
    dataset.add(store, failed)
    dataset.add(store, entry(time=NOON + 1))
    day = store / "host=web1" / "day=2023-11-15"
    assert compaction.compact(day, compaction.Extent.WHOLE)
    assert dataset.add(store, entry())
    assert compaction.compact(day, compaction.Extent.WHOLE)
    assert not dataset.add(store, entry())
    assert not dataset.add(store, failed)
    quality = kcensus.history(store, metric="failed")
    assert quality["record"].is_unique
    assert sorted(quality["value"]) == [0, 0, 1]


def test_a_merged_record_with_another_first_row_is_the_same(store: Path) -> None:
    made = entry()
    is_quality = pc.equal(made.rows["part"], "quality")
    dataset.add(store, replace(made, rows=made.rows.filter(is_quality)))  # of an older version
    dataset.add(store, entry(time=NOON + 1))
    day = store / "host=web1" / "day=2023-11-15"
    assert compaction.compact(day, compaction.Extent.WHOLE)
    assert not dataset.add(store, made)


def test_what_is_acknowledged_has_its_names_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(compaction, "sync_directory", synced.append)
    store, made = tmp_path / "above" / "series", entry()
    dataset.prepare(store)
    assert {store, store.parent, tmp_path} <= {*synced}
    assert synced[-1] == store  # the marker says that the others are
    day = day_directory(store, made.host, made.time)
    day.mkdir(parents=True)  # of a writer that was killed before it synced anything
    for is_new in (True, False):
        synced.clear()
        assert dataset.add(store, made) is is_new
        assert {day, day.parent, store} <= {*synced}
    dataset.add(store, entry(time=NOON + 1))
    assert compaction.compact(day, compaction.Extent.WHOLE)
    synced.clear()
    assert not dataset.add(store, made)
    assert {day, day.parent, store} <= {*synced}


def test_history_has_all_columns_exactly(store: Path) -> None:
    large = (1 << 53) + 1
    dataset.add(store, entry(used=large))
    rows = kcensus.history(store)
    assert [*rows.columns] == [*COLUMNS]
    assert rows.attrs["records"] == 1
    assert rows.attrs["hosts"] == ["web1"]
    assert int(rows.set_index("metric").loc["used_bytes", "exact"]) == large
    assert rows["ram_bytes"].eq(1 << 30).all()


def test_filters(store: Path) -> None:
    for host in ("web1", "web2"):
        for day in range(3):
            dataset.add(store, entry(host, NOON + day * DAY, day))
    history = kcensus.history
    assert len(history(store, host="web1", metric="used_bytes")) == 3
    assert len(history(store, host=["web1", "web2"], subject="dentry")) == 6
    assert set(history(store, part=["caches"])["subject"]) == {"dentry", "inode"}
    assert history(store, analysis="none").empty
    assert history(store, host=[]).empty
    assert set(history(store, since="2023-11-16T12:00")["day"]) == {"2023-11-16", "2023-11-17"}
    until = pd.Timestamp("2023-11-16T13:00", tz="Europe/Berlin")
    assert set(history(store, until=until)["day"]) == {"2023-11-15", "2023-11-16"}
    both = history(store, since="2023-11-16", until="2023-11-16T11:59")
    assert both.empty
    assert [*both.columns] == [*COLUMNS]


def test_an_empty_store(store: Path) -> None:
    rows = kcensus.history(store)
    assert rows.empty
    assert [*rows.columns] == [*COLUMNS]
    assert rows.attrs["records"] == 0


def test_all_readers_agree_on_hostile_hosts(store: Path) -> None:
    for host in HOSTS:
        assert dataset.add(store, entry(host))
    ours = set(kcensus.history(store)["host"])
    assert len(ours) == len(HOSTS)
    assert all(name.isprintable() for name in ours)
    assert set(pd.read_parquet(store)["host"]) == ours
    found = ask(f"select distinct host from '{store}/{PATTERN}'")
    assert {host for (host,) in found} == ours
    assert {path.parent for path in store.iterdir()} == {store}
    for host in HOSTS:
        if host:
            assert kcensus.history(store, host=host).attrs["records"] == 1


def test_merged_records_are_the_same(store: Path) -> None:
    for second in range(200):
        assert dataset.add(store, entry(time=NOON + second, used=second))
    assert 1 < len(names(store)) < 70
    assert len(records(store)) == 200
    for second in range(200):
        assert not dataset.add(store, entry(time=NOON + second, used=second))
    day = store / "host=web1" / "day=2023-11-15"
    before = kcensus.history(store)
    assert compaction.compact(day, compaction.Extent.WHOLE)
    assert [Path(name).name.rpartition("-")[0] for name in names(store)] == ["block-200"]
    pd.testing.assert_frame_equal(kcensus.history(store), before)
    assert not compaction.compact(day, compaction.Extent.WHOLE)


def test_a_day_is_merged_when_another_begins(store: Path) -> None:
    for second in range(3):
        dataset.add(store, entry(time=NOON + second))
    assert len(names(store)) == 3
    dataset.add(store, entry(time=NOON + DAY))
    assert len(names(store)) == 2
    assert len(records(store)) == 4


def test_blocks_stay_small(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_MAX_SINGLES", 4)
    monkeypatch.setattr(compaction, "_MAX_BLOCK", 16)
    for second in range(70):
        dataset.add(store, entry(time=NOON + second))
    dataset.add(store, entry(time=NOON + DAY))
    sizes = [int(name.split("block-")[1].split("-")[0]) for name in names(store) if "block" in name]
    assert max(sizes) <= 16
    assert sum(sizes) == 70
    assert len(records(store)) == 71


def test_what_a_killed_merge_left_does_no_harm(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_MAX_SINGLES", 4)
    for second in range(3):
        dataset.add(store, entry(time=NOON + second))
    day = store / "host=web1" / "day=2023-11-15"
    (day.parent / STAGING).mkdir()
    for path in day.iterdir():
        os.link(path, day.parent / STAGING / path.name)
    assert len(records(store)) == 3
    assert ask(f"select count(distinct record) from '{store}/{PATTERN}'") == [(3,)]
    dataset.add(store, entry(time=NOON + 3))
    assert not (day.parent / STAGING).exists()
    assert len(names(store)) == 1
    assert len(records(store)) == 4


def test_where_directories_cannot_be_exchanged_files_stay(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(first: Path, second: Path) -> None:
        raise OSError(errno.EINVAL, "not supported")

    merged: list[object] = []
    monkeypatch.setattr(compaction, "_MAX_SINGLES", 4)
    monkeypatch.setattr(compaction, "exchange", refuse)
    monkeypatch.setattr(compaction, "_write_block", lambda *paths: merged.append(paths))
    for second in range(6):
        assert dataset.add(store, entry(time=NOON + second))
    assert len(names(store)) == len(records(store)) == 6
    assert merged == []  # nothing that would be thrown away
    assert not (store / "host=web1" / STAGING).exists()


def test_a_merge_leaves_other_files_alone(store: Path) -> None:
    for second in range(3):
        dataset.add(store, entry(time=NOON + second))
    day = store / "host=web1" / "day=2023-11-15"
    (day / "notes").mkdir()
    (day / "notes" / "a").write_text("mine")
    (day / ".hidden").write_text("mine")
    (day / "odd.parquet").mkdir()
    assert compaction.compact(day, compaction.Extent.WHOLE)
    assert {path.name for path in day.iterdir()} >= {"notes", ".hidden", "odd.parquet"}
    assert (day / "notes" / "a").read_text() == (day / ".hidden").read_text() == "mine"
    assert len([path for path in day.iterdir() if path.is_file()]) == 2
    (day / "odd.parquet").rmdir()
    assert len(records(store)) == 3


def test_a_reader_that_lost_a_race_reads_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(5):
        dataset.add(store, entry(time=NOON + second))
    files = dataset._files
    listed: list[int] = []

    def listing(day: Path) -> list[str]:
        paths = files(day)
        if not listed:
            assert compaction.compact(day, compaction.Extent.WHOLE)
        listed.append(len(paths))
        return paths

    monkeypatch.setattr(dataset, "_files", listing)
    assert len(records(store)) == 5
    assert listed == [5, 1]


def test_a_reader_that_lists_a_directory_while_it_is_emptied_reads_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(5):
        dataset.add(store, entry(time=NOON + second))
    day = store / "host=web1" / "day=2023-11-15"
    scandir = os.scandir
    listings: list[object] = []

    def listing(path: Any) -> Any:
        if not (isinstance(path, int) or str(path) == str(day)):
            return scandir(path)
        listings.append(path)
        if len(listings) == 1:
            entries = scandir(path)
            assert compaction.compact(day, compaction.Extent.WHOLE)
            return entries
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", listing)
        assert len(records(store)) == 5


def test_a_full_disk_is_one_sentence_and_leaves_the_store_as_it_was(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.add(store, entry())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "sync", full)
        with pytest.raises(OutputError, match="No space left on device"):
            dataset.add(store, entry(time=NOON + 1))
    assert len(records(store)) == 1
    assert dataset.add(store, entry(time=NOON + 1))
    assert len(records(store)) == 2


def test_a_merge_that_fails_loses_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for second in range(5):
        dataset.add(store, entry(time=NOON + second))
    monkeypatch.setattr(compaction, "sync", full)
    day = store / "host=web1" / "day=2023-11-15"
    assert not compaction.compact(day, compaction.Extent.WHOLE)
    assert len(names(store)) == len(records(store)) == 5
    assert not (day.parent / STAGING).exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps({"format": 99}), "format 99"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("[" * 60000, "damaged"),
        (None, "is not a store"),
    ],
)
def test_other_directories_are_refused(store: Path, content: str | None, says: str) -> None:
    if content is None:
        (store / MARKER).unlink()
    else:
        (store / MARKER).write_text(content)
    with pytest.raises(StoreError, match=says):
        kcensus.history(store)
    if content is not None:
        with pytest.raises(StoreError, match=says):
            dataset.prepare(store)


def test_places_that_cannot_be_stores(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    long = tmp_path / ("\x1b" * 300)
    for path in (tmp_path / "file", tmp_path / "file" / "x", Path("/proc/series"), long):
        with pytest.raises(OutputError) as error:
            dataset.prepare(path)
        assert str(error.value).isprintable()
        assert path.name in str(error.value) or path is long
    with pytest.raises(StoreError):
        kcensus.history(tmp_path / "file")


def test_records_of_another_schema_are_read_with_the_others(store: Path) -> None:
    made = entry(time=NOON + 1)
    index = made.rows.schema.get_field_index("schema")
    field = made.rows.schema.field(index)
    newer: Any = made.rows.set_column(index, field, pa.array([3] * made.rows.num_rows, pa.int32()))
    newer = newer.append_column("added_later", pa.array(["x"] * newer.num_rows))
    path = store / "host=web1" / "day=2023-11-15"
    dataset.add(store, entry())
    pa.parquet.write_table(newer, path / "120001-newer.parquet")
    assert sorted(kcensus.history(store, metric="used_bytes")["schema"]) == [2, 3]


def test_a_torn_file_is_named(store: Path) -> None:
    dataset.add(store, entry())
    (path,) = store.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match=path.name):
        kcensus.history(store)
