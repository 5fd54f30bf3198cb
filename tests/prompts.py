# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prompts of Python at a terminal: that of ``kcensus shell`` and that of drgn."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pexpect

PROMPT = ">>> "


@contextmanager
def at_terminal(command: Sequence[str], home: Path) -> Iterator[pexpect.spawn[str]]:
    environment = {**os.environ, "XDG_STATE_HOME": str(home), "HOME": str(home)}
    environment |= {"TERM": "xterm", "PYTHON_BASIC_REPL": "1", "KCENSUS_PAGER": "cat"}
    first, *words = command
    child = pexpect.spawn(first, words, encoding="utf-8", timeout=300, env=environment)
    child.setwinsize(40, 100)
    try:
        yield child
    finally:
        child.close(force=True)


def answer(prompt: pexpect.spawn[str], line: str, until: str = PROMPT) -> str:
    """Return what a line makes the prompt show."""
    prompt.sendline(line)
    prompt.expect_exact(line)
    # readline may draw the prompt and the line again, before it takes the line.
    prompt.expect_exact("\r\n")
    prompt.expect_exact(until)
    return str(prompt.before).strip()


def interrupt(prompt: pexpect.spawn[str], lines: dict[str, str]) -> None:
    """Interrupt the analysis of slabs that each line starts; then, words are shown."""
    answer(prompt, "import os, time; import kcensus.analyses.slab.run as run")
    # Python drops a Ctrl-C that meets code which cannot raise, as before the analysis.
    answer(prompt, "run.run = lambda *_, **__: (os.write(2, b'wait' b'ing'), time.sleep(600))")
    for line, words in lines.items():
        prompt.sendline(line)
        # The progress bar hides the cursor, before or after the analysis begins.
        assert {prompt.expect_exact(["\x1b[?25l", "waiting"]) for _ in range(2)} == {0, 1}
        prompt.sendintr()
        for shown in ("\x1b[?25h", words, PROMPT):
            prompt.expect_exact(shown)
    assert answer(prompt, "1 + 1") == "2"
