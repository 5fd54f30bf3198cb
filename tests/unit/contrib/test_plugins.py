# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plugins and scripts of ``contrib/`` run ``kcensus collect`` with options that it has."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kcensus.commands.collect import COMMAND

CONTRIB = Path(__file__).parents[3] / "contrib"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with a program ``kcensus`` that notes its words."""
    program = tmp_path / "kcensus" / "bin" / "kcensus"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/words\n'
        'while [ $# -gt 1 ]; do [ "$1" = -o ] && : >"$2"; shift; done\n'
    )
    program.chmod(0o755)
    return tmp_path


def options_of(line: str) -> dict[str, Any]:
    """Parse a line as the command does; it fails for unknown options."""
    _, *words = shlex.split(line)
    with COMMAND.make_context("collect", words) as context:
        return context.params


def collected(home: Path) -> list[dict[str, Any]]:
    lines = (home / "words").read_text().splitlines()
    return [options_of(line) for line in lines if line.startswith("collect")]


def run(program: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([program, *words], env=environment, capture_output=True, text=True)


def test_supportconfig(home: Path) -> None:
    done = run(CONTRIB / "supportutils" / "kcensus", HOME=str(home), LOG=str(home))
    assert done.returncode == 0, done.stderr
    first, *_ = collected(home)
    assert (first["target"], first["max_time"]) == (None, 60)
    assert first["out"] == home / "kcensus-kernel.tar.zst"


@pytest.mark.parametrize("name", ["supportutils/kcensus", "kdump/kcensus-kdump"])
def test_a_file_of_options_decides_what_is_collected(home: Path, name: str) -> None:
    crashes = home / "crash"
    (crashes / "1").mkdir(parents=True)
    (crashes / "1" / "vmcore").touch()
    file, words = home / "options", [] if name.startswith("support") else [crashes]
    file.write_text("# of all cases\n--redact names\n-s /srv/*  # debug info\n")
    program = home / "kcensus" / "bin" / "kcensus"
    variables = {"HOME": home, "LOG": home, "KCENSUS": program, "KCENSUS_OPTIONS": file}
    done = run(CONTRIB / name, *words, **{key: str(value) for key, value in variables.items()})
    assert done.returncode == 0, done.stderr
    assert {each["redact"] for each in collected(home)} == {("names",)}
    assert {each["symbols"] for each in collected(home)} == {(Path("/srv/*"),)}
    (home / "words").unlink()
    (crashes / "1" / "kcensus-case.tar.zst").unlink(missing_ok=True)
    file.unlink()
    file.symlink_to(home / "none")
    done = run(CONTRIB / name, *words, **{key: str(value) for key, value in variables.items()})
    assert done.returncode
    assert not (home / "words").exists(), "names would be in it"


def test_supportconfig_without_kcensus(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    done = run(CONTRIB / "supportutils" / "kcensus", HOME=str(tmp_path), KCENSUS=nowhere)
    assert done.returncode == 111


def test_kdump(home: Path) -> None:
    """Each complete vmcore is taken once."""
    crashes = home / "crash"
    for name in ("1/vmcore", "2/dump.202611280000", "3/vmcore-incomplete", "4/dump-incomplete"):
        path = crashes / name
        path.parent.mkdir(parents=True)
        path.touch()
    (crashes / "1" / "vmcore-dmesg.txt").touch()
    program = str(home / "kcensus" / "bin" / "kcensus")
    for _ in range(2):
        done = run(
            CONTRIB / "kdump" / "kcensus-kdump", crashes, "--redact", "names", KCENSUS=program
        )
        assert done.returncode == 0, done.stderr
    taken = collected(home)
    assert [each["target"] for each in taken] == [
        str(crashes / "1" / "vmcore"),
        str(crashes / "2" / "dump.202611280000"),
    ]
    assert {each["redact"] for each in taken} == {("names",)}


def test_kdump_leaves_links_out(home: Path) -> None:
    crashes = home / "crash"
    (crashes / "1").mkdir(parents=True)
    (home / "vmcore").touch()
    (crashes / "1" / "vmcore").symlink_to(home / "vmcore")
    (crashes / "2").symlink_to(home)
    program = str(home / "kcensus" / "bin" / "kcensus")
    done = run(CONTRIB / "kdump" / "kcensus-kdump", crashes, KCENSUS=program)
    assert (done.returncode, done.stdout) == (0, "")
    assert not (home / "words").exists()


def test_kdump_tries_thrice(tmp_path: Path) -> None:
    """A vmcore that cannot be read has the reasons beside it; a full disk is no such reason."""
    program, vmcore = tmp_path / "kcensus", tmp_path / "crash" / "1" / "vmcore"
    program.write_text('#!/bin/sh\necho truncated >&2\nexit "$STATUS"\n')
    program.chmod(0o755)
    vmcore.parent.mkdir(parents=True)
    vmcore.touch()
    script, statuses = CONTRIB / "kdump" / "kcensus-kdump", []
    for status in (4, 3, 127, 3, 3, 3):
        words = {"KCENSUS": str(program), "STATUS": str(status)}
        statuses.append(run(script, tmp_path / "crash", **words).returncode)
    assert statuses == [4, 3, 127, 3, 3, 0]
    reasons = (vmcore.parent / "kcensus-case.failed").read_text()
    assert reasons == "".join(f"attempt {number}\ntruncated\n" for number in (1, 2, 3))


def test_sos(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        added: list[tuple[str, dict[str, Any]]] = []

        def __init__(self) -> None:
            self.options: dict[str, Any] = {}  # since sos 4.2

        def get_cmd_output_path(self) -> str:
            return "/archive"

        def add_cmd_output(self, line: str, **values: Any) -> None:
            self.added.append((line, values))

    classes = ("RedHatPlugin", "SuSEPlugin", "DebianPlugin", "UbuntuPlugin")
    plugins = ModuleType("sos.report.plugins")
    vars(plugins).update({"Plugin": Plugin, **{name: type(name, (), {}) for name in classes}})
    for name in ("sos", "sos.report"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, plugins.__name__, plugins)
    monkeypatch.setenv("HOME", str(home))
    spec = importlib.util.spec_from_file_location("plugin", CONTRIB / "sos" / "kcensus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugin = module.Kcensus()
    plugin.dumps = (str(home),)
    assert plugin.check_enabled()
    plugin.setup()
    _, (kernel, values), (dumps, _) = Plugin.added
    program, line = kernel.split(" ", 1)
    assert os.access(program, os.X_OK)
    options = options_of(line)
    assert options["out"] == Path("/archive/kernel.tar.zst")
    assert options["max_time"] < values["timeout"]
    assert options_of(dumps.split(" ", 1)[1])["target"] == str(home)
    file = home / "options"
    file.write_text("--redact names # as agreed\n")
    plugin.options_file = str(file)
    plugin.setup()
    *_, (line, values) = Plugin.added
    redacted = options_of(line.split(" ", 1)[1])
    assert redacted["redact"] == ("names",)
    assert 60 < redacted["max_time"] < values["timeout"]
    file.unlink()
    file.symlink_to(home / "none")
    with pytest.raises(OSError, match="options"):
        plugin.setup()
