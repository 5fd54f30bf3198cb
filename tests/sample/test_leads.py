# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the samples lead on, also those of comparisons, trends and validations."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kcensus
from kcensus.compare import compare
from kcensus.render.plain import patch_text
from kcensus.results import Finding, Remedy, Severity
from kcensus.samples import CAPSULES, DIRECTORY
from tests.leads import broken, dead_ends
from tests.sample.conftest import NAMES, open_sample


@pytest.mark.parametrize("name", CAPSULES)
def test_of_a_report(name: str) -> None:
    assert list(dead_ends(open_sample(name).report)) == []


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]])
def test_of_a_comparison(names: tuple[str, str]) -> None:
    before, after = (open_sample(name).report for name in names)
    made = compare(before, after)
    assert len(made.findings) > 3
    findings = [("diff", finding) for finding in made.findings]
    assert list(broken(findings, after.results)) == []


@pytest.mark.slow
def test_of_a_trend() -> None:
    findings = kcensus.trend(DIRECTORY / "sample-series").findings
    assert findings
    assert list(broken([("trend", finding) for finding in findings], {})) == []


@pytest.mark.parametrize(("names", "as_given"), [(NAMES, False), (("sample", "sample-io"), True)])
def test_of_a_validation(names: tuple[str, str], as_given: bool) -> None:
    sides = (open_sample(name).target for name in names)
    (finding,) = kcensus.validate("list-lru-memory", *sides, as_given=as_given).findings
    ends = list(broken([("validate", finding)], {}))
    # Nothing is to be done about a confirmed effect.
    is_confirmed = finding.kind == "patch-confirmed"
    assert ends == [f"{finding.id}: names nothing to do"] * is_confirmed


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("kcensus waits TARGET --table tasks", ""),
        ("kcensus waits TARGET --table cycles", "is an empty table"),
        ("kcensus waits TARGET --table nothing", "names no table"),
        ("kcensus waits --table tasks", "has no target, and so is of the running kernel"),
        ("kcensus slab TARGET", "has no finding that says more"),
        ("kcensus report TARGET", "leads back here"),
        ("kcensus explain nothing-at-all", "explains nothing"),
        ("kcensus explain waits-io", ""),
        ("kcensus explain refcount", "explains nothing"),
        ("kcensus patches show nothing-at-all", "shows no patch"),
        ("kcensus patches show bfq-wakers", ""),
        ("kcensus patches", "has no target, and so is of the running kernel"),
        ("kcensus patches TARGET", ""),
        ("kcensus doctor TARGET", ""),
        ("kcensus doctro TARGET", "is not a command"),
        ("kcensus iosched --trace TRACE --table trace_phases", ""),
        ("kcensus iosched --trace TRACE --table trace_phrases", "names no table"),
    ],
)
def test_broken_leads_are_seen(command: str, wrong: str) -> None:
    report = open_sample("sample-io").report
    finding = Finding(
        id="slab-size", severity=Severity.INFO, title="", no_remedy=f"see `{command}`"
    )
    said = f"slab-size: `{command}` {wrong}"
    for each in (
        finding,
        replace(finding, no_remedy="", remedies=(Remedy(effect="Look", command=command),)),
    ):
        assert list(broken([("slab", each)], report.results)) == ([said] if wrong else [])


def test_fixes_name_packages_of_the_kernels_distribution() -> None:
    findings = [finding for _, finding in open_sample("sample").report.findings]
    fixes = {finding.patch: finding for finding in findings if finding.patch_is_fix}
    assert "Debian 11: " in fixes["list-lru-xarray"].patch_packages
    assert fixes["list-lru-xarray"].patch_packages in patch_text(fixes["list-lru-xarray"])
    # Backports have other versions than the kernel of the same release.
    after = [finding for _, finding in open_sample("sample-after").report.findings]
    assert {finding.patch_packages for finding in [*findings, *after] if finding.patch} == {
        "",
        fixes["list-lru-xarray"].patch_packages,
    }
