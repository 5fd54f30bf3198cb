# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress bars: shown late, erased at the end, safe for forked workers."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

from kcensus.render import progress as progress_module
from kcensus.render.progress import terminal_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def wait_for(words: str, terminal: Terminal) -> None:
    deadline = time.monotonic() + 20
    while words not in terminal.getvalue():
        assert time.monotonic() < deadline, terminal.getvalue()
        time.sleep(0.01)


def test_short_work_draws_nothing(terminal: Terminal) -> None:
    with terminal_progress(terminal) as progress, progress.step("reading", 2) as step:
        step.advance(2)
    assert terminal.getvalue() == ""


def test_long_work_draws_even_before_it_advances(terminal: Terminal) -> None:
    with terminal_progress(terminal, patience=0) as progress:
        with progress.step("opening \x1b[31m", 0):
            wait_for("opening \\x1b[31m", terminal)
        with progress.step("reading", 4) as step:
            step.advance()
            wait_for("25%", terminal)


def test_what_was_done_before_has_no_speed(terminal: Terminal) -> None:
    with (
        terminal_progress(terminal, patience=0, with_rate=True) as progress,
        progress.step("reports", 2000) as step,
    ):
        for _ in range(1000):
            step.skip()
        wait_for("1,000 of 2,000", terminal)
    assert "a minute" not in terminal.getvalue()


def test_the_rate_is_shown_where_asked_for(terminal: Terminal) -> None:
    with (
        terminal_progress(terminal, patience=0, with_rate=True) as progress,
        progress.step("reports", 2000) as step,
    ):
        wait_for("0 of 2,000", terminal)
        for _ in range(3):
            step.advance(300)
            time.sleep(0.01)
        wait_for("900 of 2,000, ", terminal)
        wait_for(" a minute", terminal)


def test_steps_in_a_step_are_one_line(terminal: Terminal) -> None:
    with terminal_progress(terminal, patience=0) as progress, progress.step("2 of 5: dentries", 0):
        wait_for("2 of 5: dentries", terminal)
        with progress.step("reading", 4) as step:
            step.advance(2)
            wait_for("2 of 5: dentries: reading", terminal)
    assert "\x1b[1A\x1b[2K\x1b[1A" not in terminal.getvalue()  # two lines erased


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_the_terminal_is_left_as_it_was(terminal: Terminal, error: type[BaseException]) -> None:
    threads = threading.active_count()

    def interrupted() -> None:
        with terminal_progress(terminal, patience=0) as progress, progress.step("reading", 2):
            wait_for("reading", terminal)
            raise error

    with pytest.raises(error):
        interrupted()
    shown = terminal.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    # Nothing follows the erasure of the line but the cursor's return.
    assert shown.replace("\x1b[?25h", "").rstrip("\r").endswith("\x1b[2K")
    assert threading.active_count() <= threads


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_worker_is_forked_in_the_middle_of_a_drawing() -> None:
    drawing, release = threading.Event(), threading.Event()

    def draw() -> None:
        with progress_module._drawing:
            drawing.set()
            release.wait(0.3)

    thread = threading.Thread(target=draw)
    thread.start()
    drawing.wait()
    child = os.fork()
    if child == 0:
        os._exit(progress_module._drawing.locked())
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not progress_module._drawing.locked()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_cursor_shown(number: signal.Signals) -> None:
    code = """
import os, sys, time
from kcensus.render.progress import terminal_progress
with terminal_progress(sys.stderr, 0) as progress, progress.step("reading", 2):
    # A handler of Python's waits for the end of a sleep that begins after the signal.
    for _ in range(300):
        time.sleep(0.1)
"""
    master, slave = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", code], stderr=slave)
    os.close(slave)
    shown = b""
    while b"reading" not in shown:
        shown += os.read(master, 4096)
    child.send_signal(number)
    assert child.wait(20) == -number
    with contextlib.suppress(OSError):  # Linux ends a terminal with an error
        while data := os.read(master, 4096):
            shown += data
    os.close(master)
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
