# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a store keeps of a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kcensus.reports import Report
from kcensus.results import Check, Figure, Finding, Gap, Machine, Result, Severity, Unit
from kcensus.results.tables import Table
from kcensus.store.layout import COLUMNS, SCHEMA
from kcensus.store.records import record
from tests.unit.store.making import ANALYSIS, CACHES, NOON, report, result


def numbers(made: Report) -> dict[tuple[str, str, str], Any]:
    rows = record(made, [ANALYSIS], NOON).rows.to_pylist()
    assert len({(row["part"], row["subject"], row["metric"]) for row in rows}) == len(rows)
    return {(row["part"], row["subject"], row["metric"]): row["value"] for row in rows}


def with_frame(frame: pd.DataFrame) -> Result:
    table = Table(frame, {name: CACHES.columns[name] for name in frame.columns})
    return replace(result(), tables={"caches": table, "other": table})


def test_a_record_has_every_kind_of_number() -> None:
    made = result()
    made.findings = [Finding(id="f:1", severity=Severity.WARNING, title="t", memory={"a": 7})]
    made.gaps = [Gap("pages", "gone", 3, "fewer")]
    made.checks = [Check("c", 1, 2)]
    assert numbers(report(of=made)) == {
        ("summary", "", "used_bytes"): 4096,
        ("caches", "dentry", "bytes"): 8192,
        ("caches", "inode", "bytes"): 4096,
        ("findings", "f:1", "severity"): 2,
        ("findings", "f:1", "holds_bytes"): 7,
        ("quality", "", "failed"): 0,
        ("quality", "", "gaps"): 1,
        ("quality", "", "checks_differ"): 1,
    }
    # A failed analysis is recorded as such.
    assert numbers(report(error="it broke")) == {("quality", "", "failed"): 1}


def test_each_row_says_what_it_is_of() -> None:
    rows = record(report(), [ANALYSIS], NOON).rows
    assert rows.schema.equals(SCHEMA)
    assert SCHEMA.names == [*COLUMNS]
    row = rows.to_pylist()[0]
    assert (row["boot"], row["ram_bytes"], row["release"]) == ("b1", 1 << 30, "6.1.0")
    assert (row["clock"], row["time"].timestamp(), row["unit"]) == ("machine", NOON, "bytes")


def test_values_that_do_not_fit() -> None:
    made = result()
    made.summary = {
        "large": Figure((1 << 64) - 1),
        "nan": Figure(float("nan"), Unit.RATIO),
        "unknown": Figure(None),
        "flag": Figure(True, Unit.NONE),
        "text": Figure("words", Unit.TEXT),
    }
    rows = record(report(of=made), [ANALYSIS], NOON).rows.to_pylist()
    summary = {row["metric"]: row for row in rows if row["part"] == "summary"}
    assert {key: (row["value"], row["exact"]) for key, row in summary.items()} == {
        "large": (float((1 << 64) - 1), None),
        "nan": (None, None),
        "unknown": (None, None),
        "flag": (1.0, 1),
    }


def test_the_largest_rows_are_kept_and_equal_names_added() -> None:
    sizes = pd.DataFrame({"cache": [f"c{size:04}" for size in range(500)], "bytes": range(500)})
    twice = pd.concat([sizes, sizes.tail(1)], ignore_index=True).assign(order=0)
    made = replace(result(), tables={"caches": CACHES.of(twice)})
    kept = {key[1]: value for key, value in numbers(report(of=made)).items() if key[0] == "caches"}
    assert len(kept) == 100
    assert (kept["c0499"], kept["c0400"]) == (998, 400)


@pytest.mark.parametrize(
    "columns", [{"cache": [], "bytes": np.array([], np.int64)}, {"cache": ["x"]}, {"bytes": [1]}]
)
def test_tables_of_other_versions_have_no_rows(columns: dict[str, Any]) -> None:
    frame = pd.DataFrame(columns)
    assert {part for part, _, _ in numbers(report(of=with_frame(frame)))} == {"summary", "quality"}


def test_text_among_the_amounts_of_a_document_is_unknown() -> None:
    frame = pd.DataFrame({"cache": ["a", "b"], "bytes": [5, "x"]}, dtype=object)
    values = numbers(report(of=with_frame(frame)))
    assert values["caches", "a", "bytes"] == 5
    assert values["caches", "b", "bytes"] is None


def test_hostile_names_are_escaped_and_bounded() -> None:
    names = {"\x1b[31m\u202e\udcff": 3, "x" * 4096: 2, "x" * 4095 + "y": 1}
    values = numbers(report(of=result(caches=names)))
    subjects = [subject for part, subject, _ in values if part == "caches"]
    assert len(subjects) == 3
    assert all(subject.isprintable() and len(subject) <= 512 for subject in subjects)


def test_a_given_name_is_for_dumps_without_one() -> None:
    made = report()
    assert record(made, [ANALYSIS], NOON, name="web7").host == made.head.machine.host  # type: ignore[union-attr]
    made.head.machine = Machine("(none)", NOON)
    named = record(made, [ANALYSIS], NOON, name="web\x1b7")
    assert named.host == "web\\x1b7"
    assert {*named.rows["host"].to_pylist()} == {named.host}
    assert named.id != record(made, [ANALYSIS], NOON).id


@pytest.mark.parametrize("time", [None, float("nan"), -5.0, 2.5e11, 1e300])
def test_without_a_time_it_is_that_of_recording(time: float | None) -> None:
    first = record(report(time=time), [ANALYSIS], NOON + 1)
    second = record(report(time=time), [ANALYSIS], NOON + 2)
    other = record(report(time=time, of=result(1)), [ANALYSIS], NOON + 2)
    assert first.time.timestamp() == NOON + 1
    assert {*first.rows["clock"].to_pylist()} == {"recorder"}
    assert first.id == second.id != other.id


def test_what_identifies_a_record() -> None:
    def identity(host: str = "a", time: float = NOON, boot: str = "b") -> str:
        return record(report(host, time, boot), [ANALYSIS], NOON).id

    assert identity() == identity()
    assert len({identity(), identity("c"), identity(time=NOON + 1), identity(boot="d")}) == 4
    assert identity() != record(report("a", NOON, "b", error="it broke"), [ANALYSIS], NOON).id
    # Without a time, a kernel that runs has a record each time.
    made = report(time=None)
    made.head.live = True
    identities = [record(made, [ANALYSIS], now).id for now in (NOON, NOON + 1)]
    saved = [record(made, [ANALYSIS], now, is_saved=True).id for now in (NOON, NOON + 1)]
    assert identities[0] != identities[1]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("uptime", [float("nan"), -1.0, 1e300])
def test_an_uptime_that_cannot_be_is_unknown(uptime: float) -> None:
    made = report()
    made.head.machine = Machine("h", NOON, uptime)
    assert {*record(made, [ANALYSIS], NOON).rows["uptime_seconds"].to_pylist()} == {None}


def test_without_a_canary_the_boot_is_its_minute() -> None:
    def boot(machine: Machine) -> str:
        made = report()
        made.head.machine = machine
        return str(record(made, [ANALYSIS], NOON).rows["boot"][0])

    assert boot(Machine("h", NOON, 90.0)) == "2023-11-15T11:58Z"
    assert boot(Machine("h", NOON + 30, 120.0)) == "2023-11-15T11:58Z"
    assert boot(Machine("h", NOON)) == boot(Machine("h", None, 5.0)) == ""
    assert boot(Machine("h", NOON, 1e300)) == ""
