# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result model: when a check agrees, and what a table insists on. All figures *synthetic*."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kcensus import results
from kcensus.results import Check, CheckStatus, Danger, Finding, Remedy, Severity, Unit, fold, rank
from kcensus.results.severity import MIN_BYTES, severity_of
from kcensus.results.tables import Column, Show, Table, TableSpec, make_tables


@pytest.mark.parametrize(
    ("ours", "counter", "explained", "difference", "status"),
    [
        # Agreement needs no explanation, and wins over one.
        *(
            (n, n, explained, 0, CheckStatus.AGREE)
            for n, explained in ((7, None), (0, None), (7, 3))
        ),
        *((7, 10, explained, 3, CheckStatus.DIFFER) for explained in (None, 2, 0)),
        *((10, 7, explained, -3, CheckStatus.DIFFER) for explained in (None, 3)),
        *((7, 10, 3, 3, CheckStatus.EXPLAINED), (10, 7, -3, -3, CheckStatus.EXPLAINED)),
        *((ours, None, None, None, CheckStatus.ABSENT) for ours in (7, None)),
        *((None, 7, None, None, CheckStatus.ABSENT), (0, None, 0, None, CheckStatus.ABSENT)),
    ],
)
def test_the_status_of_a_check(
    ours: int, counter: int, explained: int, difference: int, status: CheckStatus
) -> None:
    check = Check("n", ours, counter, explained=explained)
    assert (check.difference, check.status) == (difference, status)


@pytest.mark.parametrize(
    ("ours", "readings", "counter", "moved", "beyond", "status"),
    [
        (105, (100, 110), 110, 10, 0, CheckStatus.EXPLAINED),
        (105, (110, 100), 100, -10, 0, CheckStatus.EXPLAINED),
        (105, (100, 120, 90), 90, -30, 0, CheckStatus.EXPLAINED),
        (105, (105, 100), 100, -5, 0, CheckStatus.EXPLAINED),
        (105, (105, 105), 105, 0, 0, CheckStatus.AGREE),
        (105, (100, 103, 101), 103, 3, 2, CheckStatus.DIFFER),
        (105, (112, 109), 109, -3, -4, CheckStatus.DIFFER),
        (105, (None, 100, 110), 110, 10, 0, CheckStatus.EXPLAINED),
        (105, (None, 100), 105, None, 0, CheckStatus.AGREE),
        (105, (), 105, None, 0, CheckStatus.AGREE),
    ],
)
def test_a_check_with_a_counter_that_moves(
    ours: int, readings: tuple[int, ...], counter: int, moved: int, beyond: int, status: CheckStatus
) -> None:
    check = Check("n", ours, 105).over(*readings)
    assert (check.counter, check.moved) == (counter, moved)
    assert (check.beyond, check.status) == (beyond, status)


def test_what_a_note_explains_may_move_too() -> None:
    exact, bounded = Check("n", 90, 100, explained=10), Check("n", 90, 100, at_most=10)
    for check in (exact, bounded):
        assert check.over(95, 103).status is CheckStatus.EXPLAINED
        assert check.over(103, 120).status is CheckStatus.DIFFER
    assert exact.over(91, 99).status is CheckStatus.DIFFER
    assert bounded.over(91, 99).status is CheckStatus.EXPLAINED
    absent = Check("n", 1, None).over(1, 2)
    assert (absent.moved, absent.status) == (None, CheckStatus.ABSENT)


FRAME = pd.DataFrame({"cache": ["a"], "bytes": [1]})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["cache"], r"missing \[\], undescribed \['bytes'\]"),
        (["cache", "bytes", "gone"], r"missing \['gone'\], undescribed \[\]"),
        (["cache", "gone"], r"missing \['gone'\], undescribed \['bytes'\]"),
        ([], r"undescribed \['cache', 'bytes'\]"),
    ],
)
def test_a_table_refuses_other_columns(columns: list[str], words: str) -> None:
    with pytest.raises(ValueError, match="'caches': columns.*" + words):
        Table(FRAME, {name: Column() for name in columns}, "caches")
    # Another order is none.
    assert Table(FRAME, {"bytes": Column(), "cache": Column()}).frame.shape == (1, 2)


SPEC = TableSpec(
    "caches",
    "Caches",
    {
        "cache": Column(Unit.TEXT, get="slab.name"),
        "bytes": Column(
            Unit.BYTES, get=lambda row: None if row.pages is None else row.pages * 4096
        ),
        "address": Column(Unit.ADDRESS),
    },
    largest_first=("bytes",),
)


def test_columns_are_filled_from_rows_or_from_an_object_with_all() -> None:
    def row(name: str, pages: int | None, address: int) -> SimpleNamespace:
        return SimpleNamespace(slab=SimpleNamespace(name=name), pages=pages, address=address)

    rows = SPEC.of([row("a", 1, 1 << 63), row("b", None, 0), row("c", 2, 5)]).frame
    assert rows["cache"].tolist() == ["c", "a", "b"]
    assert rows["bytes"].tolist() == [8192, 4096, pd.NA]
    assert rows.dtypes.astype(str).tolist()[1:] == ["Int64", "uint64"]
    columns = SimpleNamespace(
        slab=SimpleNamespace(name=["a", "b"]), pages=np.array([1, 2]), address=np.array([7, 8])
    )
    whole = SPEC.frame(columns)
    assert whole["bytes"].tolist() == [4096, 8192]
    # What was derived from these columns has them by name.
    assert SPEC.of(whole[whole["bytes"] > 4096]).frame["address"].tolist() == [8]
    assert SPEC.of([{"cache": "d", "bytes": 3, "address": 9}]).frame.iloc[0].tolist() == ["d", 3, 9]
    nothing = SPEC.of([]).frame
    assert (nothing["cache"].dtype, len(nothing["cache"].str.len())) == (rows["cache"].dtype, 0)


def test_tables_are_made_of_the_rows_that_figures_have() -> None:
    held = TableSpec("held", "", {"n": Column()}, rows=lambda figures: figures["held"])
    lacks = TableSpec("lacks", "", {"n": Column()}, rows=lambda figures: None)
    made = make_tables((held, lacks), {"held": {"n": [3]}})
    assert {name: table.frame["n"].tolist() for name, table in made.items()} == {"held": [3]}


def test_groups_of_a_frame_give_keys_and_sums() -> None:
    columns = {
        "cache": Column(Unit.TEXT),
        "bytes": Column(Unit.BYTES),
        "users": Column(get=lambda groups: groups["user"].nunique()),
    }
    rows = {"cache": ["b", "a", "b"], "bytes": [1, 2, 3], "user": [7, 8, 7], "left_out": [0] * 3}
    made = TableSpec("caches", "", columns).of(pd.DataFrame(rows).groupby("cache")).frame
    assert made.to_dict("list") == {"cache": ["a", "b"], "bytes": [2, 4], "users": [1, 1]}


@pytest.mark.parametrize(("keep", "kept"), [("mask", [4, 6]), (lambda rows: [2, 0], [6, 4])])
def test_a_table_may_keep_some_rows_of_an_object(keep: Any, kept: list[int]) -> None:
    spec = TableSpec("caches", "", {"n": Column()}, keep=keep)
    rows = SimpleNamespace(n=np.array([4, 5, 6]), mask=np.array([True, False, True]))
    assert spec.of(rows).frame["n"].tolist() == kept
    assert spec.of(rows).frame.index.tolist() == [0, 1]


def test_numbers_may_keep_their_types() -> None:
    rows = [SimpleNamespace(n=value) for value in (1 << 60, None, 0.5)]
    kept = TableSpec("numbers", "", {"n": Column(Unit.NONE)}, keeps_types=True).of(rows).frame["n"]
    assert [*map(type, kept)] == [int, type(None), float]
    # Columns without values may be in data only.
    columns = {"a": Column(show=Show.ALWAYS), "b": Column(show=Show.ALWAYS)}
    rows = [SimpleNamespace(a=None, b=1), SimpleNamespace(a=None, b=None)]
    made = TableSpec("events", "", columns, hides_empty=True).of(rows)
    assert {name: each.show for name, each in made.columns.items()} == {
        "a": Show.DATA,
        "b": Show.ALWAYS,
    }


def test_the_figures_tell_whether_a_table_is_known() -> None:
    spec = TableSpec("pools", "", {"n": Column()}, is_known=lambda figures: not figures.errors)
    for errors in ("", "torn"):
        figures = SimpleNamespace(n=[1], errors=errors)
        assert make_tables((spec,), figures)["pools"].is_known is not bool(errors)


def test_tables_can_be_pickled() -> None:
    table = SPEC.of([{"cache": "d", "bytes": 3, "address": 9}])
    again = pickle.loads(pickle.dumps(table))
    assert again.frame.equals(table.frame)
    assert [*again.columns] == [*table.columns]


def finding(id: str, severity: Severity = Severity.NOTICE, **fields: Any) -> Finding:
    return Finding(id=id, severity=severity, title="x", **fields)


def test_what_matters_and_its_rank() -> None:
    assert Severity.INFO < Severity.NOTICE < Severity.WARNING < Severity.CRITICAL
    assert results.matters(finding("a", Severity.NOTICE))
    assert not results.matters(finding("a", Severity.INFO))
    assert not results.matters(finding("a", Severity.CRITICAL, part_of="b"))
    expected = [
        finding("incomplete", Severity.NOTICE, danger=Danger.INCOMPLETE),
        finding("critical", Severity.CRITICAL),
        finding("stall", Severity.WARNING, danger=Danger.STALL),
        finding("large", Severity.WARNING, memory={"a": 5000, "b": 1}),
        finding("small", Severity.WARNING, memory={"a": 2000}),
        finding("none", Severity.WARNING),
        finding("part", Severity.CRITICAL, part_of="large"),
    ]
    assert sorted([*expected[4:], *expected[:4]], key=rank) == expected


GIB = 1 << 30


@pytest.mark.parametrize(
    ("holds", "ram", "severity"),
    [
        *((MIN_BYTES - 1, None, None), (MIN_BYTES - 1, MIN_BYTES, None), (GIB, 1001 * GIB, None)),
        *((GIB, ram * GIB, Severity.INFO) for ram in (201, 1000)),
        *((MIN_BYTES, ram, Severity.NOTICE) for ram in (None, 0)),
        (GIB, 200 * GIB, Severity.NOTICE),
        *((GIB - 1, 4 * GIB, Severity.WARNING), (GIB, 20 * GIB, Severity.WARNING)),
        *((MIN_BYTES, MIN_BYTES, Severity.CRITICAL), (GIB, 4 * GIB, Severity.CRITICAL)),
    ],
)
def test_severity_is_the_share_of_ram(
    holds: int, ram: int | None, severity: Severity | None
) -> None:
    assert severity_of(holds, ram) is severity


MIB = 1 << 20


def test_a_symptom_is_part_of_its_cause() -> None:
    cause = finding("negatives", memory={"slab:dentry": 90 * MIB, "slab:kmalloc-64": 5 * MIB})
    memory = {"slab:dentry": 100 * MIB, "slab:x": 60 * MIB}
    size = finding("size", Severity.CRITICAL, memory=memory, is_generic=True)
    folded = {each.id: each for each in fold([size, cause])}
    assert list(folded) == ["negatives", "size"]
    assert folded["size"].part_of == "negatives"
    assert folded["negatives"].part_of == ""


def test_of_two_symptoms_the_vague_one_is_part_of_the_other() -> None:
    tasks: dict[str, Any] = {"tasks": frozenset({1, 2}), "is_generic": True}
    vague, other = finding("log", is_vague=True, **tasks), finding("unheld", **tasks)
    folded = {each.id: each.part_of for each in fold([vague, other])}
    assert folded == {"unheld": "", "log": "unheld"}
    cause = finding("limit", tasks=frozenset({1, 2, 3}))
    folded = {each.id: each.part_of for each in fold([vague, other, cause])}
    assert folded == {"limit": "", "unheld": "limit", "log": "limit"}
    # One of which too little is left is part of its cause.
    cause = finding("negatives", memory={"slab:dentry": MIB})
    size = finding("size", memory={"slab:dentry": 2 * MIB + MIB // 2}, is_generic=True)
    assert [each.part_of for each in fold([size, cause], 200 * MIB)] == ["", ""]
    assert [each.part_of for each in fold([size, cause], 2000 * MIB)] == ["", "negatives"]


@pytest.mark.parametrize(("commands", "is_part"), [("a\nb\nc", True), ("a\nc", False)])
def test_a_finding_is_covered_by_one_with_its_commands(commands: str, is_part: bool) -> None:
    delay = finding("delay", remedies=(Remedy(effect="Release", command="b\na"),))
    copies = finding(
        "copies",
        remedies=(Remedy(effect="Release", command=commands),),
        covers=frozenset({"delay", "gone"}),
    )
    folded = {each.id: each.part_of for each in fold([delay, copies])}
    assert folded == {"copies": "", "delay": "copies" * is_part}


@pytest.mark.parametrize("severity", [Severity.CRITICAL, Severity.NOTICE])
def test_a_finding_covers_none_that_is_more_severe(severity: Severity) -> None:
    waits = finding("io:sda", Severity.WARNING, no_remedy="Look at the disk", is_generic=True)
    starved = finding("starved:sda", severity, covers=frozenset({"io:sda"}))
    folded = {each.id: each.part_of for each in fold([waits, starved])}
    assert folded["io:sda"] == "starved:sda" * (severity is Severity.CRITICAL)


def test_of_findings_that_are_parts_of_each_other_one_is_at_the_top() -> None:
    first = finding("first", covers=frozenset({"second"}), part_of="second")
    folded = {each.id: each.part_of for each in fold([first, finding("second")])}
    assert folded == {"first": "second", "second": ""}
    folded = {each.id: each.part_of for each in fold([first, finding("second", part_of="first")])}
    assert sorted(folded.values()) in (["", "first"], ["", "second"])


def test_a_symptom_of_another_analysis_does_not_make_its_cause_more_severe() -> None:
    some, more = frozenset({1}), frozenset({2})
    causes = [finding(f"map:{name}", tasks=tasks) for name, tasks in (("a", some), ("b", more))]
    symptom = finding("late:a", Severity.CRITICAL, tasks=some, part_of="map:a")
    names = {"map:a": "waits", "map:b": "waits", "late:a": "iosched"}
    folded = {each.id: each for each in fold([symptom, *causes], analyses=names)}
    assert folded["late:a"].part_of == "map:a"
    assert folded["map:a"].severity is folded["map:b"].severity is causes[0].severity
    own = fold([symptom, *causes], analyses=dict.fromkeys(names, "waits"))
    assert [each.severity for each in own if each.id == "map:a"] == [Severity.CRITICAL]


def test_a_symptom_is_explained_by_a_cause_and_its_parts_together() -> None:
    """Tasks wait for writes and reads of one disk, which are starved apart."""
    writes, reads = frozenset({1, 2}), frozenset({3, 4})
    causes = finding("async", tasks=writes), finding("sync", tasks=reads, part_of="async")
    waits = finding("io", tasks=writes | reads | {5, 6, 7}, is_generic=True)
    vague = finding("blocked", tasks=frozenset({6, 7}), is_generic=True, is_vague=True)
    folded = {each.id: each.part_of for each in fold([vague, waits, *causes])}
    assert folded == {"async": "", "sync": "async", "io": "async", "blocked": "async"}


def test_a_symptom_is_explained_by_several_causes_together() -> None:
    cycles = [finding(f"cycle:{name}", tasks=frozenset({name, name + 1})) for name in (1, 3, 5)]
    log = finding("log", tasks=frozenset(range(1, 10)), is_generic=True)
    folded = {each.id: each.part_of for each in fold([log, *cycles])}
    assert folded == {"cycle:1": "", "cycle:3": "", "cycle:5": "", "log": "cycle:1"}
    folded = {each.id: each.part_of for each in fold([log, *cycles[:2]])}
    assert folded["log"] == ""


def test_a_symptom_that_is_explained_in_part_keeps_the_rest() -> None:
    cause = finding("negatives", memory={"slab:dentry": 40 * MIB})
    waste = finding("waste:dentry", memory={"slab:dentry": 50 * MIB}, is_generic=True)
    memory = {"slab:dentry": 100 * MIB, "slab:x": 60 * MIB}
    remedies = (Remedy(effect="Free it", returns=150 * MIB),)
    size = finding("size", Severity.CRITICAL, memory=memory, is_generic=True, remedies=remedies)
    folded = {each.id: each for each in fold([waste, size, cause], 1000 * MIB)}
    rest = folded["size"]
    assert rest.memory == {"slab:dentry": 60 * MIB, "slab:x": 60 * MIB}
    assert (rest.severity, rest.returns) == (Severity.WARNING, 120 * MIB)
    assert folded["waste:dentry"].part_of in ("size", "negatives")
    top = [each for each in folded.values() if not each.part_of]
    assert sum(each.holds or 0 for each in top) == 160 * MIB


@pytest.mark.parametrize(
    ("chain", "parts"),
    [({"a": "", "b": "a", "c": "b"}, ["", "a", "a"]), ({"a": "gone"}, [""]), ({}, [])],
)
def test_parts_of_parts_belong_to_the_top(chain: dict[str, str], parts: list[str]) -> None:
    made = fold([finding(id, part_of=part_of) for id, part_of in chain.items()])
    assert [each.part_of for each in made] == parts
