# SPDX-License-Identifier: LGPL-2.1-or-later
"""The scripts of drgn, as far as they go without a kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.commands import commands

FOLDER = Path(__file__).parents[3] / "drgn_scripts"
SCRIPTS = {path.stem: path for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize("name", sorted({*SCRIPTS} - {"run"}))
def test_a_script_runs_the_command_of_its_name(name: str) -> None:
    """An analysis that has none is `run.py ANALYSIS`, so a new one needs no file here."""
    command = name.replace("_", "-")
    assert command in {**analyses(), **commands()}
    assert SCRIPTS[name].read_text().endswith(f'\nscript("{command}")\n')


def test_without_drgn_a_script_says_how_to_run_it() -> None:
    script = SCRIPTS["slab"]
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"{script}: is a script of drgn; run `drgn -c VMCORE {script}`\n"
    assert not done.stdout
