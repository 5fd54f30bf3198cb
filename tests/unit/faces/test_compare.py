# SPDX-License-Identifier: LGPL-2.1-or-later
"""Comparing two results, with made-up tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from kcensus import cli
from kcensus.commands.diff import COMMAND
from kcensus.compare import compare, compare_tables
from kcensus.results import Figure, Gap, Result, Unit
from kcensus.results.tables import Column, Show, Table
from tests.unit.synthetic import only_synthetic

NAME = Column(Unit.TEXT, "name", Show.ALWAYS)


def table(names: list[str], **columns: tuple[list[Any], Unit]) -> Table:
    described: dict[str, tuple[Any, Column]] = {"name": (names, NAME)}
    described |= {
        name: (np.array(values), Column(unit)) for name, (values, unit) in columns.items()
    }
    return Table.of("things", described)


def rows(changed: Table | None) -> list[tuple[Any, ...]]:
    assert changed is not None
    frame = changed.frame[["name", "state", "before", "after", "change"]]
    return list(frame.itertuples(index=False, name=None))


def test_rows_by_name_the_largest_change_first() -> None:
    before = table(["a", "b", "c", "d"], size=([10, 20, 30, 40], Unit.BYTES))
    after = table(["d", "c", "b", "e"], size=([5, 30, 21, 7], Unit.BYTES))
    assert rows(compare_tables(before, after)) == [
        ("d", "changed", 40, 5, -35),
        ("a", "gone", 10, 0, -10),
        ("e", "new", 0, 7, 7),
        ("b", "changed", 20, 21, 1),
    ]


def test_the_order_of_equal_changes_is_that_of_names() -> None:
    before = table(["z", "y", "x"], size=([1, 1, 1], Unit.BYTES))
    after = table(["x", "z", "y"], size=([2, 0, 2], Unit.BYTES))
    assert [row[0] for row in rows(compare_tables(before, after))] == ["x", "y", "z"]


def test_a_row_that_is_new_with_nothing_in_it_is_new() -> None:
    before = table(["a"], size=([1], Unit.BYTES))
    after = table(["a", "b"], size=([1, 0], Unit.BYTES))
    assert rows(compare_tables(before, after)) == [("b", "new", 0, 0, 0)]


def test_a_change_of_any_column_is_a_change() -> None:
    before = table(["a", "b"], size=([1, 2], Unit.BYTES), count=([7, 7], Unit.COUNT))
    after = table(["a", "b"], size=([1, 2], Unit.BYTES), count=([7, 9], Unit.COUNT))
    changed = compare_tables(before, after)
    # The bytes changed nowhere, so the counts rank.
    assert rows(changed) == [("b", "changed", 7, 9, 2)]
    assert changed is not None
    assert changed.frame["size_change"].tolist() == [0]


def test_bytes_rank_before_counts() -> None:
    before = table(["a", "b"], count=([1, 900], Unit.COUNT), size=([5, 6], Unit.BYTES))
    after = table(["a", "b"], count=([2, 100], Unit.COUNT), size=([9, 6], Unit.BYTES))
    assert [row[0] for row in rows(compare_tables(before, after))] == ["a", "b"]


def test_large_numbers_are_exact() -> None:
    large = 2**62 + 1
    before = table(["a", "b"], size=([large, 1], Unit.BYTES))
    after = table(["a"], size=([large - 1], Unit.BYTES))
    assert rows(compare_tables(before, after))[0] == ("a", "changed", large, large - 1, -1) or (
        rows(compare_tables(before, after))[1] == ("a", "changed", large, large - 1, -1)
    )


def test_unsigned_numbers_can_fall() -> None:
    before = Table.of("t", {"name": (["a"], NAME), "n": (np.array([5], "u8"), Column())})
    after = Table.of("t", {"name": (["a"], NAME), "n": (np.array([3], "u8"), Column())})
    assert rows(compare_tables(before, after)) == [("a", "changed", 5, 3, -2)]


def test_ratios_do_not_rank_but_count() -> None:
    before = table(["a"], used=([0.5], Unit.RATIO))
    assert compare_tables(before, before) is None
    both = [table(["a"], used=([one], Unit.RATIO), n=([1], Unit.COUNT)) for one in (0.5, 0.25)]
    changed = compare_tables(*both)
    assert changed is not None
    assert changed.frame["used_change"].tolist() == [-0.25]


def test_ratios_of_nothing_are_no_change() -> None:
    both = [table(["a"], used=([float("nan")], Unit.RATIO), n=([1], Unit.COUNT)) for _ in range(2)]
    assert rows(compare_tables(*both)) == []


def named(pairs: list[tuple[str, str]], sizes: list[int]) -> Table:
    return Table.of(
        "owners",
        {
            "name": ([one for one, _ in pairs], NAME),
            "cache": ([other for _, other in pairs], Column(Unit.TEXT)),
            "size": (sizes, Column(Unit.BYTES)),
        },
    )


def test_as_many_names_as_tell_rows_apart() -> None:
    before = named([("a", "x"), ("a", "y")], [1, 2])
    after = named([("a", "y"), ("a", "x")], [2, 3])
    changed = compare_tables(before, after)
    assert changed is not None
    assert changed.frame[["name", "cache", "change"]].to_numpy().tolist() == [["a", "x", 2]]
    alone = compare_tables(named([("a", "x")], [1]), named([("a", "y")], [2]))
    assert alone is not None
    assert "cache" not in alone.frame  # the first name is unique, so the second is not needed


def test_rows_that_nothing_tells_apart_are_counted_off() -> None:
    before = named([("a", "x"), ("a", "x")], [1, 2])
    after = named([("a", "x"), ("a", "x"), ("a", "x")], [1, 5, 6])
    changed = compare_tables(before, after)
    assert changed is not None
    assert changed.frame["change"].tolist() == [6, 3]
    assert changed.frame["state"].tolist() == ["new", "changed"]


def test_rows_without_a_name_are_counted_off_too() -> None:
    def nameless(sizes: list[int]) -> Table:
        names = pd.Series(["a", *[None] * (len(sizes) - 1)], dtype=object)
        return Table.of("t", {"name": (names, NAME), "size": (sizes, Column(Unit.BYTES))})

    changed = compare_tables(nameless([1, 2, 3]), nameless([1, 2, 9, 4]))
    assert changed is not None
    assert changed.frame["occurrence"].tolist() == [1, 2]
    assert changed.frame["change"].tolist() == [6, 4]


def test_what_is_known_on_one_side_alone_changed() -> None:
    sizes = [pd.array(values, "Int64") for values in ([1, None, None], [1, None, 5])]
    both = [
        Table.of("t", {"name": (["a", "b", "c"], NAME), "size": (one, Column(Unit.BYTES))})
        for one in sizes
    ]
    changed = compare_tables(*both)
    assert changed is not None
    assert changed.frame[["name", "state"]].to_numpy().tolist() == [["c", "changed"]]
    assert changed.frame["change"].isna().all()


def test_names_that_are_called_like_columns_of_a_comparison() -> None:
    def states(*sizes: int) -> Table:
        named = {"state": (["D", "R"], Column(Unit.TEXT, "state", Show.ALWAYS))}
        return Table.of("tasks", named | {"size": (list(sizes), Column(Unit.BYTES))})

    changed = compare_tables(states(1, 2), states(1, 7))
    assert changed is not None
    assert changed.frame[["name_state", "state"]].to_numpy().tolist() == [["R", "changed"]]
    assert list(changed.columns) == list(changed.frame)
    assert [column.label for column in changed.columns.values()][:2] == ["state", "row"]


def test_tables_without_names_or_amounts_are_left_out() -> None:
    numbers = Table.of("t", {"size": ([1], Column(Unit.BYTES))})
    assert compare_tables(numbers, numbers) is None
    words = Table.of("t", {"name": (["a"], NAME)})
    assert compare_tables(words, words) is None


def test_empty_tables() -> None:
    empty = table([], size=([], Unit.BYTES))
    empty.frame["size"] = empty.frame["size"].astype(np.int64)
    full = table(["a"], size=([1], Unit.BYTES))
    assert rows(compare_tables(empty, full)) == [("a", "new", 0, 1, 1)]
    assert rows(compare_tables(full, empty)) == [("a", "gone", 1, 0, -1)]


def result(kernel: str = "6.1", gaps: int = 0, **figures: Any) -> Result:
    summary = {name: Figure(value, Unit.BYTES, name) for name, value in figures.items()}
    made = Result("slab", "x", kernel, summary=summary)
    made.gaps = [Gap("pages", "filtered", 5, "lower bound")] * gaps
    return made


def test_figures_by_their_share_of_change() -> None:
    before = result(large=1000, small=10, same=5, gone=1, mode="a")
    after = result(large=1001, small=20, same=5, new=2, mode="b")
    frame = compare([(before, after)], "A", "B").tables["figures"].frame
    assert frame["figure"].tolist() == ["gone", "mode", "new", "small", "large"]
    assert frame["change"].tolist() == ["-", "-", "-", "+10 B", "+1 B"]
    assert frame["change_value"].tolist() == [None, None, None, 10, 1]


def test_numpy_figures_are_compared_by_value() -> None:
    made = compare([(result(a=np.int64(5)), result(a=5))], "A", "B")
    assert len(made.tables["figures"].frame) == 0


def test_kernels_and_gaps_of_both_sides() -> None:
    made = compare([(result("5.10", 1), result("6.1", 2))], "A", "B")
    assert made.kernel == "5.10, then 6.1"
    assert "differ" in made.findings[0].title
    assert [gap.what for gap in made.gaps] == ["pages in A", "pages in B", "pages in B"]
    assert compare([(result(), result())], "A", "B").findings == []


def test_tables_of_one_side_only_are_left_out() -> None:
    before, after = result(), result()
    before.tables["caches"] = table(["a"], size=([1], Unit.BYTES))
    assert set(compare([(before, after)], "A", "B").tables) == {"figures"}
    after.tables["caches"] = table(["a"], size=([3], Unit.BYTES))
    made = compare([(before, after)], "A", "B")
    assert made.tables["slab_caches"].title == "slab: things"
    assert made.summary["rows_changed"].value == 1


@pytest.fixture
def only_diff() -> Iterator[None]:
    """Offer only this command and a made-up analysis."""
    with (
        only_synthetic(),
        mock.patch("kcensus.commands.commands", return_value={"diff": COMMAND}),
    ):
        yield


def test_command(only_diff: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "monday", "monday", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"] == "monday against monday"
    assert document["tables"] == {"figures": []}
    assert document["findings"] == []
    assert cli.main(["diff", "monday", "friday alone", "-j", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["tables"]["figures"]
    assert [row["figure"] for row in figures] == ["jobs"]
    assert cli.main(["diff", "monday", "unusable"]) == 3
    assert "install linux-image-dbg" in capsys.readouterr().err
    assert cli.main(["diff", "monday"]) == 2
    assert cli.main(["diff", "a", "b", "--analyses", "none"]) == 2
    assert "unknown analysis 'none'" in capsys.readouterr().err


def test_what_fails_on_one_side_is_a_gap(
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
    assert document["gaps"][0]["what"] == "synthetic on friday"
    assert pd.DataFrame(document["tables"]["figures"]).empty
