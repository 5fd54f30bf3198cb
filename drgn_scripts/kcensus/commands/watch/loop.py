# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sample a kernel at intervals, and show the samples."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kcensus import samples, saved, sources
from kcensus.analyses import Analysis, analyses
from kcensus.analyses.runner import Context
from kcensus.commands import Exit
from kcensus.commands.shared.errors import complain, verdict
from kcensus.commands.shared.options import Reading
from kcensus.commands.shared.output import stdout
from kcensus.commands.shared.target import chosen_analyses, context_of, errors_of_target, opened
from kcensus.commands.shared.ticks import ticks
from kcensus.human import counted
from kcensus.limits import memory
from kcensus.outputs import OutputError, check_writable, on_termination
from kcensus.progress import Progress, SilentProgress
from kcensus.render.screen import console_for
from kcensus.text import printable
from kcensus.watch.exposition import MetricsFile, serving
from kcensus.watch.history import History
from kcensus.watch.lines import lines, write_sample
from kcensus.watch.metrics import Metrics
from kcensus.watch.sampler import Sampler
from kcensus.watch.samples import Sample
from kcensus.watch.screen import Display, View, shows_unicode

_KINDS = {"Anon": "anonymous", "File": "file"}
"""Labels of the fields of /proc/PID/status."""


def run(
    words: tuple[str, ...],
    every: int,
    count: int | None,
    census: int | None,
    as_json: bool,
    metrics: Path | None,
    listen: tuple[str, int] | None,
    rows: int,
    reading: Reading,
) -> Exit:
    """Sample a running kernel until Ctrl-C, and show what changes."""
    wanted, spec = _parsed(words)
    file = MetricsFile(_collected(metrics)) if metrics else None
    history, exported = History(wanted), Metrics(_labels(spec), rows=rows)
    sample = None
    try:
        with ExitStack() as stack:
            stack.enter_context(_terminated_like_interrupted())
            if file:
                # While signals are handled: another signal must not leave the file behind.
                stack.callback(file.remove)
            if listen:
                stack.enter_context(serving(exported, *listen))
            with (
                _opened(spec, reading) as (context, progress),
                progress.step("loading the debug info of modules", 0),
            ):
                sampler = Sampler(context, wanted, census=census)
            del context  # it would keep a lost target open
            # The memory limit of opening holds while the target is read: here, until the end.
            stack.enter_context(memory.limited(memory.current()))
            is_exported = bool(file or listen)
            face = _face(sampler, history, wanted, every, json=as_json, is_exported=is_exported)

            def late() -> None:
                if not sampler.took_census:  # that may take its time
                    face.problem(
                        "late",
                        f"a sample takes longer than the interval of {every} s; pass a longer "
                        "--interval",
                    )

            stack.enter_context(face.shown())
            sampler.show_progress(face.progress)
            for _ in ticks(every, late, sleep=face.wait):
                if sampler.is_lost:
                    _reopen(sampler, spec, reading, face)
                with errors_of_target():
                    sample = sampler.take()
                history.add(sample)
                cpu_seconds, resident = sampler.cpu_seconds, _resident_bytes()
                exported.set(sample, every=every, cpu_seconds=cpu_seconds, resident_bytes=resident)
                if file:
                    _write(exported, file, face)
                if sample.seconds < every:
                    face.problem("late", "")
                face.show(sample)
                if sample.number == count:
                    if file:
                        file.keep()
                    break
    except KeyboardInterrupt:
        if sample is None:
            raise
        click.echo(f"kcensus: stopped after {counted(sample.number, 'sample')}", err=True)
    return _status(sample)


def _status(sample: Sample | None) -> Exit:
    if sample is None or sample.unreadable:
        return Exit.TARGET
    failed = sample.errors or (sample.census and sample.census.errors)
    return Exit.INCOMPLETE if failed else Exit.DONE


def _parsed(words: tuple[str, ...]) -> tuple[list[Analysis], str | None]:
    """Return the analyses and the target that the arguments name."""
    known = analyses()
    names = ",".join(known)
    if words and all(name.strip() in known for name in words[0].split(",")):
        names, words = words[0], words[1:]
    if len(words) > 1:
        raise click.UsageError(
            f"'{printable(words[0])}' is not an analysis (choose from {', '.join(known)})"
        )
    spec = words[0] if words else None
    if spec and ":" not in spec and not samples.capsule(spec) and not os.path.exists(spec):
        raise click.UsageError(
            f"'{printable(spec)}' is neither an analysis ({', '.join(known)}) nor a target"
        )
    return chosen_analyses(names), spec


def _collected(path: Path) -> Path:
    """Return the path if node_exporter reads files of its name, and it can be written."""
    if path.suffix != ".prom":
        raise click.UsageError(
            f"--metrics: '{printable(str(path))}' does not end in '.prom', and node_exporter reads "
            "no other files; choose a name such as 'kcensus.prom'"
        )
    check_writable(path)
    return path


@contextmanager
def _opened(spec: str | None, reading: Reading) -> Iterator[tuple[Context, Progress]]:
    """Open a running kernel, and show progress until the context ends."""
    if not saved.is_document(spec):
        with opened(spec, reading) as (target, progress):
            if target.live:
                # The screen shows progress of censuses in its own way.
                yield context_of(target, SilentProgress(), reading), progress
                return
    name = printable(str(spec))
    raise click.UsageError(f"'{name}' is not a running kernel; use `kcensus report {name}`")


def _reopen(sampler: Sampler, spec: str | None, reading: Reading, face: _Face) -> None:
    """Open the target again: the guest may have been restarted."""
    # A QEMU guest serves one client, so the connection must not outlive the lost target.
    gc.collect()
    try:
        # Bars would be drawn across the terminal's screen.
        with _opened(spec, replace(reading, no_progress=True)) as (context, _):
            sampler.attach(context)
        sampler.show_progress(face.progress)
        face.problem("target", "")
    except Exception as error:
        face.problem("target", verdict(error)[1])


def _labels(spec: str | None) -> dict[str, str]:
    """Return labels that distinguish the metrics of several guests on one host."""
    return {} if spec is None or sources.is_running_kernel(spec) else {"guest": spec}


def _write(metrics: Metrics, file: MetricsFile, face: _Face) -> None:
    try:
        file.write(metrics)
        face.problem("metrics", "")
    except OutputError as error:
        face.problem("metrics", str(error))


def _resident_bytes() -> dict[str, int]:
    """Return the RAM of this process by kind, without unknown kinds."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return {}
    found = re.findall(r"^Rss(Anon|File):\s+(\d+) kB$", status, re.MULTILINE)
    return {_KINDS[name]: int(size) << 10 for name, size in found}


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the context like Ctrl-C, so that the terminal is restored."""
    is_ending = False

    def interrupt(number: int, before: object) -> None:
        nonlocal is_ending
        if not is_ending:  # another one must not interrupt the handling of the first
            is_ending = True
            raise KeyboardInterrupt

    with on_termination(interrupt):
        yield


class _Face:
    """Shows samples by a function, and problems on stderr.

    :ivar show: shows a sample that the history has
    :ivar wait: waits for the next sample
    """

    progress: Progress = SilentProgress()

    def __init__(self, show: Callable[[Sample], object]) -> None:
        self.show = show
        self.wait: Callable[[float], object] = time.sleep
        self._problems: dict[str, str] = {}

    def shown(self) -> AbstractContextManager[Any]:
        """Return the context in which samples are shown."""
        return nullcontext()

    def problem(self, kind: str, sentence: str) -> None:
        """Show a problem in place of the last one of its kind; an empty sentence ends it."""
        if sentence and sentence != self._problems.get(kind):
            complain(sentence)
        self._problems[kind] = sentence


class _Terminal(_Face):
    def __init__(self, view: View, display: Display, sampler: Sampler) -> None:
        super().__init__(self._draw)
        self._view, self._display, self._sampler = view, display, sampler
        self.progress, self.wait = display.progress, display.wait

    def shown(self) -> AbstractContextManager[Any]:
        return self._display.shown()

    def _draw(self, sample: Sample) -> None:
        if sample.elapsed:
            self._view.cpu_share = self._sampler.cpu_seconds / sample.elapsed
        self._view.sample = sample
        self._display.draw()

    def problem(self, kind: str, sentence: str) -> None:
        self._view.problems[kind] = sentence


def _face(
    sampler: Sampler,
    history: History,
    wanted: Sequence[Analysis],
    every: int,
    *,
    json: bool,
    is_exported: bool,
) -> _Face:
    """Return the view of samples: on a terminal in place, elsewhere unless they are exported."""
    if json:
        out = stdout(encoding="utf-8")
        return _Face(lambda sample: write_sample(sample, history, sampler.target, out))
    names = [analysis.name for analysis in wanted]
    console = console_for(stdout())
    if console.is_terminal and not console.is_dumb_terminal:
        is_unicode = shows_unicode(console)
        view = View(sampler.target, names, every, history, is_unicode=is_unicode)
        return _Terminal(view, Display(view, console), sampler)
    if is_exported:
        return _Face(lambda sample: None)
    return _Face(lambda sample: [*map(click.echo, lines(sample, history, names))])
