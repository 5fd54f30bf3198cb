# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: output and exit statuses, with a made-up analysis and target."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import TypeAlias
from unittest import mock

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.catalogue import load
from kcensus.commands import Exit, commands
from kcensus.commands.shared import values
from kcensus.commands.shared.options import Showing
from kcensus.commands.shared.output import console, exit_status
from kcensus.results import Danger, Finding, Severity
from kcensus.sources.session import session
from tests.unit import synthetic as made_up
from tests.unit.synthetic import ANALYSIS, LONG_NAME, only_synthetic

Run = Callable[..., tuple[int, str, str]]
Capture: TypeAlias = pytest.CaptureFixture[str]
KCENSUS = (sys.executable, "-m", "tests.unit.synthetic", "synthetic")


@pytest.fixture
def synthetic() -> Iterator[None]:
    with only_synthetic():
        yield


@pytest.fixture
def run(synthetic: None, capsys: Capture) -> Run:
    def run(*args: str) -> tuple[int, str, str]:
        status = cli.main(["synthetic", *args])
        return (status, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("words", "same"),
    [([], ["--help"]), (["help"], ["--help"]), (["help", "slab"], ["slab", "--help"])],
)
def test_help_has_several_spellings(words: list[str], same: list[str], capsys: Capture) -> None:
    shown = []
    for each in (words, same):
        assert cli.main(each) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


def test_help_lists_every_analysis_with_its_question(capsys: Capture) -> None:
    assert analyses()
    cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, analysis in analyses().items():
        assert f"{name} {analysis.question}" in shown
        assert analysis.examples[0][0] in shown


@pytest.mark.parametrize("name", analyses())
def test_help_of_every_analysis_has_its_examples_and_options(name: str, capsys: Capture) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    analysis = analyses()[name]
    assert analysis.description
    assert analysis.examples
    for line, purpose in analysis.examples:
        assert line.removeprefix("sudo ").startswith(f"kcensus {name}")
        assert line in shown
        assert purpose in shown
    options = re.findall(r"^ +(?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
    assert len(options) == len(set(options)), "an analysis has an option that all have"
    for param in analysis.params:
        assert "--" + param.name.replace("_", "-") in options


def test_paragraphs_of_a_description_have_one_margin(run: Run) -> None:
    out = run("--help")[1]
    assert "\n  The first paragraph of the description.\n\n  The second one.\n" in out


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    absent = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    for version, shown in (({"kcensus": "1.2.3"}.__getitem__, "1.2.3"), (absent, "not installed")):
        monkeypatch.setattr(importlib.metadata, "version", version)
        assert cli.main(["--version"]) == 0
        assert shown in capsys.readouterr().out


def test_a_result_is_printed(run: Run) -> None:
    status, out, err = run("vmcore")
    assert (status, err) == (0, "")
    head = "synthetic on vmcore\n  Machine  synthetic\n  Kernel   Linux 6.1.0-synthetic\n"
    assert out.startswith(head)
    assert out.index("Findings\n") < out.index("Summary\n")
    status, out, err = run("vmcore", "--json", "--top", "1")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["tables"]["caches"]) == 9
    # Without a target.
    assert LONG_NAME not in run("--top", "1")[1]
    shown = run("--top", "0")[1]
    assert LONG_NAME in shown
    assert "synthetic on running kernel" in shown


def test_all_forms_in_one_run(run: Run, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("page.html", "a.json", "csv", "parquet")]
    options = zip(("--html", "--json", "--csv", "--parquet"), map(str, paths), strict=True)
    status, out, _ = run("vmcore", *(word for pair in options for word in pair))
    assert status == 0
    written = [*paths[:2], *paths[2].glob("[!.]*"), *paths[3].glob("[!.]*")]
    assert sorted(out.split()) == sorted(map(str, written))
    assert {f"{tmp_path}/{face}/caches.{face}" for face in ("csv", "parquet")} <= {*out.split()}
    document = paths[1].read_text()
    assert json.loads(document)["target"] == "vmcore"
    # The document is replaced, and printed without a list of files around it.
    again = run("vmcore", "--json", str(paths[1]), "--html", str(paths[0]))
    assert again[0] == 0
    status, out, err = run("vmcore", "--html", str(paths[0]), "--json")
    assert (status, out, err) == (0, document, f"{paths[0]}\n")


def test_fail_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    severities = [severity.name.lower() for severity in Severity]
    assert [run("--fail-on", limit)[0] for limit in severities] == [1] * len(severities)
    quiet = made_up.synthetic_result()
    quiet.findings = quiet.findings[:1]
    monkeypatch.setattr(made_up, "synthetic_result", lambda _: quiet)
    assert [run("--fail-on", limit)[0] for limit in ("notice", "warning")] == [1, 0]


@pytest.mark.parametrize(
    ("fail_on", "dangers", "status"),
    [
        (None, [Danger.NONE, Danger.INCOMPLETE], Exit.INCOMPLETE),
        (None, [Danger.STALL], Exit.DONE),
        ("critical", [Danger.INCOMPLETE], Exit.INCOMPLETE),
        ("critical", [Danger.INCOMPLETE, Danger.STALL], Exit.FINDING),
        ("critical", [], Exit.DONE),
    ],
)
def test_what_is_incomplete_has_a_status_of_its_own(
    fail_on: str | None, dangers: list[Danger], status: Exit
) -> None:
    findings = [
        Finding(id=danger.value, severity=Severity.CRITICAL, title="", danger=danger)
        for danger in dangers
    ]
    assert exit_status(findings, fail_on) is status


@pytest.mark.ends
@pytest.mark.parametrize(
    ("args", "key", "value"),
    [
        (["compressed"], "jobs", 2),
        (["plain"], "jobs", 1),
        (["plain", "--jobs", "3"], "jobs", 3),
        (["compressed alone"], "jobs", 1),
        (["compressed alone", "--jobs", "3"], "jobs", 1),
        (["--chunk-size", "65536"], "chunk_bytes", 65536),
        (["--chunk-size", "512K"], "chunk_bytes", 524288),
        (["--chunk-size", "4m"], "chunk_bytes", 4194304),
        (["--chunk-size", "1GiB"], "chunk_bytes", 1073741824),
        (["--chunk-size", "8 kB"], "chunk_bytes", 8192),
        ([], "quiet_reader", False),
        (["--quiet-reader"], "quiet_reader", True),
    ],
)
def test_options_reach_the_analysis(
    run: Run, args: list[str], key: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert json.loads(run(*args, "--json")[1])["summary"][key] == value


@pytest.mark.parametrize(
    "args",
    [
        *(("--top", "-1"), ("--top", "many"), ("--jobs", "0"), ("--fail-on", "never")),
        *(("--chunk-size", "12"), ("--chunk-size", "big"), ("--seconds", "soon")),
        *(("--no-such-option",), ("vmcore", "and another"), ("--csv", "pyproject.toml")),
        *(("--json", "sample"), ("--json", "same", "--html", "same"), ("--html", "tests")),
        *(("--json", name) for name in ("pyproject.toml", "tests", "no/such/directory")),
    ],
)
def test_wrong_usage_ends_with_2_and_says_where_help_is(run: Run, args: tuple[str, ...]) -> None:
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"kcensus: .+[^.]\nTry 'kcensus synthetic --help'\.\n", err)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("nonsense", "`kcensus --help`"), ("reprot", "'report'"), ("dentrys", "'dentries'")],
)
def test_an_unknown_command_is_wrong_usage(word: str, hint: str, capsys: Capture) -> None:
    assert cli.main([word]) == 2
    error = capsys.readouterr().err
    assert f"'{word}'" in error
    assert hint in error


def test_a_target_alone_is_reported(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"kcopyd": analyses()["kcopyd"]}
    monkeypatch.setattr("kcensus.analyses._discover", lambda: one)
    shown = []
    for words in (["report", "sample"], ["sample"]):
        assert cli.main([*words, "--json"]) in (0, 6)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    dump = tmp_path / "vmcore"
    dump.write_text("not a dump")
    assert cli.main([str(dump)]) == 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_KCENSUS_COMPLETE={shell}_complete" in capsys.readouterr().out
    monkeypatch.setenv("_KCENSUS_COMPLETE", f"{shell}_complete")
    asked = {"COMP_WORDS": "kcensus diff sam", "COMP_CWORD": "sam" if shell == "fish" else "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert cli.main([]) == 0
    assert {"sample", "file"} <= set(re.split(r"[,\s]", capsys.readouterr().out))


def test_a_shell_that_is_not_named(capsys: Capture) -> None:
    assert cli.main(["completion"]) == 2
    error = capsys.readouterr().err.splitlines()[0]
    assert error.endswith("Choose from: bash, zsh, fish")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["slab", "--table", "cac"], {"caches", "cache_nodes"}),
        (["iostall", "--table", ""], {"requests_traced", "scheduler_queues", "disks"}),
        (["patches", "--table", "pri"], {"prices"}),
        (["dentries", "--only", "totals,dir"], {"totals,directories"}),
        (["diff", "a", "b", "--analyses", "slab,list"], {"slab,list-lru"}),
        (["explain", "list-lru-a"], {"list-lru-arrays"}),
        (["explain", "obj_cgroup", "vec"], {"vector"}),
        (["validate", "list-lru-m"], {"list-lru-memory"}),
        (["patches", "show", "list-lru-x"], {"list-lru-xarray"}),
        (["patches", "sh"], {"show"}),
        (["notebook", "cap"], {"capacity_report"}),
        (["notebook", "capacity_report", "sample-i"], {"sample-io"}),
        (["report", "sample-i"], {"sample-io"}),
        (["slab", "/a b/vmcore", "--fail-on", "crit"], {"critical"}),
    ],
)
def test_values_are_completed(words: list[str], completed: set[str]) -> None:
    *args, incomplete = words
    found = {value for value, kind in cli.completions(args, incomplete) if kind == "plain"}
    assert completed <= found
    assert all(value.startswith(incomplete) for value in found)


def test_names_of_tables_and_patches_are_all_there() -> None:
    for name, analysis in analyses().items():
        # The picture is for pages.
        assert {*values.tables(analysis.specs)} == {
            spec.name for spec in analysis.tables() if spec.name != "picture"
        }, name
    assert values.patches() == sorted(load().patches)
    known = load().patches.values()
    able = {each.id for each in known if each.validation or each.trace_validation}
    assert {*values.patches(validated=True)} == able


def test_completion_imports_nothing_heavy() -> None:
    """A shell waits for it."""
    script = """
import sys
from kcensus import cli
for words in (["slab", "--table"], ["dentries", "--only"], ["explain"], ["validate"],
              ["patches", "show"], ["notebook"], ["report"]):
    assert cli.completions(words, ""), words
print(*{"numpy", "pandas", "drgn", "msgspec", "networkx"} & {*sys.modules})
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words", "completed"),
    [
        ("kcensus", "rep", "report"),
        ("kcensus", "diff sam", "sample sample-after sample-io sample-waits sample-arm64"),
        ("kcensus", r"slab '/a\ b/vmcore' --table kma", "kmalloc"),
        ("kcensus", "slab '\"/a b/vmcore\"' --table kma", "kmalloc"),
        (r"~/a\ path/kcensus", "rep", "report"),
    ],
)
def test_bash_completes(program: str, words: str, completed: str, tmp_path: Path) -> None:
    command = tmp_path / "a path" / "kcensus"
    command.parent.mkdir()
    python = shlex.quote(sys.executable)
    command.write_text(f'#!/bin/sh\nexec {python} -m kcensus "$@"\n')
    command.chmod(0o755)
    script = f"""
        source <(kcensus completion bash)
        compopt() {{ :; }}
        COMP_WORDS=(kcensus {words}) COMP_CWORD={len(shlex.split(words))}
        _kcensus_completion '{program}'
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{command.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
    shown = subprocess.check_output(["bash", "-c", script], env=environment, text=True)
    assert shown.split() == completed.split()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["capsule"], "\n  create "),
        (["patches", "--help-tables"], "Row: One pa"),
        (["validate", "--help-tables"], "Row: One pa"),
    ],
)
def test_help_of_other_commands(words: list[str], shown: str, capsys: Capture) -> None:
    assert cli.main(words) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (("unusable",), 3, "no debug info for 6.1.0-synthetic: install linux-image-dbg"),
        (("truncated",), 3, "its end is missing"),
        (("--fail", "analysis"), 3, "this kernel keeps no synthetic objects"),
        (("--fail", "bug"), 4, "unexpected ZeroDivisionError: a bug with \\x1b in it (--debug"),
        (("--fail", "pipe"), 3, "the target cannot be read: not ours"),
        (("--fail", "memory"), 3, "synthetic needs more memory than this machine has free"),
    ],
)
def test_errors_are_one_sentence(
    synthetic: None, capfd: Capture, args: tuple[str, ...], status: int, sentence: str
) -> None:
    assert cli.main(["synthetic", *args]) == status
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"kcensus: {sentence}")


def test_vmcoreinfo_is_given(run: Run) -> None:
    assert run("bare", "--json")[0] == 3
    assert run("bare", "--vmcoreinfo", "text", "--json")[0] == 0


@pytest.mark.parametrize("words", [("diff", "a", "b"), ("validate", "list-lru-memory", "a", "b")])
def test_one_vmcoreinfo_is_not_of_two_targets(capfd: Capture, words: tuple[str, ...]) -> None:
    assert cli.main([*words, "--vmcoreinfo", "text"]) == 2
    assert "--vmcoreinfo" in capfd.readouterr().err


def test_a_truncated_dump_is_read_if_allowed(run: Run) -> None:
    status, out, _ = run("truncated", "--allow-truncated", "--json")
    gap, *_ = json.loads(out)["gaps"]
    assert (status, gap["what"]) == (0, "end of the dump")
    assert gap["reason"] == "the dump lacks its last 4.0 KiB"
    # Pseudonyms are named.
    assert json.loads(run("redacted", "--json")[1])["machine"]["has_pseudonyms"] is True
    assert json.loads(run("vmcore", "--json")[1])["machine"]["has_pseudonyms"] is False


@pytest.mark.parametrize("how", ["--debug", "KCENSUS_DEBUG"])
def test_debug_shows_where(run: Run, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["--debug"] if how == "--debug" else []
    monkeypatch.setenv("KCENSUS_DEBUG", "0" if args else "1")
    status, _, err = run("--fail", "bug", *args)
    assert status == 4
    assert err.startswith("Traceback")
    assert 'synthetic.py", line' in err
    assert "\x1b" not in err


def test_help_loads_nothing_heavy() -> None:
    script = """
import sys
from kcensus.cli import main
from kcensus.commands import commands
def loaded(names): return sorted(name for name in sys.modules if name.startswith(names))
main(["--help"])
first = loaded(("rich", *(entry.module for entry in commands().values())))
for name in commands():
    main([name, "--help"])
main(["slab", "--help"])
print(first, loaded(("drgn", "numpy", "pandas", "pyarrow", "jinja2", "msgspec")))
"""
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert shown.endswith("\n[] []\n")


def test_commands_are_named_after_their_files() -> None:
    assert len(commands()) > 10
    assert [entry.load().name for entry in commands().values()] == [*commands()]


@pytest.mark.parametrize("name", analyses())
def test_help_of_tables_names_every_table_and_column(name: str, capsys: Capture) -> None:
    assert cli.main([name, "--help-tables"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for spec in analyses()[name].tables():
        assert f"{spec.name}: {spec.title}" in shown
        assert spec.help
        for key, column in spec.columns.items():
            assert f" {key} " in shown
            assert column.help in shown


def test_tables_are_selected_by_name(run: Run) -> None:
    assert "Caches by memory" in run()[1]
    one = run("--table", "empty")[1]
    assert "Nothing at all" in one
    assert "Caches by memory" not in one
    both = run("--table", "empty", "--table", "caches")[1]
    assert both.index("Nothing at all") < both.index("Caches by memory")
    status, out, err = run("--table", "cache")
    assert (status, out) == (2, "")
    assert "--table: unknown table 'cache' (choose from caches, empty)" in err
    first = dataclasses.replace(ANALYSIS, first_tables=("empty",))
    with mock.patch("kcensus.analyses._discover", return_value={"synthetic": first}):
        assert "Caches by memory" not in run()[1]
        assert "Caches by memory" in run("--all")[1]


@pytest.mark.parametrize("args", [["--json"], ["--top", "0"], ["--help"]])
def test_a_closed_pipe_is_not_an_error(
    synthetic: None, args: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    # What is left in its buffer must not fail a second time when it is closed.
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert cli.main(["synthetic", *args]) == Exit.PIPE
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("args", [[], ["--json"], ["--help"], None])
def test_a_full_disk_is_reported_in_one_sentence(
    synthetic: None, args: list[str] | None, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    if args is None:  # the shell completes
        monkeypatch.setenv("_KCENSUS_COMPLETE", "fish_source")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["synthetic", *(args or ())]) == Exit.FAILED
    error = "kcensus: cannot write the output: No space left on device\n"
    assert capfd.readouterr().err == error


@pytest.mark.parametrize(
    ("redirected", "status"),
    [
        ("slab sample >&-", Exit.FAILED),
        ("slab nonexistent 2>/dev/full", Exit.TARGET),
        ("slab nonexistent 2>&-", Exit.TARGET),
        ("slab nonexistent >&- 2>&-", Exit.TARGET),
        ("slab sample --bad 2>&-", Exit.USAGE),
        ("--version 2>&-", Exit.DONE),
    ],
)
def test_the_status_says_what_no_stream_takes(redirected: str, status: int) -> None:
    command = f'"$0" -m kcensus {redirected}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, check=False)
    assert done.returncode == status


@pytest.mark.parametrize("option", ["json", "html", "csv", "parquet"])
def test_an_empty_name_is_no_file(
    run: Run, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, shown, error = run(f"--{option}", "")
    assert (status, shown) == (Exit.USAGE, "")
    assert f"--{option}" in error
    assert os.listdir() == []


def test_names_get_through_a_locale_that_lacks_their_letters(
    synthetic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for args in ([], ["--json"]):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(["synthetic", *args]) == 0
        shown.append(stream.buffer.getvalue())
    assert b"\\u65e5" in shown[0]
    assert "日本語".encode() in shown[1]


def rest_of(terminal: int) -> bytes:
    """Return what is shown until no program has the terminal open, and close it."""
    shown = b""
    with open(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):
        while block := file.read(4096):
            shown += block
    return shown


def started(
    args: Sequence[str], settings: Mapping[str, str], stdout: int | None = None
) -> tuple[int, Popen[bytes]]:
    """Run ``kcensus synthetic ARGS`` on a terminal; return that and the process."""
    ours, theirs = pty.openpty()
    child = Popen(
        [*KCENSUS, *args],
        stdin=theirs,
        stdout=stdout or theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **settings},
        start_new_session=True,
        # A shell starts what runs in its background with Ctrl-C ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    return ours, child


@pytest.mark.slow
def test_ctrl_c_leaves_a_clean_terminal() -> None:
    ours, child = started(("--seconds", "60"), {})
    shown = b""
    deadline = time.monotonic() + 300
    try:
        while b"counting synthetic objects" not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(ours, 4096)
        child.send_signal(signal.SIGINT)
        shown += rest_of(ours)
        assert child.wait(300) == 130
    finally:
        child.kill()
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
    # The bar's line is erased, and one sentence is all that stays.
    last = shown.replace(b"\x1b[?25h", b"").replace(b"\r", b"")
    assert last.endswith(b"\x1b[2Kkcensus: interrupted\n")
    assert b"Traceback" not in shown


@pytest.mark.slow
def test_no_progress_draws_nothing() -> None:
    ours, child = started(("--no-progress", "--seconds", "3"), {}, subprocess.DEVNULL)
    assert (child.wait(300), rest_of(ours)) == (0, b"")


def in_terminal(args: Sequence[str], **settings: str) -> str:
    ours, child = started(args, settings)
    shown = rest_of(ours)
    assert child.wait(300) == 0
    return shown.decode()


@pytest.mark.slow
def test_a_terminal_gets_a_pager() -> None:
    pager = "sed s/^/paged:/"
    for settings in ({"PAGER": pager}, {"PAGER": "false", "KCENSUS_PAGER": pager}):
        shown = in_terminal((), **settings)
        assert "paged:" in shown
        assert "\x1b[1;31mCRITICAL" in shown
    assert "paged:" not in in_terminal(("--no-pager",), PAGER=pager)
    # One that fails, is missing or ends early is no error.
    for broken in ("no-such-pager", "less '"):
        assert "CRITICAL" in in_terminal((), PAGER=broken)
    assert "CRITICAL" not in in_terminal(("--top", "0"), PAGER="false")


def test_no_pager_opens_at_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the lines that are pasted after the command."""
    paged = mock.Mock()
    monkeypatch.setattr("kcensus.render.screen.paged_console", paged)
    console(Showing())
    with session(mock.Mock()):
        console(Showing())
    assert [call.kwargs["wanted"] for call in paged.mock_calls] == [True, False]


def test_only_regular_files_are_replaced(run: Run, tmp_path: Path) -> None:
    fifo, link, elsewhere = (tmp_path / name for name in ("fifo.html", "a.html", "b.html"))
    os.mkfifo(fifo)
    status, _, err = run("--html", str(fifo))
    assert status == 2
    assert "is not a regular file" in err
    assert fifo.is_fifo()
    link.symlink_to(elsewhere)
    assert run("--html", str(link))[0] == 0
    assert link.is_symlink()
    assert elsewhere.read_text().startswith("<!")


def test_ctrl_c_that_python_drops_is_sent_again() -> None:
    class Dropping:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def work() -> int:
        Dropping()
        time.sleep(60)
        return 0

    lines: list[str] = []
    assert cli._status(work, [], lines.append) == Exit.INTERRUPTED
    assert lines == ["kcensus: interrupted"]


def test_ctrl_c_while_an_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.echo", interrupt)
    assert cli.main(["--no-such-option"]) == Exit.INTERRUPTED


def test_ctrl_c_while_modules_are_loaded() -> None:
    code = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from kcensus.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "kcensus: interrupted\n")


@pytest.mark.parametrize("words", [["--json", "LOOP", "--html", "x"], ["--html", "LOOP"]])
def test_a_loop_of_links_is_no_output(words: list[str], run: Run, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (status, _, error) = run(*(str(loop) if word == "LOOP" else word for word in words))
    assert status == Exit.USAGE
    assert "unexpected" not in error


@pytest.mark.parametrize("words", [["sample", *["a"] * 50_000], ["--table", "a" * 50_000]])
def test_an_error_does_not_repeat_a_long_command_line(words: list[str], run: Run) -> None:
    status, _, error = run(*words)
    assert status in (Exit.USAGE, Exit.TARGET)
    assert 0 < len(error) < 6000


@pytest.mark.parametrize("option", ["--svg", "--png", "--pdf"])
def test_pictures_are_on_the_page(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["slab", "sample", option, "x"]) == Exit.USAGE
    assert "--html" in capsys.readouterr().err
