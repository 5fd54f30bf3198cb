# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress bars on stderr, for commands that take longer than two seconds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from kcensus.progress import Step
from kcensus.text import printable

_PATIENCE = 2.0
_REFRESH = 0.1

# Worker processes are forked while bars are drawn. Drawing holds this lock and a fork waits for it,
# so that no child inherits the locks of a half-written line.
_drawing = threading.Lock()
os.register_at_fork(
    before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release
)


class _BarStep:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, amount: int = 1) -> None:
        self._bars.advance(self._task, amount)


class TerminalProgress:
    """Bars with an estimate of the time left, drawn from the third second on.

    A context manager: however it ends, the bars are erased and the cursor is shown.
    """

    def __init__(self, stream: TextIO, patience: float = _PATIENCE) -> None:
        console = Console(file=stream, markup=False, highlight=False, emoji=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._patience = patience
        self._over = threading.Event()
        # A thread, because a step may take long before it first advances.
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> TerminalProgress:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _draw(self) -> None:
        if self._over.wait(self._patience):
            return
        with _drawing:
            self._bars.start()
        while not self._over.wait(_REFRESH):
            with _drawing:
                self._bars.refresh()
        with _drawing:
            self._bars.stop()

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        """Announce a step of ``total`` units; 0 where that is unknown."""
        task = self._bars.add_task(printable(title), total=total or None)
        try:
            yield _BarStep(self._bars, task)
        finally:
            self._bars.remove_task(task)
