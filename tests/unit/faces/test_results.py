# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result model: when a check agrees, and what a table insists on. All figures *synthetic*."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from kcensus.results import (
    Check,
    CheckStatus,
    Danger,
    Finding,
    Remedy,
    Result,
    Severity,
    Unit,
    fold,
    matters,
    rank,
)
from kcensus.results.tables import Column, Table
from kcensus.results.thresholds import MIN_BYTES, severity_of


@pytest.mark.parametrize(
    ("ours", "counter", "explained", "difference", "status"),
    [
        (7, 7, None, 0, CheckStatus.AGREE),
        (0, 0, None, 0, CheckStatus.AGREE),
        # Agreement needs no explanation, and wins over one.
        (7, 7, 3, 0, CheckStatus.AGREE),
        (7, 10, None, 3, CheckStatus.DIFFER),
        (10, 7, None, -3, CheckStatus.DIFFER),
        (7, 10, 3, 3, CheckStatus.EXPLAINED),
        (10, 7, -3, -3, CheckStatus.EXPLAINED),
        (10, 7, 3, -3, CheckStatus.DIFFER),
        (7, 10, 2, 3, CheckStatus.DIFFER),
        (7, 10, 0, 3, CheckStatus.DIFFER),
        (7, None, None, None, CheckStatus.ABSENT),
        (None, 7, None, None, CheckStatus.ABSENT),
        (None, None, None, None, CheckStatus.ABSENT),
        (0, None, 0, None, CheckStatus.ABSENT),
    ],
)
def test_the_status_of_a_check(
    ours: int | None,
    counter: int | None,
    explained: int | None,
    difference: int | None,
    status: CheckStatus,
) -> None:
    check = Check("n", ours, counter, explained=explained)
    assert check.difference == difference
    assert check.status is status


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
    ours: int,
    readings: tuple[int | None, ...],
    counter: int,
    moved: int | None,
    beyond: int,
    status: CheckStatus,
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


def test_a_counter_that_is_absent_does_not_move() -> None:
    check = Check("n", 1, None).over(1, 2)
    assert (check.moved, check.status) == (None, CheckStatus.ABSENT)


def frame() -> pd.DataFrame:
    return pd.DataFrame({"cache": ["a"], "bytes": [1]})


def test_a_table_describes_every_column() -> None:
    columns = {"cache": Column(Unit.TEXT), "bytes": Column(Unit.BYTES)}
    table = Table(frame(), columns, "caches")
    assert table.columns is columns
    assert not table.detail


def test_columns_may_be_described_in_another_order() -> None:
    assert Table(frame(), {"bytes": Column(), "cache": Column()}).frame.shape == (1, 2)


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
        Table(frame(), {name: Column() for name in columns}, "caches")


def test_severities_are_ordered() -> None:
    assert Severity.INFO < Severity.NOTICE < Severity.WARNING < Severity.CRITICAL


def finding(id: str, severity: Severity = Severity.NOTICE, **fields: Any) -> Finding:
    return Finding(id=id, severity=severity, title="x", **fields)


def test_what_matters() -> None:
    assert matters(finding("a", Severity.NOTICE))
    assert not matters(finding("a", Severity.INFO))
    assert not matters(finding("a", Severity.CRITICAL, part_of="b"))


def test_rank_of_findings() -> None:
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
        (MIN_BYTES - 1, None, None),
        (MIN_BYTES - 1, MIN_BYTES, None),
        (MIN_BYTES, None, Severity.NOTICE),
        (MIN_BYTES, 0, Severity.NOTICE),
        (MIN_BYTES, MIN_BYTES, Severity.CRITICAL),
        (GIB, 4 * GIB, Severity.CRITICAL),
        (GIB - 1, 4 * GIB, Severity.WARNING),
        (GIB, 20 * GIB, Severity.WARNING),
        (GIB, 200 * GIB, Severity.NOTICE),
        (GIB, 201 * GIB, Severity.INFO),
        (GIB, 1000 * GIB, Severity.INFO),
        (GIB, 1001 * GIB, None),
    ],
)
def test_severity_is_the_share_of_ram(
    holds: int, ram: int | None, severity: Severity | None
) -> None:
    assert severity_of(holds, ram) is severity


MIB = 1 << 20


def test_a_symptom_is_part_of_its_cause() -> None:
    cause = finding("negatives", memory={"slab:dentry": 90 * MIB, "slab:kmalloc-64": 5 * MIB})
    size = finding(
        "size",
        Severity.CRITICAL,
        memory={"slab:dentry": 100 * MIB, "slab:x": 60 * MIB},
        is_generic=True,
    )
    folded = {each.id: each for each in fold([size, cause])}
    assert list(folded) == ["negatives", "size"]
    assert folded["size"].part_of == "negatives"
    assert folded["negatives"].part_of == ""


def test_a_symptom_that_is_explained_in_part_keeps_the_rest() -> None:
    cause = finding("negatives", memory={"slab:dentry": 40 * MIB})
    waste = finding("waste:dentry", memory={"slab:dentry": 50 * MIB}, is_generic=True)
    size = finding(
        "size",
        Severity.CRITICAL,
        memory={"slab:dentry": 100 * MIB, "slab:x": 60 * MIB},
        is_generic=True,
        remedies=(Remedy(effect="Free it", returns=150 * MIB),),
    )
    folded = {each.id: each for each in fold([waste, size, cause], 1000 * MIB)}
    rest = folded["size"]
    assert rest.memory == {"slab:dentry": 60 * MIB, "slab:x": 60 * MIB}
    assert (rest.severity, rest.returns) == (Severity.WARNING, 120 * MIB)
    assert folded["waste:dentry"].part_of in ("size", "negatives")
    top = [each for each in folded.values() if not each.part_of]
    assert sum(each.holds or 0 for each in top) == 160 * MIB


def test_a_symptom_of_which_too_little_is_left_is_part_of_its_cause() -> None:
    cause = finding("negatives", memory={"slab:dentry": MIB})
    size = finding("size", memory={"slab:dentry": 2 * MIB + MIB // 2}, is_generic=True)
    assert [each.part_of for each in fold([size, cause], 200 * MIB)] == ["", ""]
    assert [each.part_of for each in fold([size, cause], 2000 * MIB)] == ["", "negatives"]


def test_parts_of_parts_belong_to_the_top() -> None:
    chain = [finding("a"), finding("b", part_of="a"), finding("c", part_of="b")]
    assert [each.part_of for each in fold(chain)] == ["", "a", "a"]


def test_a_part_of_what_is_not_there_is_on_top() -> None:
    (made,) = fold([finding("a", part_of="gone")])
    assert made.part_of == ""
    assert fold([]) == []


def test_results_do_not_share_their_parts() -> None:
    one, two = (Result("slab", name, "6.12") for name in ("a", "b"))
    one.summary["x"] = one.tables["t"] = None  # type: ignore[assignment]
    one.checks.append(Check("n", 1, 1))
    one.findings.append(finding("x"))
    assert (two.summary, two.tables, two.checks, two.findings, two.gaps) == ({}, {}, [], [], [])
