# SPDX-License-Identifier: LGPL-2.1-or-later
"""The scripts of drgn give what the direct commands give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.cli import main
from tests.lab import Dump, build, symbols

KERNEL = "6.1"
FOLDER = Path(__file__).parents[3] / "drgn_scripts"
COMMANDS = ("patches", "report", *analyses())
Drgn = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this Python has installed, without kcensus and its entry points."""
    folder = tmp_path_factory.mktemp("packages")
    for path in [Path(each) for each in reversed(sys.path) if each.endswith("-packages")]:
        for entry in path.iterdir():
            if entry.suffix != ".pth" and "kcensus" not in entry.name:
                link = folder / entry.name
                link.unlink(missing_ok=True)
                link.symlink_to(entry)
    # kcensus has its version from there.
    metadata = folder / "kcensus.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: kcensus\nVersion: {version('kcensus')}\n")
    return folder


@pytest.fixture
def drgn(packages: Path) -> Drgn:
    """drgn's own command line, on a Python that has no kcensus installed."""

    def run(dump: Dump, *words: str | Path, file: str = "elf") -> subprocess.CompletedProcess[str]:
        options = ["-c", str(dump.formats[file]), *symbols(dump.debug)]
        return subprocess.run(
            [sys.executable, "-S", "-m", "drgn", *options, *words],
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
        )

    return run


def direct(dump: Dump, capsys: pytest.CaptureFixture[str], *words: str, file: str = "elf") -> Any:
    target = [str(dump.formats[file]), *symbols(dump.debug)]
    assert main([words[0], *target, *words[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usually("patches", "report", "waits")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_gives_what_the_command_gives(
    command: str, drgn: Drgn, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = build(KERNEL, "mixed")
    own = FOLDER / f"{command.replace('-', '_')}.py"
    words = [own] if own.exists() else [FOLDER / "run.py", command]
    done = drgn(dump, *words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == direct(dump, capsys, command)


def test_options_are_those_of_the_command(
    tmp_path: Path, drgn: Drgn, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, path = build(KERNEL, "mixed"), tmp_path / "out.json"
    done = drgn(dump, FOLDER / "slab.py", "--top", "1", "--table", "waste")
    assert (done.returncode, done.stderr) == (0, "")
    assert "xfs_inode" in done.stdout
    done = drgn(dump, FOLDER / "slab.py", "--json", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(path.read_text()) == direct(dump, capsys, "slab")


def test_workers_read_a_compressed_dump(drgn: Drgn, capsys: pytest.CaptureFixture[str]) -> None:
    dump = build(KERNEL, "negatives")
    done = drgn(dump, FOLDER / "dentries.py", "-j", "2", "--json", file="kdump-lzo")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == direct(dump, capsys, "dentries", file="kdump-lzo")


def test_the_status_is_that_of_the_command(drgn: Drgn) -> None:
    dump = build(KERNEL, "mixed")
    assert drgn(dump, FOLDER / "report.py", "--fail-on", "info").returncode == 1
    refused = drgn(dump, FOLDER / "slab.py", "--no-such-option")
    assert refused.returncode == 2
    assert "--no-such-option" in refused.stderr
