# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples as lines, for a pipe, a log, or a terminal that cannot draw in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcensus.human import human, human_rate, shown_time
from kcensus.results import Unit, matters
from kcensus.text import printable
from kcensus.watch.history import History, Series, whole
from kcensus.watch.samples import Sample


def lines(sample: Sample, history: History, wanted: Sequence[str]) -> Iterator[str]:
    """Yield a line per analysis with the figures that moved, and one per finding that did.

    :param sample: one that ``history`` has
    :param wanted: names of the analyses
    """
    time = (shown_time(round(sample.time)) or "").replace("+00:00", "Z")
    if sample.unreadable:
        yield f"{time} failed: {printable(sample.unreadable)}"
        return
    census = sample.census if sample.is_census else None
    failed = {**(census.errors if census else {}), **sample.errors}
    for name in wanted:
        if name in failed:
            yield f"{time} {name}: failed: {printable(failed[name])}"
        moved = [
            _words(series)
            for series in history.of(name)
            if name in (sample.gauges if series.is_gauge else census.results if census else ())
            if _says_something(series)
        ]
        if moved:
            yield f"{time} {name}: {'; '.join(moved)}"
    for event in history.new_events:
        what = "new finding" if event.has_appeared else "finding is gone"
        severity = event.finding.severity.name
        yield f"{time} {event.analysis}: {what}: {severity} {printable(event.finding.title)}"
    if census and history.is_first_census:
        for name, finding in census.findings:
            if matters(finding):
                yield f"{time} {name}: finding: {finding.severity.name} {printable(finding.title)}"


def _says_something(series: Series) -> bool:
    """Return whether a figure moved since the value before, or is shown for the first time."""
    if series.rate is None:
        return series.is_gauge or (series.is_headline and bool(series.last))
    return series.rate != 0


def _words(series: Series) -> str:
    value = f"{printable(series.label)} {human(whole(series.last), series.unit)}"
    if series.rate is None or series.unit is Unit.SECONDS:
        return value
    return f"{value} ({human_rate(series.rate, series.unit)})"
