# SPDX-License-Identifier: LGPL-2.1-or-later
"""The present rate of a series, with an interval that autocorrelation does not make too narrow.

The slope is the median over all pairs of points (Theil and Sen), which spikes do not move. Its
interval inverts the test of Mann and Kendall, with a variance corrected for autocorrelation [1];
residuals are an autoregressive process of the first order, corrected for its bias [2].

Only the latest regime counts: a series is cut where two lines fit better than chance explains
(Chow's test for an unknown place, F divided by the same correction).

Along a curve, the residuals of a line look like autocorrelation. If a curve explains almost all of
them, the autocorrelation is that of its own residuals, and the rate is that at the end of a
parabola through the longest tail that a parabola fits.

[1] Hamed, Rao (1998), A modified Mann-Kendall trend test for autocorrelated data.
[2] Marriott, Pope (1954), Bias in the estimation of autocorrelations.
"""

from __future__ import annotations

from dataclasses import dataclass

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
_MAX_DEGREE = 8
_MIN_CURVE = 30
"""Least ratio of a line's residuals to a curve's for a curve. A random walk has about 5."""
_SMOOTH_DEGREE = 4
"""Degree of a curve with as many parameters as two lines and a break."""
_BEND_CHANCE = 0.001
"""Probability of a bend in a series that is a line."""
_DAY = 86400.0
_MIN_DAYS = 3
_DAY_BINS = 48
_MIN_SHARE = 0.5
"""Least share of the variance that a daily cycle must explain."""
_OUTLIER = 6
"""Median distances from its neighbors at which a point is left out of the search for a break."""
_ROUNDING = 1e-5
"""Share of the range of a series below which it equals a line."""
_MIN_PROBABILITY = 1e-300
_SLOWER = 0.75
"""Share of its usual rate below which a rise slows."""


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
    bends: bool = False
    """Whether the rate changes within the regime; it is then the rate at its end."""
    acceleration: float = 0.0
    """Change of the rate at the end, per second squared: the end of its interval that is farthest
    from 0; 0 without a bend."""
    falls: int = 0
    """Falls of the series by more than the regime's rise, before the regime."""

    @property
    def slows(self) -> bool:
        """Whether the rate falls."""
        change = self.after - self.before
        return self.bends and self.rate * (self.last - self.first) < _SLOWER * change


def slope(times: Floats, values: Floats) -> Slope | None:
    """Return the trend of the latest regime of a series; None if it has too few points.

    :param times: seconds, ascending, shape (n,)
    :param values: shape (n,); all finite
    """
    if len(times) < MIN_POINTS:
        return None
    level_all = _without_daily_cycle(times, values)
    start = _regime_start(times, level_all)
    regime, level = times[start:], level_all[start:]
    binned = medians(regime, level)
    if len(binned[0]) < MIN_POINTS:
        return None
    rate, low, high, chance = theil_sen(*binned)
    middle = float(np.median(binned[1] - rate * binned[0]))
    before, after = middle + rate * float(regime[0]), middle + rate * float(regime[-1])
    acceleration = 0.0
    bends = bool(rate) and _curve(*binned) is not None
    if bends:
        least = low
        rate, low, high, after, acceleration = _rate_at_end(regime, level)
        if _speeds_up(binned):
            low = max(low, min(least, rate))
        before = float(np.median(level[:3]))
    if start and rate > 0 and _speeds_up(whole := medians(times, level_all)):
        # A rise that gets faster is cut at the begin of a line, but all of it is evidence.
        chance = min(chance, theil_sen(*whole)[3])
    resolution = _resolution(values[start:])
    if rate:
        # An amount in large units can have grown by one more between the first and the last point.
        slack = resolution / 2 / (regime[-1] - regime[0])
        low, high = low - slack, high + slack
    return Slope(
        rate, low, high, chance,
        first=float(regime[0]), last=float(regime[-1]), points=len(regime),
        before=before, after=after,
        resolution=resolution, is_cut=start > 0,
        bends=bends, acceleration=acceleration,
        falls=_falls(level_all[: start + MIN_POINTS], after - before) if start else 0,
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
    curve = _curve(times, values)
    residuals = values - rate * times if curve is None else curve
    inflation = _inflation(residuals, _ROUNDING * np.ptp(values))
    student = stats.t(max(count / inflation - 2, 1))
    wide = student.ppf((1 + CONFIDENCE) / 2) * np.sqrt(inflation)
    # scipy takes the probability outside of the interval of a series without autocorrelation.
    outside = max(2 * stats.norm.sf(wide), _MIN_PROBABILITY)
    _, _, low, high = stats.theilslopes(values, times, outside)
    later = np.sign(np.subtract.outer(values, values))[np.tril_indices(count, -1)].sum()
    _, ties = np.unique(values, return_counts=True)
    variance = sum(
        sign * float(np.sum(size * (size - 1) * (2 * size + 5))) / 18
        for sign, size in ((1, np.array([count])), (-1, ties))
    )
    chance = 2 * student.sf(abs(later) / np.sqrt(variance * inflation))
    steps = np.sign(np.diff(values))
    steps = steps[steps != 0]
    if abs(steps.sum()) == len(steps):
        # The test above cannot tell a bent rise from a random walk, whose steps have random signs.
        chance = min(chance, 2.0 ** (1 - len(steps)))
    return rate, float(low), float(high), float(chance)


def _curve(times: Floats, values: Floats) -> Floats | None:
    """Return the residuals of a curve through a series; None if it is a line."""
    count, scale = len(times), _ROUNDING * np.ptp(values)
    values = _without_spikes(values)
    line = _power(_residuals(times, values, 1))
    degree = min(_MAX_DEGREE, count // 6)
    curve, parabola = _residuals(times, values, degree), _residuals(times, values, 2)
    if degree > 1 and line > _MIN_CURVE * max(_power(curve), count * scale**2):
        return curve
    free = count - 3
    gain = (line - _power(parabola)) * free / max(_power(parabola), count * scale**2)
    usual = float(stats.f.isf(_BEND_CHANCE, 1, free))
    return parabola if gain > usual * _inflation(parabola, scale, lines=2) else None


def _speeds_up(series: tuple[Floats, Floats]) -> bool:
    times, values = series
    if _curve(times, values) is None:
        return False
    parabola = np.polynomial.Polynomial.fit(times, values, 2).coef
    return bool(parabola[1] > 0 and parabola[2] > 0)


def _rate_at_end(times: Floats, values: Floats) -> tuple[float, float, float, float, float]:
    """Return the rate at the end of a curve, its interval, and value and acceleration there."""
    values = _without_spikes(values)
    scale = _ROUNDING * np.ptp(values)
    count = len(times)
    while True:
        parabola, cubic = (_residuals(times[-count:], values[-count:], degree) for degree in (2, 3))
        free = count - 4
        gain = (_power(parabola) - _power(cubic)) * free / max(_power(cubic), count * scale**2)
        if count <= MIN_POINTS or gain < float(stats.f.isf(_BEND_CHANCE, 1, free)):
            break
        count = max(count // 2, MIN_POINTS)
    times, values = times[-count:], values[-count:]
    length = float(times[-1] - times[0])
    along = (times - times[-1]) / length
    matrix = np.stack([np.ones(count), along, along**2], axis=1)
    (after, rate, bend), *_ = np.linalg.lstsq(matrix, values, rcond=None)
    left = values - matrix @ (after, rate, bend)
    inflation = _inflation(left, scale, lines=2)
    variances = np.diag(np.linalg.inv(matrix.T @ matrix)) * _power(left) / (count - 3) * inflation
    student = stats.t.isf((1 - CONFIDENCE) / 2, max(count / inflation - 3, 1))
    _, wide, wide_bend = student * np.sqrt(variances)
    # At a quarter before the end, too: a bend may stop to be one.
    earlier = rate - bend / 2
    low, high = min(rate - wide, earlier), max(rate + wide, earlier)
    rate, low, high = (float(each / length) for each in (rate, low, high))
    most = bend + np.copysign(wide_bend, bend)
    return rate, low, high, float(after), float(2 * most / length**2)


def _residuals(times: Floats, values: Floats, degree: int) -> Floats:
    return values - np.polynomial.Polynomial.fit(times, values, degree)(times)


def _power(residuals: Floats) -> float:
    return float(residuals @ residuals)


def _falls(values: Floats, rise: float) -> int:
    """Return the number of falls of a series by more than ``rise`` from a peak."""
    falls, peak = 0, -np.inf
    for value in _without_spikes(values) if rise > 0 else ():
        peak = max(peak, value)
        if peak - value > rise:
            falls, peak = falls + 1, value
    return falls


def _regime_start(times: Floats, values: Floats) -> int:
    start = 0
    for _ in range(_MAX_CUTS):
        for part in _WINDOWS:
            window = start + (len(times) - start) * (part - 1) // part
            if part > 1 and len(times) - window < _MIN_WINDOW:
                continue
            shown = medians(times[window:], values[window:])
            row = _break(*shown)
            if row:
                # The bin of the break has points of both sides.
                inside = len(shown[0]) < len(times) - window
                start = int(np.searchsorted(times, shown[0][row + inside]))
                break
        else:
            break
    return start


def _break(times: Floats, values: Floats) -> int:
    """Return the row from which on another line fits better; 0 without one."""
    count = len(times)
    rows = np.arange(MIN_POINTS, count - MIN_POINTS)
    if not len(rows) or not np.ptp(values):
        return 0
    times = (times - times.mean()) / np.ptp(times)
    values = _without_spikes(values)
    values = (values - values.mean()) / (np.ptp(values) or 1)
    ahead, behind = _squares(times, values), _squares(times[::-1], values[::-1])[::-1]
    both = ahead[rows - 1] + behind[rows]
    row = int(rows[both.argmin()])
    rest = float(both.min()) + count * _ROUNDING**2
    if _power(_residuals(times, values, _SMOOTH_DEGREE)) < rest:
        return 0  # a bend without a place
    sides = slice(None, row), slice(row, None)
    residuals = np.concatenate([_residuals(times[side], values[side], 1) for side in sides])
    gain = (ahead[-1] - rest) / 3 / (rest / (count - 5))
    return row if gain > _MIN_F * _inflation(residuals, _ROUNDING, lines=2) else 0


def _squares(times: Floats, values: Floats) -> Floats:
    """Return the squared residuals of the lines through the first 1, 2, … n points, shape (n,)."""
    count = np.arange(1, len(times) + 1)
    time, value = np.cumsum(times), np.cumsum(values)
    times2 = np.cumsum(times * times) - time * time / count
    values2 = np.cumsum(values * values) - value * value / count
    both = np.cumsum(times * values) - time * value / count
    explained = np.divide(both * both, times2, out=np.zeros(len(times)), where=times2 > 0)
    return np.maximum(values2 - explained, 0)


def _inflation(residuals: Floats, rounding: float, lines: int = 1) -> float:
    """Return the factor by which autocorrelation inflates the variance of a slope.

    :param rounding: size of residuals of an exact line
    :param lines: number of fitted lines; each takes away from the correlation
    """
    count = len(residuals)
    centred = residuals - residuals.mean()
    power = _power(centred)
    raw = float(centred[1:] @ centred[:-1] / power) if power > count * rounding**2 else 0.0
    coefficient = min(max(raw + (2 + 4 * raw) * lines / count, 0.0), 1 - 2 / count)
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
    """Subtract the daily cycle, of median 0, if it is most of the variation within days."""
    if times[-1] - times[0] < _MIN_DAYS * _DAY:
        return values
    days = ((times - times[0]) // _DAY).astype(np.int64)
    known, rows = np.unique(days, return_inverse=True)
    if len(known) < _MIN_DAYS:
        return values
    level = _medians(rows, values)
    trend = float(stats.theilslopes(level, known * _DAY)[0]) if np.ptp(level) else 0.0
    rest = values - trend * (times - times[0])
    rest = rest - _medians(rows, rest)[rows]
    phase = times % _DAY
    seen, bins = np.unique((phase * (_DAY_BINS / _DAY)).astype(np.int64), return_inverse=True)
    if len(times) < _MIN_DAYS * len(seen) or len(seen) < MIN_POINTS:
        return values  # too few points of each time of the day
    usual = _medians(bins, rest)
    middle = (seen + 0.5) * (_DAY / _DAY_BINS)
    cycle = np.interp(phase, middle, usual - np.median(usual), period=_DAY)
    left = np.abs(rest - cycle).mean()
    return values - cycle if left < (1 - _MIN_SHARE) * np.abs(rest).mean() else values


def _resolution(values: Floats) -> float:
    """Return the common divisor of all differences; 0 if they are not whole."""
    changes = np.diff(values)
    if np.any(changes % 1) or np.any(np.abs(values) > 2**53):
        return 0.0
    return float(np.gcd.reduce(changes.astype(np.int64)))
