# SPDX-License-Identifier: LGPL-2.1-or-later
"""Output, options, errors and exit statuses."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest

from kcensus import cli
from kcensus.analyses import analyses
from kcensus.commands import Exit
from kcensus.commands.shared.output import exit_status
from kcensus.results import Danger, Finding, Severity
from tests.unit import synthetic as made_up
from tests.unit.faces.cli import Capture, Run
from tests.unit.synthetic import ANALYSIS, LONG_NAME


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


@pytest.mark.parametrize("words", [["sample", *["a"] * 50_000], ["--table", "a" * 50_000]])
def test_an_error_does_not_repeat_a_long_command_line(words: list[str], run: Run) -> None:
    status, _, error = run(*words)
    assert status in (Exit.USAGE, Exit.TARGET)
    assert 0 < len(error) < 6000


@pytest.mark.parametrize("option", ["--svg", "--png", "--pdf"])
def test_pictures_are_on_the_page(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["slab", "sample", option, "x"]) == Exit.USAGE
    assert "--html" in capsys.readouterr().err
