# SPDX-License-Identifier: LGPL-2.1-or-later
"""Analyses without a result, in the findings of a report."""

from __future__ import annotations

import pytest

from kcensus.analyses.runner import LACKING, UNSUPPORTED
from kcensus.commands import Exit
from kcensus.commands.shared.output import exit_status
from kcensus.reports import Report, Section, incomplete
from kcensus.results import Finding, Machine, Result, Severity

_UNKNOWN = f"memcgs {UNSUPPORTED}: 'struct mem_cgroup' has no member 'nodeinfo'"
_LACKS = f"{LACKING} slab needs: could not find 'struct slab'"


@pytest.mark.parametrize(
    ("errors", "order"),
    [
        ({"memcgs": _UNKNOWN}, ["stall", "notice", "report-unsupported"]),
        ({"slab": _LACKS}, ["stall", "notice", "report-incomplete"]),
        ({"slab": "failed"}, ["report-incomplete", "stall", "notice"]),
        (
            {"slab": "failed", "memcgs": _UNKNOWN},
            ["report-incomplete", "stall", "notice", "report-unsupported"],
        ),
    ],
)
def test_only_a_failure_is_above_what_is_wrong(errors: dict[str, str], order: list[str]) -> None:
    head = Result("report", "t", "k", machine=Machine())
    head.findings = [
        Finding(id="notice", severity=Severity.NOTICE, title="notice"),
        Finding(id="stall", severity=Severity.WARNING, title="stall"),
    ]
    made = Report(head, [Section(name, None, why) for name, why in errors.items()], "doctor")
    findings = [finding for _, finding in made.findings]
    assert [each.id for each in findings] == order
    assert exit_status(findings, None) is Exit.INCOMPLETE


def test_what_debug_info_would_help_is_said() -> None:
    (lacks,) = incomplete("report", "report", [("slab", _LACKS)], ["doctor"])
    assert (lacks.severity, lacks.remedies[0].command) == (Severity.WARNING, "doctor")
    assert "struct slab" in lacks.evidence
    (unknown,) = incomplete(
        "report", "report", [("memcgs", _UNKNOWN), ("list-lru", _UNKNOWN)], ["doctor"]
    )
    assert unknown.title == "memcgs and list-lru do not support this kernel"
    assert not unknown.remedies
    assert "stalls" in unknown.no_remedy
    (stalls,) = incomplete("report", "report", [("waits", _UNKNOWN)], ["doctor"])
    assert "stalls" not in stalls.no_remedy
