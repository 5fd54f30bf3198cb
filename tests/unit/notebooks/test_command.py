# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus notebook`` up to where a notebook runs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from kcensus import cli
from kcensus.actions import Exit, notebooks
from kcensus.actions.notebooks.library import notebooks as known
from kcensus.sources import Target, session
from kcensus.sources.model import Request


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["notebook"]) == Exit.DONE
    shown = capsys.readouterr().out
    for notebook in known().values():
        assert f"kcensus notebook {notebook.name} " in shown
        for parameter in notebook.parameters.values():
            assert (
                parameter.is_target
                or f"-p {parameter.name}=" in shown
                or (parameter.name == "symbols")
            )


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


def lacking(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name in names else find_spec(name)

    monkeypatch.setattr(notebooks, "find_spec", find)


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking(monkeypatch, "papermill")
    output = tmp_path / "x.html"
    assert cli.main(["notebook", "capacity_report", "-o", str(output)]) == Exit.FAILED
    message = capsys.readouterr().err
    assert "papermill" in message
    assert "pip install 'kcensus[notebook]'" in message
    assert not output.exists()


def test_without_jupyterlab_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lacking(monkeypatch, "jupyterlab")
    assert cli.main(["notebook", "capacity_report"]) == Exit.DONE
    assert "pip install jupyterlab" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["capacity_report.ipynb"]


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
