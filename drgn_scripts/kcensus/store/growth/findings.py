# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of trends: limits that a host reaches soon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kcensus.human import human_seconds
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.store.ceilings import URGENT_POINTS, Limit, growth_of, is_reclaimable, severity_of
from kcensus.store.growth.words import DAY, amount, clock, day, duration, interval, per, shown_rate
from kcensus.store.trends import Ends, State, Trend, Trends
from kcensus.text import printable

_ENDS = ("limit_seconds", "limit_seconds_earliest", "limit_seconds_latest")
_MAX_CAUSES = 3


def findings(found: Trends) -> Iterator[Finding]:
    """Yield a finding for each host and limit reached soon, about the first most severe trend."""
    most: dict[tuple[str, str], tuple[Severity, Trend, Limit, Ends]] = {}
    wholes = {_growth(trend) for trend in found.of(State.GROWING) if trend.is_whole}
    for trend in found.all:
        limit, until = trend.limit, trend.until_limit
        if limit is None or until is None:
            continue
        if _growth(trend) in wholes and not (trend.is_whole or trend.is_at_limit):
            continue  # the rate of a part is no better known
        severity = _severity(trend, until[0])
        if severity is None:
            continue
        now = most.get((trend.host, limit.name))
        if now is None or (severity, trend.is_whole) > (now[0], now[1].is_whole):
            most[trend.host, limit.name] = severity, trend, limit, until
    for each in most.values():
        yield _finding(*each, _fastest_parts(each[1], found))


def _growth(trend: Trend) -> tuple[str, str, str, bool]:
    name = growth_of(trend.analysis, trend.metric, trend.unit)
    return trend.host, name, trend.limit.name if trend.limit else "", trend.is_current


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
    share = f"{amount(trend, value)} of {amount(trend, limit.value)}"
    share += "" if unit is Unit.BYTES else " in use"
    reached = f"{limit.words or limit.name} ({share})"
    figures = {"value": Figure(value, unit), "limit": Figure(float(limit.value), unit)}
    for end, seconds in zip(_ENDS, until, strict=True):
        figures[end] = Figure(seconds if math.isfinite(seconds) else None, Unit.SECONDS)
    if slope is not None:
        rates = {"": slope.rate, "_low": slope.low, "_high": slope.high}
        figures |= {f"rate_per_day{end}": Figure(rates[end] * DAY, unit) for end in rates}
    if slope is None or trend.is_at_limit:
        title = f"{trend.words} has reached {reached}"
    else:
        rate, when = shown_rate(trend), _when(trend, until)
        title = f"{trend.words} grows by {rate} and reaches {reached} {when}"
    if is_reclaimed := _is_reclaimable(trend):
        title += "; most of this memory is reclaimable"
    is_ahead = slope is not None and until[1] > 0
    before = f"Act before {day(trend, until[1])}: run" if is_ahead else "Run"
    remedy = printable(f"{before} on {trend.host} to see the findings and their remedies")
    return Finding(
        id=f"reaches-limit:{trend.host}:{limit.name}",
        severity=severity,
        danger=Danger.NONE if is_reclaimed else limit.danger,
        title=printable(f"{trend.host}: {title}"),
        evidence=printable("; ".join(_evidence(trend, limit, until, causes))),
        figures=figures,
        remedies=(Remedy(effect=remedy, command="kcensus report"),),
    )


def _when(trend: Trend, until: Ends) -> str:
    """Return the expected time of the limit, and the earliest and the latest one."""
    if not until[0]:
        return "now"
    expected, earliest, latest = (day(trend, seconds) for seconds in until)
    return f"about {expected} (earliest {earliest}, latest {latest or 'never'})"


def _evidence(trend: Trend, limit: Limit, until: Ends, causes: Sequence[Trend]) -> Iterator[str]:
    """Yield the basis of a finding, and its uncertainties."""
    slope, last = trend.slope, clock(float(trend.times[-1]))
    if slope is None or trend.is_at_limit:
        yield f"last record: {last}"
    else:
        yield (
            f"{interval(trend)}{per(trend)} (95 % interval) from {slope.points:,} records"
            f" over {human_seconds(trend.span)}"
        )
        yield f"last record: {last}, {duration(until[0])} before the limit"
        if slope.is_cut:
            yield f"since {clock(slope.first)}; the series took another course before"
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
        names = "; ".join(f"{each.words} {shown_rate(each)}" for each in causes)
        yield f"fastest parts: {names}"


def _fastest_parts(trend: Trend, found: Trends) -> list[Trend]:
    parts = [
        each
        for each in found.of(State.GROWING)
        if each.subject and each.is_current and not each.same_as
        and each.host == trend.host and each.limit == trend.limit
    ]  # fmt: skip
    return sorted(parts, key=lambda each: -each.rate)[:_MAX_CAUSES]
