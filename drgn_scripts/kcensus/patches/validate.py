# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether pairs of targets, without and with a patch, show what the patch promises.

A pair counts only if it is alike in everything else: the same memory, CPUs and load, and about the
same time to get there. The verdict says why.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kcensus.human import human
from kcensus.patches.model import UNITS, Detected, Metric, Moment, Patch, State, Validation
from kcensus.patches.price import Unmeasured, measure
from kcensus.results import Result, Unit

LEAST_CHANGE = 0.1
"""Of the value before: less is not told from noise."""
_MOST_RAM_APART = 0.05
_MOST_UPTIME_APART = 4.0
"""Times."""
_HAS_IT = (State.PRESENT, State.SUPERSEDED)
_LACKS_IT = (State.ABSENT, State.PARTLY)
_RESAMPLES = 10_000


class Refused(Exception):
    """A pair is none; the text is one sentence that says why."""


class Verdict(enum.Enum):
    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Side:
    """One target of a pair."""

    target: str
    kernel: str
    detected: Detected
    results: Mapping[str, Result]
    failed: Mapping[str, str]
    """Why an analysis has no result."""
    ram_bytes: int | None = None
    cpus: int | None = None
    uptime_seconds: float | None = None
    switch: int | None = None
    """Value of :attr:`~kcensus.patches.model.Validation.switch`."""

    def figure(self, metric: Metric) -> tuple[float, Unit]:
        """As :func:`kcensus.patches.price.measure`, with the reason why an analysis failed."""
        try:
            return measure(metric, self.results)
        except Unmeasured as error:
            why = self.failed.get(metric.analysis)
            raise Unmeasured(f"{error} ({why})" if why else str(error)) from None


@dataclass(frozen=True)
class Condition:
    """Something that should be the same on both sides."""

    what: str
    before: float | None
    after: float | None
    unit: Unit
    alike: bool | None
    """None where it is not known."""
    problem: str = ""
    """A clause, where they are not alike, or not enough of it."""


@dataclass(frozen=True)
class Pair:
    """What one pair shows."""

    before: Side
    after: Side
    old: float
    """The metric without the patch."""
    new: float
    """The metric with it."""
    unit: Unit
    predicted: float | None
    """What the model says that it would be, from the target without the patch."""
    conditions: tuple[Condition, ...]
    problems: tuple[str, ...]
    """Why nothing follows from the pair; empty if something does."""

    @property
    def change(self) -> float:
        """How much smaller the metric is with the patch, as a share of what it is without."""
        return (self.old - self.new) / self.old if self.old else 0.0


@dataclass(frozen=True)
class Judgement:
    """What all pairs show together."""

    verdict: Verdict
    reasons: tuple[str, ...]
    pairs: tuple[Pair, ...]
    change: float
    """Median over pairs."""
    low: float
    """Of the 95% confidence interval of the median; equal to :attr:`change` for one pair."""
    high: float
    claimed: float | None
    """The published change."""


def check_pair(patch: Patch, before: Side, after: Side) -> None:
    """Refuse what is no pair at all.

    :raises Refused: with the sentence that says so
    """
    assert patch.validation is not None
    first, second = before.detected.state, after.detected.state
    names = f"{before.target} and {after.target}"
    if first in _LACKS_IT and second in _LACKS_IT:
        raise Refused(f"neither of {names} has {patch.id}, so there is nothing to compare")
    if first in _HAS_IT and second in _LACKS_IT:
        raise Refused(f"{before.target} has {patch.id} and {after.target} lacks it: swap them")
    if first in _HAS_IT and second in _HAS_IT:
        switch = patch.validation.switch
        if not switch:
            raise Refused(f"both of {names} have {patch.id}, so there is nothing to compare")
        if before.switch is None or after.switch is None:
            raise Refused(f"both of {names} have {patch.id}, and {switch} cannot be read")
        if before.switch == after.switch:
            raise Refused(
                f"both of {names} have {patch.id}, and {switch} is {after.switch:,} on both"
            )
        if before.switch < after.switch:
            raise Refused(
                f"{switch} is {before.switch:,} on {before.target} and {after.switch:,} on "
                f"{after.target}: swap them"
            )


def look_at(patch: Patch, before: Side, after: Side) -> Pair:
    """What a pair shows.

    :raises Refused: it is no pair, or the metric is not to be had
    """
    check_pair(patch, before, after)
    validation = patch.validation
    assert validation is not None
    try:
        old, unit = before.figure(validation.metric)
        new, other = after.figure(validation.metric)
    except Unmeasured as error:
        raise Refused(f"the figure that shows {patch.id} is not to be had: {error}") from None
    if unit is not other:
        raise Refused(f"{validation.metric} has different units on both")
    conditions = tuple(_conditions(validation, before, after))
    problems = [one.problem for one in conditions if one.problem]
    if State.UNKNOWN in (before.detected.state, after.detected.state):
        problems.append(f"it cannot be told whether both have {patch.id}")
    if old < validation.symptom_at_least:
        least = _bound(validation.symptom_at_least, unit)
        problems.append(
            f"{before.target} does not show what the patch is for: {validation.metric.what} "
            f"take {human(old, unit)}, less than {least}"
        )
    predicted = None
    if validation.predicted is not None:
        try:
            predicted = before.figure(validation.predicted)[0]
        except Unmeasured:
            predicted = None
    return Pair(before, after, old, new, unit, predicted, conditions, tuple(problems))


def _conditions(validation: Validation, before: Side, after: Side) -> Iterator[Condition]:
    ram, other = before.ram_bytes, after.ram_bytes
    yield _condition("RAM", ram, other, Unit.BYTES, _near(ram, other, _MOST_RAM_APART))
    same = None if None in (before.cpus, after.cpus) else before.cpus == after.cpus
    yield _condition("CPUs", before.cpus, after.cpus, Unit.COUNT, same)
    up, long = before.uptime_seconds, after.uptime_seconds
    apart = (
        None if up is None or long is None else max(up, long) <= _MOST_UPTIME_APART * min(up, long)
    )
    yield _condition("uptime", up, long, Unit.SECONDS, apart)
    for one in validation.workload:
        try:
            first, unit = before.figure(one.metric)
            second, _ = after.figure(one.metric)
        except Unmeasured as error:
            yield Condition(
                one.metric.what, None, None, Unit.COUNT, None, f"the load is not known: {error}"
            )
            continue
        alike = bool(_near(first, second, one.within))
        found = _condition(one.metric.what, first, second, unit, alike)
        if min(first, second) < one.at_least:
            few = f"{human(first, unit)} and {human(second, unit)} {one.metric.what}"
            problem = (
                f"the load is not there: {few}, at least {_bound(one.at_least, unit)} are needed"
            )
            found = Condition(one.metric.what, first, second, unit, alike, problem)
        yield found


def _bound(value: float, unit: Unit) -> str:
    return human(int(value) if value == int(value) else value, unit)


def _condition(
    what: str, before: float | None, after: float | None, unit: Unit, alike: bool | None
) -> Condition:
    problem = ""
    if alike is False:
        problem = f"they are not alike: {what} {human(before, unit)} and {human(after, unit)}"
    return Condition(what, before, after, unit, alike, problem)


def _near(one: float | None, other: float | None, within: float) -> bool | None:
    if one is None or other is None:
        return None
    return abs(one - other) <= within * max(one, other)


def judge(patch: Patch, pairs: Sequence[Pair]) -> Judgement:
    """The verdict over all pairs from which something follows."""
    useful = [pair for pair in pairs if not pair.problems]
    reasons = list(dict.fromkeys(problem for pair in pairs for problem in pair.problems))
    changes = [pair.change for pair in useful] or [pair.change for pair in pairs]
    middle = statistics.median(changes)
    low, high = interval(changes)
    if not useful:
        verdict = Verdict.INCONCLUSIVE
    elif low >= LEAST_CHANGE:
        verdict = Verdict.CONFIRMED
    elif high <= 0:
        verdict = Verdict.CONTRADICTED
    else:
        verdict = Verdict.INCONCLUSIVE
        reasons.append(f"less than {LEAST_CHANGE:.0%} is not told from noise")
    return Judgement(verdict, tuple(reasons), tuple(pairs), middle, low, high, _claimed(patch))


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """The 95% confidence interval of the median, by resampling; always the same for the same."""
    if len(changes) == 1:
        return changes[0], changes[0]
    values = np.sort(np.asarray(changes, float))
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _claimed(patch: Patch) -> float | None:
    """The change that was published for the run that the catalogue names."""
    assert patch.validation is not None
    claim = patch.validation.claim
    # A run may have published times beside the bytes that the metric measures.
    run = [
        one
        for one in patch.figures
        if claim and one.run == claim and UNITS[one.unit][0] == Unit.BYTES.value
    ]
    ends = [
        max((one.base for one in run if one.moment is moment), default=None)
        for moment in (Moment.BEFORE, Moment.AFTER)
    ]
    before, after = ends
    return None if before is None or after is None else 1 - after / before
