# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON documents as targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kcensus import cli, saved
from kcensus.reports import Report, Section
from kcensus.results import Bound, Danger, Figure, Machine, Result, Severity, Unit
from kcensus.results.tables import Column, Table
from tests.running import document
from tests.unit.synthetic import HIGHEST, only_synthetic, synthetic_result


def whole() -> Result:
    """A result with everything that a document can have."""
    result = synthetic_result()
    result.machine = Machine(host="web1", time=1.5e9, uptime_seconds=0.5, ram_bytes=1 << 30)
    first = replace(
        result.findings[1],
        danger=Danger.STALL,
        patch_is_fix=True,
        patch_packages="RHEL 9.1: since x",
        no_remedy="x",
        story=("a", "b"),
    )
    result.findings = [first, replace(result.findings[0], part_of=first.id)]
    values: dict[str, list[Any]] = {
        "missing": [1, None],
        "large": [HIGHEST, None],
        "mixed": [0.5, 1.0],
        "flags": [True, False],
        "words": ["a", None],
        "nothing": [None, None],
    }
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in values.items()})
    types = {"missing": "Int64", "large": "UInt64", "mixed": "float64", "flags": "bool"}
    frame = frame.astype(types)
    result.tables["values"] = Table(frame, {name: Column(Unit.NONE) for name in values}, "Values")
    result.tables["values"].is_known = False
    result.summary["bounded"] = Figure(0, Unit.COUNT, "jobs", Bound.AT_MOST)
    return result


def save(directory: Path, text: str) -> str:
    path = directory / "saved.json"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_result_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    (section,) = saved.load(save(tmp_path, document(whole()))).sections
    assert section.result is not None
    assert document(section.result) == document(whole())
    assert section.result.summary["bounded"].bound is Bound.AT_MOST
    assert [not table.is_known for table in section.result.tables.values()].count(True) == 1
    assert section.result.findings[0].severity is Severity.CRITICAL
    # Keys of later releases are ignored.
    changed = json.loads(document(whole()))
    changed["new"] = changed["machine"]["new"] = changed["findings"][0]["new"] = 1
    (section,) = saved.load(save(tmp_path, json.dumps(changed))).sections
    assert section.result is not None
    assert document(section.result) == document(whole())


def test_a_report_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    head = Result("report", "t", "k", machine=Machine())
    report = Report(head, [Section("a", whole()), Section("b", None, "it failed")])
    report = replace(report, doctor="kcensus doctor t -s vmlinux")
    again = saved.load(save(tmp_path, document(report)))
    assert document(again) == document(report)
    assert again.errors == {"b": "it failed"}
    assert again.findings[0][1].id == "report-incomplete"


def test_documents_of_schema_2_open_and_become_those_of_schema_3(tmp_path: Path) -> None:
    """Addresses were numbers, which many readers of JSON round."""
    path = Path(__file__).parents[1] / "data/schema-2-waits.json"
    (section,) = saved.load(str(path)).sections
    assert section.result is not None
    new, old = json.loads(document(section.result)), json.loads(path.read_text("utf-8"))
    assert (old["schema"], new["schema"]) == (2, 3)
    units, addresses = old["units"]["tables"], 0
    for name, rows in old["tables"].items():
        for row in rows:
            for key, value in row.items():
                if units[name][key] == "address":
                    assert isinstance(value, int)
                    row[key], addresses = hex(value), addresses + 1
    assert addresses
    assert new["tables"] == old["tables"]
    assert new["findings"] == old["findings"]
    # The rows are the same as of numbers.
    (again,) = saved.load(save(tmp_path, document(section.result))).sections
    assert again.result is not None
    for name, table in section.result.tables.items():
        pd.testing.assert_frame_equal(again.result.tables[name].frame, table.frame)


@pytest.mark.parametrize("words", [["report", "OLD"], ["diff", "OLD", "OLD"], ["waits", "OLD"]])
def test_commands_read_documents_of_schema_2(words: list[str]) -> None:
    old = str(Path(__file__).parents[1] / "data/schema-2-waits.json")
    assert cli.main([old if word == "OLD" else word for word in words]) == 0


def test_large_numbers_of_any_part_survive(tmp_path: Path) -> None:
    large = (1 << 53) + 1
    result = whole()
    result.summary |= {
        "place": Figure(HIGHEST, Unit.ADDRESS),
        "count": Figure(large),
        "below": Figure(-large),
        "exact": Figure(1 << 53),
        "digits": Figure(str(large), Unit.TEXT),
    }
    result.findings[0] = replace(
        result.findings[0], figures={"at": Figure(HIGHEST, Unit.ADDRESS)}, memory={"slab": large}
    )
    (section,) = saved.load(save(tmp_path, text := document(result))).sections
    assert section.result is not None
    found = {key: figure.value for key, figure in section.result.summary.items()}
    assert found == {key: figure.value for key, figure in result.summary.items()} | {
        key: found[key] for key in ("unknown", "allocator")
    }
    assert section.result.findings[0].figures == result.findings[0].figures
    assert section.result.findings[0].memory == {"slab": large}
    assert document(section.result) == text
    summary = json.loads(text)["summary"]
    assert summary["place"] == hex(HIGHEST)
    assert summary["below"] == str(-large)
    assert summary["exact"] == 1 << 53


@pytest.mark.ends
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": 1}, "schema"),
        ({"schema": None}, "is not a document"),
        ({"target": 5}, "$.target: 5 must be string"),
        ({"summary": {"a": []}}, "$.summary.a"),
        ({"summary": {"a": 1 << 64}}, "64 bits"),
        ({"summary": {"a": float("nan")}}, "finite"),
        ({"analysis": "../x"}, "$.analysis"),
        *(
            ({key: value}, "is damaged")
            for key, value in (
                *(("findings", None), ("units", {}), ("machine", {"wheels": 4}), ("analyses", {})),
                *(("labels", {"summary": {}, "tables": {}}), ("tables", {"caches": ["x"]})),
            )
        ),
    ],
)
def test_other_documents_are_refused_in_one_sentence(
    change: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, json.dumps(json.loads(document(whole())) | change))
    assert cli.main(["report", path]) == 3
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_rows_hold_nothing_but_scalars_and_depth_is_bounded(tmp_path: Path) -> None:
    changed = json.loads(document(whole()))
    for value in ([1], {"a": 1}):
        changed["tables"]["values"][0]["words"] = value
        with pytest.raises(saved.BadDocument, match="cannot be in a table"):
            saved.load(save(tmp_path, json.dumps(changed)))


@pytest.mark.parametrize(
    "data", [b'{"a":' * 100_000, b'{"schema": 3, nope', b'{"a": "\xff"}', b'{"a": 1e999}', b"{}"]
)
def test_what_is_no_document_is_told_by_its_path_and_what_to_do(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "garbage.json"
    path.write_bytes(data)
    assert cli.main(["report", str(path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kcensus: {path}: ")
    assert line.endswith("--json")
    assert not any(word in line for word in ("recursion", "codec", "Error"))


def test_names_of_a_report_stay_in_its_directory(tmp_path: Path) -> None:
    head = Result("report", "t", "k", machine=Machine())
    path = save(tmp_path, document(Report(head, [Section("../../outside", whole())])))
    assert cli.main(["report", path, "--csv", str(tmp_path / "a" / "b")]) == 3
    assert not (tmp_path / "outside").exists()


def test_commands_take_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "saved.json")
    with only_synthetic():
        assert cli.main(["synthetic", "vmcore", "--json", path]) == 0
        capsys.readouterr()
        shown = []
        for target in ("vmcore", path):
            assert cli.main(["synthetic", target, "--json"]) == 0
            shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert cli.main(["slab", path]) == 3
    assert "has no result of slab: it has synthetic" in capsys.readouterr().err
