# SPDX-License-Identifier: LGPL-2.1-or-later
"""The scripts of drgn, as far as they go without a kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import drgn
import pytest

from kcensus.analyses import analyses
from kcensus.commands import commands
from kcensus.prompts import script as scripts

FOLDER = Path(__file__).parents[3] / "drgn_scripts"
SCRIPTS = {path.stem: path for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize("name", sorted({*SCRIPTS} - {"run", "kcensus_drgn"}))
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


def test_a_script_of_a_clone_runs_what_is_in_the_clone(tmp_path: Path) -> None:
    prompts = tmp_path / "kcensus" / "prompts"
    prompts.mkdir(parents=True)
    for folder in (prompts, prompts.parent):
        (folder / "__init__.py").write_text("")
    code = "def script(*words):\n    print(__file__, *words)\n    raise SystemExit(7)\n"
    (prompts / "script.py").write_text(code)
    (tmp_path / "slab.py").write_text(SCRIPTS["slab"].read_text())
    run = f"""
import runpy, sys
import drgn, kcensus_drgn
kcensus_drgn.drgn_prog_set(drgn.Program())
sys.path.insert(0, {str(tmp_path)!r})
runpy.run_path({str(tmp_path / "slab.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"{prompts / 'script.py'} slab\n"


def test_an_old_drgn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drgn, "__version__", "0.0.33")
    with pytest.raises(SystemExit, match=r"needs .* drgn 0\.3 or newer, but .* drgn 0\.0\.33"):
        scripts.script("slab")
    monkeypatch.setattr(drgn, "__version__", "0.10.0+3.gabc1234")
    with pytest.raises(SystemExit, match="is a script of drgn"):
        scripts.script("slab")


def test_the_versions_that_a_script_needs_are_those_of_the_package() -> None:
    project = (FOLDER.parent / "pyproject.toml").read_text()
    for pattern, least in (
        (r'"drgn>=([\d.]+)"', scripts._MIN_DRGN),
        (r'requires-python = ">=([\d.]+)"', scripts._MIN_PYTHON),
    ):
        assert re.findall(pattern, project) == [".".join(map(str, least))]
