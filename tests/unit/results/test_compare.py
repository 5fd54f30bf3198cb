# SPDX-License-Identifier: LGPL-2.1-or-later
"""Comparing two results, with made-up tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from kcensus import cli
from kcensus.commands import Entry
from kcensus.compare import compare, compare_tables
from kcensus.reports import Report, Section
from kcensus.results import (
    Bound,
    Danger,
    Figure,
    Finding,
    Gap,
    Machine,
    Result,
    Severity,
    Unit,
    parts_of,
)
from kcensus.results.tables import Column, Show, Table
from tests.leads import references
from tests.unit.synthetic import only_synthetic

NAME = Column(Unit.TEXT, "name", Show.ALWAYS)


def table(names: list[str], **columns: tuple[Any, Unit]) -> Table:
    described: dict[str, tuple[Any, Column]] = {"name": (names, NAME)}
    described |= {
        name: (np.array(values), Column(unit)) for name, (values, unit) in columns.items()
    }
    return Table.of("things", described)


def changes(before: Table, after: Table, *names: str) -> pd.DataFrame:
    """Return columns of the comparison of two tables; all without names."""
    changed = compare_tables(before, after)
    assert changed is not None
    assert list(changed.columns) == list(changed.frame)
    return changed.frame[[*names] or [*changed.frame]]


def rows(before: Table, after: Table) -> list[tuple[Any, ...]]:
    frame = changes(before, after, "name", "state", "before", "after", "change")
    return list(frame.itertuples(index=False, name=None))


def sizes(**values: Any) -> Table:
    return table([*values], size=([*values.values()], Unit.BYTES))


LARGE = 2**62 + 1
NOTHING = table([], size=(np.array([], np.int64), Unit.BYTES))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            sizes(a=10, b=20, c=30, d=40),
            sizes(d=5, c=30, b=21, e=7),
            [
                ("d", "changed", 40, 5, -35),
                ("a", "gone", 10, 0, -10),
                ("e", "new", 0, 7, 7),
                ("b", "changed", 20, 21, 1),
            ],
        ),
        (
            sizes(z=1, y=1, x=1),
            sizes(x=2, z=0, y=2),
            [("x", "changed", 1, 2, 1), ("y", "changed", 1, 2, 1), ("z", "changed", 1, 0, -1)],
        ),
        (
            table(["a", "c"], size=([1, 2], Unit.BYTES), count=([1, 1], Unit.COUNT)),
            table(["a", "b", "c"], size=([1, 0, 3], Unit.BYTES), count=([7, 9, 1], Unit.COUNT)),
            [("c", "changed", 2, 3, 1)],
        ),
        # Bytes rank before counts.
        (
            table(["a", "b"], count=([1, 900], Unit.COUNT), size=([5, 6], Unit.BYTES)),
            table(["a", "b"], count=([2, 100], Unit.COUNT), size=([9, 6], Unit.BYTES)),
            [("a", "changed", 5, 9, 4)],
        ),
        (
            sizes(a=LARGE, b=1),
            sizes(a=LARGE - 1),
            [("a", "changed", LARGE, LARGE - 1, -1), ("b", "gone", 1, 0, -1)],
        ),
        (
            table(["a"], n=(np.array([5], "u8"), Unit.PAGES)),
            table(["a"], n=(np.array([3], "u8"), Unit.PAGES)),
            [("a", "changed", 5, 3, -2)],
        ),
        # Documents have names escaped, dumps do not.
        (sizes(**{"a\n": 1}), sizes(**{"a\\x0a": 2}), [("a\\x0a", "changed", 1, 2, 1)]),
        (NOTHING, sizes(a=1), [("a", "new", 0, 1, 1)]),
        (sizes(a=1), NOTHING, [("a", "gone", 1, 0, -1)]),
    ],
)
def test_rows_are_compared_by_name(
    before: Table, after: Table, expected: list[tuple[Any, ...]]
) -> None:
    assert rows(before, after) == expected


def test_a_change_of_any_column_is_a_change() -> None:
    before = table(["a", "b"], size=([1, 2], Unit.BYTES), count=([7, 7], Unit.COUNT))
    after = table(["a", "b"], size=([1, 2], Unit.BYTES), count=([7, 9], Unit.COUNT))
    # The bytes changed nowhere, so the counts rank.
    assert rows(before, after) == [("b", "changed", 7, 9, 2)]
    assert changes(before, after)["size_change"].tolist() == [0]
    # Ratios do not rank, but count.
    before = table(["a"], used=([0.5], Unit.RATIO))
    assert compare_tables(before, before) is None
    both = [
        table(["a"], used=([used], Unit.RATIO), n=([n], Unit.BYTES))
        for used, n in ((0.5, 1), (0.25, 2))
    ]
    assert changes(both[0], both[1])["used_change"].tolist() == [-0.25]


@pytest.mark.parametrize("unit", [Unit.COUNT, Unit.SECONDS])
def test_a_table_without_memory_is_not_compared(unit: Unit) -> None:
    """Histograms of hash chains, ages of workers: noise."""
    both = [table(["a"], n=([n], unit)) for n in (1, 2)]
    assert compare_tables(*both) is None


def test_anonymous_numbers_are_not_names() -> None:
    def blocks(device: str, size: int) -> Table:
        named = {"type": ["tmpfs", "tmpfs"], "device": [device, "0:99"]}
        columns = {name: (values, Column(Unit.TEXT)) for name, values in named.items()}
        return Table.of("blocks", columns | {"size": ([size, 1], Column(Unit.BYTES))})

    frame = changes(blocks("0:45", 5), blocks("0:46", 7), "type", "state", "change")
    assert frame.to_numpy().tolist() == [["tmpfs", "changed", 2]]


def named(pairs: list[tuple[str | None, str]], sizes: list[int]) -> Table:
    return Table.of(
        "owners",
        {
            "name": (pd.Series([one for one, _ in pairs], dtype=object), NAME),
            "cache": ([other for _, other in pairs], Column(Unit.TEXT)),
            "size": (sizes, Column(Unit.BYTES)),
        },
    )


def test_as_many_names_as_tell_rows_apart() -> None:
    before = named([("a", "x"), ("a", "y")], [1, 2])
    after = named([("a", "y"), ("a", "x")], [2, 3])
    frame = changes(before, after, "name", "cache", "change")
    assert frame.to_numpy().tolist() == [["a", "x", 2]]
    # The first name is unique, so the second is not needed.
    assert "cache" not in changes(named([("a", "x")], [1]), named([("a", "y")], [2]))


@pytest.mark.parametrize("name", ["a", None])
def test_rows_that_nothing_tells_apart_are_counted_off(name: str | None) -> None:
    first, same = ("a", "x"), (name, "x")
    before, after = named([first, same, same], [1, 2, 3]), named([first, *[same] * 3], [1, 2, 9, 4])
    frame = changes(before, after, "occurrence", "change", "state")
    numbers = (2, 3) if name else (1, 2)
    assert frame.to_numpy().tolist() == [[numbers[0], 6, "changed"], [numbers[1], 4, "new"]]


def test_what_is_known_on_one_side_alone_changed() -> None:
    sizes = [pd.array(values, "Int64") for values in ([1, None, None], [1, None, 5])]
    both = [
        Table.of("t", {"name": (["a", "b", "c"], NAME), "size": (one, Column(Unit.BYTES))})
        for one in sizes
    ]
    frame = changes(both[0], both[1])
    assert frame[["name", "state"]].to_numpy().tolist() == [["c", "changed"]]
    assert frame["change"].isna().all()


def test_names_that_are_called_like_columns_of_a_comparison() -> None:
    def states(*sizes: int) -> Table:
        named = {"state": (["D", "R"], Column(Unit.TEXT, "state", Show.ALWAYS))}
        return Table.of("tasks", named | {"size": (list(sizes), Column(Unit.BYTES))})

    frame = changes(states(1, 2), states(1, 7), "name_state", "state")
    assert frame.to_numpy().tolist() == [["R", "changed"]]
    changed = compare_tables(states(1, 2), states(1, 7))
    assert changed is not None
    assert [column.label for column in changed.columns.values()][:2] == ["state", "row"]
    # Tables without names or amounts are left out.
    for columns in ({"size": ([1], Column(Unit.BYTES))}, {"name": (["a"], NAME)}):
        assert compare_tables(*[Table.of("t", columns)] * 2) is None


def compared(*pair: Result, **failed: str) -> Result:
    """Compare reports "A" and "B" of two results; analyses in ``failed`` fail on "B"."""
    sides = []
    for name, made in zip("AB", pair, strict=True):
        sections = [Section(made.analysis, made)]
        sections += [Section(each, None, why) for each, why in failed.items() if name == "B"]
        machine = Machine(host=name, ram_bytes=1 << 30)
        sides.append(Report(Result("report", name, made.kernel, machine=machine), sections))
    return compare(*sides)


def result(kernel: str = "6.1", gaps: int = 0, **figures: Any) -> Result:
    summary = {name: Figure(value, Unit.BYTES, name) for name, value in figures.items()}
    made = Result("slab", "x", kernel, summary=summary)
    made.gaps = [Gap("pages", "filtered", 5, "lower bound")] * gaps
    return made


def test_figures_by_their_share_of_change() -> None:
    before = result(large=1000, small=10, same=5, gone=1, mode="a")
    after = result(large=1001, small=20, same=5, new=2, mode="b")
    frame = compared(before, after).tables["figures"].frame
    assert frame["figure"].tolist() == ["gone", "mode", "new", "small", "large"]
    assert frame["change"].tolist() == ["-", "-", "-", "+10 B", "+1 B"]
    assert frame["change_value"].tolist() == [None, None, None, 10, 1]
    # Figures of numpy are compared by value.
    assert len(compared(result(a=np.int64(5)), result(a=5)).tables["figures"].frame) == 0


def test_kernels_and_gaps_of_both_sides() -> None:
    made = compared(result("5.10", 1), result("6.1", 2))
    assert made.kernel == "5.10, then 6.1"
    assert "differ" in made.findings[0].title
    assert made.tables["targets"].frame["host"].tolist() == ["A", "B"]
    assert [gap.what for gap in made.gaps] == ["pages in A", "pages in B", "pages in B"]
    assert compared(result(), result()).findings == []


@pytest.mark.parametrize(
    ("before", "after", "label"),
    [
        ("arrays", "arrays", "arrays"),
        ("arrays, measured", "arrays, modelled", "arrays, measured, then modelled"),
        ("arrays, measured", "lists", "arrays, measured, then lists"),
        (None, "lists", "lists"),
        ("lists", None, "lists"),
        ("", "", "n"),
    ],
)
def test_a_figure_has_the_labels_of_both_sides(
    before: str | None, after: str | None, label: str
) -> None:
    pair = result(), result()
    for number, (side, name) in enumerate(zip(pair, (before, after), strict=True)):
        if name is not None:
            side.summary["n"] = Figure(number, Unit.BYTES, name)
    assert compared(*pair).tables["figures"].frame["label"].tolist() == [label]


def test_changes_of_an_unlimited_setting_and_of_ratios() -> None:
    made = compared(result(limit=2**32 - 1, n=5), result(limit=2048, n=7))
    frame = made.tables["figures"].frame.set_index("figure")
    assert frame["change_value"].to_dict() == {"limit": None, "n": 2}
    both = [Result("slab", "x", "6.1", summary={"u": Figure(u, Unit.RATIO)}) for u in (0.5, 0.625)]
    assert compared(*both).tables["figures"].frame["change"].tolist() == ["+12.5 points"]


def grown() -> tuple[Result, Result]:
    """Results of an analysis whose finding explains most of what grew in a slab cache."""
    sides = []
    for size in (10 << 20, 110 << 20):
        made = Result("slab", "x", "6.1")
        made.tables["caches"] = table(["dentry", "small"], bytes=([size, size >> 20], Unit.BYTES))
        made.tables["caches"].columns = {"cache": NAME, "bytes": Column(Unit.BYTES)}
        made.tables["caches"].frame.columns = pd.Index(["cache", "bytes"])
        made.findings.append(
            Finding(
                id="dentries-negative",
                severity=Severity.NOTICE,
                title="negative dentries",
                memory={"slab:dentry": size * 9 // 10, "names": 5 << 20},
            )
        )
        sides.append(made)
    return sides[0], sides[1]


def test_what_grew_is_a_finding_and_its_cause_leads() -> None:
    made = compared(*grown())
    cause, cache = made.findings
    assert (cause.id, cause.holds) == ("grew:dentries-negative", 90 << 20)
    assert cause.figures["before"].value == 14 << 20
    assert cause.severity is Severity.WARNING
    assert (cache.id, cache.part_of) == ("grew:slab:dentry", cause.id)
    assert parts_of(cause, made.findings) == [cache]
    assert made.summary["grown_bytes"] == Figure(cause.holds, Unit.BYTES, "memory that grew")


def test_a_row_that_grew_is_in_the_memory_that_grew() -> None:
    """Without slab caches, its bytes are in no finding; with them, they may be."""
    pair = grown()
    for side, size in zip(pair, (1 << 20, 41 << 20), strict=True):
        side.findings.clear()
        side.tables = {"lists": table(["maps"], bytes=([size], Unit.BYTES))}
    made = compared(*pair)
    (row,) = made.findings
    assert (row.figures["change"].value, row.holds) == (40 << 20, None)
    grown_bytes = made.summary["grown_bytes"]
    assert (grown_bytes.value, grown_bytes.bound) == (40 << 20, Bound.AT_LEAST)


def test_a_cache_that_grew_keeps_its_severity_beside_a_partial_cause() -> None:
    before, after = grown()
    for side in (before, after):
        (finding,) = side.findings
        size = finding.memory["slab:dentry"] // 4
        side.findings = [replace(finding, memory={"slab:dentry": size})]
    made = {each.id: each for each in compared(before, after).findings}
    cache = made["grew:slab:dentry"]
    assert (cache.part_of, cache.severity) == ("", Severity.WARNING)


def held(before: dict[str, int], after: dict[str, int]) -> list[Finding]:
    """Return what a comparison finds of a finding that holds this memory, in MiB."""
    pair = grown()
    for side, memory in zip(pair, (before, after), strict=True):
        del side.tables["caches"]
        sizes = {place: size << 20 for place, size in memory.items()}
        side.findings = [replace(side.findings[0], memory=sizes)] if memory else []
    return compared(*pair).findings


def test_memory_that_moved_did_not_grow() -> None:
    (finding,) = held({"old": 50}, {"new": 60, "more": 2})
    assert finding.memory == {"new": 10 << 20, "more": 2 << 20}
    figures = {name: figure.value for name, figure in finding.figures.items()}
    assert figures == {"before": 50 << 20, "after": 62 << 20, "change": 12 << 20}


def test_a_finding_that_was_none_is_new_and_what_shrank_is_none() -> None:
    (finding,) = held({}, {"slab:dentry": 99, "names": 5})
    assert finding.id == "grew:dentries-negative"
    assert "104.0 MiB" in finding.title
    assert references(finding) == ["kcensus report AFTER"]
    assert held({"old": 50}, {"new": 40}) == []
    assert compared(*grown()[::-1]).findings == []


def test_a_failed_side_comes_first() -> None:
    first, *_ = compared(*grown(), dentries="it failed").findings
    assert (first.id, first.danger) == ("diff-incomplete", Danger.INCOMPLETE)
    assert "dentries on B: it failed" in first.evidence


def test_tables_of_one_side_only_are_left_out() -> None:
    before, after = result(), result()
    before.tables["caches"] = table(["a"], size=([1], Unit.BYTES))
    assert set(compared(before, after).tables) == {"targets", "figures"}
    after.tables["caches"] = table(["a"], size=([3], Unit.BYTES))
    made = compared(before, after)
    assert made.tables["slab_caches"].title == "slab: things"
    assert made.summary["rows_changed"].value == 1


@pytest.fixture
def only_diff() -> Iterator[None]:
    """Offer only this command and a made-up analysis."""
    with (
        only_synthetic(),
        mock.patch(
            "kcensus.commands.commands", return_value={"diff": Entry("kcensus.commands.diff", "")}
        ),
    ):
        yield


def test_command(only_diff: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "monday", "monday", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"] == "monday (before) and monday (after)"
    assert document["tables"]["figures"] == []
    assert [row["side"] for row in document["tables"]["targets"]] == ["before", "after"]
    assert document["findings"] == []
    assert cli.main(["diff", "monday", "friday alone", "-j", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["tables"]["figures"]
    assert [row["figure"] for row in figures] == ["jobs"]
    assert cli.main(["diff", "monday", "unusable"]) == 3
    assert "install linux-image-dbg" in capsys.readouterr().err
    assert cli.main(["diff", "monday"]) == 2
    assert cli.main(["diff", "a", "b", "--analyses", "none"]) == 2
    assert "unknown analysis 'none'" in capsys.readouterr().err


def test_what_fails_on_one_side_is_a_finding(
    only_diff: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit import synthetic

    made = synthetic.synthetic_result

    def only_monday(name: str) -> Result:
        if name != "monday":
            raise ZeroDivisionError
        return made(name)

    monkeypatch.setattr(synthetic, "synthetic_result", only_monday)
    assert cli.main(["diff", "monday", "friday", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["id"] == "diff-incomplete"
    assert pd.DataFrame(document["tables"]["figures"]).empty


def test_documents_on_either_side(
    only_diff: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "monday.json")
    assert cli.main(["synthetic", "monday", "--json", path]) == 0
    capsys.readouterr()
    for sides in ((path, "monday"), ("monday", path), (path, path)):
        assert cli.main(["diff", *sides, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["target"] == "monday (before) and monday (after)"
        assert document["tables"]["figures"] == []
        assert document["summary"]["rows_changed"] == 0
    other = str(tmp_path / "difference.json")
    assert cli.main(["diff", "monday", "monday", "--json", other]) == 0
    capsys.readouterr()
    assert cli.main(["diff", other, "monday"]) == 2
    assert "has no analysis to compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ((100.0, 1 << 30), (200.0, 1 << 30), set()),
        ((200.0, 1 << 30), (100.0, (1 << 30) + 4096), {"targets-swapped"}),
        ((100.0, 1 << 30), (None, 1 << 31), {"machines-differ"}),
        ((None, None), (None, 1 << 30), set()),
    ],
)
def test_swapped_targets_and_other_machines_are_told(
    before: tuple[float | None, int | None], after: tuple[float | None, int | None], kinds: set[str]
) -> None:
    sides = []
    for time, ram in (before, after):
        head = Result("report", "t", "6.1", machine=Machine(time=time, ram_bytes=ram))
        sides.append(Report(head, []))
    assert {finding.kind for finding in compare(*sides).findings} == kinds
