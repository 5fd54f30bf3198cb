# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of trends: limits that a host reaches soon."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kcensus.human import counted, human_seconds, listed
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.store.ceilings import (
    STALE_INTERVALS,
    STALE_SECONDS,
    TOGETHER,
    URGENT_POINTS,
    USED,
    Limit,
    growth_of,
    is_reclaimable,
    severity_of,
)
from kcensus.store.growth.parts import container, growths, parts_of
from kcensus.store.growth.words import (
    DAY,
    amount,
    clock,
    day,
    days,
    duration,
    interval,
    per,
    shown_rate,
)
from kcensus.store.statistics import WEEK
from kcensus.store.trends import Ends, State, Trend, Trends
from kcensus.text import printable

_ENDS = ("limit_seconds", "limit_seconds_earliest", "limit_seconds_latest")
_MAX_CAUSES, _MAX_HOSTS = 3, 6


def findings(found: Trends) -> Iterator[Finding]:
    """Yield a finding for each host and limit reached soon, about the first most severe trend.

    The first limit comes first; hosts without a recent record are one more finding.
    """
    most: dict[tuple[str, str], tuple[Severity, Trend, Limit, Ends]] = {}
    earliest: dict[tuple[str, str], float] = {}
    wholes = {_growth(trend) for trend in found.of(State.GROWING) if trend.is_whole}
    for trend in found.all:
        limit, until = trend.limit, trend.until_limit
        if limit is None or until is None:
            continue
        if _growth(trend) in wholes and not (trend.is_whole or trend.is_at_limit):
            continue  # the rate of a part is no better known
        if not trend.is_far:
            first = earliest.get((trend.host, limit.name), math.inf)
            first = min(first, float(trend.times[-1]) + until[1])
            earliest[trend.host, limit.name] = first
        severity = _severity(trend, until)
        if severity is None:
            continue
        now = most.get((trend.host, limit.name))
        if now is None or (severity, trend.scope) > (now[0], now[1].scope):
            most[trend.host, limit.name] = severity, trend, limit, until
    if found.silent:
        yield _silent(found)
    for host_limit, each in sorted(most.items(), key=lambda item: item[1][1].urgency):
        yield _finding(*each, earliest[host_limit], found)


def _growth(trend: Trend) -> tuple[str, str, str, bool]:
    name = growth_of(trend.analysis, trend.metric, trend.unit)
    return trend.host, name, trend.limit.name if trend.limit else "", trend.is_current


def _is_reclaimable(trend: Trend) -> bool:
    of_memory = trend.limit is not None and trend.limit.danger is Danger.OOM
    return of_memory and is_reclaimable(
        trend.analysis, trend.metric, trend.rate, trend.reclaimable_rate
    )


def _severity(trend: Trend, until: Ends) -> Severity | None:
    """Return the severity of a limit, by its earliest time, before which to act."""
    expected, earliest, _ = until
    severity = None if trend.is_far else severity_of(earliest - trend.age)
    if severity is None:
        return None
    if trend.limit and trend.limit.is_throttle:
        return Severity.NOTICE
    is_old = trend.is_stale and not trend.age
    if is_old or _is_reclaimable(trend):
        return min(severity, Severity.NOTICE)
    slope = None if trend.is_at_limit else trend.slope
    is_new = slope is not None and slope.points < URGENT_POINTS and expected > trend.span
    # After a start, programs fill their caches for hours, to a size that they are given.
    is_new |= slope is not None and trend.span < DAY and (trend.analysis, trend.metric) == USED
    return min(severity, Severity.WARNING) if is_new or trend.is_stale else severity


def _silent(found: Trends) -> Finding:
    """Return the finding about hosts that are recorded no more."""
    hosts = sorted(found.silent, key=lambda host: found.silent[host])
    last = [
        f"{host} since {found.stale[host]:%Y-%m-%d %H:%M} UTC ({duration(found.silent[host])})"
        for host in hosts
    ]
    return Finding(
        id="host-silent",
        severity=Severity.WARNING,
        title=printable(
            f"{counted(len(hosts), 'host')} without a recent record: {listed(last, _MAX_HOSTS)}"
        ),
        evidence=(
            f"recent is {STALE_INTERVALS} usual intervals of the host, and at least"
            f" {human_seconds(STALE_SECONDS)}; a limit may have been reached unseen"
        ),
        figures={"hosts": Figure(len(hosts))},
        remedies=(
            Remedy(
                effect="See on the host whether it runs, and why its timer does not record; "
                "--since leaves hosts out that are gone",
                command="systemctl status kcensus-record.timer",
            ),
        ),
    )


def _finding(
    severity: Severity, trend: Trend, limit: Limit, until: Ends, earliest: float, found: Trends
) -> Finding:
    slope, unit = trend.slope, Unit(trend.unit)
    value = float(trend.values[-1])
    share = f"{amount(trend, value)} of {amount(trend, limit.value)}"
    share += "" if unit is Unit.BYTES else " in use"
    reached = f"{limit.words or limit.name} ({share})"
    figures = {"value": Figure(value, unit), "limit": Figure(float(limit.value), unit)}
    for end, seconds in zip(_ENDS, until, strict=True):
        left = max(seconds - trend.age, 0.0)
        figures[end] = Figure(left if math.isfinite(left) else None, Unit.SECONDS)
    if slope is not None:
        rates = {"": slope.rate, "_low": slope.low, "_high": slope.high}
        figures |= {f"rate_per_day{end}": Figure(rates[end] * DAY, unit) for end in rates}
    if slope is None or trend.is_at_limit:
        title = f"{trend.words} has reached {reached}"
    elif trend.is_past:
        last = clock(float(trend.times[-1]))
        title = f"{trend.words} grew by {shown_rate(trend)}, and {reached} was due"
        title += f" {day(trend, until[0])} (last record {last})"
    else:
        rate, when = shown_rate(trend), _when(trend, until)
        title = f"{trend.words} grows by {rate} and reaches {reached} {when}"
    if is_reclaimed := _is_reclaimable(trend):
        title += "; most of this memory is reclaimable"
    left = earliest - float(trend.times[-1])
    is_ahead = slope is not None and left > trend.age
    before = f"Act before {day(trend, left)}: run" if is_ahead else "Act now: run"
    remedy = printable(f"{before} on {trend.host} to see the findings and their remedies")
    return Finding(
        id=f"reaches-limit:{trend.host}:{limit.name}",
        severity=severity,
        danger=Danger.NONE if is_reclaimed else limit.danger,
        title=printable(f"{trend.host}: {title}"),
        evidence=printable(
            "; ".join([*_evidence(trend, limit, until), *_others(trend, limit, found)])
        ),
        figures=figures,
        remedies=(Remedy(effect=remedy, command="kcensus report"),),
    )


def _when(trend: Trend, until: Ends) -> str:
    """Return the expected time of the limit, and the earliest and the latest one."""
    if not until[0]:
        return "now"
    expected, earliest, latest = days(trend, *until)
    return f"about {expected} (earliest {earliest}, latest {latest or 'never'})"


def _evidence(trend: Trend, limit: Limit, until: Ends) -> Iterator[str]:
    """Yield the basis of a finding, and its uncertainties."""
    slope, last = trend.slope, clock(float(trend.times[-1]))
    if slope is None or trend.is_at_limit:
        yield f"last record: {last}"
    else:
        yield (
            f"{interval(trend)}{per(trend)} (95 % interval) from {slope.points:,} records"
            f" over {human_seconds(trend.span)}"
        )
        yield f"last record: {last}{f', {duration(trend.age)} ago' if trend.age else ''}"
        if not trend.age:
            yield f"counted from the last record, {duration(until[0])} are left"
        elif not trend.is_past:
            yield f"{duration(until[0] - trend.age)} are left"
        if slope.is_cut:
            yield f"counted since {clock(slope.first)}, when the rate last changed"
        if slope.unseen:
            yield (
                f"a cycle of a week looks like growth until records span {human_seconds(WEEK)}, so"
                " the earliest and the latest day are farther apart"
            )
        if slope.points < URGENT_POINTS:
            yield f"fewer than {URGENT_POINTS} records cannot show whether the growth slows"
        if until[0] > trend.span:
            times = until[0] / trend.span
            yield f"the forecast reaches {times:.1f} times as far as the records"
    if _is_reclaimable(trend):
        yield "the kernel can reclaim most of this memory before memory runs out"
    if trend.is_stale:
        yield "the host has no recent record"


def _others(trend: Trend, limit: Limit, found: Trends) -> Iterator[str]:
    """Yield other users of the limit, the growth that contains this one, and the fastest parts."""
    if limit.danger is Danger.OOM:
        yield from _users(trend, limit, found)
    if whole := container(trend, growths(found)):
        yield f"a part of {whole.words}, which grows by {shown_rate(whole)}"
    if causes := parts_of(trend, found)[:_MAX_CAUSES]:
        names = "; ".join(f"{each.words} {shown_rate(each)}" for each in causes)
        yield f"fastest parts: {names}"


def _users(trend: Trend, limit: Limit, found: Trends) -> Iterator[str]:
    """Yield what else takes RAM."""
    kind = trend.analysis, trend.metric
    if kind == USED:
        yield "memory in use is RAM without free memory, page cache and reclaimable slabs"
        return
    if kind == TOGETHER:
        yield (
            "counts slab memory, and memory of memory cgroups, kcopyd and list_lrus outside of"
            " slabs, each byte once"
        )
    if (used := found.whole(trend.host, *USED)) is not None:
        yield f"memory in use takes {float(used.values[-1]) / limit.value:.0%} of RAM by now"
    if not trend.is_at_limit:
        yield "if nothing else used RAM; other users shorten the time"
