# SPDX-License-Identifier: LGPL-2.1-or-later
"""The scripts of drgn give what the direct commands give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.cli import main
from tests.lab import Dump, build

KERNEL = "6.1"
FOLDER = Path(__file__).parents[3] / "drgn_scripts"
COMMANDS = ("patches", "report", *analyses())


def drgn(dump: Dump, *words: str | Path, file: str = "elf") -> subprocess.CompletedProcess[str]:
    """Run drgn with its own command line, on a Python that has no kcensus on its path."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    symbols = [word for path in dump.debug for word in ("-s", path)]
    return subprocess.run(
        [sys.executable, "-S", "-m", "drgn", "-c", dump.formats[file], *symbols, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True,
        text=True,
    )


def direct(dump: Dump, capsys: pytest.CaptureFixture[str], *words: str, file: str = "elf") -> Any:
    """Return what a command prints of the same dump."""
    symbols = [word for path in dump.debug for word in ("-s", str(path))]
    assert main([words[0], str(dump.formats[file]), *symbols, *words[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_gives_what_the_command_gives(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = build(KERNEL, "mixed")
    own = FOLDER / f"{command.replace('-', '_')}.py"
    words = [own] if own.exists() else [FOLDER / "run.py", command]
    done = drgn(dump, *words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == direct(dump, capsys, command)


def test_options_are_those_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, path = build(KERNEL, "mixed"), tmp_path / "out.json"
    done = drgn(dump, FOLDER / "slab.py", "--top", "1", "--table", "waste")
    assert (done.returncode, done.stderr) == (0, "")
    assert "xfs_inode" in done.stdout
    done = drgn(dump, FOLDER / "slab.py", "--json", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(path.read_text()) == direct(dump, capsys, "slab")


def test_workers_read_a_compressed_dump(capsys: pytest.CaptureFixture[str]) -> None:
    dump = build(KERNEL, "negatives")
    done = drgn(dump, FOLDER / "dentries.py", "-j", "2", "--json", file="kdump-lzo")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == direct(dump, capsys, "dentries", file="kdump-lzo")


def test_the_status_is_that_of_the_command() -> None:
    dump = build(KERNEL, "mixed")
    assert drgn(dump, FOLDER / "report.py", "--fail-on", "info").returncode == 1
    refused = drgn(dump, FOLDER / "slab.py", "--no-such-option")
    assert refused.returncode == 2
    assert "--no-such-option" in refused.stderr
