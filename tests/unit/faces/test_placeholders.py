# SPDX-License-Identifier: LGPL-2.1-or-later
"""Screens and pages show the command to paste; documents have placeholders."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kcensus.render.html import cell_html, write_html
from kcensus.render.placeholders import addressed, command
from kcensus.render.screen import console_for
from kcensus.render.terminal import write_terminal
from kcensus.results import Finding, Remedy, Result, Severity
from tests.running import document

_SAYS = "`kcensus waits TARGET --table stacks`"


@pytest.fixture
def result() -> Result:
    finding = Finding(
        id="synthetic-waste",
        severity=Severity.WARNING,
        title="the TARGET of a title is none",
        evidence=f"see {_SAYS}",
        story=(f"story: {_SAYS}",),
        remedies=(
            Remedy(effect="Look", command="kcensus patches TARGET\necho TARGET", risk=_SAYS),
        ),
        no_remedy=_SAYS,
    )
    made = Result("synthetic", "a dump", "6.1", findings=[finding])
    made.placeholders = {"TARGET": "'a dump' -s vmlinux"}
    return made


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ({}, "kcensus waits TARGET --table stacks"),
        ({"TARGET": ""}, "kcensus waits --table stacks"),
        ({"TARGET": "vmcore -s vmlinux"}, "kcensus waits vmcore -s vmlinux --table stacks"),
        ({"TARGET": r"'a\1b'"}, r"kcensus waits 'a\1b' --table stacks"),
        (
            {"TARGET": "'d TRACE x'", "TRACE": "'$(touch x) y'"},
            "kcensus waits 'd TRACE x' --table stacks",
        ),
    ],
)
def test_a_command(words: dict[str, str], shown: str) -> None:
    assert command("kcensus waits TARGET --table stacks", words) == shown


def test_only_commands_of_kcensus_are_filled(result: Result) -> None:
    ((_, finding),) = addressed([("", result.findings[0])], result.placeholders)
    said = _SAYS.replace("TARGET", "'a dump' -s vmlinux")
    assert (finding.title, finding.evidence) == (result.findings[0].title, f"see {said}")
    assert (finding.story, finding.no_remedy) == ((f"story: {said}",), said)
    (remedy,) = finding.remedies
    assert remedy.command == "kcensus patches 'a dump' -s vmlinux\necho TARGET"
    assert remedy.risk == said


def test_screen_and_page_show_the_target_and_documents_do_not(
    result: Result, tmp_path: Path
) -> None:
    out = io.StringIO()
    write_terminal(result, console_for(out))
    (page,) = write_html(result, tmp_path / "page.html")
    for text in (out.getvalue(), page.read_text(), cell_html(result)):
        assert "-s vmlinux --table stacks" in text
        assert "waits TARGET" not in text
    (finding,) = json.loads(document(result))["findings"]
    assert finding["no_remedy"] == _SAYS
