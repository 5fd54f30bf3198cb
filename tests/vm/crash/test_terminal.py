# SPDX-License-Identifier: LGPL-2.1-or-later
"""A session of crash at a terminal, with its pager."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.lab import build
from tests.vm.crash.session import Session, extension

_PROMPT = "crash> "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
"""What moves the cursor, or clears a line."""
_ROWS, _COLUMNS = 24, 90


class Terminal:
    """A session of crash that a person types into."""

    def __init__(self, directory: Path, **environment: str) -> None:
        dump = build("5.10", "mixed")
        command, *arguments = Session(dump.vmlinux, (dump.formats["elf"],)).arguments()
        self.process = pexpect.spawn(
            command,
            arguments,
            cwd=str(directory),
            env={**os.environ, **environment, "HOME": str(directory)},
            dimensions=(_ROWS, _COLUMNS),
            encoding="utf-8",
            codec_errors="replace",
            timeout=120,
        )
        self.process.expect_exact(_PROMPT)
        self.type(f"extend {extension()}")

    def type(self, line: str) -> str:
        """Type a line, and return what is printed until the next prompt."""
        self.process.sendline(line)
        self.process.expect_exact(_PROMPT)
        return str(self.process.before).partition("\n")[2]

    def children(self) -> list[str]:
        """Return the names of the processes that crash has started and that have not ended."""
        pid = self.process.pid
        names = []
        for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                names.append(Path(f"/proc/{number}/comm").read_text())
        return names

    def quit(self) -> None:
        self.process.sendline("quit")
        self.process.expect(pexpect.EOF)
        self.process.close()
        assert self.process.exitstatus == 0


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    opened = Terminal(tmp_path_factory.mktemp("tty"))
    yield opened
    opened.quit()


def _width(text: str) -> int:
    return max(len(_COLOUR.sub("", line).rstrip()) for line in text.splitlines()[1:])


def test_colours_and_width_of_the_terminal(terminal: Terminal) -> None:
    terminal.type("set scroll off")
    text = terminal.type("kcensus slab --top 3")
    assert _COLOUR.search(text)
    assert 80 < _width(text) <= _COLUMNS
    assert terminal.children() == []


def test_pager(terminal: Terminal) -> None:
    """The output is paged by crash's pager, without colours, and may be left early."""
    terminal.type("set scroll on")
    settings = termios.tcgetattr(terminal.process.fileno())
    for _ in range(3):
        terminal.process.sendline("kcensus slab --top 0")
        terminal.process.expect_exact("MORE")
        first = str(terminal.process.before)
        terminal.process.send(" ")
        terminal.process.expect_exact("MORE")
        shown = first + str(terminal.process.before)
        terminal.process.send("q")
        terminal.process.expect_exact(_PROMPT)
        assert "slab pages" in shown
        assert first.count("\n") <= _ROWS
        # less shows an escape character of the text as these letters, highlighted.
        assert "ESC[" not in _CONTROL.sub("", shown)
        assert terminal.children() == []
    assert termios.tcgetattr(terminal.process.fileno()) == settings


_PAGER = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"INTERRUPTED"))
sys.stdin.readline()
os.write(1, b"MORE")
with open("/dev/tty") as terminal:
    terminal.readline()
"""
"""It says when it has handled a signal: less forgets a key that is pressed meanwhile."""


def test_ctrl_c_in_the_pager(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Ctrl-C while the pager waits for a key, and the command for the pager."""
    pager = tmp_path / "pager"
    pager.write_text(f"#!{sys.executable}{_PAGER}")
    pager.chmod(0o700)
    terminal = Terminal(tmp_path, CRASHPAGER=str(pager))
    terminal.type("set scroll on")
    settings = termios.tcgetattr(terminal.process.fileno())
    for _ in range(20 if request.config.getoption("--all") else 3):
        # More than the pipe to the pager holds.
        terminal.process.sendline("kcensus slab --all --top 0")
        terminal.process.expect_exact("MORE")
        terminal.process.sendintr()
        terminal.process.expect_exact("INTERRUPTED")
        terminal.process.sendline("")
        terminal.process.expect_exact(_PROMPT)
        assert "Traceback" not in str(terminal.process.before)
        assert "48879" in terminal.type("eval 0xbeef | cat")
        assert terminal.children() == []
    assert termios.tcgetattr(terminal.process.fileno()) == settings
    terminal.quit()


def test_whole_output_through_the_pager(terminal: Terminal) -> None:
    """The pager gets what kcensus prints into a pipe, in lines as wide as the terminal."""
    terminal.type("set scroll on")
    terminal.process.sendline("kcensus explain slab-waste")
    pages = []
    while terminal.process.expect_exact([_PROMPT, "MORE", "(END)"]):
        pages.append(str(terminal.process.before))
        terminal.process.send(" " if terminal.process.after == "MORE" else "q")
    text = _CONTROL.sub("", "".join([*pages, str(terminal.process.before)]))
    expected = subprocess.run(
        [sys.executable, "-m", "kcensus", "explain", "slab-waste"],
        env={**os.environ, "COLUMNS": str(_COLUMNS)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    shown = [line.strip() for line in text.splitlines()]
    assert len(expected) > _ROWS
    assert [line for line in expected if line.strip() not in shown] == []


def test_no_colours_in_pipes_and_files(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("set scroll on")
    # Progress, which has colours, is on stderr: at the terminal itself.
    piped = terminal.type("kcensus slab --top 3 | cat -v")
    assert "^[" not in piped
    file = tmp_path / "slab.txt"
    terminal.type(f"kcensus slab --top 3 > {file}")
    text = file.read_text()
    assert "\x1b" not in text
    assert "slab pages" in piped
    assert "slab pages" in text


def test_usage_error_is_one_sentence(terminal: Terminal) -> None:
    terminal.type("set scroll on")
    text = terminal.type("kcensus slab --no-such-option")
    assert "--no-such-option" in text
    assert "Traceback" not in text
    assert terminal.children() == []
