# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: output and exit statuses, with a made-up analysis and target."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest

from kcensus import cli
from kcensus.actions import Exit
from kcensus.actions.shared.output import exit_status
from kcensus.analyses import analyses
from kcensus.results import Danger, Finding, Severity
from tests.unit.synthetic import ANALYSIS, LONG_NAME, only_synthetic

Run = Callable[..., tuple[int, str, str]]
KCENSUS = (sys.executable, "-m", "tests.unit.synthetic", "synthetic")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "KCENSUS_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def synthetic() -> Iterator[None]:
    with only_synthetic():
        yield


@pytest.fixture
def run(synthetic: None, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``kcensus synthetic ARGS`` and return (exit status, stdout, stderr)."""

    def run(*args: str) -> tuple[int, str, str]:
        status = cli.main(["synthetic", *args])
        return (status, *capsys.readouterr())

    return run


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    alone = capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out == alone


def test_help_lists_every_analysis_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert analyses()
    cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, analysis in analyses().items():
        assert f"{name} {analysis.question}" in shown
        assert analysis.examples[0][0] in shown


@pytest.mark.parametrize("name", analyses())
def test_help_of_every_analysis_has_its_examples_and_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"kcensus": "1.2.3"}.__getitem__)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "kcensus 1.2.3\n"


def test_version_of_a_source_tree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert cli.main(["--version"]) == 0
    assert "not installed" in capsys.readouterr().out


def test_a_result_is_printed(run: Run) -> None:
    status, out, err = run("vmcore")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [
        "synthetic on vmcore",
        "  Machine  synthetic",
        "  Kernel   Linux 6.1.0-synthetic",
    ]
    assert lines.index("Findings") < lines.index("Summary")


def test_no_target_is_the_running_kernel(run: Run) -> None:
    assert "synthetic on running kernel" in run()[1]


def test_top(run: Run) -> None:
    assert LONG_NAME not in run("--top", "1")[1]
    assert LONG_NAME in run("--top", "0")[1]


def test_json_is_all_there_is_on_stdout(run: Run) -> None:
    status, out, err = run("vmcore", "--json", "--top", "1")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["tables"]["caches"]) == 9


def test_all_forms_in_one_run(run: Run, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("page.html", "a.json", "csv", "parquet")]
    options = zip(("--html", "--json", "--csv", "--parquet"), map(str, paths), strict=True)
    status, out, _ = run("vmcore", *(word for pair in options for word in pair))
    assert status == 0
    assert all(path.exists() for path in paths)
    assert {str(paths[0]), str(paths[1])} < set(out.split())
    document = paths[1].read_text()
    assert json.loads(document)["target"] == "vmcore"
    # The document is replaced, and printed without a list of files around it.
    again = run("vmcore", "--json", str(paths[1]), "--html", str(paths[0]))
    assert again[0] == 0
    status, out, err = run("vmcore", "--html", str(paths[0]), "--json")
    assert (status, out, err) == (0, document, f"{paths[0]}\n")


@pytest.mark.parametrize("face", ["csv", "parquet"])
def test_files_are_listed_as_they_were_written(run: Run, face: str, tmp_path: Path) -> None:
    status, out, _ = run("vmcore", f"--{face}", str(tmp_path / "out"))
    assert status == 0
    assert sorted(out.split()) == sorted(map(str, (tmp_path / "out").iterdir()))
    assert f"{tmp_path}/out/caches.{face}" in out.split()


@pytest.mark.parametrize(
    ("limit", "status"), [("info", 1), ("notice", 1), ("warning", 1), ("critical", 1)]
)
def test_fail_on_a_critical_finding(run: Run, limit: str, status: int) -> None:
    assert run("--fail-on", limit)[0] == status


def test_fail_on_more_than_was_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit import synthetic

    quiet = synthetic.synthetic_result()
    quiet.findings = quiet.findings[:1]
    monkeypatch.setattr(synthetic, "synthetic_result", lambda _: quiet)
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


@pytest.mark.parametrize(
    ("target", "wanted", "jobs"),
    [
        ("compressed", None, len(os.sched_getaffinity(0))),
        ("plain", None, 1),
        ("plain", "3", 3),
        ("compressed alone", None, 1),
        ("compressed alone", "3", 1),
    ],
)
def test_jobs(run: Run, target: str, wanted: str | None, jobs: int) -> None:
    out = run(target, "--json", *(["--jobs", wanted] if wanted else []))[1]
    assert json.loads(out)["summary"]["jobs"] == jobs


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("512K", 524288), ("4m", 4194304), ("1GiB", 1073741824), ("8 kB", 8192)],
)
def test_chunk_size(run: Run, text: str, size: int) -> None:
    out = run("--json", "--chunk-size", text)[1]
    assert json.loads(out)["summary"]["chunk_bytes"] == size


def test_options_of_the_analysis_reach_it(run: Run) -> None:
    summaries = [
        json.loads(run("--json", *args)[1])["summary"] for args in ([], ["--quiet-reader"])
    ]
    assert [summary["quiet_reader"] for summary in summaries] == [False, True]


@pytest.mark.parametrize(
    "args",
    [
        ("--top", "-1"),
        ("--top", "many"),
        ("--jobs", "0"),
        ("--chunk-size", "12"),
        ("--chunk-size", "big"),
        ("--fail-on", "never"),
        ("--seconds", "soon"),
        ("--no-such-option",),
        ("vmcore", "and another"),
        ("--csv", "pyproject.toml"),
        ("--json", "sample"),
        ("--json", "same", "--html", "same"),
        ("--json", "pyproject.toml"),
        ("--json", "tests"),
        ("--json", "no/such/directory"),
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
def test_an_unknown_command_is_wrong_usage(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word]) == 2
    error = capsys.readouterr().err
    assert f"'{word}'" in error
    assert hint in error


def test_a_target_alone_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = []
    for words in (["report", "sample"], ["sample"]):
        assert cli.main([*words, "--json"]) in (0, 6)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    dump = tmp_path / "vmcore"
    dump.write_text("not a dump")
    assert cli.main([str(dump)]) == 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_KCENSUS_COMPLETE={shell}_complete" in capsys.readouterr().out
    monkeypatch.setenv("_KCENSUS_COMPLETE", f"{shell}_complete")
    asked = {"COMP_WORDS": "kcensus diff sam", "COMP_CWORD": "sam" if shell == "fish" else "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert cli.main([]) == 0
    assert {"sample", "file"} <= set(re.split(r"[,\s]", capsys.readouterr().out))


def test_help_as_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words, same in ((["help"], ["--help"]), (["help", "slab"], ["slab", "--help"])):
        shown = []
        for each in (words, same):
            assert cli.main(each) == 0
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1] != ""


def test_a_shell_that_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion"]) == 2
    error = capsys.readouterr().err.splitlines()[0]
    assert error.endswith("Choose from: bash, zsh, fish")


@pytest.mark.parametrize(
    ("words", "completed"),
    [("rep", "report"), ("diff sam", "sample sample-after sample-io sample-waits")],
)
def test_bash_completes(words: str, completed: str, tmp_path: Path) -> None:
    command = tmp_path / "kcensus"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kcensus "$@"\n')
    command.chmod(0o755)
    script = f"""
        source <(kcensus completion bash)
        compopt() {{ :; }}
        COMP_WORDS=(kcensus {words}) COMP_CWORD={len(words.split())}
        _kcensus_completion kcensus
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == completed.split()


def test_a_group_of_commands_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["capsule"]) == 0
    assert "\n  create " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["patches", "validate"])
def test_help_of_tables_of_other_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help-tables"]) == 0
    assert "Row: One pa" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (("unusable",), 3, "no debug info for 6.1.0-synthetic: install linux-image-dbg"),
        (("truncated",), 3, "its end is missing"),
        (("--fail", "analysis"), 3, "this kernel keeps no synthetic objects"),
        (
            ("--fail", "bug"),
            4,
            "unexpected ZeroDivisionError: a bug with \\x1b in it (--debug shows where)",
        ),
        (("--fail", "pipe"), 3, "the target cannot be read: not ours"),
        (
            ("--fail", "memory"),
            3,
            "synthetic needs more memory than this machine has free; read it on a larger one",
        ),
    ],
)
def test_errors_are_one_sentence(
    synthetic: None,
    capfd: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    status: int,
    sentence: str,
) -> None:
    assert cli.main(["synthetic", *args]) == status
    assert capfd.readouterr() == ("", f"kcensus: {sentence}\n")


def test_a_truncated_dump_is_read_if_allowed(run: Run) -> None:
    status, out, _ = run("truncated", "--allow-truncated", "--json")
    gap, *_ = json.loads(out)["gaps"]
    assert (status, gap["what"]) == (0, "end of the dump")
    assert gap["reason"] == "the dump lacks its last 4.0 KiB"


def test_pseudonyms_are_named(run: Run) -> None:
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


@pytest.mark.parametrize("args", [["--help"], ["report", "--help"], ["slab", "--help"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    script = (
        f"import sys; from kcensus.cli import main; main({args});"
        "heavy = {'drgn', 'numpy', 'pandas', 'pyarrow', 'rich', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert out.endswith("\n[]\n")


@pytest.mark.parametrize("name", analyses())
def test_help_of_tables_names_every_table_and_column(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_first_tables_are_shown_by_default(run: Run) -> None:
    first = dataclasses.replace(ANALYSIS, first_tables=("empty",))
    with mock.patch("kcensus.analyses._discover", return_value={"synthetic": first}):
        assert "Caches by memory" not in run()[1]
        assert "Caches by memory" in run("--all")[1]


@pytest.mark.parametrize("args", [["--json"], ["--top", "0"], ["--help"]])
def test_a_closed_pipe_is_not_an_error(args: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run([*KCENSUS, *args], stdout=write_end, stderr=subprocess.PIPE)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("args", [[], ["--json"], ["--help"]])
def test_a_full_disk_is_reported_in_one_sentence(args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KCENSUS, *args], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 4
    assert done.stderr == b"kcensus: cannot write the output: No space left on device\n"


def test_a_full_disk_while_the_shell_completes() -> None:
    environment = {**os.environ, "_KCENSUS_COMPLETE": "bash_source"}
    command = [sys.executable, "-m", "kcensus"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment)
    assert done.returncode == 4
    assert done.stderr == b"kcensus: cannot write the output: No space left on device\n"


def test_names_get_through_a_locale_that_lacks_their_letters() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    plain, document = (
        subprocess.run([*KCENSUS, *args], env=environment, check=True, capture_output=True).stdout
        for args in ([], ["--json"])
    )
    assert b"\\u65e5" in plain
    assert "日本語".encode() in document


def test_ctrl_c_leaves_a_clean_terminal() -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*KCENSUS, "--seconds", "60"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        start_new_session=True,
        # A shell starts what runs in its background with Ctrl-C ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    try:
        while b"counting synthetic objects" not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(ours, 4096)
        child.send_signal(signal.SIGINT)
        try:
            while block := os.read(ours, 4096):
                shown += block
        except OSError:  # the terminal is closed: the child is gone
            pass
        assert child.wait(10) == 130
    finally:
        child.kill()
        os.close(ours)
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
    # The bar's line is erased, and one sentence is all that stays.
    last = shown.replace(b"\x1b[?25h", b"").replace(b"\r", b"")
    assert last.endswith(b"\x1b[2Kkcensus: interrupted\n")
    assert b"Traceback" not in shown


def test_no_progress_draws_nothing() -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*KCENSUS, "--no-progress", "--seconds", "3"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        shown = os.read(ours, 4096)
    except OSError:  # nothing was ever written
        shown = b""
    os.close(ours)
    assert (done.returncode, shown) == (0, b"")


def in_terminal(args: Sequence[str], **settings: str) -> str:
    """Return what a terminal shows of ``kcensus synthetic ARGS``."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*KCENSUS, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **settings},
    )
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 4096):
            shown += block
    except OSError:  # the terminal is closed: the child is gone
        pass
    os.close(ours)
    assert child.wait(10) == 0
    return shown.decode()


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


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_only_regular_files_are_replaced(run: Run, tmp_path: Path, kind: str) -> None:
    page, elsewhere = tmp_path / "page.html", tmp_path / "elsewhere.html"
    if kind == "fifo":
        os.mkfifo(page)
        status, _, err = run("--html", str(page))
        assert status == 2
        assert "is not a regular file" in err
        assert page.is_fifo()
    else:
        page.symlink_to(elsewhere)
        assert run("--html", str(page))[0] == 0
        assert page.is_symlink()
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
