# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check on pairs of targets, without and with a patch, whether it has the promised effect.

A pair is comparable if memory, CPUs and workload are alike and the uptimes are similar.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
from kcensus.results import Bound, Result, Unit

MIN_CHANGE = 0.1
"""Relative to the value before; smaller changes count as noise."""
_MACHINE = (
    ("RAM", "ram_bytes", Unit.BYTES, 0.05),
    ("CPUs", "cpus", Unit.COUNT, 0.0),
    ("uptime", "uptime_seconds", Unit.SECONDS, 0.75),
)
"""What must be alike: name, attribute of :class:`Side`, unit, accepted relative difference."""
_RESAMPLES = 10_000
_LOGGED = re.compile("bfq|cfq")
"""The schedulers whose messages blktrace records; names of their queues begin with it."""


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
    is_trace: bool = False
    """Whether it has no types that could tell the state of the patch."""

    @property
    def bounds(self) -> frozenset[tuple[str, str]]:
        """Analyses and keys of the figures that are only lower bounds."""
        return frozenset(
            (name, key)
            for name, result in self.results.items()
            for key, figure in result.summary.items()
            if figure.bound is Bound.AT_LEAST
        )

    @property
    def schedulers(self) -> frozenset[str]:
        """The I/O schedulers of the requests; empty if unknown."""
        if self.is_trace:
            queues = self._column("trace_queues", "queue")
            return frozenset(match[0] for name in queues if (match := _LOGGED.match(name)))
        disks = zip(
            self._column("disks", "scheduler"), self._column("disks", "requests"), strict=True
        )
        names = {str(name) for name, requests in disks if requests}
        # A disk of device mapper has none, above one that has.
        return frozenset(names - {"none", ""} or names & {"none"})

    @property
    def devices(self) -> frozenset[str]:
        """The devices of a trace, such as ``8,0``."""
        return frozenset(self._column("trace_devices", "device"))

    def _column(self, table: str, column: str) -> list[Any]:
        """Return a column of ``iosched``; empty where it did not run."""
        result = self.results.get("iosched")
        known = result.tables.get(table) if result is not None else None
        return [] if known is None else known.frame[column].tolist()

    def lacks(self, metric: Metric) -> bool:
        """Whether an analysis has a result, but not this figure."""
        result = self.results.get(metric.analysis)
        figure = result.summary.get(metric.key) if result is not None else None
        return result is not None and (figure is None or figure.value is None)

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
    note: str = ""
    """What is taken as given about the states of the patch."""
    is_given: bool = False
    """Whether the user's word alone says that the patch is what differs."""

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


def look_at(patch: Patch, before: Side, after: Side, *, as_given: bool = False) -> Pair:
    """Return the measurements of a pair.

    :param as_given: whether the user's word decides that the patch, or a tunable that has its
        effect, differs between the two, and for traces which scheduler and disk they are of; which
        of two traces has the patch is given unless they prove the opposite
    :raises Refused: ``before`` has the patch at full strength, ``after`` lacks it, one of them uses
        another scheduler, or the metric is not available
    """
    validation = patch.validation
    assert validation is not None
    is_traced = before.is_trace and after.is_trace
    note, is_given = "", False
    if as_given or is_traced:
        note = _given(patch.id, before, after)
        is_given = not (is_traced and before.detected.state in LACKS_IT)
    _check_states(patch.id, validation.switch, before, after, as_given=as_given)
    unknown = list(_check_disks(patch.id, validation.scheduler, before, after))
    metric, minimum = validation.metric, validation.symptom_at_least
    try:
        (old, unit), (new, other_unit) = before.figure(metric), after.figure(metric)
    except Unmeasured as error:
        for side in (before, after):
            if side.is_trace and side.lacks(metric):
                raise Refused(f"the trace {side.target} has no {metric.what}") from None
        raise Refused(f"the figure that shows {patch.id} is not available: {error}") from None
    if unit is not other_unit:
        raise Refused(f"{metric} is in {unit.value} before and in {other_unit.value} after")
    predicted = None
    if validation.predicted:
        with suppress(Unmeasured):
            predicted = before.figure(validation.predicted)[0]
    conditions = tuple(_conditions(validation, before, after))
    problems = [condition.problem for condition in conditions if condition.problem]
    problems += [] if as_given else unknown
    if as_given and unknown:
        note = f"{note}; scheduler and disk are given"
    own = (metric.analysis, metric.key)
    counts = {(each.metric.analysis, each.metric.key) for each in validation.workload}
    problems += [
        f"the trace {side.target} lacks events, so that a wait may seem longer than it was"
        for side in (before, after)
        if side.is_trace and side.bounds & counts
    ]
    if own in after.bounds and new < old:
        problems.append(
            f"{after.target} ended before the {metric.what} did: at least {human(new, unit)}"
        )
    elif own in before.bounds and new >= old:
        problems.append(
            f"{before.target} ended before the {metric.what} did: at least {human(old, unit)}"
        )
    if not note and State.UNDETERMINED in (before.detected.state, after.detected.state):
        problems.append(f"whether both targets have {patch.id} is undetermined")
    if old < minimum:
        problems.append(
            f"{before.target} does not show the symptom: {metric.what} take {human(old, unit)}, "
            f"at least {_bound(minimum, unit)} are needed"
            + "; the other one does: are they swapped?"
            * (new >= minimum)
        )
    return Pair(
        before, after, old, new, unit, predicted, conditions, tuple(problems), note, is_given
    )


def _check_disks(patch: str, scheduler: str, before: Side, after: Side) -> Iterator[str]:
    """Yield why it is unknown whether both sides are of the patch's scheduler, and of one disk.

    :raises Refused: a side is of another scheduler
    """
    if not scheduler:
        return
    for side in (before, after):
        if not side.schedulers:
            what = "has no messages that name" if side.is_trace else "does not show"
            yield f"{side.target} {what} its scheduler: pass --as-given if it is {scheduler}"
        elif scheduler not in side.schedulers:
            names = " and ".join(sorted(side.schedulers))
            raise Refused(f"{side.target} is of {names}, but {patch} is about {scheduler}")
        elif len(side.schedulers) > 1:
            names = " and ".join(sorted(side.schedulers))
            yield f"{side.target} is of {names}, so that the figure may be of another one"
    if before.devices != after.devices:
        first, second = (" and ".join(sorted(side.devices)) for side in (before, after))
        yield f"{before.target} is of the devices {first}, {after.target} of {second}"


def _given(patch: str, before: Side, after: Side) -> str:
    """Return what is known about the states where the user's word decides."""
    first, second = before.detected, after.detected
    proven = next((side.reason for side in (first, second) if side.state in LACKS_IT), "")
    if before.is_trace and not proven:
        return f"traces do not show whether a kernel has {patch}: that only AFTER has it is given"
    if before.is_trace:
        return f"{patch} is {first.state.value} before and {second.state.value} after ({proven})"
    states = (
        f"{first.state.value} on both"
        if first.state is second.state
        else f"{first.state.value} before and {second.state.value} after"
    )
    return f"{patch} is {states}: that the effect is from what else differs is given"


def _check_states(
    patch: str, switch: str, before: Side, after: Side, *, as_given: bool = False
) -> None:
    """Check that ``before`` lacks the patch, or has it weakened, and that ``after`` has it."""
    first, second = before.detected.state, after.detected.state
    both = f"both of {before.target} and {after.target} have {patch}"
    if first is second is State.SUPERSEDED and not switch:
        raise Refused(f"{patch} is superseded on both of {before.target} and {after.target}")
    if second in LACKS_IT:
        if first in HAS_IT:
            raise Refused(f"{before.target} has {patch} and {after.target} lacks it: swap them")
        if after.is_trace:
            raise Refused(f"{after.target} is of a kernel without {patch}; is it the BEFORE?")
        if first in LACKS_IT and not as_given:
            neither = f"neither of {before.target} and {after.target} has {patch}"
            raise Refused(f"{neither}; choose an AFTER that has it")
    elif first in HAS_IT and second in HAS_IT and not as_given:
        if not switch:
            raise Refused(f"{both}; choose a BEFORE that lacks it, or pass --as-given")
        if before.switch is None or after.switch is None:
            raise Refused(f"{both}, and {switch} cannot be read")
        if before.switch == after.switch:
            raise Refused(f"{both}, and {switch} is {after.switch:,} on both")
        if before.switch < after.switch:
            raise Refused(
                f"{switch} is {before.switch:,} on {before.target} and {after.switch:,} on "
                f"{after.target}: swap them"
            )


def _conditions(validation: Validation, before: Side, after: Side) -> Iterator[Condition]:
    for what, name, unit, within in () if before.is_trace else _MACHINE:
        yield _condition(what, getattr(before, name), getattr(after, name), unit, within)
    for workload in validation.workload:
        what, minimum = workload.metric.what, workload.at_least
        try:
            (first, unit), (second, _) = (side.figure(workload.metric) for side in (before, after))
        except Unmeasured as error:
            problem = f"the workload is unknown: {error}"
            yield Condition(what, None, None, Unit.COUNT, None, problem)
            continue
        condition = _condition(what, first, second, unit, workload.within)
        if min(first, second) < minimum:
            sizes = f"{human(first, unit)} and {human(second, unit)} {what}"
            needed = f"at least {_bound(minimum, unit)} are needed"
            problem = f"the workload is too small: {sizes}, {needed}"
            condition = dataclasses.replace(condition, problem=problem)
        yield condition


def _bound(value: float, unit: Unit) -> str:
    return human(int(value) if value == int(value) else value, unit)


def _condition(
    what: str, before: float | None, after: float | None, unit: Unit, within: float
) -> Condition:
    """Return the condition that two values differ by at most ``within`` of the larger."""
    if before is None or after is None:
        return Condition(what, before, after, unit, None)
    alike = abs(before - after) <= within * max(before, after)
    problem = f"they are not alike: {what} {human(before, unit)} and {human(after, unit)}"
    return Condition(what, before, after, unit, alike, "" if alike else problem)


def judge(patch: Patch, pairs: Sequence[Pair]) -> Judgement:
    """Return the verdict over all pairs that count."""
    useful = [pair for pair in pairs if pair.counts]
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
    claimed = _claimed(patch, pairs[0].unit)
    return Judgement(verdict, tuple(reasons), tuple(pairs), middle, low, high, claimed)


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median, by resampling with a fixed seed."""
    if len(changes) == 1:
        return changes[0], changes[0]
    values = np.sort(np.asarray(changes, float))
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _claimed(patch: Patch, unit: Unit) -> float | None:
    """Return the published change of the run that the catalogue names, in a unit."""
    claim = patch.validation.claim if patch.validation else ""
    # A run may also have figures in other units.
    sizes = [
        (figure.moment, figure.base)
        for figure in patch.figures
        if claim and figure.run == claim and UNITS[figure.unit][0] == unit.value
    ]
    before = [size for moment, size in sizes if moment is Moment.BEFORE]
    after = [size for moment, size in sizes if moment is Moment.AFTER]
    return 1 - max(after) / max(before) if before and after else None
