# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples on a terminal, in place: moving figures, and findings that appear or go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from kcensus.human import counted, human, human_change, human_rate
from kcensus.progress import Progress, SilentProgress, Step
from kcensus.render.plain import NO_HOST
from kcensus.render.terminal import SEVERITY_STYLE
from kcensus.results import Finding, Unit, matters, rank
from kcensus.text import printable
from kcensus.watch.history import Event, History, Series, whole
from kcensus.watch.samples import Sample

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_NUMBER = 11
"""Width of a number."""
_MIN_SPARK, _MAX_SPARK = 8, 60
_MIN_LABEL = 12
_MIN_FINDINGS = 3
_MAX_PROBLEMS = 3
_MAX_EVENTS = 4
_POLL_SECONDS = 0.25
"""Seconds for which the view has the wrong size after a change of the terminal's."""
_ZERO = 3
"""Priority of a figure that is and was 0: little is lost without it."""


class View:
    """The content of the terminal, made for its size at each drawing.

    :param target: name of the target, printable
    :param wanted: names of the analyses
    :param every: seconds between samples
    :param is_unicode: whether the terminal shows more than ASCII
    """

    def __init__(
        self,
        target: str,
        wanted: Sequence[str],
        every: int,
        history: History,
        *,
        is_unicode: bool = True,
    ) -> None:
        self._target, self._wanted, self._every = target, wanted, every
        self._history, self._is_unicode = history, is_unicode
        self.sample: Sample | None = None
        self.cpu_share: float | None = None
        """Share of one CPU taken by samples so far."""
        self.busy = ""
        self.problems: dict[str, str] = {}
        """Problems outside of the sample, by kind."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        yield from self.lines(options.max_width, height)

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the lines that fit: at most ``height``, of at most ``width`` cells."""
        sample = self.sample
        if sample is None:
            busy = self.busy or "reading counters"
            return [self._fitted(Text(f"kcensus watch on {self._target}: {busy}"), width)]
        head = [Text(self._machine(sample), "bold"), Text(self._status(sample))]
        head += [Text(words, "bold red") for words in self._problems(sample)]
        findings = self._findings(sample)
        least = min(len(findings), max(_MIN_FINDINGS, height // 4))
        rows, hidden = self._rows(width, height - len(head) - least - 3)
        body = [*head, Text(), *rows]
        if hidden:
            more = f"{counted(hidden, 'more figure')}: heighten the terminal, or use --json"
            body.append(Text(f"  … {more}", "dim"))
        room = height - len(body) - 1
        if findings and room > 1:
            body += [Text(), *findings[: room - 1]]
        return [self._fitted(line, width) for line in body[:height]]

    def _fitted(self, line: Text, width: int) -> Text:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis" if self._is_unicode else "crop")
        return line

    def _machine(self, sample: Sample) -> str:
        machine = sample.machine
        facts = (
            "" if machine.host == NO_HOST else machine.host,
            f"Linux {machine.kernel}" if machine.kernel else "",
            f"{human(machine.ram_bytes, Unit.BYTES)} RAM" if machine.ram_bytes else "",
            counted(machine.cpus, "CPU") if machine.cpus else "",
        )
        words = ", ".join(printable(fact) for fact in facts if fact)
        return f"kcensus watch on {self._target}: {words}"

    def _status(self, sample: Sample) -> str:
        parts = [f"sample {sample.number:,}, every {self._every} s for {_span(sample.elapsed)}"]
        if self.busy:
            parts.append(self.busy)
        elif sample.census is not None:
            parts.append(f"census {_span(sample.time - sample.census.time)} ago")
        if self.cpu_share is not None:
            parts.append(f"{human(self.cpu_share, Unit.RATIO)} of a CPU")
        return f"{_clock(sample.time)}  {'; '.join(parts)}"

    def _problems(self, sample: Sample) -> list[str]:
        census = sample.census
        failed = {**(census.errors if census else {}), **sample.errors}
        words = [sample.unreadable, *self.problems.values()]
        words += [f"{name} failed: {why}" for name, why in failed.items()]
        return [printable(each) for each in words if each][:_MAX_PROBLEMS]

    def _rows(self, width: int, room: int) -> tuple[list[Text], int]:
        """Return a heading and the most telling figures, and the number of those without room."""
        wanted = [
            (level, series)
            for name in self._wanted
            for series in self._history.of(name)
            if (level := _priority(series)) is not None
        ]
        places = sorted(range(len(wanted)), key=lambda place: (wanted[place][0], place))
        kept = sorted(places[: max(room - 1, 1)])
        series = [wanted[place][1] for place in kept]
        names = max([cell_len(each.analysis) for each in series], default=0)
        labels = max([cell_len(each.label) for each in series], default=0)
        fixed = names + 3 * _NUMBER + 5
        spark = min(max(width - fixed - labels, _MIN_SPARK), _MAX_SPARK)
        label = max(min(labels, width - fixed - spark), _MIN_LABEL)
        words = (f"{word:>{_NUMBER}}" for word in ("now", "rate", "change"))
        heading = " ".join([" " * (names + label + 1), *words])
        lines, before = [Text(heading, "dim")], ""
        for each in series:
            name = each.analysis if each.analysis != before else ""
            before = each.analysis
            lines.append(self._row(each, name, names, label, spark))
        hidden = [level for place, (level, _) in enumerate(wanted) if place not in {*kept}]
        return lines, sum(level < _ZERO for level in hidden)

    def _row(self, series: Series, name: str, names: int, label: int, spark: int) -> Text:
        words = printable(series.label)
        if cell_len(words) > label:
            words = words[: label - 1] + ("…" if self._is_unicode else ".")
        rate, change = numbers(series)
        line = Text.assemble((f"{name:<{names}}", "bold"), " ", set_cell_size(words, label))
        line.append(f" {human(whole(series.last), series.unit):>{_NUMBER}}", "bold")
        line.append(f" {rate:>{_NUMBER}} {change:>{_NUMBER}} ")
        if series.has_moved:
            line.append(sparkline(series.values, spark, is_unicode=self._is_unicode), "cyan")
        else:
            line.stylize("dim")
        return line

    def _findings(self, sample: Sample) -> list[Text]:
        """Return new and gone findings, then all current findings, the most severe first."""
        events = list(reversed(self._history.events))[:_MAX_EVENTS]
        lines = [_event(event) for event in events]
        if sample.census is None:
            return lines
        new = {event.finding.id for event in events if event.has_appeared}
        standing = sorted(sample.census.findings, key=lambda pair: rank(pair[1]))
        current = [pair for pair in standing if matters(pair[1]) and pair[1].id not in new]
        return lines + [_finding(*pair) for pair in current]


def _priority(series: Series) -> int | None:
    """Return the priority of a figure for room: 0 is first; None: it says nothing."""
    if series.has_moved:
        return 0 if series.is_headline or series.is_gauge else 2
    if series.is_headline:
        return 1 if series.last else _ZERO
    return None


def numbers(series: Series) -> tuple[str, str]:
    """Return the rate of a figure, and its change since the start; empty without one."""
    if not series.has_moved:
        return "", ""
    # A time itself grows by a second per second.
    is_time = series.unit is Unit.SECONDS
    rate = "" if is_time or series.rate is None else human_rate(series.rate, series.unit)
    return rate, human_change(whole(series.last - series.first), series.unit)


def sparkline(values: Iterable[float], width: int, *, is_unicode: bool) -> str:
    """Return the last values as bars, from the smallest to the largest one."""
    last = list(values)[-width:]
    bars = _BARS if is_unicode else _ASCII_BARS
    low, high = min(last), max(last)
    if low == high:
        return bars[0] * len(last)
    top = len(bars) - 1
    return "".join(bars[round((value - low) / (high - low) * top)] for value in last)


def _span(seconds: float) -> str:
    whole = max(round(seconds), 0)
    return f"{whole} s" if whole < 60 else human(whole, Unit.SECONDS)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def _event(event: Event) -> Text:
    sign, words = ("+", "new") if event.has_appeared else ("-", "gone")
    line = Text(f"{sign} {_clock(event.time)} {words}  ")
    return line.append_text(_finding(event.analysis, event.finding))


def _finding(analysis: str, finding: Finding) -> Text:
    severity = finding.severity
    tag = (f"{severity.name:<8}", SEVERITY_STYLE[severity])
    return Text.assemble(tag, " ", printable(f"{analysis}: {finding.title}"))


class _Busy:
    """Shows the running part of a census; the steps inside a part are not shown."""

    def __init__(self, view: View, live: Live) -> None:
        self._view, self._live, self._depth = view, live, 0

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        self._depth += 1
        if self._depth == 1:
            self._view.busy = f"census, {printable(title)}"
            self._live.refresh()
        try:
            with SilentProgress().step(title, total) as step:
                yield step
        finally:
            self._depth -= 1
            if not self._depth:
                self._view.busy = ""


def shows_unicode(console: Console) -> bool:
    """Return whether a terminal has the characters of sparklines; Linux's own has few of them."""
    return console.encoding.startswith("utf") and os.environ.get("TERM") != "linux"


class Display:
    """Draws a view on the second screen of a terminal, which the context leaves as it was."""

    def __init__(self, view: View, console: Console) -> None:
        self._view, self._console = view, console
        self._live = Live(view, console=console, screen=True, auto_refresh=False)
        self.progress: Progress = _Busy(view, self._live)
        self._size = console.size

    def draw(self) -> None:
        self._size = self._console.size
        self._live.refresh()

    def wait(self, seconds: float) -> None:
        """Wait, and draw the view again whenever the size of the terminal changed."""
        # Not by SIGWINCH: a handler would interrupt the system calls with which drgn reads.
        end = time.monotonic() + seconds
        while True:
            if self._console.size != self._size:
                self.draw()
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _POLL_SECONDS))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the view until the context ends; the last one then stays on the first screen."""
        try:
            with self._live:
                yield
        finally:
            if self._view.sample is not None:
                self._view.busy = ""
                self._console.print(self._view)
