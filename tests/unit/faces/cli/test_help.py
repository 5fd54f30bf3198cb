# SPDX-License-Identifier: LGPL-2.1-or-later
"""Help of all commands."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from unittest import mock

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.commands import commands
from tests.unit.faces.cli import Capture, Run


@pytest.mark.parametrize(
    ("words", "same"),
    [([], ["--help"]), (["help"], ["--help"]), (["help", "slab"], ["slab", "--help"])],
)
def test_help_has_several_spellings(words: list[str], same: list[str], capsys: Capture) -> None:
    shown = []
    for each in (words, same):
        assert cli.main(each) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


def test_help_lists_every_analysis_with_its_question(capsys: Capture) -> None:
    assert analyses()
    cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, analysis in analyses().items():
        assert f"{name} {analysis.question}" in shown
        assert analysis.examples[0][0] in shown


@pytest.mark.parametrize("name", analyses())
def test_help_of_every_analysis_has_its_examples_and_options(name: str, capsys: Capture) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    analysis = analyses()[name]
    assert analysis.description
    assert analysis.examples
    for line, purpose in analysis.examples:
        assert line.removeprefix("sudo ").startswith(f"kcensus {name}")
        assert line in shown
        assert purpose in shown
    options = re.findall(r"^ +(?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
    assert len(options) == len(set(options)), "an analysis has an option that all have"
    for param in analysis.params:
        assert "--" + param.name.replace("_", "-") in options


def test_paragraphs_of_a_description_have_one_margin(run: Run) -> None:
    out = run("--help")[1]
    assert "\n  The first paragraph of the description.\n\n  The second one.\n" in out


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    absent = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    for version, shown in (({"kcensus": "1.2.3"}.__getitem__, "1.2.3"), (absent, "not installed")):
        monkeypatch.setattr(importlib.metadata, "version", version)
        assert cli.main(["--version"]) == 0
        assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["capsule"], "\n  create "),
        (["patches", "--help-tables"], "Row: One pa"),
        (["validate", "--help-tables"], "Row: One pa"),
    ],
)
def test_help_of_other_commands(words: list[str], shown: str, capsys: Capture) -> None:
    assert cli.main(words) == 0
    assert shown in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    script = """
import sys
from kcensus.cli import main
from kcensus.commands import commands
def loaded(names): return sorted(name for name in sys.modules if name.startswith(names))
main(["--help"])
first = loaded(("rich", *(entry.module for entry in commands().values())))
for name in commands():
    main([name, "--help"])
main(["slab", "--help"])
print(first, loaded(("drgn", "numpy", "pandas", "pyarrow", "jinja2", "msgspec")))
"""
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert shown.endswith("\n[] []\n")


def test_commands_are_named_after_their_files() -> None:
    assert len(commands()) > 10
    assert [entry.load().name for entry in commands().values()] == [*commands()]


@pytest.mark.parametrize("name", analyses())
def test_help_of_tables_names_every_table_and_column(name: str, capsys: Capture) -> None:
    assert cli.main([name, "--help-tables"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for spec in analyses()[name].tables():
        assert f"{spec.name}: {spec.title}" in shown
        assert spec.help
        for key, column in spec.columns.items():
            assert f" {key} " in shown
            assert column.help in shown
