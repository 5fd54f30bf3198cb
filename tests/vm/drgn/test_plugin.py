# SPDX-License-Identifier: LGPL-2.1-or-later
"""``%kcensus`` in drgn's own command line, on every kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from kcensus.analyses import analyses
from kcensus.cli import main
from tests.lab import Dump, build, live
from tests.prompts import PROMPT, answer, at_terminal, interrupt

pytestmark = pytest.mark.newest

DRGN = [sys.executable, "-m", "drgn", "-q"]
COMMANDS = (*analyses(), "patches", "report")
CRASH_PROMPT = "%crash> "


def in_drgn(words: list[str], code: str) -> str:
    """Run code in drgn's command line, and return what it prints."""
    code = f"from drgn.commands import run_command\n{code}"
    done = subprocess.run(
        [*DRGN, *words, "-e", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def options(files: list[Path]) -> list[str]:
    return [word for path in files for word in ("-s", str(path))]


def direct(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what the command prints that opens the target itself."""
    assert main([*words, "--json"]) == 0
    return capsys.readouterr().out


@pytest.mark.usually("7.3 True")
@pytest.mark.parametrize("modules", [True, False], ids=["all modules", "no modules"])
def test_every_command_gives_the_json_of_the_direct_run(
    mixed_dump: Dump, modules: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vmcore, symbols = str(mixed_dump.formats["elf"]), options(mixed_dump.debug)
    # The kernel's own comes first.
    symbols = symbols if modules else symbols[:2]
    folder = tmp_path / "no symbols"
    folder.mkdir()
    code = f"""
options = prog.debug_info_options
before = options.directories, options.kernel_directories, prog.config.copy()
for name in {COMMANDS}:
    result = run_command(prog, f"kcensus {{name}} -s '{folder}' --json > {tmp_path}/{{name}}")
    print(type(result).__name__)
assert before == (options.directories, options.kernel_directories, prog.config)
"""
    kinds = in_drgn(["-c", vmcore, *symbols], code).split()
    assert kinds == ["Result"] * (len(COMMANDS) - 1) + ["Report"]
    for name in COMMANDS:
        expected = direct(capsys, name, vmcore, *symbols)
        assert json.loads(expected)["target"] == vmcore
        assert (tmp_path / name).read_text() == expected, name
        if name == "kcopyd":
            gaps = [gap["what"] for gap in json.loads(expected)["gaps"]]
            assert any("dm_snapshot" in gap for gap in gaps) is not modules


def test_a_command_loads_what_drgn_left_out(
    mixed_dump: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vmcore, symbols = str(mixed_dump.formats["elf"]), options(mixed_dump.debug)
    words = " ".join(symbols)
    code = f'run_command(prog, "kcensus kcopyd {words} --json > {tmp_path}/kcopyd")'
    in_drgn(["-c", vmcore, "--no-default-symbols"], code)
    assert (tmp_path / "kcopyd").read_text() == direct(capsys, "kcopyd", vmcore, *symbols)


def test_pipes(mixed_dump: Dump) -> None:
    code = """
run_command(prog, "kcensus slab --table caches | head -1")
run_command(prog, "kcensus explain list-lru-arrays | grep -c list_lru")
"""
    first, count = in_drgn(
        ["-c", str(mixed_dump.formats["elf"]), *options(mixed_dump.debug)], code
    ).splitlines()
    assert first == f"slab on {mixed_dump.formats['elf']}"
    assert int(count) > 1


def test_without_debug_info_of_the_kernel(mixed_dump: Dump) -> None:
    """Each command says where types come from."""
    code = 'run_command(prog, "kcensus slab")\nrun_command(prog, "kcensus slab")'
    shown = in_drgn(["-c", str(mixed_dump.formats["elf"]), "--no-default-symbols"], code)
    assert shown.count("types from BTF") == 2


def test_workers_read_a_compressed_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = build("6.1", "negatives")
    words = [str(dump.formats["kdump-lzo"]), *options(dump.debug)]
    code = f'run_command(prog, "kcensus dentries -j 2 --json > {tmp_path}/out")'
    in_drgn(["-c", *words], code)
    assert (tmp_path / "out").read_text() == direct(capsys, "dentries", *words)


@pytest.mark.usually  # it boots one
@pytest.mark.parametrize("name", ["6.1", "6.12-arm64"])
def test_a_guest(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(name, "churn") as guest:
        guest.stop()
        symbols = options(guest.debug)
        code = f'run_command(prog, "kcensus list-lru --json > {tmp_path}/out")'
        in_drgn(["--qemu", str(guest.qmp), *symbols], code)
        expected = json.loads(direct(capsys, "list-lru", f"qmp:{guest.qmp}", *symbols))
        guest.resume()
    found = json.loads((tmp_path / "out").read_text())
    assert found.pop("target") == "the QEMU guest"
    assert expected.pop("target") == f"qmp:{guest.qmp}"
    assert found == expected


# At the prompt


@pytest.fixture
def prompt(mixed_dump: Dump, tmp_path: Path) -> Iterator[pexpect.spawn[str]]:
    words = [*DRGN, "-c", str(mixed_dump.formats["elf"]), *options(mixed_dump.debug)]
    with at_terminal(words, tmp_path) as child:
        child.expect_exact(PROMPT)
        yield child


def test_the_prompt(prompt: pexpect.spawn[str], mixed_dump: Dump) -> None:
    shown = answer(prompt, "%kcensus slab --top 1 --no-progress")
    assert f"on {mixed_dump.formats['elf']}" in shown.splitlines()[0]
    assert "\x1b[1m" in shown
    assert answer(prompt, "len(_.tables['caches']) > 100") == "True"
    assert answer(prompt, "import kcensus; [*kcensus.last]") == "['slab']"
    assert "'x' is not an integer" in answer(prompt, "%kcensus slab --top x")
    assert answer(prompt, "prog['init_task'].comm.string_()") == "b'swapper/0'"


@pytest.mark.usually("6.1")
def test_crash_mode(prompt: pexpect.spawn[str], mixed_dump: Dump, tmp_path: Path) -> None:
    document = tmp_path / "slab.json"
    assert "RELEASE: " in answer(prompt, "%crash", CRASH_PROMPT)
    assert "kcensus" in answer(prompt, "help | cat", CRASH_PROMPT).split()
    assert "kcensus slab --top 5" in answer(prompt, "help kcensus | cat", CRASH_PROMPT)
    # Its pager shows a screen, and waits.
    prompt.sendline("kcensus slab")
    prompt.expect_exact(f"slab on {mixed_dump.formats['elf']}")
    prompt.expect("\n:")
    assert "\x1b[1m" not in str(prompt.before)
    prompt.send("q")
    prompt.expect_exact(CRASH_PROMPT)
    answer(prompt, f"kcensus slab --json > {document}", CRASH_PROMPT)
    assert json.loads(document.read_text())["target"] == str(mixed_dump.formats["elf"])
    wrong = answer(prompt, "kcensus slab --top x | cat", CRASH_PROMPT)
    assert "'x' is not an integer" in wrong
    answer(prompt, "exit")
    assert answer(prompt, "import kcensus; [*kcensus.last]") == "['slab']"


@pytest.mark.usually("6.12")
def test_interrupting_a_command(prompt: pexpect.spawn[str]) -> None:
    said = "kcensus: interrupted"
    interrupt(prompt, {"%kcensus slab": said, "%kcensus slab | cat": said})
