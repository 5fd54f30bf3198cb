# SPDX-License-Identifier: LGPL-2.1-or-later
"""The trends of a history as a :class:`~kcensus.results.Result`, urgent growth first."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import pandas as pd

from kcensus.human import human, human_seconds, listed, shown_time
from kcensus.progress import Progress
from kcensus.results import Danger, Figure, Finding, Gap, Remedy, Result, Severity, Unit
from kcensus.results.tables import (
    ALWAYS,
    COUNT,
    DATA,
    NONE,
    RATIO,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    make_tables,
)
from kcensus.store.ceilings import (
    MAX_EXTRAPOLATION,
    URGENT_POINTS,
    Limit,
    growth_of,
    is_reclaimable,
    severity_of,
)
from kcensus.store.chart import chart
from kcensus.store.layout import UNNAMED
from kcensus.store.statistics import MIN_POINTS, medians
from kcensus.store.trends import Ends, State, Trend, Trends, trends
from kcensus.text import printable

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-=*#"
"""Levels of a course, if blocks cannot be shown."""
_TIMES = ("first", "last")
_COURSE = 12
"""Characters of a course."""
_DAY, _HOUR = 86400.0, 3600.0
_MAX_HOURLY = _DAY / 2
"""Span up to which rates are per hour."""
_STEPS = ((_DAY, _HOUR), (10 * _HOUR, _HOUR), (_HOUR, 600.0), (600.0, 60.0))
"""Precision of shown times, by least seconds: a forecast has two digits at most."""
_MAX_SECONDS = 3650 * _DAY
_MAX_CAUSES = 3
_MAX_PARTS = 2
_MAX_CHARTS = 2
_MAX_STALE = 3


class _Shown(NamedTuple):
    found: Trends
    levels: str
    """Characters of courses, the lowest one first."""


class _Row(NamedTuple):
    trend: Trend
    levels: str

    @property
    def metric(self) -> str:
        trend = self.trend
        part = "" if trend.part == "summary" else f"{trend.part}."
        return f"{trend.analysis}.{part}{trend.metric}"

    # Of the whole boot without a trend

    @property
    def points(self) -> int:
        return self.trend.slope.points if self.trend.slope else len(self.trend.times)

    @property
    def first(self) -> float:
        return self.trend.slope.first if self.trend.slope else float(self.trend.times[0])

    @property
    def last(self) -> float:
        return self.trend.slope.last if self.trend.slope else float(self.trend.times[-1])

    @property
    def after(self) -> float:
        return self.trend.slope.after if self.trend.slope else self.trend.values[-1]

    def until(self, end: int) -> float | None:
        """Return the seconds to the limit, or at an end of the interval; None for never."""
        known = None if self.trend.is_far else self.trend.until_limit
        seconds = known[end] if known else math.inf
        return seconds if math.isfinite(seconds) else None


class _Line(NamedTuple):
    line: str


class _Growth(NamedTuple):
    """What grows together: parts of one amount, or one thing in bytes and as a count."""

    name: str
    trends: list[Trend]
    """The most urgent one first."""
    levels: str

    @property
    def lead(self) -> _Row:
        return _Row(self.trends[0], self.levels)

    @property
    def mostly(self) -> str:
        """The fastest parts of the leading series."""
        lead = self.trends[0]
        parts = [
            each
            for each in self.trends[1:]
            if each.subject and each.unit == lead.unit and each.part != "memcgs"
        ]
        parts.sort(key=lambda each: -each.rate)
        shown = {each.subject: _shown_rate(each) for each in reversed(parts[:_MAX_PARTS])}
        return ", ".join(f"{subject} {rate}" for subject, rate in reversed(shown.items()))


def growths(found: Trends, levels: str) -> list[_Growth]:
    """Return the growing series of running boots by what grows, the first at its limit on top."""
    groups: dict[tuple[str, str], list[Trend]] = {}
    for trend in found.of(State.GROWING):
        if trend.is_current and not trend.is_over:
            name = growth_of(trend.analysis, trend.metric, trend.unit)
            groups.setdefault((trend.host, name), []).append(trend)
    return [_Growth(name, trends, levels) for (_, name), trends in groups.items()]


def _rows(*states: State) -> Callable[[_Shown], list[_Row]]:
    return lambda shown: [_Row(trend, shown.levels) for trend in shown.found.of(*states)]


def _fitted(name: str, scale: float = 1) -> Callable[[_Row], Any]:
    """Return the getter of an attribute of the slope; None without one."""

    def get(row: _Row) -> Any:
        value = None if row.trend.slope is None else getattr(row.trend.slope, name)
        return value * scale if scale != 1 and value is not None else value

    return get


def _boots(shown: _Shown) -> pd.DataFrame:
    boots = shown.found.boots
    times = {name: [time.isoformat(timespec="seconds") for time in boots[name]] for name in _TIMES}
    return boots.assign(**times)


_TREND = {
    "metric": Column(TEXT, "", ALWAYS, "ANALYSIS.KEY, or ANALYSIS.TABLE.COLUMN."),
    "subject": Column(TEXT, "", ALWAYS, "Row of the table, such as a slab cache.", "trend.subject"),
    "rate": Column(TEXT, "", ALWAYS, "Slope since the last change of course.",
        lambda row: _shown_rate(row.trend)),
    "interval": Column(TEXT, "95 % interval", ALWAYS, "Interval of the rate.",
        lambda row: _interval(row.trend)),
    "limit_in": Column(TEXT, "reaches", ALWAYS,
        f"Limit, and time from the last record, within {MAX_EXTRAPOLATION} times the span.",
        lambda row: shown_limit(row.trend)),
    "course": Column(TEXT, "", WIDE, "Values of the boot, scaled from the lowest to the highest.",
        lambda row: course(row.trend, row.levels)),
    "limit_interval": Column(TEXT, "at the interval", WIDE,
        "Time to the limit at both ends of the 95 % interval.",
        lambda row: " to ".join(dict.fromkeys(map(_duration, _near(row.trend)[1:])))),
    "host": Column(TEXT, "", WIDE, "Name of the host.", "trend.host"),
    "before": Column(TEXT, "from", WIDE, "Fitted value at the begin of the trend.",
        lambda row: row.trend.slope and _amount(row.trend, row.trend.slope.before)),
    "after": Column(TEXT, "to", WIDE, "Fitted value at the end of the trend.",
        lambda row: _amount(row.trend, row.after)),
    "span_seconds": Column(SECONDS, "span", WIDE, "Time from the first to the last point.",
        lambda row: row.last - row.first),
    "points": Column(COUNT, "", WIDE, "Records of the trend."),
    "same_as": Column(TEXT, "", DATA, "Series above with the same values.", "trend.same_as"),
    "state": Column(TEXT, "", DATA, "growing, shrinking, no trend, or too few points.",
        "trend.state.value"),
    "since": Column(TEXT, "", DATA, "Time of the first point of the trend.",
        lambda row: shown_time(row.first)),
    "until": Column(TEXT, "", DATA, "Time of the last point of the trend.",
        lambda row: shown_time(row.last)),
    "is_current": Column(NONE, "", DATA, "Whether the latest record of this boot has the series.",
        "trend.is_current"),
    "is_over": Column(NONE, "", DATA, "Whether the boot of the trend has ended.", "trend.is_over"),
    "is_cut": Column(NONE, "", DATA, "Whether the series took another course before the trend.",
        _fitted("is_cut")),
    "unit": Column(TEXT, "", DATA, "Unit of the exact values.", "trend.unit"),
    "rate_per_day": Column(NONE, "", DATA, "Exact rate.", _fitted("rate", _DAY)),
    "rate_per_day_low": Column(NONE, "", DATA, "Lower end of the 95 % interval.",
        _fitted("low", _DAY)),
    "rate_per_day_high": Column(NONE, "", DATA, "Upper end of the 95 % interval.",
        _fitted("high", _DAY)),
    "chance": Column(RATIO, "", DATA, "Probability of such a trend by chance.", _fitted("chance")),
    "before_value": Column(NONE, "", DATA, "Exact fitted value at the begin of the trend.",
        _fitted("before")),
    "after_value": Column(NONE, "", DATA, "Exact fitted value at the end of the trend.", "after"),
    "limit": Column(TEXT, "", DATA, "Name of the limit.",
        lambda row: row.trend.limit and row.trend.limit.name),
    "limit_value": Column(NONE, "", DATA, "Value of the limit.",
        lambda row: row.trend.limit and row.trend.limit.value),
    "limit_seconds": Column(SECONDS, "", DATA, "Time to the limit.",
        lambda row: row.until(0)),
    "limit_seconds_earliest": Column(SECONDS, "", DATA,
        "Time to the limit at the upper end of the interval.",
        lambda row: row.until(1)),
    "limit_seconds_latest": Column(SECONDS, "", DATA,
        "Time to the limit at the lower end of the interval; none: never.",
        lambda row: row.until(2)),
}  # fmt: skip
GROWTHS = TableSpec("growths", "What grows", {
    "growth": Column(TEXT, "", ALWAYS, "Series that are parts of one amount.", "name"),
    "rate": Column(TEXT, "", ALWAYS, "Slope of the series that leads.",
        lambda row: _shown_rate(row.lead.trend)),
    "limit_in": replace(_TREND["limit_in"], get=lambda row: shown_limit(row.lead.trend)),
    "mostly": Column(TEXT, "", ALWAYS, "Fastest parts."),
    "series": Column(COUNT, "", ALWAYS, "Series that are parts of it, in the table growing.",
        lambda row: len(row.trends)),
    "course": replace(_TREND["course"],
        get=lambda row: course(row.lead.trend, row.levels)),
    "leader": Column(TEXT, "leading series", WIDE, "The series with the rate.",
        lambda row: row.lead.metric),
    "host": replace(_TREND["host"], get="lead.trend.host"),
}, "A growth, the first to reach its limit on top.",
    rows=lambda shown: growths(shown.found, shown.levels))  # fmt: skip
CHART = TableSpec("chart", "The way to the limits", {
    "line": Column(TEXT, "records, and the trend until the limit", ALWAYS, "A line of a drawing.",
        is_drawn=True),
}, "A line of a drawing.", rows=lambda shown: _drawn(shown))  # fmt: skip
GROWING = TableSpec("growing", "Growing series", _TREND,
    "A series that grows, the first to reach its limit on top.", rows=_rows(State.GROWING),
    keeps_types=True)  # fmt: skip
SHRINKING = TableSpec("shrinking", "Shrinking series", _TREND, "A series that shrinks.",
    rows=_rows(State.SHRINKING), keeps_types=True)  # fmt: skip
STEADY = TableSpec("steady", "Series without a trend", _TREND,
    "A series without a trend, or with too few points for one.",
    rows=_rows(State.STEADY, State.SHORT), keeps_types=True)  # fmt: skip
_ENDS = ("limit_seconds", "limit_seconds_earliest", "limit_seconds_latest")
BOOTS = TableSpec("boots", "Boots", {
    "host": Column(TEXT, "", ALWAYS, "Name of the host."),
    "boot": Column(TEXT, "", ALWAYS, "Identifier of the boot; trends do not cross boots."),
    "release": Column(TEXT, "kernel", ALWAYS, "Kernel release."),
    "records": Column(COUNT, "", ALWAYS, "Records of the boot."),
    "first": Column(TEXT, "", ALWAYS, "Time of the first record, in UTC."),
    "last": Column(TEXT, "", ALWAYS, "Time of the last record, in UTC."),
}, "A boot of a host.", rows=_boots)  # fmt: skip
TABLES = (GROWTHS, CHART, GROWING, SHRINKING, STEADY, BOOTS)
FIRST_TABLES = ("growths", "chart")


def growth(
    history: pd.DataFrame,
    name: str,
    *,
    context: pd.DataFrame | None = None,
    now: float | None = None,
    levels: str = BLOCKS,
    progress: Progress | None = None,
) -> Result:
    """Return the growth in a history, its rates, and the times to its limits.

    :param history: a result of ``kcensus.history()``; every series in it gets a trend
    :param name: of the store
    :param context: rows without a trend that determine the severity of other series' growth
    :param now: seconds since 1970; hosts without recent records have no urgent finding. None for a
        history of hosts that no longer run
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
        "grew": Figure(ended, label="series that grew and then ended"),
        "shrinking": Figure(counts[State.SHRINKING], label="series that shrink"),
        "no_trend": Figure(counts[State.STEADY], label="series without a trend"),
        "too_few_points": Figure(counts[State.SHORT], label="series with too few points"),
        "hosts": Figure(len(hosts), label="hosts"),
        "boots": Figure(len(found.boots), label="boots"),
        "records": Figure(int(found.boots["records"].sum()), label="records"),
        "span_seconds": Figure(max(seconds, default=0.0), Unit.SECONDS, "longest series"),
    }
    specs: Sequence[TableSpec] = TABLES
    if len(hosts) > 1:
        specs = [_of_hosts(spec) for spec in TABLES]
    result.tables = make_tables(specs, _Shown(found, levels))
    result.findings = [*_findings(found)]
    if not counts[State.GROWING] and not result.findings:
        result.nothing = _nothing(counts, len(hosts), max(seconds, default=0.0))
    result.gaps = [*_gaps(found, hosts)]
    return result


def _of_hosts(spec: TableSpec) -> TableSpec:
    """Return a table of trends of several hosts, with the host first."""
    if spec in (CHART, BOOTS):
        return spec
    host = {"host": replace(spec.columns["host"], show=ALWAYS)}
    return replace(spec, columns=host | dict(spec.columns) | host)


def _gaps(found: Trends, hosts: Iterable[str]) -> Iterator[Gap]:
    short = len(found.of(State.SHORT))
    if short and short < len(found.all):
        why = f"fewer than {MIN_POINTS} points in each boot"
        yield Gap("series", why, short, "the growth of these series is unknown")
    if over := sum(each.is_over and each.slope is not None for each in found.all):
        why = f"the running boot has fewer than {MIN_POINTS} points"
        yield Gap("series", why, over, "trends of these series come from an earlier boot")
    if stale := sorted(found.stale.items(), key=lambda each: each[1], reverse=True):
        last = [f"{printable(host)}: {time:%Y-%m-%d %H:%M} UTC" for host, time in stale]
        why = f"no recent record; the last ones are of {listed(last, _MAX_STALE, '; ')}"
        effect = "later growth is unknown; findings are at most a notice"
        yield Gap("hosts", why, len(stale), effect)
    for names, why, effect in (
        (found.ahead, "records with a time in the future",
         "the boot of these records counts as the oldest"),
        ([each for each in hosts if each in UNNAMED], "not the name of one host",
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


def course(trend: Trend, levels: str = BLOCKS) -> str:
    """Return the points of a trend's boot as a row of characters, the lowest one first."""
    _, values = medians(trend.times, trend.values, _COURSE)
    values = values - values.min()
    scale = (len(levels) - 1) / (values.max() or 1)
    return "".join(levels[round(value * scale)] for value in values)


def shown_limit(trend: Trend) -> str:
    """Return the limit of a trend, and when it is reached; empty without one."""
    if trend.slope and not trend.is_current:
        return "boot is over" if trend.is_over else "gone"
    if trend.limit is None or trend.until_limit is None:
        return ""
    if trend.until_limit[0] == 0:
        return f"{trend.limit.name} reached"
    if trend.is_far:
        return f"{trend.limit.name} beyond {_duration(MAX_EXTRAPOLATION * trend.span)}"
    return f"{trend.limit.name} in {_duration(trend.until_limit[0])}"


def _near(trend: Trend) -> Ends | tuple[()]:
    """Return the times to the limit; empty without a limit, or without a forecast."""
    return () if trend.is_far else trend.until_limit or ()


def _drawn(shown: _Shown) -> list[_Line]:
    """Return the charts of the first growths on their way to a limit."""
    lines: list[_Line] = []
    trends = (each.trends[0] for each in growths(shown.found, shown.levels))
    on_the_way = (each for each in trends if each.limit and each.slope and _near(each))
    for trend in islice(on_the_way, _MAX_CHARTS):
        lines += [_Line("")] * bool(lines)
        lines.append(_Line(printable(f"{trend.host}: {trend.words}")))
        lines += map(_Line, chart(trend, _amount, shown.levels))
    return lines


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
    return _amount(trend, rate * (_HOUR if trend.span <= _MAX_HOURLY else _DAY))


def _shown_rate(trend: Trend) -> str | None:
    return _rate(trend, trend.slope.rate) + _per(trend) if trend.slope else None


def _interval(trend: Trend) -> str | None:
    if trend.slope is None:
        return None
    low, high = (_rate(trend, rate) for rate in (trend.slope.low, trend.slope.high))
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low} to {high}"


def _amount(trend: Trend, value: float) -> str:
    unit = Unit(trend.unit)
    is_whole = unit is Unit.BYTES or abs(value) >= 10
    return human(round(value) if is_whole else round(value, 2), unit)


def _findings(found: Trends) -> Iterator[Finding]:
    """Yield a finding for each host and limit reached soon, about the first most severe trend."""
    most: dict[tuple[str, str], tuple[Severity, Trend, Limit, Ends]] = {}
    for trend in found.all:
        limit, until = trend.limit, trend.until_limit
        if limit is None or until is None:
            continue
        severity = _severity(trend, until[0])
        key = trend.host, limit.name
        if severity is not None and (key not in most or severity > most[key][0]):
            most[key] = severity, trend, limit, until
    for each in most.values():
        yield _finding(*each, _fastest_parts(each[1], found))


def _is_reclaimable(trend: Trend) -> bool:
    of_memory = trend.limit is not None and trend.limit.danger is Danger.OOM
    return of_memory and is_reclaimable(
        trend.analysis, trend.metric, trend.rate, trend.reclaimable_rate
    )


def _severity(trend: Trend, seconds: float) -> Severity | None:
    severity = None if trend.is_far else severity_of(seconds)
    if severity is None:
        return None
    slope = None if trend.is_at_limit else trend.slope
    if (slope and slope.points < URGENT_POINTS) or trend.is_stale or _is_reclaimable(trend):
        severity = min(severity, Severity.NOTICE)
    return severity


def _finding(
    severity: Severity, trend: Trend, limit: Limit, until: Ends, causes: Sequence[Trend]
) -> Finding:
    slope, unit = trend.slope, Unit(trend.unit)
    value = slope.after if slope and not trend.is_at_limit else float(trend.values[-1])
    share = f"{_amount(trend, value)} of {_amount(trend, limit.value)}"
    share += "" if unit is Unit.BYTES else " in use"
    reached = f"{limit.words or limit.name} ({share})"
    figures = {"value": Figure(value, unit), "limit": Figure(float(limit.value), unit)}
    for end, seconds in zip(_ENDS, until, strict=True):
        figures[end] = Figure(seconds if math.isfinite(seconds) else None, Unit.SECONDS)
    if slope is not None:
        rates = {"": slope.rate, "_low": slope.low, "_high": slope.high}
        figures |= {f"rate_per_day{end}": Figure(rates[end] * _DAY, unit) for end in rates}
    if slope is None or trend.is_at_limit:
        title = f"{trend.words} has reached {reached}"
    else:
        per = _shown_rate(trend)
        title = f"{trend.words} grows by {per} and reaches {reached} {_when(trend, until[0])}"
    if is_reclaimed := _is_reclaimable(trend):
        title += "; most of this memory is reclaimable"
    remedy = printable(f"Run on {trend.host} to see the findings and their remedies")
    return Finding(
        id=f"reaches-limit:{trend.host}:{limit.name}",
        severity=severity,
        danger=Danger.NONE if is_reclaimed else limit.danger,
        title=printable(f"{trend.host}: {title}"),
        evidence=printable("; ".join(_evidence(trend, limit, until, causes))),
        figures=figures,
        remedies=(Remedy(effect=remedy, command="kcensus report"),),
    )


def _evidence(trend: Trend, limit: Limit, until: Ends, causes: Sequence[Trend]) -> Iterator[str]:
    """Yield the basis of a finding, and its uncertainties."""
    slope, last = trend.slope, _clock(float(trend.times[-1]))
    if slope is None or trend.is_at_limit:
        yield f"last record: {last}"
    else:
        yield (
            f"{_interval(trend)}{_per(trend)} (95 % interval) from {slope.points:,} records"
            f" over {human_seconds(trend.span)}"
        )
        earliest, latest = _duration(until[1]), _duration(until[2])
        between = f" ({earliest} to {latest} before the limit)" if earliest != latest else ""
        yield f"last record: {last}{between}"
        if slope.is_cut:
            yield f"since {_clock(slope.first)}; the series took another course before"
        if slope.points < URGENT_POINTS:
            yield f"fewer than {URGENT_POINTS} records cannot show whether the growth slows"
        if until[0] > trend.span:
            times = until[0] / trend.span
            yield f"the forecast reaches {times:.1f} times as far as the records"
    if limit.danger is Danger.OOM and not trend.is_at_limit:
        yield "other users of memory shorten the time"
    if _is_reclaimable(trend):
        yield "the kernel can reclaim most of this memory before memory runs out"
    if trend.is_stale:
        yield "the host has no recent record"
    if causes:
        names = "; ".join(f"{each.words} {_shown_rate(each)}" for each in causes)
        yield f"fastest parts: {names}"


def _when(trend: Trend, seconds: float) -> str:
    if not seconds:
        return "now"
    time = _clock(float(trend.times[-1]) + seconds)
    return f"{_duration(seconds)} after the last record{f' (about {time})' if time else ''}"


def _clock(seconds: float) -> str:
    """Return a time in UTC, to the minute; empty for a time beyond all calendars."""
    time = shown_time(round(seconds / 60) * 60)
    return f"{time[:16].replace('T', ' ')} UTC" if time else ""


def _fastest_parts(trend: Trend, found: Trends) -> list[Trend]:
    parts = [
        each
        for each in found.of(State.GROWING)
        if each.subject and each.is_current and not each.same_as
        and each.host == trend.host and each.limit == trend.limit
    ]  # fmt: skip
    return sorted(parts, key=lambda each: -each.rate)[:_MAX_CAUSES]
