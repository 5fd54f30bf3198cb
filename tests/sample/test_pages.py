# SPDX-License-Identifier: LGPL-2.1-or-later
"""The README and docs/drgn.md show what kcensus and drgn print on the sample."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from drgn.cli import default_globals

import kcensus
from kcensus import analyses, cli
from kcensus.sources import open_target
from tests.pages import RECIPES_PAGE, sessions
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


@pytest.mark.slow
def test_recipes_on_the_sample() -> None:
    page, _, _ = RECIPES_PAGE.partition("## Recipes for a dump")
    # As `kcensus shell sample` has them.
    names = default_globals(open_target("sample").prog) | {"kcensus": kcensus}
    session = doctest.DocTestParser().get_doctest("\n".join(sessions(page)), names, "page", None, 0)
    outcome = doctest.DocTestRunner().run(session)
    assert outcome.failed == 0
    assert outcome.attempted > 30
