# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample as one line of JSON; ``watch_sample`` in ``kcensus --json-schema`` describes it."""

from __future__ import annotations

import json
from typing import Any, TextIO

from kcensus.human import shown_time
from kcensus.render.plain import SCHEMA, installed_version, plain
from kcensus.results import Finding
from kcensus.text import printable
from kcensus.watch.history import History
from kcensus.watch.samples import Census, Sample


def write_sample(sample: Sample, history: History, target: str, out: TextIO) -> None:
    """Write a sample, which ``history`` has, as one line, and flush it.

    :param target: what is watched, printable
    """
    out.write(json.dumps(document(sample, history, target), allow_nan=False) + "\n")
    out.flush()


def document(sample: Sample, history: History, target: str) -> dict[str, Any]:
    """Return a sample, which ``history`` has, as JSON has it."""
    machine = sample.machine
    is_new = sample.is_census and sample.census is not None
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
        "gauges": {
            name: {gauge.key: gauge.value for gauge in gauges}
            for name, gauges in sample.gauges.items()
        },
        "rates": {
            name: history.rates(name, [gauge.key for gauge in gauges], is_gauge=True)
            for name, gauges in sample.gauges.items()
        },
        "units": {
            name: {gauge.key: gauge.unit.value for gauge in gauges}
            for name, gauges in sample.gauges.items()
        },
        "failed": dict(sample.errors),
        "census": _census(sample.census, history) if is_new and sample.census else None,
    }


def _census(census: Census, history: History) -> dict[str, Any]:
    events = history.new_events
    results = census.results.items()
    return {
        "number": census.number,
        "seconds": round(census.seconds, 3),
        "cpu_seconds": round(census.cpu_seconds, 3),
        "summary": {
            name: {key: plain(figure.value) for key, figure in counted.summary.items()}
            for name, counted in results
        },
        "rates": {
            name: history.rates(name, counted.summary, is_gauge=False) for name, counted in results
        },
        "units": {
            name: {key: figure.unit.value for key, figure in counted.summary.items()}
            for name, counted in results
        },
        "findings": [_finding(name, finding) for name, finding in census.findings],
        "appeared": [_finding(each.analysis, each.finding) for each in events if each.has_appeared],
        "went": [_finding(each.analysis, each.finding) for each in events if not each.has_appeared],
        "gaps": {name: counted.gaps for name, counted in results},
        "checks_differ": {name: counted.checks_differ for name, counted in results},
        "failed": dict(census.errors),
    }


def _finding(analysis: str, finding: Finding) -> dict[str, Any]:
    return {
        "analysis": analysis,
        "id": printable(finding.id),
        "severity": plain(finding.severity),
        "title": printable(finding.title),
        "holds_bytes": finding.holds,
    }
