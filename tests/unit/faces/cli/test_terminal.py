# SPDX-License-Identifier: LGPL-2.1-or-later
"""Terminals: progress, pagers, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from subprocess import Popen
from unittest import mock

import pytest

from kcensus import cli
from kcensus.commands import Exit
from kcensus.commands.shared.options import Showing
from kcensus.commands.shared.output import console
from kcensus.sources.session import session

KCENSUS = (sys.executable, "-m", "tests.unit.synthetic", "synthetic")


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
