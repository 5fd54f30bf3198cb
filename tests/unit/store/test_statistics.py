# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interval of a slope holds the true one about as often as it says, whatever the noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kcensus.engine.memory import Floats
from kcensus.store.statistics import MIN_POINTS, Slope, slope

_START = 1.79e9
_DAY = 86400.0


def noise(random: np.random.Generator, count: int, coefficient: float = 0.0) -> Floats:
    """Stationary noise of variance 1 / (1 - coefficient²), each point like the one before it."""
    values = random.standard_normal(count)
    values[0] /= np.sqrt(1 - coefficient**2)
    for row in range(1, count):
        values[row] += coefficient * values[row - 1]
    return values


def scatter(count: int, size: float, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, size, count)


def fitted(values: npt.ArrayLike, step: float = 1.0) -> Slope:
    numbers = np.asarray(values, np.float64)
    made = slope(np.asarray(_START + step * np.arange(len(numbers)), np.float64), numbers)
    assert made is not None
    return made


def says_trend(made: Slope) -> bool:
    return not made.low <= 0 <= made.high


@pytest.mark.slow
@pytest.mark.parametrize("count", [25, 400])
@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.7])
def test_interval_holds_the_slope_as_often_as_it_says(count: int, coefficient: float) -> None:
    random = np.random.default_rng(14)
    true = 0.3
    made = [fitted(true * np.arange(count) + noise(random, count, coefficient)) for _ in range(150)]
    coverage = np.mean([each.low <= true <= each.high for each in made])
    assert 0.90 <= coverage <= 0.995


@pytest.mark.slow
@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_noise_has_no_trend(coefficient: float) -> None:
    random = np.random.default_rng(13)
    made = [fitted(noise(random, 60, coefficient)) for _ in range(150)]
    assert np.mean([says_trend(each) for each in made]) <= 0.10


@pytest.mark.parametrize("spread", [0.0, 5.0])
def test_growth_at_a_constant_rate(spread: float) -> None:
    random = np.random.default_rng(1)
    made = fitted(1000 + 10 * np.arange(25) + spread * random.standard_normal(25), 2.0)
    assert made.low <= 5.0 <= made.high
    assert made.low > 4.5
    assert made.chance < 0.001
    assert (made.points, made.is_cut) == (25, False)
    assert made.after - made.before == pytest.approx(240, rel=0.1)


def test_growth_that_began_at_the_end_is_that_of_the_end() -> None:
    """In a week of records every five minutes, the last hour grows."""
    random = np.random.default_rng(2)
    points = np.arange(2016)
    grown = np.maximum(points - 2004, 0) * 300
    made = fitted(5000 + grown + random.standard_normal(2016) * 20, 300)
    assert made.low <= 1.0 <= made.high
    assert says_trend(made)
    assert made.is_cut
    assert 8 <= made.points <= 20


@pytest.mark.parametrize(
    "shape",
    [
        lambda row: np.where(row < 100, 0, 1000),  # a step
        lambda row: np.minimum(row, 100) * 10,  # growth that has ended
        lambda row: np.where(row < 120, 1000, 0),  # a counter that starts again
    ],
)
def test_what_is_flat_now_has_no_trend(shape: object) -> None:
    random = np.random.default_rng(3)
    assert callable(shape)
    made = fitted(shape(np.arange(200)) + random.standard_normal(200) * 20)
    assert made.is_cut
    assert not says_trend(made)


def test_a_counter_that_starts_again_keeps_its_rate() -> None:
    row = np.arange(200)
    made = fitted(np.where(row < 120, row * 10, (row - 120) * 10))
    assert made.low <= 10 <= made.high
    assert made.points <= 81


def test_spikes_do_not_move_the_slope() -> None:
    random = np.random.default_rng(4)
    row = np.arange(200)
    made = fitted(row * 1.0 + random.standard_normal(200) + 5000 * (row % 37 == 5))
    assert made.rate == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_a_daily_cycle_is_no_growth(rate: float) -> None:
    random = np.random.default_rng(5)
    times = 300.0 * np.arange(14 * 288)
    cycle = 500 * np.sin(2 * np.pi * times / _DAY)
    made = fitted(rate * times + cycle + 20 * random.standard_normal(len(times)), 300)
    assert made.low <= rate <= made.high
    assert says_trend(made) == (rate > 0)


@pytest.mark.parametrize("spread", [0.0, 20.0])
def test_a_curve_grows(spread: float) -> None:
    made = fitted(np.arange(40.0) ** 2 + scatter(40, spread))
    assert says_trend(made)
    assert made.chance < 1e-5


@pytest.mark.parametrize("count", [25, 60, 288])
@pytest.mark.parametrize("factor", [4, 16, 100, 600])
def test_growth_that_gets_faster(count: int, factor: int) -> None:
    """A leak that doubles again and again, in noise of 1 % of its first value and of each.

    The interval of one that grows to many times its size within few points reaches its last rate.
    """
    values = 2e8 * factor ** (np.arange(count) / (count - 1))
    random = np.random.default_rng(7)
    for size in (2e6 * np.ones(count), 0.01 * values):
        made = fitted(values + size * random.standard_normal(count))
        now = values[-1] * np.log(factor) / (count - 1)
        assert made.low > 0
        assert made.chance < 0.001
        assert made.rate <= 1.4 * now
        assert made.high >= 0.6 * now
        assert factor > 4 or made.rate >= 0.6 * now


def test_a_leak_that_begins_late_and_gets_faster_is_not_chance() -> None:
    """The few points of its last regime alone could be chance, among a thousand series."""
    made = fitted(2e8 * 1e4 ** np.clip(np.linspace(-1, 1, 100), 0, None))
    assert made.is_cut
    assert made.chance < 1e-6


@pytest.mark.parametrize(
    ("shape", "now"),
    [
        (lambda row: 2e5 * row**2, 4e5 * 99),
        (lambda row: -2e9 * np.exp(-row / 40), 2e9 / 40 * np.exp(-99 / 40)),
        (lambda row: -2e9 * np.exp(-row / 80), 2e9 / 80 * np.exp(-99 / 80)),
    ],
)
def test_rate_of_a_bent_course_is_near_that_of_its_end(shape: object, now: float) -> None:
    random = np.random.default_rng(8)
    assert callable(shape)
    values = shape(np.arange(100.0))
    made = [fitted(values + 2e7 * random.standard_normal(100)) for _ in range(12)]
    usual = np.median([each.rate for each in made])
    assert 0.6 * now <= usual <= 2 * now


@pytest.mark.slow
@pytest.mark.parametrize("days", [2, 3, 7, 14])
@pytest.mark.parametrize("spread", [20, 250])
def test_a_daily_cycle_rarely_has_a_trend(days: int, spread: float) -> None:
    """Whenever the series ends."""
    random = np.random.default_rng(5)
    phase = 2 * np.pi * np.arange(0, days, 300 / _DAY)
    made = [
        fitted(
            500 * np.sin(phase + random.uniform(0, 2 * np.pi))
            + spread * random.standard_normal(len(phase)),
            300,
        )
        for _ in range(40)
    ]
    assert np.mean([says_trend(each) for each in made]) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("count", [25, 100])
def test_few_random_walks_have_a_clear_trend(count: int) -> None:
    """A walk has no trend, and no test can tell all of them from one."""
    random = np.random.default_rng(10)
    made = [fitted(np.cumsum(random.standard_normal(count))) for _ in range(150)]
    assert np.mean([says_trend(each) for each in made]) <= 0.30
    assert np.mean([each.chance < 0.01 for each in made]) <= 0.15


def test_a_sawtooth_has_no_trend() -> None:
    row = np.arange(400)
    assert not says_trend(fitted((row % 60) * 20.0 + scatter(400, 5)))
    assert says_trend(fitted(row * 1.0 + scatter(400, 5)))


@pytest.mark.parametrize(
    "values", [np.zeros(100), np.full(100, 1e18), np.r_[np.zeros(99), 1.0], np.arange(100) % 2]
)
def test_series_without_a_trend(values: Floats) -> None:
    assert not says_trend(fitted(values))


def test_few_points_or_equal_times_have_no_trend() -> None:
    for points in (np.arange(1.0), np.arange(MIN_POINTS - 1.0)):
        assert slope(points, points) is None
    assert slope(np.full(50, _START), np.arange(50.0)) is None


def test_irregular_times_with_gaps() -> None:
    random = np.random.default_rng(6)
    times = _START + np.sort(random.uniform(0, 1e6, 400)) * (1 + (np.arange(400) > 200))
    made = slope(times, 0.5 * times + random.standard_normal(400))
    assert made is not None
    assert made.low <= 0.5 <= made.high


@pytest.mark.parametrize("swing", [0.2, 0.5, 1.0])
def test_growth_shows_through_a_daily_cycle_of_one_week(swing: float) -> None:
    hours = np.arange(168)
    cycle = swing * np.sin(2 * np.pi * hours / 24)
    made = [
        fitted(5 / 168 * hours + cycle + 0.05 * scatter(168, 1.0, seed), 3600) for seed in range(5)
    ]
    assert all(says_trend(each) for each in made)
    assert all(each.low <= 5 / 168 / 3600 <= each.high for each in made)
