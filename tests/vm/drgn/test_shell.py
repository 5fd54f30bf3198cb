# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus shell`` on dumps, capsules and a guest."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kcensus.cli import main
from tests.lab import Dump, build, live
from tests.vm.drgn.test_plugin import options

pytestmark = pytest.mark.newest


def shell(*words: str, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kcensus", "shell", *words]
    return subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=600, check=False
    )


SCRIPT = """
from drgn.commands import run_command
print([module.name for module in prog.modules() if module.wants_debug_file()])
print(prog.type("struct xfs_mount").tag, task_cpu(find_task(1)) < 2)
run_command(prog, "kcensus report --json > OUT")
assert slab(jobs=1).result.target == last["report"].results["slab"].result.target == target.name
"""


def test_a_dump_has_the_debug_info_of_all_modules(
    mixed_dump: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(mixed_dump.formats["elf"]), *options(mixed_dump.debug)]
    done = shell(*words, script=SCRIPT.replace("OUT", f"{tmp_path}/out"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "xfs_mount True"]
    assert main(["report", *words, "--json"]) == 0
    assert (tmp_path / "out").read_text() == capsys.readouterr().out


def test_modules_without_debug_info_are_one_sentence() -> None:
    """The memory of 5.10 has no types of modules."""
    dump = build("5.10", "mixed")
    words = [str(dump.formats["elf"]), *options(dump.debug)[:2]]
    done = shell(*words, script="print(prog['init_task'].pid.value_())")
    assert (done.returncode, done.stdout) == (0, "0\n")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("kcensus: debug info of module ")
    assert "is missing" in sentence


@pytest.mark.usually("6.1")
def test_a_command_loads_what_the_shell_left_out(
    mixed_dump: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vmcore, symbols = str(mixed_dump.formats["elf"]), options(mixed_dump.debug)
    command = f"kcensus kcopyd {' '.join(symbols)} --json > {tmp_path}/out"
    script = f"""
from drgn.commands import run_command
run_command(prog, {command!r})
print(target.words)
"""
    done = shell(vmcore, *symbols[:2], script=script)
    assert (done.returncode, done.stdout) == (0, shlex.join([vmcore, *symbols[:2]]) + "\n")
    assert main(["kcopyd", vmcore, *symbols, "--json"]) == 0
    assert (tmp_path / "out").read_text() == capsys.readouterr().out


@pytest.mark.usually  # it boots one
def test_a_guest(tmp_path: Path) -> None:
    with live("6.1", "churn") as guest:
        words = [f"qmp:{guest.qmp}", *options(guest.debug)]
        done = shell(*words, script="print(target.live, len(objects('dentry', 'd_flags')) > 1000)")
    assert (done.returncode, done.stdout) == (0, "True True\n")
