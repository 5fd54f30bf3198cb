# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON with its schema, CSV and Parquet: the same exact values, all of them, safe to open."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.outputs import OutputError
from kcensus.render import plain as plain_module
from kcensus.render.csvdir import write_csv
from kcensus.render.parquet import write_parquet
from kcensus.render.plain import SCHEMA
from kcensus.render.schema import error, schema
from kcensus.results import Figure, Machine, Result, Unit
from kcensus.results.tables import Column, Table
from kcensus.text import printable
from tests.running import document as as_json
from tests.unit.synthetic import HIGHEST, HOSTILE, synthetic_result

FILES = "summary caches empty checks findings gaps finding_figures finding_memory remedies"


def of_names(names: list[Any]) -> Result:
    values = (pd.Series(names, dtype=object), Column(Unit.TEXT))
    return Result("synthetic", "t", "k", tables={"names": Table.of("", {"name": values})})


def read_csv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_json_has_every_part_under_its_key() -> None:
    document = json.loads(as_json(synthetic_result()))
    assert error(document) == ""
    assert " ".join(document) == (
        "schema kcensus analysis target kernel live machine summary units labels bounds "
        "unknown_tables measures nothing tables checks findings gaps"
    )
    assert document["live"] is False
    assert document["summary"] == {
        "slab_bytes": 123456789012,
        "utilization": 0.99996,
        "oldest": 3725.0,
        "unknown": None,
        "allocator": "SL\\x1bUB",
    }
    assert document["units"]["summary"]["slab_bytes"] == "bytes"
    assert document["units"]["tables"]["caches"]["used"] == "ratio"
    assert document["tables"]["empty"] == []
    check = document["checks"][9]
    assert " ".join(check) == "name ours counter moved difference status unit source note"
    figures = ["sheaves", 7, 10, None, 3, "explained", "count", "total_objects", "3 are parked."]
    assert [*check.values()] == figures
    assert document["checks"][10]["difference"] == str(HIGHEST - 10)
    assert document["checks"][11]["counter"] is None
    assert document["findings"][1]["holds_bytes"] == 1536
    (gap,) = document["gaps"]
    assert [*gap] == ["what", "reason", "count", "effect"]
    lower_bound = "objects are a lower bound"
    assert [*gap.values()] == ["slab pages", "not in the dump", 1024, lower_bound]


def test_json_has_all_rows_and_columns_exactly_the_same_every_time() -> None:
    text = as_json(synthetic_result())
    rows = json.loads(text)["tables"]["caches"]
    assert [row["cache"] for row in rows] == list(HOSTILE.values())
    assert [row["used"] for row in rows] == [0, 0.99996, 1, 0.5, 0.25, None, None, 1e-05, 0.75]
    assert [row["bytes"] for row in rows] == [number << 29 for number in range(9)]
    assert {row["address"] for row in rows} == {hex(HIGHEST)}
    # Plain lines of UTF-8.
    assert text == as_json(synthetic_result())
    assert text.endswith("}\n")
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    text.encode("utf-8")


def names_after(names: list[Any]) -> list[Any]:
    text = as_json(of_names(names))
    text.encode("utf-8")
    return [row["name"] for row in json.loads(text)["tables"]["names"]]


@given(st.lists(st.text(st.characters(codec=None, exclude_categories=())) | st.binary()))
def test_any_name_survives_json(names: list[str | bytes]) -> None:
    assert names_after(names) == [printable(name) for name in names]


def test_rows_are_complete_across_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_module, "_ROWS_AT_ONCE", 4)
    assert names_after([*range(10)]) == [*range(10)]


def test_numpy_missing_nullable_and_categorical_values_become_plain() -> None:
    values = [np.uint64(HIGHEST), np.float32(0.5), np.bool_(True), pd.NA, pd.NaT, None, -1]
    assert names_after(values) == [str(HIGHEST), 0.5, True, None, None, None, -1]
    columns = {
        "count": (pd.array([1, None, HIGHEST], dtype="UInt64"), Column()),
        "kind": (pd.Categorical(["b", None, "a\n"]), Column(Unit.TEXT)),
        "when": (pd.to_datetime(["2026-01-01", "", "2026-01-02"]), Column(Unit.TEXT)),
    }
    result = Result("synthetic", "t", "k", tables={"rows": Table.of("", columns)})
    assert json.loads(as_json(result))["tables"]["rows"] == [
        {"count": 1, "kind": "b", "when": "2026-01-01 00:00:00"},
        {"count": None, "kind": None, "when": None},
        {"count": str(HIGHEST), "kind": "a\\x0a", "when": "2026-01-02 00:00:00"},
    ]


@pytest.mark.parametrize("name", ["checks", "summary", "../up", "a b", ""])
def test_a_table_cannot_take_the_name_of_something_else(name: str) -> None:
    result = of_names([])
    result.tables[name] = result.tables.pop("names")
    with pytest.raises(ValueError, match="cannot name a table"):
        as_json(result)


def test_csv_summary_says_what_was_analysed(tmp_path: Path) -> None:
    result = synthetic_result()
    result.machine = Machine(host="web1", cpus=4)
    write_csv(result, tmp_path)
    rows = read_csv(tmp_path / "summary.csv")
    assert ["machine_host", "web1", "", "", ""] in rows
    assert ["machine_cpus", "4", "", "", ""] in rows
    assert ["schema", str(SCHEMA), "", "", ""] in rows
    about = ("machine_", "schema", "kcensus")
    rest = [row for row in rows if not row[0].startswith(about)]
    assert rest[:6] == [
        ["key", "value", "unit", "label", "bound"],
        ["analysis", "synthetic", "", "", ""],
        ["target", "synthetic vmcore", "", "", ""],
        ["kernel", "6.1.0-synthetic", "", "", ""],
        ["live", "false", "", "", ""],
        ["slab_bytes", "123456789012", "bytes", "memory in slab pages", ""],
    ]
    assert ["unknown", "", "ratio", "not to be had", ""] in rows


def test_csv_has_a_file_for_each_part_and_what_findings_hold(tmp_path: Path) -> None:
    written = write_csv(synthetic_result(), tmp_path / "new" / "dir")
    assert " ".join(path.stem for path in written) == FILES
    assert sorted(written[0].parent.glob("[!.]*")) == sorted(written)
    assert {path.suffix for path in written} == {".csv"}
    rows = {path.stem: read_csv(path)[1] for path in written if path.stem != "empty"}
    assert rows["finding_figures"] == ["synthetic-waste:dentry", "free", "0.612", "ratio"]
    assert rows["finding_memory"] == ["synthetic-waste:dentry", "slab:dentry", "1536"]
    first = rows["remedies"]
    assert first[2] == "echo 1 > /proc/sys/synthetic; echo 2 > /proc/sys/synthetic"
    assert first[6:] == ["1024", "true"]


def test_figures_of_many_units_in_one_column(tmp_path: Path) -> None:
    result = synthetic_result()
    for values in ((1, 0.5), (1, True, "x"), (2**64 - 1, None)):
        figures = {f"f{number}": Figure(value) for number, value in enumerate(values)}
        result.findings[0] = replace(result.findings[0], figures=figures)
        write_parquet(result, tmp_path)
        column = parquet.read_table(tmp_path / "finding_figures.parquet").column("value")
        assert len(column) == len(values) + 1


def test_csv_defuses_formulas_in_names_and_leaves_numbers_alone(tmp_path: Path) -> None:
    write_csv(synthetic_result(), tmp_path)
    header, *rows = read_csv(tmp_path / "caches.csv")
    assert header == ["cache", "objects", "used", "bytes", "change", "pages", "address"]
    names = [row[0] for row in rows]
    assert names == [f"'{name}" if name[0] == "=" else name for name in HOSTILE.values()]
    assert [row[4] for row in rows] == [str(number - 3) for number in range(9)]
    assert {row[6] for row in rows} == {hex(HIGHEST)}
    assert read_csv(tmp_path / "findings.csv")[2][4] == "'-1 is not a formula."
    # One line a row: no line break of a name is left.
    assert len((tmp_path / "caches.csv").read_text("utf-8").splitlines()) == 10


@pytest.mark.slow
@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_no_cell_of_a_csv_begins_like_a_formula(tmp_path_factory: Any, name: str) -> None:
    directory = tmp_path_factory.mktemp("csv")
    write_csv(of_names([name]), directory)
    cell = read_csv(directory / "names.csv")[1]
    assert (cell or [""])[0][:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert (cell or [""])[0].removeprefix("'") == printable(name).removeprefix("'")


def test_parquet_keeps_types_units_and_where_it_is_from(tmp_path: Path) -> None:
    written = write_parquet(synthetic_result(), tmp_path)
    assert " ".join(path.name.removesuffix(".parquet") for path in written) == FILES
    # Counters beyond 63 bits, too.
    counters = parquet.read_table(tmp_path / "checks.parquet").column("counter")
    assert counters.to_pylist()[-3:] == [10, HIGHEST, None]
    table = parquet.read_table(tmp_path / "caches.parquet")
    assert " ".join(table.column_names) == "cache objects used bytes change pages address"
    types = [str(field.type) for field in table.schema]
    assert " ".join(types) == "string int64 double uint64 int64 int64 uint64"
    assert table.column("cache").to_pylist() == list(HOSTILE.values())
    assert set(table.column("address").to_pylist()) == {HIGHEST}
    assert table.column("used").null_count == 2
    assert table.schema.field("bytes").metadata == {b"unit": b"bytes", b"label": b"slab memory"}
    assert table.schema.metadata[b"kcensus.kernel"] == b"6.1.0-synthetic"
    assert table.schema.metadata[b"kcensus.schema"] == str(SCHEMA).encode()
    # A result of nothing still has types.
    write_parquet(Result("synthetic", "t", "k"), tmp_path)
    schema = parquet.read_table(tmp_path / "checks.parquet").schema
    assert [str(field.type) for field in schema] == ["string", *["int64"] * 4, *["string"] * 4]


def test_parquet_summaries_of_many_machines_can_be_stacked(tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = synthetic_result(name)
        # On one of them a figure is not to be had.
        result.summary["oldest"] = Figure(None if name == "one" else 2.5, Unit.SECONDS)
        write_parquet(result, tmp_path / name)
    frame = pd.concat(map(pd.read_parquet, sorted(tmp_path.glob("*/summary.parquet"))))
    assert frame["target"].tolist() == ["one", "two"]
    assert frame["slab_bytes"].tolist() == [123456789012] * 2
    assert frame["oldest"].isna().tolist() == [True, False]


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_tables_of_another_result_do_not_stay(write: Any, tmp_path: Path) -> None:
    full, bare = synthetic_result(), Result("synthetic", "t", "k")
    first = write(full, tmp_path)
    suffix = first[0].suffix
    (tmp_path / f"mine{suffix}").write_text("precious")
    other = [write_parquet, write_csv][write is write_parquet](full, tmp_path)
    left = write(bare, tmp_path)
    assert len(left) < len(first)
    stay = {path.name for path in [*left, *other]} | {f"mine{suffix}"}
    assert {path.name for path in tmp_path.glob("[!.]*")} == stay
    # A list that another user wrote removes nothing.
    (tmp_path / ".kcensus-files").write_text(f"mine{suffix}\n../x{suffix}\n/etc/x{suffix}\n")
    if os.geteuid() == 0:
        os.chown(tmp_path / ".kcensus-files", 65534, 65534)
        write(bare, tmp_path)
        assert (tmp_path / f"mine{suffix}").exists()


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_a_file_that_the_user_has_put_in_place_of_a_table_stays(write: Any, tmp_path: Path) -> None:
    (table,) = (path for path in write(synthetic_result(), tmp_path) if path.stem == "caches")
    table.unlink()
    table.write_text("precious")
    write(Result("synthetic", "t", "k"), tmp_path)
    assert table.read_text() == "precious"


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_a_file_in_the_way_is_left_alone(write: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="is not a directory"):
            write(synthetic_result(), target)
    assert (tmp_path / "file").read_text() == "precious"


def test_it_is_the_published_one_with_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--json-schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema()
    common = json.loads(files("kcensus.render").joinpath("schema.json").read_text("utf-8"))
    assert printed["oneOf"] == common["oneOf"]
    assert {*printed["$defs"]} > {*common["$defs"]}


def test_it_describes_every_column() -> None:
    parts = schema()["$defs"]
    conditions = [each["if"]["properties"]["analysis"] for each in parts["result"]["allOf"]]
    assert conditions == [{"const": name} for name in analyses()]
    for name, analysis in analyses().items():
        tables = parts[f"tables_{name.replace('-', '_')}"]["properties"]
        for spec in analysis.tables():
            columns = tables[spec.name]["items"]["properties"]
            assert [*columns] == [*spec.columns]
            for key, column in spec.columns.items():
                assert columns[key]["description"] == column.help

    # No part has the name of another.
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        assert len(names) == len({*names})
        return dict(pairs)

    text = files("kcensus.render").joinpath("schema.json").read_text("utf-8")
    assert json.loads(text, object_pairs_hook=unique)
