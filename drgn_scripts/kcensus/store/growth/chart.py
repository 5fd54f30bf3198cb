# SPDX-License-Identifier: LGPL-2.1-or-later
"""A series on its way to a limit, drawn with characters: its records, its trend, and the limit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kcensus.human import shown_time
from kcensus.store.ceilings import MAX_EXTRAPOLATION
from kcensus.store.trends import Trend

HEIGHT = 8
"""Lines of a chart, without the limit and the times."""
_WIDTH = 56


def chart(trend: Trend, amount: Callable[[Trend, float], str], levels: str) -> list[str]:
    """Return the lines of a chart from 0 to the limit; the last one has the times.

    :param trend: with a slope and a limit
    :param amount: of a value of the trend, in words
    :param levels: characters of columns, the lowest one first
    """
    slope, limit, until = trend.slope, trend.limit, trend.until_limit
    assert slope is not None
    assert limit is not None
    assert until is not None
    first, last = float(trend.times[0]), float(trend.times[-1])
    end = last + min(until[0], MAX_EXTRAPOLATION * trend.span)
    times = np.linspace(first, end, _WIDTH)
    recorded = times <= last
    values = np.interp(times, trend.times, trend.values)
    values[~recorded] = slope.after + slope.rate * (times[~recorded] - slope.last)
    eighths = np.clip(values / limit.value * HEIGHT, 0, HEIGHT)
    point, rule, side = ("·", "╌", "│") if levels[0] == "▁" else (".", "-", "|")
    names = amount(trend, limit.value), amount(trend, float(trend.values[-1]))
    margin = max(map(len, names))
    now = min(int(eighths[recorded][-1]), HEIGHT - 1)
    lines = [f"{names[0]:>{margin}} {side}{rule * _WIDTH} {limit.name}"]
    for row in range(HEIGHT - 1, -1, -1):
        cells = [
            _cell(height - row, levels) if is_recorded
            # The trend goes through one cell of a column.
            else point if row <= height < row + 1 or (height == HEIGHT and row == HEIGHT - 1)
            else " "
            for height, is_recorded in zip(eighths.tolist(), recorded.tolist(), strict=True)
        ]  # fmt: skip
        name = names[1] if row == now else ""
        lines.append(f"{name:>{margin}} {side}{''.join(cells)}".rstrip())
    begin, middle, reach = (_minute(time) for time in (first, last, end))
    lasts, ends = int(recorded.sum()) - 1, _WIDTH - len(reach)
    axis = f"{begin:<{max(lasts, len(begin) + 1)}}{middle}"
    axis = f"{axis:<{max(ends, len(axis) + 1)}}{reach}"
    return [*lines, f"{'':>{margin}}  {axis}"]


def _minute(seconds: float) -> str:
    """Return a time in UTC, to the minute."""
    return (shown_time(round(seconds / 60) * 60) or "")[5:16].replace("T", " ")


def _cell(height: float, levels: str) -> str:
    """Return the character of a cell that is filled up to a height, 1 for all of it."""
    if height <= 0:
        return " "
    return levels[min(int(height * len(levels)), len(levels) - 1)]
