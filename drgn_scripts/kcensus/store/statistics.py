# SPDX-License-Identifier: LGPL-2.1-or-later
"""The present rate of a series, with an interval that autocorrelation does not make too narrow.

The slope is the median over all pairs of points (Theil and Sen), which spikes do not move. Its
interval inverts the test of Mann and Kendall, with a variance corrected for autocorrelation [1];
residuals are an autoregressive process of the first order, corrected for its bias [2]. Along a
curve, they are alike, too, which makes the interval wide; a daily cycle is subtracted before. A
weekly one cannot be told from growth in records of less than a week, so the band is wider then.

Only the latest regime counts: a series is cut where two lines fit better than chance explains
(Chow's test for an unknown place, F divided by the same correction). A late break counts only if it
is larger than all before it, as a series with a cycle breaks again and again. Growth that slows or
gets faster is cut into lines, so that its rate is near that of its end; that of growth to many
times its size within few points is lower, and its interval wide.

[1] Hamed, Rao (1998), A modified Mann-Kendall trend test for autocorrelated data.
[2] Marriott, Pope (1954), Bias in the estimation of autocorrelations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from kcensus.engine.memory import Floats

MIN_POINTS = 8
"""Least points of a trend."""
CONFIDENCE = 0.95
_MAX_BINS = 128
"""Longer series are reduced to medians: n points have n² / 2 pairs."""
_WINDOWS = (64, 8, 1)
"""Fractions of a series, at its end, to search for a break: large bins hide late ones."""
_MIN_WINDOW = 24
_MIN_F = 12.0
"""F from which on a series is cut: fewer than one in ten without a break, with a coefficient of up
to 0.9, and its interval still holds the slope (tests/unit/store)."""
_MAX_CUTS = 8
_LARGER = 2.0
"""Least ratio of a late break to each one before it, in squared residuals."""
_PARAMETERS = 4
"""Parameters of a cubic, and of two lines."""
_OUTLIER = 6
"""Median distances from its neighbors at which a point is left out of the search for a break."""
_ROUNDING = 1e-5
"""Share of the range of a series below which it equals a line."""
_DAY, _DAY_BINS, _MIN_DAYS = 86400.0, 24, 3
WEEK = 7 * _DAY
"""Seconds of the longest usual cycle of work; a shorter regime shows a part of it."""
_MIN_SHARE = 0.5
"""Of the variation of days that a daily cycle must explain."""
_MIN_PROBABILITY = 1e-300


@dataclass(frozen=True)
class Slope:
    """The trend of the latest regime of a series. Rates are per second."""

    rate: float
    low: float
    high: float
    """End of the interval of :data:`CONFIDENCE`."""
    chance: float
    """Probability of a trend this clear in a series without one."""
    first: float
    """Time of the first point of the regime."""
    last: float
    points: int
    """Points in the regime."""
    before: float
    after: float
    """Fitted values at the first and at the last point."""
    resolution: float
    """Common divisor of all differences; 0 if they are not whole."""
    is_cut: bool
    """Whether the series had another regime before."""
    middle: float
    """Median time of the points, around which the rate may turn."""
    noise: float
    """Distance from the line that most points of the regime keep, :data:`CONFIDENCE` of them."""

    @property
    def unseen(self) -> float:
        """Seconds of a week that the regime has not shown yet."""
        return max(WEEK - (self.last - self.first), 0.0)

    @property
    def _drifts(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Rates, and amounts at the last point, of two lines; the lower is the drift of the band.

        In the part of a week that is unseen, the series may stand still, or grow at twice its rate:
        at first all of the time, and then in that part of each week.
        """
        share, rate = self.unseen / WEEK, abs(self.rate)
        return (rate, 0.0), (rate * share, rate * self.unseen * (1 - share))

    def band(self, times: Floats) -> Floats:
        """Return the line, and the edges of its band, at some times, shape (3, n).

        New points are in the band if the regime goes on: from the last point on, the line turns to
        the ends of the interval of the rate, and drifts; the noise is added everywhere.
        """
        line = self.after + self.rate * (times - self.last)
        ahead = np.maximum(times - self.last, 0.0)
        drift = self.noise + np.minimum(*(rate * ahead + start for rate, start in self._drifts))
        low, high = (self.low - self.rate) * ahead - drift, (self.high - self.rate) * ahead + drift
        return np.array([line, line + low, line + high])

    def until(self, value: float) -> tuple[float, float, float]:
        """Return the seconds from the last point until the line, and the upper and the lower edge
        of its band, reach a value above; infinite if they never do."""

        def reach(rate: float, start: float) -> float:
            return max((value - self.after - start) / rate, 0.0) if rate > 0 else float(np.inf)

        return (
            reach(self.rate, 0.0),
            max(reach(self.high + rate, self.noise + start) for rate, start in self._drifts),
            min(reach(self.low - rate, -self.noise - start) for rate, start in self._drifts),
        )


def slope(times: Floats, values: Floats) -> Slope | None:
    """Return the trend of the latest regime of a series; None if it has too few points.

    :param times: seconds, ascending, shape (n,)
    :param values: shape (n,); all finite
    """
    if len(times) < MIN_POINTS:
        return None
    given = values
    values = _without_daily_cycle(times, values)
    start = _regime_start(times, values)
    regime = times[start:]
    binned = medians(regime, values[start:])
    if len(binned[0]) < MIN_POINTS:
        return None
    rate, low, high, chance = theil_sen(*binned)
    if start:
        earlier, *_, usual = theil_sen(*medians(times[:start], values[:start]))
        if earlier * rate > 0:  # a part of a longer rise
            chance = min(chance, float(stats.combine_pvalues([chance, usual]).pvalue))
    height = float(np.median(binned[1] - rate * binned[0]))
    resolution = _resolution(given[start:])
    if rate:
        # An amount in large units can have grown by one more between the first and the last point.
        slack = resolution / 2 / (regime[-1] - regime[0])
        low, high = low - slack, high + slack
    return Slope(
        rate, low, high, chance,
        first=float(regime[0]), last=float(regime[-1]), points=len(regime),
        before=height + rate * float(regime[0]), after=height + rate * float(regime[-1]),
        resolution=resolution, is_cut=start > 0, middle=float(np.median(regime)),
        noise=float(np.quantile(np.abs(given[start:] - height - rate * regime), CONFIDENCE)),
    )  # fmt: skip


def theil_sen(times: Floats, values: Floats) -> tuple[float, float, float, float]:
    """Return the slope of a series, the ends of its interval, and the probability of chance.

    :param times: ascending, each once, at least :data:`MIN_POINTS` and at most some hundred
    """
    count = len(times)
    if not np.ptp(values):
        return 0.0, 0.0, 0.0, 1.0
    times = times - times[0]  # exact, where seconds since 1970 are not
    rate = float(stats.theilslopes(values, times)[0])
    rounding = _ROUNDING * np.ptp(values)
    inflation = _inflation(values - rate * times, rounding, 2)
    wide = _student(count, inflation).ppf((1 + CONFIDENCE) / 2) * np.sqrt(inflation)
    # scipy takes the probability outside of the interval of a series without autocorrelation.
    outside = max(2 * stats.norm.sf(wide), _MIN_PROBABILITY)
    _, _, low, high = stats.theilslopes(values, times, outside)
    later = np.sign(np.subtract.outer(values, values))[np.tril_indices(count, -1)].sum()
    _, ties = np.unique(values, return_counts=True)
    variance = sum(
        sign * float(np.sum(size * (size - 1) * (2 * size + 5))) / 18
        for sign, size in ((1, np.array([count])), (-1, ties))
    )
    # Around a parabola, as chance explains a curve no better than a line.
    inflation = min(inflation, _inflation(_residuals(times, values, 2), rounding, 3))
    chance = 2 * _student(count, inflation).sf(abs(later) / np.sqrt(variance * inflation))
    steps = np.sign(np.diff(values))
    steps = steps[steps != 0]
    if abs(steps.sum()) == len(steps):
        # The test above cannot tell a curve from a random walk, whose steps have random signs.
        chance = min(chance, 2.0 ** (1 - len(steps)))
    return rate, float(low), float(high), float(chance)


def _student(count: int, inflation: float) -> Any:
    return stats.t(max(count / inflation - 2, 1))


def _residuals(times: Floats, values: Floats, degree: int) -> Floats:
    return values - np.polynomial.Polynomial.fit(times, values, degree)(times)


def _power(residuals: Floats) -> float:
    return float(residuals @ residuals)


def _regime_start(times: Floats, values: Floats) -> int:
    start = 0
    for _ in range(_MAX_CUTS):
        for part in _WINDOWS:
            edges = np.linspace(start, len(times), part + 1).astype(int)
            *before, last = map(slice, edges[:-1], edges[1:])
            if part > 1 and last.stop - last.start < _MIN_WINDOW:
                continue
            shown = medians(times[last], values[last])
            row, size = _break(*shown)
            usual = (_break(*medians(times[each], values[each]))[1] for each in before)
            if row and all(size > _LARGER * each for each in usual):
                # The bin of the break has points of both sides.
                inside = len(shown[0]) < last.stop - last.start
                start = int(np.searchsorted(times, shown[0][row + inside]))
                break
        else:
            break
    return start


def _break(times: Floats, values: Floats) -> tuple[int, float]:
    """Return the row from which on another line fits better, and how much it explains.

    The row is 0 if chance explains it; the second number is the gain in squared residuals.
    """
    count = len(times)
    rows = np.arange(MIN_POINTS, count - MIN_POINTS)
    range_ = float(np.ptp(values)) if count else 0.0
    if not len(rows) or not range_:
        return 0, 0.0
    times = (times - times.mean()) / np.ptp(times)
    values = _without_spikes(values)
    values = (values - values.mean()) / range_
    ahead, behind = _squares(times, values), _squares(times[::-1], values[::-1])[::-1]
    both = ahead[rows - 1] + behind[rows]
    row = int(rows[both.argmin()])
    rest = float(both.min()) + count * _ROUNDING**2
    gain = float(ahead[-1]) - rest
    sides = slice(None, row), slice(row, None)
    lines = np.concatenate([_residuals(times[side], values[side], 1) for side in sides])
    residuals = min(lines, _residuals(times, values, 3), key=_power)
    clarity = gain / (_PARAMETERS - 1) / (rest / (count - _PARAMETERS - 1))
    is_clear = clarity > _MIN_F * _inflation(residuals, _ROUNDING, _PARAMETERS)
    return row if is_clear else 0, gain * range_**2


def _squares(times: Floats, values: Floats) -> Floats:
    """Return the squared residuals of the lines through the first 1, 2, … n points, shape (n,)."""
    count = np.arange(1, len(times) + 1)
    time, value = np.cumsum(times), np.cumsum(values)
    times2 = np.cumsum(times * times) - time * time / count
    values2 = np.cumsum(values * values) - value * value / count
    both = np.cumsum(times * values) - time * value / count
    explained = np.divide(both * both, times2, out=np.zeros(len(times)), where=times2 > 0)
    return np.maximum(values2 - explained, 0)


def _inflation(residuals: Floats, rounding: float, parameters: int) -> float:
    """Return the factor by which autocorrelation inflates the variance of a slope.

    :param rounding: size of residuals of an exact line
    :param parameters: of the fitted model, of which each takes away from the correlation
    """
    residuals = residuals - residuals.mean()
    count, power = len(residuals), _power(residuals)
    raw = float(residuals[1:] @ residuals[:-1]) / power if power > count * rounding**2 else 0.0
    coefficient = min(max(raw + parameters * (1 + 2 * raw) / count, 0.0), 1 - 2 / count)
    return (1 + coefficient) / (1 - coefficient)


def _without_spikes(values: Floats) -> Floats:
    neighbours = np.median(
        np.lib.stride_tricks.sliding_window_view(np.pad(values, 2, mode="edge"), 5), axis=1
    )
    distance = np.abs(values - neighbours)
    usual = np.median(distance[distance > 0]) if distance.any() else 0
    return np.where(distance > _OUTLIER * usual, neighbours, values)


def medians(times: Floats, values: Floats, bins: int = _MAX_BINS) -> tuple[Floats, Floats]:
    """Return the medians of at most ``bins`` equal periods, or of points of the same time if few.

    Empty periods have none.
    """
    if len(times) > bins:
        keys = ((times - times[0]) * (bins / (times[-1] - times[0] or 1))).astype(np.int64)
        keys = np.minimum(keys, bins - 1)
    else:
        keys = np.unique(times, return_inverse=True)[1]
        if keys[-1] == len(times) - 1:
            return times, values
    return _medians(keys, times), _medians(keys, values)


def _medians(keys: npt.NDArray[np.int64], values: Floats) -> Floats:
    order = np.lexsort((values, keys))
    _, first, count = np.unique(keys[order], return_index=True, return_counts=True)
    ordered = values[order]
    middle: Floats = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return middle


def _without_daily_cycle(times: Floats, values: Floats) -> Floats:
    """Subtract a daily cycle, with the median 0, if it is most of the variation of some days.

    It would make the interval of the growth below it too wide for a trend.
    """
    day, days = np.unique((times - times[0]) // _DAY, return_inverse=True)
    _, phase = np.unique(times % _DAY // (_DAY / _DAY_BINS), return_inverse=True)
    bins = int(phase.max()) + 1
    if len(day) < _MIN_DAYS or bins < MIN_POINTS or len(times) < _MIN_DAYS * bins:
        return values
    rest = values - float(stats.theilslopes(_medians(days, values), day * _DAY)[0]) * times
    rest = rest - _medians(days, rest)[days]
    usual = _medians(phase, rest)
    cycle = (usual - np.median(usual))[phase]
    is_most = np.abs(rest - cycle).mean() < (1 - _MIN_SHARE) * np.abs(rest).mean()
    return values - cycle if is_most else values


def _resolution(values: Floats) -> float:
    """Return the common divisor of all differences; 0 if they are not whole."""
    changes = np.diff(values)
    if np.any(changes % 1) or np.any(np.abs(values) > 2**53):
        return 0.0
    return float(np.gcd.reduce(changes.astype(np.int64)))
