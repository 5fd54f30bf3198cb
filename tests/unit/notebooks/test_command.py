# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus notebook`` up to where a notebook runs, and the files of notebooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import jupytext
import nbformat
import pytest

from kcensus import cli, history
from kcensus.commands import Exit
from kcensus.commands import notebook as notebooks
from kcensus.commands.notebook.library import PACKAGED, Parameter, packaged_directory
from kcensus.commands.notebook.library import notebooks as known
from kcensus.sources import Target, open_target, session
from kcensus.sources.model import Request


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["notebook"]) == Exit.DONE
    shown = capsys.readouterr().out
    for notebook in KNOWN.values():
        assert f"kcensus notebook {notebook.name} " in shown
        for parameter in notebook.parameters.values():
            is_listed = not parameter.is_target and parameter.name != "symbols"
            assert f"-p {parameter.name}=" in shown or not is_listed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["capcity_report"], "did you mean 'capacity_report'"),
        (["x\x1b"], "choose from capacity_report"),
        (["-o", "x.html"], "need the NAME of a notebook (capacity_report"),
        (["capacity_report", "a", "b", "-o", "x.html"], "2 targets given"),
        (["capacity_report", "-o", "x.pdf"], "neither with .html nor with .ipynb"),
        (["capacity_report", "-o", "/nowhere/x.html"], "'/nowhere' is not a directory"),
        (["capacity_report", "-o", "x.ipynb", "--code"], "--code is for HTML"),
        (["capacity_report", "-p", "top", "-o", "x.html"], "'top' is not NAME=VALUE"),
        (["capacity_report", "-p", "to=5", "-o", "x.html"], "has no such parameter"),
        (["capacity_report", "-p", "top=many", "-o", "x.html"], "'many' is not an integer"),
    ],
)
def test_wrong_usage_is_said_at_once(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["notebook", *arguments]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_a_session_is_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    def opener(request: Request) -> Target:
        raise AssertionError("it is not opened")

    with session.session(opener):
        assert cli.main(["notebook", "capacity_report", "-o", "x.html"]) == Exit.USAGE
    assert "process of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "words", "status", "said", "left"),
    [
        ("papermill", ["-o", "x.html"], Exit.FAILED, "pip install '.[notebook]'", []),
        ("jupyterlab", [], Exit.DONE, "pip install jupyterlab", ["capacity_report.ipynb"]),
    ],
)
def test_missing_packages_are_named(
    missing: str,
    words: list[str],
    status: Exit,
    said: str,
    left: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == missing else find_spec(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebooks, "find_spec", find)
    assert cli.main(["notebook", "capacity_report", *words]) == status
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert said in shown
    assert missing in shown
    assert [path.name for path in tmp_path.iterdir()] == left


def test_it_opens_in_jupyterlab_with_its_parameters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def become(path: str, command: list[str]) -> None:
        assert path == sys.executable
        commands.append(command)
        raise SystemExit(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebooks, "find_spec", lambda name: name or None)
    monkeypatch.setattr(os, "execv", become)
    arguments = ["notebook", "capacity_report", "my.vmcore", "-s", "vmlinux", "-p", "top=3"]
    with pytest.raises(SystemExit):
        cli.main(arguments)
    ((_, option, statements, path),) = commands
    assert (option, path) == ("-c", "capacity_report.ipynb")
    # What is in the current directory is not imported.
    (tmp_path / "jupyterlab.py").write_text("raise SystemExit(3)")
    ended = subprocess.run([sys.executable, option, statements, "--version"], stderr=-1, text=True)
    assert ended.returncode != 3
    assert ended.returncode == 0 or "No module named 'jupyterlab'" in ended.stderr
    node = nbformat.read(tmp_path / "capacity_report.ipynb", as_version=4)
    (injected,) = (
        cell.source for cell in node.cells if "injected-parameters" in cell.metadata.get("tags", ())
    )
    values: dict[str, object] = {}
    exec(injected, values)
    assert (values["target"], values["symbols"], values["top"]) == ("my.vmcore", ["vmlinux"], 3)
    assert not any(cell.get("outputs") for cell in node.cells)
    # What was worked on since then is not overwritten.
    assert cli.main(arguments) == Exit.USAGE
    assert len(commands) == 1


KNOWN = known()
TARGETS = {
    "capacity_report": ["target"],
    "explore": ["target"],
    "growth": ["store"],
    "patch_validation": ["before", "after"],
}


def test_there_are_notebooks() -> None:
    assert {name: [each.name for each in KNOWN[name].targets] for name in KNOWN} == TARGETS
    assert Path(__file__).parents[3] / "notebooks" == PACKAGED


def test_a_wheel_has_them_beside_the_code(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    assert packaged_directory(tmp_path) == tmp_path / "notebooks"


@pytest.mark.parametrize("name", KNOWN)
def test_a_notebook_is_as_jupytext_reads_it(name: str) -> None:
    notebook, node = KNOWN[name], jupytext.read(KNOWN[name].path)
    assert node.cells[0].source.startswith(f"# {notebook.title}\n\n{notebook.summary[:20]}")
    assert notebook.summary.endswith(".")
    (tagged,) = (cell for cell in node.cells if "parameters" in cell.metadata.get("tags", ()))
    values: dict[str, object] = {}
    exec(tagged.source, values)
    for key in ("__builtins__", "__annotations__"):
        values.pop(key, None)
    assert {each.name: each.default for each in notebook.parameters.values()} == values
    # It is text without outputs, and has nothing that Jupyter adds when somebody works on it.
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert {key for cell in node.cells for key in cell.metadata} <= {"tags"}
    assert not re.search("^# *!|^%", "\n".join(cell.source for cell in code), re.MULTILINE)


@pytest.mark.parametrize("name", KNOWN)
def test_a_notebook_starts_on_what_comes_with_kcensus(name: str) -> None:
    for parameter in KNOWN[name].targets:
        assert parameter.help
        if name == "growth":
            assert len(history(str(parameter.default))) > 1000
        else:
            assert open_target(str(parameter.default)).kind == "capsule"


def parameter(default: str | int | float | bool | list[str]) -> Parameter:
    return Parameter("x", default, "", False)


def test_values_have_the_type_of_the_default() -> None:
    assert parameter("a").parse("1") == "1"
    assert parameter(10).parse("20") == 20
    assert parameter(0.5).parse(".25") == 0.25
    assert parameter(False).parse("Yes") is True
    assert parameter(["a"]).parse("b,c") == ["b", "c"]
    assert parameter(["a"]).parse("") == []


@pytest.mark.parametrize(
    ("default", "text"), [(10, "1.5"), (10, ""), (10, "0"), (10, "-1"), (0.5, "nan"), (True, "on?")]
)
def test_other_values_are_refused(default: float, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parameter(default).parse(text)
