# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus shell``, and ``%kcensus`` in it, on the sample."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import drgn
import pexpect
import pytest
from drgn.commands import CommandNotFoundError, run_command

import kcensus
import kcensus_drgn
from kcensus.analyses import ALIASES, analyses
from kcensus.api.source import context_of
from kcensus.cli import main
from kcensus.prompts.drgn import CommandFailed, completions
from kcensus.sources import Target, open_target
from kcensus.sources.opened import adopt, remember
from tests.prompts import PROMPT, answer, at_terminal, interrupt
from tests.unit.fakekernel import FakeKernel

SHELL = [sys.executable, "-m", "kcensus", "shell"]
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    def run(*words: str, script: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(script))
        status = main(["shell", *words])
        return (status, *capsys.readouterr())

    monkeypatch.setattr(sys, "path", [*sys.path])
    yield run
    drgn.set_default_prog(None)


def direct(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--json"]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def prog() -> drgn.Program:
    target = open_target("sample")
    remember(target)
    return target.prog


def test_functions_take_their_own_program_and_no_other(shell: Shell) -> None:
    code = "assert len(objects(prog, 'dentry', 'd_flags')) == len(objects('dentry', 'd_flags'))"
    assert shell("sample", "-e", code) == (0, "", "")
    status, _, err = shell("sample", "-e", "slab(drgn.Program())")
    assert status == 1
    assert err.splitlines()[-1].startswith("TypeError: slab() reads the target of this prompt")


def test_a_home_directory_is_expanded_at_the_prompt(
    prog: drgn.Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CommandFailed, match=re.escape(f"{tmp_path}/nothing")):
        run_command(prog, "kcensus slab -s ~/nothing")


@pytest.mark.slow
def test_a_script_has_the_analyses_and_their_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"""
from drgn.commands import run_command
assert target.name == "sample" and target.prog is prog is drgn.get_default_prog()
assert last == {{}} and last is kcensus.last
assert slab(jobs=1) is last["slab"]
assert run_command(prog, "kcensus list-lru --json > {tmp_path}/list-lru") is last["list-lru"]
assert run_command(prog, "kcensus report --json > {tmp_path}/report") is last["report"]
assert run_command(prog, "kcensus explain slab | cat > {tmp_path}/explain") is None
dentries = objects("struct dentry", ["d_flags", "d_parent"])
dentry = as_object(dentries.iloc[0])
assert dentry.d_flags == dentries["d_flags"].iloc[0]
assert list(rows(dentries, dentry).index) == [dentry.value_()]
parents = follow(dentries["d_parent"], ["d_flags"])
assert parents["d_flags"].iloc[0] == dentry.d_parent.d_flags
print(len(dentries), paths(dentries.index[:1]).iloc[0][0], *sorted(last))
assert kcensus.slab(prog).result.target == "sample"
"""
    done = subprocess.run([*SHELL, "sample"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "44723 / list-lru report slab\n"
    for name in ("list-lru", "report"):
        assert (tmp_path / name).read_text() == direct(capsys, name, "sample")
    assert "slab cache" in (tmp_path / "explain").read_text()


def test_code_of_an_option(shell: Shell) -> None:
    lines = ["-e", "for each in (target, prog):", "-e", "    print(type(each).__name__)"]
    assert shell("sample", *lines, script="1/0") == (0, "Target\nProgram\n", "")
    # It has the language that users have.
    done = shell("sample", script="def f(x: int): pass\nprint(f.__annotations__)\n")
    assert done == (0, "{'x': <class 'int'>}\n", "")


def test_an_exception_shows_where_and_is_status_1(shell: Shell) -> None:
    script = 'def f():\n    raise ValueError("\\x1b[31m")\n\nf()\n'
    status, out, err = shell("sample", script=script)
    assert (status, out) == (1, "")
    first, *places, last = err.splitlines()
    assert first.startswith("Traceback")
    assert last == "ValueError: \\x1b[31m"
    lines = [re.findall(r'"(.*)", line (\d+)', place)[0] for place in places]
    assert lines == [("<stdin>", "4"), ("<stdin>", "2")]


def test_the_status_of_a_script_is_its_own(shell: Shell) -> None:
    with pytest.raises(SystemExit) as ended:
        shell("sample", script="raise SystemExit(7)")
    assert ended.value.code == 7


@pytest.mark.slow
def test_a_reader_that_has_seen_enough() -> None:
    words = shlex.join(SHELL)
    line = f"echo 'for i in range(10 ** 6): print(i)' | {words} sample | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_unusable_target_is_one_sentence(shell: Shell, tmp_path: Path) -> None:
    status, out, err = shell(str(tmp_path / "vmcore"), script="print(1)")
    assert (status, out, len(err.splitlines())) == (3, "", 1)


def test_a_warning_names_the_line_of_the_user(shell: Shell) -> None:
    with pytest.warns(kcensus.MergedCacheWarning) as caught:
        done = shell("sample", script="\nobjects('struct dentry', cache='kmalloc-256')\n")
    assert done == (0, "", "")
    merged = [each for each in caught if each.category is kcensus.MergedCacheWarning]
    assert [(each.filename, each.lineno) for each in merged] == [("<stdin>", 2)]


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[pexpect.spawn[str]]:
    with at_terminal([*SHELL, "sample"], tmp_path) as child:
        yield child


@pytest.mark.slow
def test_the_prompt(prompt: pexpect.spawn[str]) -> None:
    prompt.expect_exact(PROMPT)
    banner = str(prompt.before).split("\r\n")[:-1]
    assert len(banner) == 5
    assert all(len(line) <= 100 for line in banner)
    assert all(name in banner[1] + banner[2] for name in ("slab()", "list_lru()", "report()"))
    assert all(name in banner[3] for name in ("as_object()", "rows()", "last"))
    assert "on sample" in answer(prompt, "%kcensus slab --top 1 --no-progress").splitlines()[0]
    same = "_.summary['utilization'] == last['slab'].summary['utilization']"
    assert answer(prompt, same) == "True"
    assert answer(prompt, "%kcensus slab --no-progress | wc -l").isdecimal()
    assert "utilization" in answer(prompt, "slab()")
    # What fails leaves the prompt in one piece.
    for wrong, words in (
        ("slab --top x", "'x' is not an integer"),
        ("nosuch", "'nosuch' is neither"),
        ("shell sample", "a prompt is open already"),
        ("slab > /dev/full", "No space left"),
        ("slab (", "syntax error"),
    ):
        assert words in answer(prompt, f"%kcensus {wrong}"), wrong
    assert answer(prompt, "1 + 1") == "2"
    prompt.send("%kcensus list-l\t--tab\t")
    prompt.expect_exact("list-lru --table ")
    prompt.sendline("nosuch")
    prompt.expect_exact(PROMPT)
    prompt.send("as_obj\t")
    prompt.expect_exact("as_object(")
    prompt.sendline("last['slab'].result, 'struct dentry')")
    prompt.expect_exact("Error")
    prompt.expect_exact(PROMPT)
    prompt.sendline("exit()")
    prompt.expect(pexpect.EOF)
    prompt.close()
    assert prompt.exitstatus == 0


@pytest.mark.slow
def test_interrupting_a_command_returns_to_the_prompt(prompt: pexpect.spawn[str]) -> None:
    prompt.expect_exact(PROMPT)
    interrupt(prompt, {"%kcensus slab": "kcensus: interrupted", "slab()": "KeyboardInterrupt"})


def test_a_failed_command_raises_drgns_error(prog: drgn.Program, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as caught:
        run_command(prog, f"kcensus slab --top x > {tmp_path}/out")
    assert caught.value.exit_status == 2
    assert caught.value.command == "kcensus slab --top x"
    assert str(caught.value).startswith("kcensus: ")


@pytest.mark.slow
def test_a_status_about_the_result_does_not_lose_the_result(
    prog: drgn.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_command(prog, f"kcensus kcopyd --fail-on info > {tmp_path}/out")
    assert result is kcensus.last["kcopyd"]
    assert len(repr(kcensus.last).splitlines()) == len(kcensus.last)
    assert result.result.findings
    assert "exit status 1" in capsys.readouterr().err
    assert "kcopyd on sample" in (tmp_path / "out").read_text()


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_one_error(prog: drgn.Program) -> None:
    with pytest.raises(CommandFailed, match="No space left"):
        run_command(prog, "kcensus slab > /dev/full")
    assert not sys.stdout.closed


def test_a_command_leaves_the_process_as_it_was(
    prog: drgn.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stdout)
    before = dict(prog.config), os.getcwd()
    run_command(prog, "kcensus slab --json")
    assert json.loads(stdout.buffer.getvalue())["target"] == "sample"
    assert (stdout.encoding, stdout.errors) == ("ascii", "strict")
    assert (dict(prog.config), os.getcwd()) == before


def test_directories_of_a_command_do_not_stay(tmp_path: Path) -> None:
    prog = FakeKernel().prog
    remember(Target(prog, "x", "vmcore", "ELF", live=False, kernel="6.1"))
    options = prog.debug_info_options
    before = options.directories, options.kernel_directories
    assert str(tmp_path) not in before[0]
    with pytest.raises(CommandFailed, match="debug info of kernel") as caught:
        run_command(prog, f"kcensus slab -s {tmp_path}")
    assert caught.value.exit_status == 3
    assert (options.directories, options.kernel_directories) == before


def test_a_program_without_a_kernel_has_no_such_command() -> None:
    with pytest.raises(CommandNotFoundError):
        run_command(drgn.Program(), "kcensus slab")


def test_the_plugin_imports_next_to_nothing() -> None:
    script = """
import sys, drgn.commands
before = set(sys.modules)
import kcensus_drgn
kcensus_drgn.drgn_prog_set(drgn.Program())
print(*sorted(name for name in set(sys.modules) - before))
"""
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert shown.split() == ["kcensus_drgn"]


def test_the_plugin_runs_the_kcensus_that_is_first_on_the_path(tmp_path: Path) -> None:
    """It may be installed, and the one to run a clone."""
    (tmp_path / "kcensus" / "prompts").mkdir(parents=True)
    for name in ("kcensus/__init__.py", "kcensus/prompts/__init__.py"):
        (tmp_path / name).touch()
    code = "def run(prog, name, args):\n    print(__file__, name, *args)\n"
    (tmp_path / "kcensus/prompts/drgn.py").write_text(code)
    script = f"""
import drgn, kcensus_drgn, sys
prog = drgn.Program()
kcensus_drgn.drgn_prog_set(prog)
sys.path.insert(0, {str(tmp_path)!r})
kcensus_drgn.run(prog, "kcensus", ["slab"])
kcensus_drgn._run_short(prog, "negdent", ["--top", "1"])
"""
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    place = tmp_path / "kcensus/prompts/drgn.py"
    assert shown.splitlines() == [f"{place} kcensus slab", f"{place} kcensus negdent --top 1"]


def test_crash_drgn_and_the_command_line_have_one_vocabulary() -> None:
    names = {*analyses(), "patches", *ALIASES}
    assert {*kcensus_drgn.IN_CRASH_MODE} == names
    source = (Path(__file__).parents[3] / "crash_ext" / "kcensus.c").read_text()
    short = dict(re.findall(r'EACH\(\w+, "([\w-]+)", "([\w-]+)"\)', source))
    assert short == {name: ALIASES.get(name, name) for name in names}
    for name, of in ALIASES.items():
        assert getattr(kcensus, name) is getattr(kcensus, of.replace("-", "_"))
        assert main([name, "--help"]) == main([of, "--help"]) == 0


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("rep", "rep", {"report "}),
        ("list-l", "list-l", {"list-lru "}),
        ("slab --tab", "--tab", {"--table "}),
        ("negdent --fail-on crit", "crit", {"critical "}),
        ("diff sam", "sam", {"sample ", "sample-after "}),
        ("slab | he", "", set()),
    ],
)
def test_tab_completes_commands_and_options(line: str, word: str, expected: set[str]) -> None:
    found, words = completions(line)
    assert found == word
    assert expected <= {*words}
    assert bool(expected) == bool(words)


def test_tab_completes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "monday.json").touch()
    (tmp_path / "month").mkdir()
    assert completions("diff mon") == ("mon", ["monday.json ", "month/"])


@pytest.mark.slow
def test_a_program_with_types_of_its_own_needs_no_debug_info() -> None:
    target = adopt(open_target("sample").prog)
    assert (target.modules, target.shareable, target.live) == (None, False, False)
    assert kcensus.slab(target.prog).result.gaps == []


def test_a_program_that_was_opened_as_a_target_is_that_target(prog: drgn.Program) -> None:
    assert adopt(prog).kind == "capsule"
    assert context_of(prog).name == "sample"
