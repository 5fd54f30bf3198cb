# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result model: when a check agrees, and what a table insists on. All figures *synthetic*."""

from __future__ import annotations

import pandas as pd
import pytest

from kcensus.results import Check, CheckStatus, Finding, Result, Severity, Unit, matters, rank
from kcensus.results.tables import Column, Table


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
    findings = [Finding(severity, "x") for severity in (Severity.NOTICE, Severity.CRITICAL)]
    assert max(finding.severity for finding in findings) is Severity.CRITICAL


def finding(severity: Severity, cost: int | None = None) -> Finding:
    return Finding(severity, "x", cost_bytes=cost)


@pytest.mark.parametrize(
    ("severity", "cost", "expected"),
    [
        (Severity.CRITICAL, None, True),
        (Severity.CRITICAL, 1, True),
        (Severity.WARNING, None, True),
        (Severity.WARNING, 999, False),
        (Severity.WARNING, 1000, True),
        (Severity.NOTICE, None, False),
        (Severity.NOTICE, 999, False),
        (Severity.INFO, 1000, True),
        (Severity.INFO, 0, False),
    ],
)
def test_a_finding_matters_if_it_costs_a_thousandth_of_ram_or_warns(
    severity: Severity, cost: int | None, expected: bool
) -> None:
    assert matters(finding(severity, cost), 1_000_000) is expected


def test_without_ram_any_cost_matters() -> None:
    assert matters(finding(Severity.INFO, 1))
    assert not matters(finding(Severity.INFO, 0))


def test_rank_of_findings() -> None:
    expected = [
        finding(Severity.CRITICAL),
        finding(Severity.WARNING, 5000),
        finding(Severity.WARNING, 2000),
        finding(Severity.WARNING),
        finding(Severity.INFO, 9000),
        finding(Severity.WARNING, 10),
        finding(Severity.NOTICE),
        finding(Severity.INFO, 10),
        finding(Severity.INFO),
    ]
    findings = list(reversed(expected))
    findings.sort(key=lambda each: rank(each, 1_000_000))
    assert findings == expected


def test_results_do_not_share_their_parts() -> None:
    one, two = (Result("slab", name, "6.12") for name in ("a", "b"))
    one.summary["x"] = one.tables["t"] = None  # type: ignore[assignment]
    one.checks.append(Check("n", 1, 1))
    one.findings.append(Finding(Severity.INFO, "x"))
    assert (two.summary, two.tables, two.checks, two.findings, two.gaps) == ({}, {}, [], [], [])
