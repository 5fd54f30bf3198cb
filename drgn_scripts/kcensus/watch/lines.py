# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples as lines: words for a pipe, a log, or a terminal that cannot draw in place; or JSON.

``watch_sample`` in ``kcensus --json-schema`` describes the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from kcensus.human import human, human_rate, shown_time
from kcensus.render.json import dumps
from kcensus.render.plain import SCHEMA, installed_version, plain, value_of
from kcensus.results import Figure, Finding, Gauge, Unit, matters
from kcensus.text import printable
from kcensus.watch.history import History, Series, whole
from kcensus.watch.samples import Census, Sample


def lines(sample: Sample, history: History, wanted: Sequence[str]) -> Iterator[str]:
    """Yield a line per analysis with the figures that moved, and one per new or gone finding.

    :param sample: the last one of ``history``
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
            # It moved since the value before, or is shown for the first time.
            if series.rate
            or (
                series.rate is None
                and (series.is_gauge or (series.is_headline and bool(series.last)))
            )
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


def _words(series: Series) -> str:
    value = f"{printable(series.label)} {human(whole(series.last), series.unit)}"
    if series.rate is None or series.unit is Unit.SECONDS:
        return value
    return f"{value} ({human_rate(series.rate, series.unit)})"


def write_sample(sample: Sample, history: History, target: str, out: TextIO) -> None:
    """Write a sample, the last one of ``history``, as one line, and flush it.

    :param target: name of the target, printable
    """
    out.write(dumps(document(sample, history, target)) + "\n")
    out.flush()


def document(sample: Sample, history: History, target: str) -> dict[str, Any]:
    """Return a sample, the last one of ``history``, for JSON."""
    machine = sample.machine
    is_new = sample.is_census and sample.census is not None
    gauges = {name: {each.key: each for each in own} for name, own in sample.gauges.items()}
    return {
        "schema": SCHEMA,
        "kcensus": installed_version(),
        "sample": sample.number,
        "time": shown_time(sample.time),
        "elapsed_seconds": round(sample.elapsed, 3),
        "target": target,
        "host": printable(machine.host),
        "kernel": printable(machine.kernel),
        "boot": printable(machine.boot),
        "seconds": round(sample.seconds, 6),
        "cpu_seconds": round(sample.cpu_seconds, 6),
        "unreadable": printable(sample.unreadable),
        **_figures("gauges", gauges, history, is_gauge=True),
        "failed": dict(sample.errors),
        "census": _census(sample.census, history) if is_new and sample.census else None,
    }


def _census(census: Census, history: History) -> dict[str, Any]:
    events = history.new_events
    results = census.results.items()
    summaries = {name: counted.summary for name, counted in results}
    return {
        "number": census.number,
        "seconds": round(census.seconds, 3),
        "cpu_seconds": round(census.cpu_seconds, 3),
        **_figures("summary", summaries, history, is_gauge=False),
        "findings": [_finding(name, finding) for name, finding in census.findings],
        "appeared": [_finding(each.analysis, each.finding) for each in events if each.has_appeared],
        "went": [_finding(each.analysis, each.finding) for each in events if not each.has_appeared],
        "gaps": {name: counted.gaps for name, counted in results},
        "checks_differ": {name: counted.checks_differ for name, counted in results},
        "failed": dict(census.errors),
    }


def _figures(
    key: str,
    figures: Mapping[str, Mapping[str, Figure | Gauge]],
    history: History,
    *,
    is_gauge: bool,
) -> dict[str, Any]:
    """Return the values of figures by analysis, under ``key``, and their rates and units."""
    known = figures.items()
    return {
        key: {name: {each: value_of(own[each]) for each in own} for name, own in known},
        "rates": {name: history.rates(name, own, is_gauge=is_gauge) for name, own in known},
        "units": {name: {each: own[each].unit.value for each in own} for name, own in known},
    }


def _finding(analysis: str, finding: Finding) -> dict[str, Any]:
    return {
        "analysis": analysis,
        "id": printable(finding.id),
        "severity": plain(finding.severity),
        "title": printable(finding.title),
        "holds_bytes": finding.holds,
    }
