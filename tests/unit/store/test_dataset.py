# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that are added to a store are read from it, each once."""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import kcensus
from kcensus.outputs import OutputError
from kcensus.store import StoreError, dataset
from kcensus.store.layout import COLUMNS, LOG
from kcensus.store.records import Record, record
from tests.unit.store.making import ANALYSIS, DAY, NOON, ask, entry, report

HOSTS = (
    "..", "a/../../b", "(none)", "007", "", "host=x", "%2e%2e", "a b+c&d=é", "<script>",
    "\x1b[31m\u202e\udcff\n", "x" * 4096, "x" * 4095 + "y", "é" * 300,
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "series"
    dataset.prepare(path)
    return path


def files(store: Path) -> list[Path]:
    names = DeltaTable(store).file_uris()
    return [store.joinpath(*name.split("/")[-3:]) for name in names]


def records(store: Path) -> list[str]:
    rows = kcensus.history(store, metric="used_bytes")
    assert rows["record"].is_unique
    return list(rows["record"])


def test_a_dump_without_a_time_is_added_once(store: Path) -> None:
    def add(now: float) -> bool:
        return dataset.add(store, record(report(time=None), [ANALYSIS], now))

    assert [add(NOON), add(NOON + 3), add(NOON + DAY)] == [True, False, False]
    dataset.add(store, entry())
    dataset.merge(DeltaTable(store), "web1")
    assert [add(NOON), add(NOON + DAY)] == [False, False]
    assert len(records(store)) == 2


def test_a_failed_record_does_not_keep_a_good_one_out(store: Path) -> None:
    failed = record(report(error="it broke"), [ANALYSIS], NOON)
    dataset.add(store, failed)
    dataset.add(store, entry(time=NOON + 1))
    dataset.merge(DeltaTable(store), "web1")
    assert dataset.add(store, entry())
    dataset.merge(DeltaTable(store), "web1")
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
    dataset.merge(DeltaTable(store), "web1")
    assert not dataset.add(store, made)


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


def test_a_record_is_added_once(store: Path) -> None:
    rows = kcensus.history(store)
    assert (rows.empty, [*rows.columns], rows.attrs["records"]) == (True, [*COLUMNS], 0)
    assert dataset.add(store, entry()) is True
    assert dataset.add(store, entry()) is False
    (path,) = files(store)
    assert path.parent == store / "host=web1" / "day=2023-11-15"


def test_of_two_writers_of_a_record_one_adds_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = dataset._has

    def while_another_adds_it(table: DeltaTable, made: Record) -> bool:
        monkeypatch.undo()
        before = has(table, made)
        assert dataset.add(store, made)
        return before

    monkeypatch.setattr(dataset, "_has", while_another_adds_it)
    assert not dataset.add(store, entry())
    assert len(records(store)) == 1


def test_what_is_acknowledged_is_on_disk_with_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(dataset, "sync", synced.append)
    store = tmp_path / "above it" / "series"
    dataset.prepare(store)
    assert {store / LOG, store, store.parent, tmp_path} <= {*synced}
    for is_new in (True, False):
        synced.clear()
        assert dataset.add(store, entry()) is is_new
        (path,) = files(store)
        commit = store / LOG / f"{1:020}.json"
        assert {path, commit, *path.parents[:3], commit.parent} <= {*synced}
        assert all(each.exists() for each in synced)


@pytest.mark.slow
def test_all_readers_agree_on_hostile_hosts(store: Path) -> None:
    for host in HOSTS:
        assert dataset.add(store, entry(host))
        assert not dataset.add(store, entry(host))
    ours = set(kcensus.history(store)["host"])
    assert len(ours) == len(HOSTS)
    assert all(name.isprintable() for name in ours)
    assert all(path.is_file() for path in files(store))
    assert set(ask("select distinct host from store", store)["host"]) == ours
    assert set(DeltaTable(store).to_pandas(columns=["host"])["host"]) == ours
    assert {path.parent for path in store.iterdir()} == {store}
    for host in HOSTS:
        if host:
            assert kcensus.history(store, host=host).attrs["records"] == 1


@pytest.mark.slow
def test_small_files_are_merged_and_have_the_same_records(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_MERGED_EVERY", 8)
    for second in range(20):
        assert dataset.add(store, entry(time=NOON + second, used=second))
    assert len(files(store)) == 5
    assert len(records(store)) == 20
    for second in range(20):
        assert not dataset.add(store, entry(time=NOON + second, used=second))
    before = kcensus.history(store)
    dataset.merge(DeltaTable(store), "web1")
    assert len(files(store)) == 1
    pd.testing.assert_frame_equal(kcensus.history(store), before)


def test_a_full_disk_is_one_sentence_and_leaves_the_store_as_it_was(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset.add(store, entry())

    def full(*_: object, **__: object) -> None:
        raise DeltaError("Generic LocalFileSystem error: Unable to copy: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dataset, "write_deltalake", full)
        with pytest.raises(OutputError, match=r": No space left on device$"):
            dataset.add(store, entry(time=NOON + 1))
    monkeypatch.setattr(dataset, "_MERGED_EVERY", 2)
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "merge", full)
        assert dataset.add(store, entry(time=NOON + 1))
    assert len(records(store)) == 2


@pytest.mark.parametrize(
    ("log", "says"), [(None, "is not a store"), ("{", "cannot be read"), ("[" * 60000, "cannot be")]
)
def test_other_directories_are_refused(store: Path, log: str | None, says: str) -> None:
    if log is None:
        shutil.rmtree(store / LOG)
    else:
        (store / LOG / f"{0:020}.json").write_text(log)
    with pytest.raises(StoreError, match=says):
        kcensus.history(store)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"host": ["a"]}))
    for use in (kcensus.history, dataset.prepare):
        with pytest.raises(StoreError, match="without column day"):
            use(tmp_path)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "x", Path("/proc/series")):
        with pytest.raises(OutputError, match=path.name):
            dataset.prepare(path)
    for name in ("\x1b" * 300, "a%20b", "[a]"):
        with pytest.raises(StoreError, match="has the character") as error:
            dataset.prepare(tmp_path / name)
        assert str(error.value).isprintable()
    with pytest.raises(StoreError):
        kcensus.history(tmp_path / "file")


def test_records_of_another_schema_are_read_with_the_others(store: Path) -> None:
    rows = entry(time=NOON + 1).rows
    newer = rows.append_column("added_later", pa.array(["x"] * rows.num_rows))
    dataset.add(store, entry())
    write_deltalake(store, newer, mode="append", schema_mode="merge")
    assert len(records(store)) == 2
    assert dataset.add(store, entry(time=NOON + 2))
    assert len(records(store)) == 3


def test_a_torn_file_is_one_sentence(store: Path) -> None:
    dataset.add(store, entry())
    (path,) = files(store)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="cannot be read") as error:
        kcensus.history(store)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "path", ["../other.parquet", "file://{}/other.parquet", "{}/other.parquet"]
)
def test_a_log_cannot_name_files_elsewhere(store: Path, path: str) -> None:
    dataset.add(store, entry())
    shutil.copy(files(store)[0], store.parent / "a.parquet")
    commit = store / LOG / f"{1:020}.json"
    named = re.sub(r'"path":"[^"]*"', f'"path":"{path.format(store.parent)}"', commit.read_text())
    commit.write_text(named)
    with pytest.raises(StoreError, match="cannot be read"):
        kcensus.history(store)


def test_a_store_that_another_process_makes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = DeltaTable.create

    def late(*args: Any, **options: Any) -> None:
        create(*args, **options)
        raise DeltaError("protocol changed")

    monkeypatch.setattr(DeltaTable, "create", late)
    dataset.prepare(tmp_path / "series")
    assert len(kcensus.history(tmp_path / "series")) == 0


def test_a_store_is_its_owners_alone_or_as_open_as_its_directory(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, mode in (("private", 0o700), ("shared", 0o750)):
            store = tmp_path / name
            if name == "shared":
                store.mkdir(mode)
            dataset.prepare(store)
            dataset.add(store, entry())
            paths = [store, *store.rglob("*")]
            assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {mode}
            modes = {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()}
            assert modes == {mode & 0o666}
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_no_store_that_others_can_write_to(tmp_path: Path) -> None:
    store = tmp_path / "store"
    dataset.prepare(store)
    store.chmod(0o777)
    with pytest.raises(StoreError, match="chmod o-w"):
        dataset.add(store, entry())
    store.chmod(0o700)
    assert dataset.add(store, entry())


def test_a_file_that_inflates_to_gigabytes_is_refused_before_it_does(tmp_path: Path) -> None:
    store, count = tmp_path / "store", 40_000
    dataset.prepare(store)
    dataset.add(store, entry())
    (path,) = store.rglob("*.parquet")
    rows = parquet.read_table(path, partitioning=None).slice(0, 1)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["x" * 100_000])
    columns = {name: pa.repeat(rows[name][0], count) for name in rows.column_names}
    parquet.write_table(pa.table({**columns, "subject": texts}), path, compression="zstd")
    (log,) = (each for each in (store / LOG).glob("*.json") if '"add"' in each.read_text())
    size = path.stat().st_size
    assert size < 50_000
    log.write_text(re.sub(r'"size":\d+', f'"size":{size}', log.read_text()))
    tracked = pa.total_allocated_bytes()
    with pytest.raises(StoreError, match="texts of 100000"):
        dataset.read(store)
    assert pa.default_memory_pool().max_memory() - tracked < 100 << 20


def test_a_fifo_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "a store"
    dataset.prepare(store)
    dataset.add(store, entry())
    (path,) = store.rglob("*.parquet")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="no regular file"):
        dataset.read(store)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Generic error: Unable to copy: No space left on device (os error 28)",
         "No space left on device (os error 28)"),
        ("Generic error\n\nsource: x: No space left on device (os error 28)\nmore",
         "No space left on device (os error 28)"),
        ("Generic error: \x1b[31m↳\x1b[0m No such file or directory (os error 2)",
         "No such file or directory (os error 2)"),
        ("Delta error: version 3 exists\nmore", "version 3 exists"),
    ],
)  # fmt: skip
def test_the_reason_is_the_error_of_the_system(text: str, reason: str) -> None:
    assert dataset._reason(OSError(text)) == reason
