# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trends in words: their amounts, rates, limits and times."""

from __future__ import annotations

import math
import re

from kcensus.human import human, human_seconds, shown_time
from kcensus.results import Unit
from kcensus.store.ceilings import MAX_EXTRAPOLATION, is_available
from kcensus.store.statistics import medians
from kcensus.store.trends import Ends, Trend

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-=*#"
"""Levels of a course, if blocks cannot be shown."""
_COURSE = 12
"""Characters of a course."""
DAY, _HOUR = 86400.0, 3600.0
_MAX_HOURLY = DAY / 2
"""Span up to which rates are per hour."""
_STEPS = ((DAY, _HOUR), (10 * _HOUR, _HOUR), (_HOUR, 600.0), (600.0, 60.0))
"""Precision of shown times, by least seconds: a forecast has two digits at most."""
_MAX_MINUTES = 2 * DAY
"""Seconds from which on a forecast names the day alone."""
_MAX_SECONDS = 3650 * DAY


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
        return f"{trend.limit.name} beyond {duration(MAX_EXTRAPOLATION * trend.span)}"
    if trend.is_past:
        return f"{trend.limit.name} was due"
    return f"{trend.limit.name} in {duration(trend.until_limit[0] - trend.age)}"


def without_limit(trend: Trend) -> str:
    """Return why a growing series has no limit."""
    if trend.analysis == "memcgs" and trend.metric == "memcgs_offline":
        return "no limit (offline ones release their ids)"
    if is_available(trend.analysis, trend.metric):
        return "no limit (the kernel can give it to others)"
    return "no limit is known"


def near(trend: Trend) -> Ends | tuple[()]:
    """Return the times to the limit; empty without a limit, or without a forecast."""
    return () if trend.is_far else trend.until_limit or ()


def days(trend: Trend, *seconds: float) -> list[str]:
    """Return the days so many seconds after the last point, or minutes if one is near or two equal.

    A time that never comes is empty. The last point is now where times count from it.
    """
    if 0 in seconds and not trend.age:
        rest = iter(days(trend, *later) if (later := [each for each in seconds if each]) else ())
        return [next(rest) if each else "now" for each in seconds]
    times = [
        (shown_time(float(trend.times[-1]) + each) or "") if math.isfinite(each) else ""
        for each in seconds
    ]
    shown = [time[:10] for time in times]
    known = [day for day in shown if day]
    if len({*known}) == len(known) and min(seconds) > _MAX_MINUTES:
        return shown
    return [f"{time[:10]} {time[11:16]}".rstrip() for time in times]


def day(trend: Trend, seconds: float) -> str:
    """Return the day, or the minute if it is near, so many seconds after the last point."""
    return days(trend, seconds)[0]


def duration(seconds: float) -> str:
    """Return a time ahead, as exact as it can be known."""
    if seconds > _MAX_SECONDS:
        return "over 10 years"
    step = next((step for most, step in _STEPS if seconds >= most), 1.0)
    seconds = round(seconds / step) * step
    if seconds > 10 * DAY:
        return f"{seconds / DAY:,.1f} d"
    return re.sub(r"(?<=[a-z]) 0 \w+$", "", human_seconds(seconds))


def per(trend: Trend) -> str:
    """Return the time of a rate: an hour or a day."""
    return "/h" if trend.span <= _MAX_HOURLY else "/d"


def rate(trend: Trend, per_second: float) -> str:
    """Return a rate without its time."""
    return _scaled(trend, per_second * (_HOUR if trend.span <= _MAX_HOURLY else DAY))


def shown_rate(trend: Trend) -> str | None:
    """Return the rate of a trend; None without one."""
    return rate(trend, trend.slope.rate) + per(trend) if trend.slope else None


def interval(trend: Trend) -> str | None:
    """Return the interval of the rate of a trend; None without one."""
    if trend.slope is None:
        return None
    low, high = (rate(trend, each) for each in (trend.slope.low, trend.slope.high))
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low} to {high}"


def amount(trend: Trend, value: float) -> str:
    """Return a value of a trend with its unit; a fitted one can be below 0, an amount cannot."""
    return _scaled(trend, max(value, 0.0))


def _scaled(trend: Trend, value: float) -> str:
    unit = Unit(trend.unit)
    if unit is Unit.RATIO:
        return human(value, unit)
    is_whole = unit is Unit.BYTES or abs(value) >= 10
    return human(round(value) if is_whole else round(value, 2), unit)


def clock(seconds: float) -> str:
    """Return a time in UTC, to the minute; empty for a time beyond all calendars."""
    time = shown_time(round(seconds / 60) * 60)
    return f"{time[:16].replace('T', ' ')} UTC" if time else ""
