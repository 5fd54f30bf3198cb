# SPDX-License-Identifier: LGPL-2.1-or-later
"""crash at a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pexpect

from tests.vm.crash.session import Session

_SECONDS = 120
_PROMPT = "crash> "


class Prompt:
    def __init__(self, process: pexpect.spawn[str]) -> None:
        self.process = process

    def run(self, command: str, during: Callable[[], None] | None = None) -> str:
        """Run a command, and return what the terminal shows until the prompt is back.

        :param during: is called once the command has said that it is waiting
        """
        self.process.sendline(command)
        shown = ""
        if during is not None:
            self.process.expect("waiting\r\n")
            shown = self.process.before or ""
            during()
        self.process.expect_exact(_PROMPT)
        return shown + (self.process.before or "")

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def interrupt(self) -> None:
        self.process.sendintr()

    def hang_up(self) -> None:
        """Close the terminal, as a connection that breaks does."""
        self.process.ptyproc.fileobj.close()

    def signal(self, number: signal.Signals, pid: int = 0) -> None:
        """Send a signal to one process, by default crash."""
        os.kill(pid or self.pid, number)

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in listed.split()]

    def descriptors(self) -> list[str]:
        folder = Path(f"/proc/{self.pid}/fd")
        return sorted(os.readlink(entry) for entry in folder.iterdir())

    def settings(self) -> tuple[str, list[object]]:
        """Return which signals crash ignores, blocks and catches, and how its terminal is set."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        signals = re.findall(r"^(?:Sig|Shd)(?:Blk|Ign|Cgt):.*", status, re.MULTILINE)
        return " ".join(signals), termios.tcgetattr(self.process.child_fd)


@contextmanager
def at_prompt(
    session: Session,
    extension: Path,
    python: Path | str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Prompt]:
    """Start crash with the extension, and end it after the ``with``."""
    first, *arguments = session.arguments()
    process = pexpect.spawn(
        first,
        arguments,
        env={**os.environ, **environment, "KCENSUS_PYTHON": str(python), "TERM": "dumb"},
        timeout=_SECONDS,
        encoding="utf-8",
        codec_errors="backslashreplace",
        dimensions=(50, 120),
    )
    prompt = Prompt(process)
    try:
        process.expect_exact(_PROMPT)
        prompt.run("set scroll off")
        assert "shared object loaded" in prompt.run(f"extend {extension}")
        yield prompt
    finally:
        # SIGHUP, which close() sends first, takes crash long.
        with contextlib.suppress(ProcessLookupError):
            os.kill(prompt.pid, signal.SIGKILL)
        process.wait()
        process.close()


def wait_for(condition: Callable[[], bool]) -> bool:
    """Return whether a condition comes true, however busy the machine is."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def _stat(pid: int) -> list[str]:
    """Return the state of a process and what follows it in ``stat``; "Z" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (ProcessLookupError, FileNotFoundError):
        return ["Z"]


def has_ended(pid: int) -> bool:
    return wait_for(lambda: _stat(pid)[0] == "Z")


def reaches(pid: int, seconds: float) -> bool:
    """Return whether a process gets as far as it does in some seconds of CPU time.

    That is the same place beside any load.
    """
    ticks = seconds * os.sysconf("SC_CLK_TCK")
    wait_for(lambda: _stat(pid)[0] == "Z" or sum(map(int, _stat(pid)[11:13])) >= ticks)
    return _stat(pid)[0] != "Z"
