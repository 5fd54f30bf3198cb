# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check on pairs of targets, without and with a patch, whether it has the promised effect.

A pair is comparable if memory, CPUs and workload are alike and the uptimes are similar.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kcensus.catalogue.model import (
    HAS_IT,
    LACKS_IT,
    UNITS,
    Detected,
    Metric,
    Moment,
    Patch,
    State,
    Validation,
)
from kcensus.catalogue.price import Unmeasured, measure
from kcensus.human import human
from kcensus.results import Result, Unit

MIN_CHANGE = 0.1
"""Relative to the value before; smaller changes count as noise."""
_MAX_RAM_DIFFERENCE = 0.05
_MAX_UPTIME_RATIO = 4.0
_RESAMPLES = 10_000


class Refused(Exception):
    """Two targets are not a valid pair; the text is one sentence that says why."""


class Verdict(enum.Enum):
    """What all pairs together show."""

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
    """Value of :attr:`~kcensus.catalogue.model.Validation.switch`."""

    def figure(self, metric: Metric) -> tuple[float, Unit]:
        """Return the value of a metric and its unit.

        :raises Unmeasured: the figure is not available, with the error of a failed analysis
        """
        try:
            return measure(metric, self.results)
        except Unmeasured as error:
            why = self.failed.get(metric.analysis)
            raise Unmeasured(f"{error} ({why})" if why else str(error)) from None


@dataclass(frozen=True)
class Condition:
    """A property that must be alike on both sides."""

    what: str
    before: float | None
    after: float | None
    unit: Unit
    alike: bool | None
    """None if unknown."""
    problem: str = ""
    """A clause, if the sides are not comparable by it."""


@dataclass(frozen=True)
class Pair:
    """The measurements of one pair."""

    before: Side
    after: Side
    old: float
    """The metric without the patch."""
    new: float
    """The metric with it."""
    unit: Unit
    predicted: float | None
    """What the model predicts for the metric with the patch."""
    conditions: tuple[Condition, ...]
    problems: tuple[str, ...]
    """Why the pair proves nothing; empty if it counts."""

    @property
    def counts(self) -> bool:
        """Whether the pair proves anything."""
        return not self.problems

    @property
    def change(self) -> float:
        """Return the reduction of the metric, relative to its value without the patch."""
        return (self.old - self.new) / self.old if self.old else 0.0


@dataclass(frozen=True)
class Judgement:
    """The verdict and what it is based on."""

    verdict: Verdict
    reasons: tuple[str, ...]
    pairs: tuple[Pair, ...]
    change: float
    """Median over pairs."""
    low: float
    """95% confidence interval of the median; equal to :attr:`change` for one pair."""
    high: float
    claimed: float | None
    """The published change."""


def check_pair(patch: Patch, before: Side, after: Side) -> None:
    """Check that ``before`` lacks the patch, or has it weakened, and that ``after`` has it.

    :raises Refused: they are not a valid pair
    """
    assert patch.validation is not None
    first, second = before.detected.state, after.detected.state
    names, switch = f"{before.target} and {after.target}", patch.validation.switch
    if first in LACKS_IT and second in LACKS_IT:
        raise Refused(f"neither of {names} has {patch.id}; choose an AFTER that has it")
    if first in HAS_IT and second in LACKS_IT:
        raise Refused(f"{before.target} has {patch.id} and {after.target} lacks it: swap them")
    if not (first in HAS_IT and second in HAS_IT):
        return
    both = f"both of {names} have {patch.id}"
    if not switch:
        raise Refused(f"{both}; choose a BEFORE that lacks it")
    if before.switch is None or after.switch is None:
        raise Refused(f"{both}, and {switch} cannot be read")
    if before.switch == after.switch:
        raise Refused(f"{both}, and {switch} is {after.switch:,} on both")
    if before.switch < after.switch:
        raise Refused(
            f"{switch} is {before.switch:,} on {before.target} and {after.switch:,} on "
            f"{after.target}: swap them"
        )


def look_at(patch: Patch, before: Side, after: Side) -> Pair:
    """Return the measurements of a pair.

    :raises Refused: it is not a valid pair, or the metric is not available
    """
    check_pair(patch, before, after)
    validation = patch.validation
    assert validation is not None
    metric = validation.metric
    try:
        (old, unit), (new, other_unit) = before.figure(metric), after.figure(metric)
        predicted = _predicted(validation, before)
    except Unmeasured as error:
        raise Refused(f"the figure that shows {patch.id} is not available: {error}") from None
    if unit is not other_unit:
        raise Refused(f"{metric} is in {unit.value} before and in {other_unit.value} after")
    conditions = tuple(_conditions(validation, before, after))
    problems = [condition.problem for condition in conditions if condition.problem]
    if State.UNDETERMINED in (before.detected.state, after.detected.state):
        problems.append(f"whether both targets have {patch.id} is undetermined")
    if old < validation.symptom_at_least:
        minimum = _bound(validation.symptom_at_least, unit)
        problems.append(
            f"{before.target} does not show the symptom: {metric.what} take {human(old, unit)}, "
            f"at least {minimum} are needed"
        )
    return Pair(before, after, old, new, unit, predicted, conditions, tuple(problems))


def _predicted(validation: Validation, before: Side) -> float | None:
    try:
        return before.figure(validation.predicted)[0] if validation.predicted else None
    except Unmeasured:
        return None


def _conditions(validation: Validation, before: Side, after: Side) -> Iterator[Condition]:
    ram = before.ram_bytes, after.ram_bytes
    yield _condition("RAM", ram, Unit.BYTES, within=_MAX_RAM_DIFFERENCE)
    yield _condition("CPUs", (before.cpus, after.cpus), Unit.COUNT, within=0)
    uptime = before.uptime_seconds, after.uptime_seconds
    yield _condition("uptime", uptime, Unit.SECONDS, within=1 - 1 / _MAX_UPTIME_RATIO)
    for workload in validation.workload:
        what, minimum = workload.metric.what, workload.at_least
        try:
            (first, unit), (second, _) = (side.figure(workload.metric) for side in (before, after))
        except Unmeasured as error:
            problem = f"the workload is unknown: {error}"
            yield Condition(what, None, None, Unit.COUNT, None, problem)
            continue
        problem = ""
        if min(first, second) < minimum:
            sizes = f"{human(first, unit)} and {human(second, unit)} {what}"
            problem = (
                f"the workload is too small: {sizes}, at least {_bound(minimum, unit)} are needed"
            )
        yield _condition(what, (first, second), unit, within=workload.within, problem=problem)


def _bound(value: float, unit: Unit) -> str:
    return human(int(value) if value == int(value) else value, unit)


def _condition(
    what: str,
    values: tuple[float | None, float | None],
    unit: Unit,
    *,
    within: float,
    problem: str = "",
) -> Condition:
    """Return the condition that two values differ by at most ``within`` of the larger."""
    before, after = values
    if before is None or after is None:
        return Condition(what, before, after, unit, None, problem)
    alike = abs(before - after) <= within * max(before, after)
    if not alike and not problem:
        problem = f"they are not alike: {what} {human(before, unit)} and {human(after, unit)}"
    return Condition(what, before, after, unit, alike, problem)


def judge(patch: Patch, pairs: Sequence[Pair]) -> Judgement:
    """Return the verdict over all pairs that count."""
    useful = [pair for pair in pairs if not pair.problems]
    reasons = list(dict.fromkeys(problem for pair in pairs for problem in pair.problems))
    changes = [pair.change for pair in useful or pairs]
    low, high = interval(changes)
    verdict = Verdict.INCONCLUSIVE
    if useful and low >= MIN_CHANGE:
        verdict = Verdict.CONFIRMED
    elif useful and high <= 0:
        verdict = Verdict.CONTRADICTED
    elif useful:
        reasons.append(f"a change below {MIN_CHANGE:.0%} may be noise")
    middle = statistics.median(changes)
    return Judgement(verdict, tuple(reasons), tuple(pairs), middle, low, high, _claimed(patch))


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median, by resampling with a fixed seed."""
    if len(changes) == 1:
        return changes[0], changes[0]
    values = np.sort(np.asarray(changes, float))
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _claimed(patch: Patch) -> float | None:
    """Return the published change of the run that the catalogue names."""
    assert patch.validation is not None
    claim = patch.validation.claim
    sizes: dict[Moment, list[float]] = {Moment.BEFORE: [], Moment.AFTER: []}
    for figure in patch.figures:
        # A run may also have published times; the metric is in bytes.
        is_size = UNITS[figure.unit][0] == Unit.BYTES.value
        if claim and figure.run == claim and is_size and figure.moment in sizes:
            sizes[figure.moment].append(figure.base)
    before, after = sizes.values()
    return 1 - max(after) / max(before) if before and after else None
