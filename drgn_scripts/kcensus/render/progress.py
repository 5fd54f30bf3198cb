# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress bars on stderr, for commands that take longer than two seconds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TextIO

import rich.progress
from rich.console import Console
from rich.text import Text

from kcensus.outputs import before_termination
from kcensus.progress import Progress, Step
from kcensus.text import printable

_PATIENCE = 2.0
_REFRESH = 0.1

# Worker processes are forked while bars are drawn. Drawing holds this lock and a fork waits for it,
# so that no child inherits the locks of a half-written line.
_drawing = threading.Lock()
os.register_at_fork(
    before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release
)


class _Step:
    def __init__(self, bars: rich.progress.Progress, task: rich.progress.TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: int = 1) -> None:
        self._bars.advance(self._task, amount)

    def skip(self, amount: int = 1) -> None:
        # advance() and update() of Rich count for the speed.
        for task in self._bars.tasks:
            if task.id == self._task:
                task.completed += amount


class _Bars:
    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        # Steps and the steps in them; the last one is shown, below the titles of all.
        self._running: list[tuple[str, rich.progress.TaskID]] = []

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        titles = [*(name for name, _ in self._running), printable(title)]
        task = self._bars.add_task(": ".join(titles), total=total or None)
        for _, outer in self._running[-1:]:
            self._bars.update(outer, visible=False)
        self._running.append((printable(title), task))
        try:
            yield _Step(self._bars, task)
        finally:
            self._running.pop()
            self._bars.remove_task(task)
            for _, outer in self._running[-1:]:
                self._bars.update(outer, visible=True)


class _Rate(rich.progress.ProgressColumn):
    """The number of units that are done, and per minute."""

    def render(self, task: rich.progress.Task) -> Text:
        total = f" of {task.total:,.0f}" if task.total is not None else ""
        rate = f", {task.speed * 60:,.0f} a minute" if task.speed else ""
        return Text(f"{task.completed:,.0f}{total}{rate}")


@contextmanager
def terminal_progress(
    stream: TextIO, patience: float = _PATIENCE, *, with_rate: bool = False
) -> Iterator[Progress]:
    """Draw bars with an estimate of the time left, from ``patience`` seconds on.

    However the context ends, the bars are erased and the cursor is shown.

    :param with_rate: also show the number of units, and the rate
    """
    bars = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=24),
        rich.progress.TaskProgressColumn(),
        *[_Rate()] * with_rate,
        rich.progress.TimeRemainingColumn(),
        console=Console(file=stream, markup=False, highlight=False, emoji=False),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
    )
    over = threading.Event()

    def draw() -> None:
        if over.wait(patience):
            return
        with _drawing:
            bars.start()
        while not over.wait(_REFRESH):
            with _drawing:
                bars.refresh()
        with _drawing:
            bars.stop()

    # A thread, because a step may take long before it first advances.
    thread = threading.Thread(target=draw, name="progress", daemon=True)
    thread.start()
    try:
        with _shown_cursor(stream):
            yield _Bars(bars)
    finally:
        over.set()
        thread.join()


@contextmanager
def _shown_cursor(stream: TextIO) -> Iterator[None]:
    """Let SIGTERM and SIGHUP first erase the bar, and show the cursor."""

    def erase() -> None:
        with suppress(OSError, ValueError):
            os.write(stream.fileno(), b"\r\x1b[K\x1b[?25h")

    with before_termination(erase) if stream.isatty() else nullcontext():
        yield
