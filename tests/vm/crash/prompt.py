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
    """crash, at its prompt."""

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
        """Press Ctrl-C, which reaches all processes at the terminal."""
        self.process.sendintr()

    def hang_up(self) -> None:
        """Close the terminal, as a connection that breaks does."""
        self.process.ptyproc.fileobj.close()

    def signal(self, number: signal.Signals, pid: int = 0) -> None:
        """Send a signal to one process, by default crash."""
        os.kill(pid or self.pid, number)

    def children(self) -> list[int]:
        """Return the processes that crash has, zombies included."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in listed.split()]

    def descriptors(self) -> list[str]:
        """Return what crash has open."""
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


def has_ended(pid: int, seconds: float = 10) -> bool:
    """Return whether a process ends within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (ProcessLookupError, FileNotFoundError):
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False
