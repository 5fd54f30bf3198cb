# SPDX-License-Identifier: LGPL-2.1-or-later
"""A console that a pager shows, where the output goes to a terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console

from kcensus.render.screen import console_for

_LESS_OPTIONS = "FRX"
"""Unless LESS is set: leave at once what fits the screen, show colours, keep the text shown."""


def _command() -> list[str]:
    """Return the pager of KCENSUS_PAGER, PAGER, or less; nothing where that cannot run."""
    settings = (os.environ.get(name) for name in ("KCENSUS_PAGER", "PAGER"))
    try:
        words = shlex.split(next((text for text in settings if text is not None), "less"))
    except ValueError:  # a quotation without an end
        return []
    return words if words and words != ["cat"] and shutil.which(words[0]) else []


@contextmanager
def paged_console(stream: TextIO, *, wanted: bool = True) -> Iterator[Console]:
    """Yield a console on a pager if ``stream`` is a terminal, otherwise on ``stream``.

    :param wanted: whether to use a pager
    """
    command = _command() if wanted and stream.isatty() else []
    if not command:
        yield console_for(stream)
        return
    pager = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env={"LESS": _LESS_OPTIONS, **os.environ},
        encoding=stream.encoding,
        errors="backslashreplace",
    )
    assert pager.stdin is not None
    # Ctrl-C is for the pager: it stops a search, for instance.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):  # the user has seen enough
            yield console_for(pager.stdin, is_paged=True)
    finally:
        with suppress(BrokenPipeError):
            pager.stdin.close()
        pager.wait()
        signal.signal(signal.SIGINT, before)
