# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report that the README shows is the one that kcensus prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcensus import analyses, cli
from tests.running import recorded_analyses

README = Path(__file__).parents[2] / "README.md"
_VERSION = re.compile(r"(?<=  kcensus  )\S+,")
SHOWN = re.compile(r"```\n\$ kcensus report sample\n(.*?)```\n", re.DOTALL)


def test_the_readme_shows_todays_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = {name: analyses.analyses()[name] for name in recorded_analyses()}
    monkeypatch.setattr(analyses, "_discover", lambda: recorded)
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["report", "sample"]) == 0
    shown = SHOWN.search(README.read_text())
    assert shown, "README.md shows no report"
    assert _VERSION.sub("", shown[1]) == _VERSION.sub("", capsys.readouterr().out)
