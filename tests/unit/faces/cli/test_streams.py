# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pipes, full disks and files that take the output."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.commands import Exit
from tests.unit.faces.cli import Capture, Run

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("words", [["--json", "LOOP", "--html", "x"], ["--html", "LOOP"]])
def test_a_loop_of_links_is_no_output(words: list[str], run: Run, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (status, _, error) = run(*(str(loop) if word == "LOOP" else word for word in words))
    assert status == Exit.USAGE
    assert "unexpected" not in error
