# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sentences of ``kcensus fleet run`` about its words."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.commands import Exit
from tests.unit.fleets.stores import Target, made


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "TARGETS are missing"),
        (["-"], "standard input has no line with a path"),
        (["."], "no vmcore, capsule or document in . (2 other files left out)"),
        (["-", "."], "in . and standard input (2 other files left out)"),
        (["x", "--workers", "2", "--scheduler", "tcp://a:1"], "--workers is for this machine"),
    ],
)
def test_a_run_without_targets_says_why(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert cli.main(["fleet", "run", *words, "--store", "store"]) == Exit.USAGE
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "store").exists()


def test_a_directory_with_other_files_is_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("text")
    assert cli.main(["fleet", "run", "sample", "--store", str(tmp_path)]) == Exit.TARGET
    assert "has files, and is no store of a fleet" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_store_may_hold_other_files_and_be_left_early(tmp_path: Path) -> None:
    store = made(tmp_path, [])
    (store / "report.html").write_text("page")
    made(store, [Target("1")])
    (tmp_path / "early" / "targets").mkdir(parents=True)
    made(tmp_path / "early", [Target("1")])


def test_a_known_target_without_a_report_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vmcore").write_bytes(b"\xff" * 64)
    words = ["fleet", "run", str(tmp_path / "vmcore"), "--store", str(tmp_path / "store")]
    assert cli.main(words) == Exit.INCOMPLETE
    capsys.readouterr()
    cli.main(words)
    out, err = capsys.readouterr()
    assert "1 known (1 of the known ones without a report)" in out
    assert f"`kcensus fleet report {tmp_path}/store`" in err
