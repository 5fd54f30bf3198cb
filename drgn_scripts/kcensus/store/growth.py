# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of a history as a :class:`~kcensus.results.Result`: what grows first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kcensus.human import human, human_seconds, shown_time
from kcensus.progress import Progress
from kcensus.results import Danger, Figure, Finding, Gap, Remedy, Result, Severity, Unit
from kcensus.results.tables import Column, Show, TableSpec
from kcensus.store.layout import UNKNOWN_HOST
from kcensus.store.limits import MAX_EXTRAPOLATION, is_reclaimable, severity_of
from kcensus.store.statistics import MIN_POINTS, Slope, medians
from kcensus.store.trends import State, Trend, Trends, trends
from kcensus.text import printable

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-=*#"
"""Levels of a course, where blocks cannot be shown."""
_COURSE = 12
"""Characters of a course."""
_DAY, _HOUR = 86400.0, 3600.0
_MAX_HOURLY = _DAY / 2
"""Span up to which rates are per hour."""
_STEPS = ((_DAY, _HOUR), (10 * _HOUR, _HOUR), (_HOUR, 600.0), (600.0, 60.0))
"""From how many seconds on times are rounded to what: a forecast has two digits at most."""
_MAX_SECONDS = 3650 * _DAY
_MAX_CAUSES = 3
_UNNAMED = (UNKNOWN_HOST, "(none)", "localhost")
"""Names that several machines have."""

_TEXT, _NONE = Unit.TEXT, Unit.NONE
_ALWAYS, _WIDE, _DATA = Show.ALWAYS, Show.WIDE, Show.DATA
_TREND = {
    "metric": Column(_TEXT, "", _ALWAYS, "ANALYSIS.KEY, or ANALYSIS.TABLE.COLUMN."),
    "subject": Column(_TEXT, "", _ALWAYS, "Row of the table, such as a slab cache."),
    "rate": Column(_TEXT, "", _ALWAYS, "Slope of the latest regime."),
    "interval": Column(_TEXT, "95 % interval", _ALWAYS, "Of the rate."),
    "limit_in": Column(_TEXT, "reaches", _ALWAYS, "Limit, and time to it from the last record."),
    "course": Column(_TEXT, "", _WIDE, "All points of the boot, from the least to the largest."),
    "limit_interval": Column(_TEXT, "at the interval", _WIDE, "The same at the interval's ends."),
    "host": Column(_TEXT, "", _WIDE, "Name of the host."),
    "before": Column(_TEXT, "from", _WIDE, "Fitted value at the begin of the trend."),
    "after": Column(_TEXT, "to", _WIDE, "Fitted value at its end."),
    "span_seconds": Column(Unit.SECONDS, "span", _WIDE, "Time from the first to the last point."),
    "points": Column(Unit.COUNT, "", _WIDE, "Records that the trend is of."),
    "same_as": Column(_TEXT, "", _DATA, "Series above with the same values."),
    "state": Column(_TEXT, "", _DATA, "growing, shrinking, no trend, or too few points."),
    "since": Column(_TEXT, "", _DATA, "Time of its first point; the series was different before."),
    "until": Column(_TEXT, "", _DATA, "Time of its last point."),
    "is_current": Column(_NONE, "", _DATA, "Whether the latest record has it, in this boot."),
    "is_over": Column(_NONE, "", _DATA, "Whether that boot is over."),
    "is_cut": Column(_NONE, "", _DATA, "Whether its course was different before the trend."),
    "bends": Column(_NONE, "", _DATA, "Whether the rate changes; it is then that of the end."),
    "falls": Column(Unit.COUNT, "", _DATA, "Falls before the trend, larger than its rise."),
    "unit": Column(_TEXT, "", _DATA, "Unit of the exact values."),
    "rate_per_day": Column(_NONE, "", _DATA, "Exact rate."),
    "rate_per_day_low": Column(_NONE, "", _DATA, "Lower end of its 95 % interval."),
    "rate_per_day_high": Column(_NONE, "", _DATA, "Upper end of its 95 % interval."),
    "chance": Column(Unit.RATIO, "", _DATA, "Probability of such a trend where there is none."),
    "before_value": Column(_NONE, "", _DATA, "Exact fitted value at the begin of the trend."),
    "after_value": Column(_NONE, "", _DATA, "Exact fitted value at its end."),
    "limit": Column(_TEXT, "", _DATA, "Name of the limit."),
    "limit_value": Column(_NONE, "", _DATA, "Its value."),
    "limit_seconds": Column(Unit.SECONDS, "", _DATA, "Time until it is reached."),
    "limit_seconds_earliest": Column(Unit.SECONDS, "", _DATA, "At the upper end of the interval."),
    "limit_seconds_latest": Column(Unit.SECONDS, "", _DATA, "At the lower end; none: never."),
}
GROWING = TableSpec(
    "growing", "What grows", _TREND, "A series that grows; what reaches its limit first is on top."
)
SHRINKING = TableSpec("shrinking", "What shrinks", _TREND, "A series that shrinks.")
STEADY = TableSpec(
    "steady", "No trend", _TREND, "A series without a trend, or with too few points for one."
)
BOOTS = TableSpec(
    "boots",
    "Boots",
    {
        "host": Column(_TEXT, "", _ALWAYS, "Name of the host."),
        "boot": Column(_TEXT, "", _ALWAYS, "Identifies the boot; trends do not cross it."),
        "release": Column(_TEXT, "kernel", _ALWAYS, "Kernel release."),
        "records": Column(Unit.COUNT, "", _ALWAYS, "Records of it."),
        "first": Column(_TEXT, "", _ALWAYS, "Time of the first one, in UTC."),
        "last": Column(_TEXT, "", _ALWAYS, "Time of the last one, in UTC."),
    },
    "A boot of a host.",
)
TABLES = (GROWING, SHRINKING, STEADY, BOOTS)
FIRST_TABLES = ("growing",)
_STATES = {
    "growing": (State.GROWING,),
    "shrinking": (State.SHRINKING,),
    "steady": (State.STEADY, State.SHORT),
}


def growth(
    history: pd.DataFrame,
    name: str,
    *,
    context: pd.DataFrame | None = None,
    now: float | None = None,
    levels: str = BLOCKS,
    progress: Progress | None = None,
) -> Result:
    """Return what grows in a history, how fast, and when it reaches its limit.

    :param history: as ``kcensus.history()`` returns it; every series in it gets a trend
    :param name: of the store
    :param context: rows without a trend that say how severe the growth of others is
    :param now: seconds since 1970; hosts that are recorded no more then have no urgent finding.
        None where the history is not of hosts that still run
    :param levels: characters of courses, the lowest one first
    :raises KeyError: a column is missing
    """
    found = trends(history, progress, context=context, now=now)
    releases = ", ".join(dict.fromkeys(found.boots["release"]))
    result = Result("trend", name, releases, measures=False)
    hosts = found.boots["host"].unique()
    seconds = [each.times[-1] - each.times[0] for each in found.all]
    counts = {state: len(found.of(state)) for state in State}
    ended = sum(not each.is_current for each in found.of(State.GROWING))
    result.summary = {
        "growing": Figure(counts[State.GROWING] - ended, label="series that grow"),
        "grew": Figure(ended, label="series that grew until they ended"),
        "shrinking": Figure(counts[State.SHRINKING], label="series that shrink"),
        "no_trend": Figure(counts[State.STEADY], label="series without a trend"),
        "too_few_points": Figure(counts[State.SHORT], label="series with too few points"),
        "hosts": Figure(len(hosts), label="hosts"),
        "boots": Figure(len(found.boots), label="boots"),
        "records": Figure(int(found.boots["records"].sum()), label="records"),
        "span_seconds": Figure(max(seconds, default=0.0), Unit.SECONDS, "longest series"),
    }
    for spec in TABLES[:-1]:
        if len(hosts) > 1:
            shown = replace(spec.columns["host"], show=_ALWAYS)
            spec = replace(spec, columns={"host": shown} | _TREND | {"host": shown})
        rows = [_row(each, levels) for each in found.of(*_STATES[spec.name])]
        result.tables[spec.name] = spec.of(pd.DataFrame(rows, columns=[*_TREND], dtype=object))
    result.tables["boots"] = BOOTS.of(
        found.boots.assign(first=_times(found.boots["first"]), last=_times(found.boots["last"]))
    )
    result.findings = [*_findings(found)]
    if not counts[State.GROWING] and not result.findings:
        result.nothing = _nothing(counts, len(hosts), max(seconds, default=0.0))
    result.gaps = [*_gaps(found, hosts)]
    return result


def _gaps(found: Trends, hosts: Iterable[str]) -> Iterator[Gap]:
    """Yield what makes trends uncertain."""
    short = len(found.of(State.SHORT))
    if short and short < len(found.all):
        why = f"fewer than {MIN_POINTS} points in each boot"
        yield Gap("series", why, short, "whether they grow is unknown")
    if over := sum(each.is_over and each.slope is not None for each in found.all):
        why = f"the running boot has fewer than {MIN_POINTS} points"
        yield Gap("series", why, over, "their trend is that of an earlier boot")
    for host, last in found.stale.items():
        why = f"the last record of {printable(host)} is of {last:%Y-%m-%d %H:%M} UTC"
        yield Gap("hosts", why, 1, "what happened since is unknown; findings are at most a notice")
    for names, why, effect in (
        (found.overlapping, "two boots at the same time", "two machines may share this name"),
        (found.disordered, "the clock was set back", "records are in the order of uptimes"),
        (found.ahead, "records of the future", "their boot counts as the oldest"),
        ([each for each in hosts if each in _UNNAMED], "not a name of one host",
         "records of several machines may be mixed"),
    ):  # fmt: skip
        if names:
            yield Gap("hosts", f"{why}: {printable(', '.join(names))}", len(names), effect)


def _nothing(counts: dict[State, int], hosts: int, seconds: float) -> str:
    total, where = sum(counts.values()), f"{hosts:,} host{'s' * (hosts != 1)}"
    if not total:
        return "No series: the store has no record of these hosts, metrics and times."
    if counts[State.SHORT] == total:
        return f"Too few records: a trend needs {MIN_POINTS} of one boot ({total:,} series)."
    return f"Nothing grows: {total:,} series of {where} over {human_seconds(seconds)}."


def _row(trend: Trend, levels: str) -> dict[str, Any]:
    slope, limit = trend.slope, trend.limit
    until = [value if math.isfinite(value) else None for value in trend.until_limit or [np.inf] * 3]
    part = "" if trend.part == "summary" else f"{trend.part}."
    row = {
        "host": trend.host,
        "metric": f"{trend.analysis}.{part}{trend.metric}",
        "subject": trend.subject,
        "course": course(trend, levels),
        "limit_in": shown_limit(trend),
        "limit_interval": " to ".join(dict.fromkeys(map(_duration, (trend.until_limit or ())[1:]))),
        "limit": limit and limit.name,
        "limit_value": limit and limit.value,
        "limit_seconds": until[0],
        "limit_seconds_earliest": until[1],
        "limit_seconds_latest": until[2],
        "same_as": trend.same_as,
        "state": trend.state.value,
        "is_current": trend.is_current,
        "is_over": trend.is_over,
        "unit": trend.unit,
        "points": len(trend.times),
        "span_seconds": float(trend.times[-1] - trend.times[0]),
        "since": shown_time(float(trend.times[0])),
        "until": shown_time(float(trend.times[-1])),
    }
    if slope is None:
        return row | {"after": _amount(trend, trend.values[-1]), "after_value": trend.values[-1]}
    return row | {
        "rate": _rate(trend, slope.rate) + _per(trend),
        "interval": _interval(trend, slope),
        "before": _amount(trend, slope.before),
        "after": _amount(trend, slope.after),
        "points": slope.points,
        "span_seconds": trend.span,
        "since": shown_time(slope.first),
        "until": shown_time(slope.last),
        "rate_per_day": slope.rate * _DAY,
        "rate_per_day_low": slope.low * _DAY,
        "rate_per_day_high": slope.high * _DAY,
        "chance": slope.chance,
        "is_cut": slope.is_cut,
        "bends": slope.bends,
        "falls": slope.falls,
        "before_value": slope.before,
        "after_value": slope.after,
    }


def course(trend: Trend, levels: str = BLOCKS) -> str:
    """Return the points of a trend's boot as a row of characters, the lowest one first."""
    _, values = medians(trend.times, trend.values, _COURSE)
    values = values - values.min()
    scale = (len(levels) - 1) / (values.max() or 1)
    return "".join(levels[round(value * scale)] for value in values)


def shown_limit(trend: Trend) -> str:
    """Return when a trend reaches which limit, for people; empty where it has none."""
    if trend.slope and not trend.is_current:
        return "boot is over" if trend.is_over else "gone"
    if trend.limit is None or trend.until_limit is None:
        return ""
    if trend.until_limit[0] == 0:
        return f"{trend.limit.name} reached"
    return f"{trend.limit.name} in {_duration(trend.until_limit[0])}"


def _duration(seconds: float) -> str:
    if seconds > _MAX_SECONDS:
        return "over 10 years"
    step = next((step for most, step in _STEPS if seconds >= most), 1.0)
    seconds = round(seconds / step) * step
    if seconds > 10 * _DAY:
        return f"{seconds / _DAY:,.1f} d"
    return re.sub(r"(?<=[a-z]) 0 \w+$", "", human_seconds(seconds))


def _per(trend: Trend) -> str:
    return "/h" if trend.span <= _MAX_HOURLY else "/d"


def _rate(trend: Trend, rate: float) -> str:
    amount = rate * (_HOUR if trend.span <= _MAX_HOURLY else _DAY)
    return _amount(trend, amount)


def _interval(trend: Trend, slope: Slope) -> str:
    low, high = (_rate(trend, rate) for rate in (slope.low, slope.high))
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low} to {high}"


def _amount(trend: Trend, value: float) -> str:
    unit = Unit(trend.unit)
    is_whole = unit is Unit.BYTES or abs(value) >= 10
    return human(round(value) if is_whole else round(value, 2), unit)


def _times(times: Iterable[pd.Timestamp]) -> list[str]:
    return [time.isoformat(timespec="seconds") for time in times]


def _findings(found: Trends) -> Iterator[Finding]:
    """Yield what reaches a limit soon: of each host and limit, the most severe that is first."""
    most: dict[tuple[str, str], tuple[Severity, Trend]] = {}
    for trend in found.all:
        if trend.limit is None or trend.until_limit is None:
            continue
        severity = _severity(trend)
        key = trend.host, trend.limit.name
        if severity is not None and (key not in most or severity > most[key][0]):
            most[key] = severity, trend
    for severity, trend in most.values():
        yield _finding(trend, severity, _causes(trend, found))


def _is_reclaimable(trend: Trend) -> bool:
    of_memory = trend.limit is not None and trend.limit.danger is Danger.OOM
    return of_memory and is_reclaimable(
        trend.analysis, trend.metric, trend.rate, trend.reclaimable_rate
    )


def _severity(trend: Trend) -> Severity | None:
    """Return how severe it is that a trend reaches its limit; None if it is not a finding."""
    seconds = (trend.until_limit or (np.inf,))[0]
    severity = severity_of(seconds, trend.span)
    if severity is None:
        return None
    if trend.slope and trend.slope.falls and not trend.is_at_limit:
        severity = Severity.INFO
    slows = trend.slope is not None and trend.slope.slows and not trend.is_at_limit
    if slows or trend.is_stale or _is_reclaimable(trend):
        severity = min(severity, Severity.NOTICE)
    return severity


def _finding(trend: Trend, severity: Severity, causes: Sequence[Trend]) -> Finding:
    slope, limit, until = trend.slope, trend.limit, trend.until_limit
    assert limit is not None
    assert until is not None
    value = slope.after if slope and not trend.is_at_limit else float(trend.values[-1])
    reached = f"{limit.name} ({_amount(trend, value)} of {_amount(trend, limit.value)})"
    figures = {
        "value": Figure(value, Unit(trend.unit)),
        "limit": Figure(float(limit.value), Unit(trend.unit)),
        "limit_seconds": Figure(until[0], Unit.SECONDS),
        "limit_seconds_earliest": Figure(until[1], Unit.SECONDS),
        "limit_seconds_latest": Figure(until[2] if math.isfinite(until[2]) else None, Unit.SECONDS),
    }
    if slope is not None:
        rates = {"": slope.rate, "_low": slope.low, "_high": slope.high}
        figures |= {
            f"rate_per_day{end}": Figure(rate * _DAY, Unit(trend.unit))
            for end, rate in rates.items()
        }
    if slope is None or trend.is_at_limit:
        title = f"{trend.name} has reached {reached}"
    else:
        per = f"{_rate(trend, slope.rate)}{_per(trend)}"
        title = f"{trend.name} grows by {per} and reaches {reached} {_when(trend, until[0])}"
    if is_reclaimed := _is_reclaimable(trend):
        title += "; most of it is reclaimable"
    return Finding(
        id=f"reaches-limit:{trend.host}:{limit.name}",
        severity=severity,
        danger=Danger.NONE if is_reclaimed else limit.danger,
        title=printable(f"{trend.host}: {title}"),
        evidence=printable("; ".join(_evidence(trend, causes))),
        figures=figures,
        remedies=(
            Remedy(
                effect=printable(f"On {trend.host}, show what it is and what to do about it"),
                command="kcensus report",
            ),
        ),
    )


def _evidence(trend: Trend, causes: Sequence[Trend]) -> Iterator[str]:
    """Yield what a finding is based on, and what makes it uncertain."""
    slope, limit, until = trend.slope, trend.limit, trend.until_limit
    assert limit is not None
    assert until is not None
    last = shown_time(round(float(trend.times[-1])))
    if slope is None or trend.is_at_limit:
        yield f"in the last record, of {last}"
    else:
        yield (
            f"{_interval(trend, slope)}{_per(trend)} (95 % interval) from {slope.points:,} records"
            f" over {human_seconds(trend.span)}"
        )
        earliest, latest = _duration(until[1]), _duration(until[2])
        between = f"between {earliest} and {latest}" if earliest != latest else f"about {latest}"
        yield f"{between} after the last record, of {last}"
        if slope.bends:
            changes = "rises" if slope.acceleration > 0 else "falls"
            yield f"its rate {changes}: the last one is assumed, and the interval has the change"
        if slope.is_cut:
            yield f"since {shown_time(round(slope.first))}; its course was different before"
        if slope.falls:
            yield f"it fell back {slope.falls:,} time{'s' * (slope.falls != 1)} before that"
        if until[0] > MAX_EXTRAPOLATION * trend.span:
            yield f"uncertain, because it is more than {MAX_EXTRAPOLATION} times the span ahead"
    if limit.danger is Danger.OOM and not trend.is_at_limit:
        yield "other users of memory make it sooner"
    if _is_reclaimable(trend):
        yield "the kernel reclaims most of it before it runs out of memory"
    if trend.is_stale:
        yield "the host has not been recorded since"
    if causes:
        names = "; ".join(f"{each.name} {_rate(each, each.rate)}{_per(each)}" for each in causes)
        yield f"fastest parts: {names}"


def _when(trend: Trend, seconds: float) -> str:
    """Return the time of what is so many seconds after the last record."""
    if not seconds:
        return "now"
    time = shown_time(round((float(trend.times[-1]) + seconds) / 60) * 60)
    about = f" (about {time[:16].replace('T', ' ')} UTC)" if time else ""
    return f"{_duration(seconds)} after its last record{about}"


def _causes(trend: Trend, found: Trends) -> list[Trend]:
    """Return the rows of tables that grow fastest, of those that run into the same limit."""
    parts = [
        each
        for each in found.of(State.GROWING)
        if each.subject and each.is_current and not each.same_as
        and each.host == trend.host and each.limit == trend.limit
    ]  # fmt: skip
    return sorted(parts, key=lambda each: -each.rate)[:_MAX_CAUSES]
