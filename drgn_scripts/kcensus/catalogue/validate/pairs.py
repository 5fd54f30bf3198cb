# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure both sides of a pair, and refuse those that cannot be one.

A pair is comparable if memory, CPUs and workload are alike and the uptimes are similar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kcensus.catalogue.model import HAS_IT, LACKS_IT, Detected, Metric, Patch, State, Validation
from kcensus.catalogue.price import Unmeasured, measure
from kcensus.human import human
from kcensus.results import Bound, Result, Unit

_MACHINE = (
    ("RAM", "ram_bytes", Unit.BYTES, 0.05),
    ("CPUs", "cpus", Unit.COUNT, 0.0),
    ("uptime", "uptime_seconds", Unit.SECONDS, 0.75),
)
"""Properties to compare: name, attribute of :class:`Side`, unit, accepted relative difference."""
_LOGGED = re.compile("bfq|cfq")
"""Names of the queues of schedulers whose messages blktrace records."""


class Refused(Exception):
    """Two targets are not a valid pair; the text is one sentence with the reason."""


@dataclass(frozen=True)
class Side:
    """One target of a pair."""

    target: str
    kernel: str
    detected: Detected
    results: Mapping[str, Result]
    failed: Mapping[str, str]
    """Reasons of analyses without a result."""
    ram_bytes: int | None = None
    cpus: int | None = None
    nodes: int | None = None
    """NUMA nodes with memory."""
    uptime_seconds: float | None = None
    switch: int | None = None
    """Value of :attr:`~kcensus.catalogue.model.Validation.switch`."""
    is_trace: bool = False
    """Whether it is a trace, without types that tell the state of the patch."""

    @property
    def state(self) -> State:
        return self.detected.state

    def is_lower_bound(self, metric: Metric) -> bool:
        """Return whether a figure is only a lower bound."""
        result = self.results.get(metric.analysis)
        figure = result.summary.get(metric.key) if result else None
        return figure is not None and figure.bound is Bound.AT_LEAST

    @property
    def schedulers(self) -> frozenset[str]:
        """The I/O schedulers of the requests; empty if unknown."""
        if self.is_trace:
            queues = self._column("trace_queues", "queue")
            return frozenset(match[0] for name in queues if (match := _LOGGED.match(name)))
        schedulers, requests = (self._column("disks", name) for name in ("scheduler", "requests"))
        names = {str(name) for name, count in zip(schedulers, requests, strict=True) if count}
        # A disk of device mapper has none, but a disk below it does.
        return frozenset(names - {"none", ""} or names & {"none"})

    @property
    def devices(self) -> frozenset[str]:
        """The devices of a trace, such as ``8,0``."""
        return frozenset(self._column("trace_devices", "device"))

    def _column(self, table: str, column: str) -> list[Any]:
        result = self.results.get("iosched")
        known = result.tables.get(table) if result is not None else None
        return [] if known is None else known.frame[column].tolist()

    def lacks(self, metric: Metric) -> bool:
        """Return whether an analysis has a result, but lacks this figure."""
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
    """A property to compare between the sides."""

    what: str
    before: float | str | None
    after: float | str | None
    unit: Unit
    alike: bool | None
    """None if unknown."""
    problem: str = ""
    """A clause; empty if the sides are comparable by it, or an unlike value discards no pair."""


@dataclass(frozen=True)
class Pair:
    """The measurements of one pair."""

    before: Side
    after: Side
    old: float
    """The metric before; :attr:`new` is the metric after."""
    new: float
    unit: Unit
    predicted: float | None
    """The prediction of the model for :attr:`new`."""
    conditions: tuple[Condition, ...]
    problems: tuple[str, ...]
    """Reasons why the pair proves nothing; empty if it counts."""
    note: str = ""
    """The given states of the patch."""
    is_given: bool = False
    """Whether only the user asserts that the patch makes the difference."""
    is_switched: bool = False
    """Whether both sides have the patch, and only its switch differs."""

    @property
    def counts(self) -> bool:
        """Whether the pair proves anything."""
        return not self.problems

    @property
    def change(self) -> float:
        """Return the reduction of the metric, relative to its value without the patch."""
        return (self.old - self.new) / self.old if self.old else 0.0

    @property
    def predicted_change(self) -> float | None:
        """Return the reduction that the model predicts; None without a prediction."""
        if not self.old or self.predicted is None:
            return None
        return (self.old - self.predicted) / self.old


def look_at(patch: Patch, before: Side, after: Side, *, as_given: bool = False) -> Pair:
    """Return the measurements of a pair.

    :param as_given: whether the user asserts that the patch, or a tunable with its effect, makes
        the difference, and for traces also the scheduler and the disk; which of two traces is with
        the patch is always given unless they prove the opposite
    :raises Refused: ``before`` has the patch at full strength, ``after`` lacks it, one of them uses
        another scheduler, or the metric is not available
    """
    validation = patch.validation
    assert validation is not None
    is_traced = before.is_trace and after.is_trace
    note, is_given = "", False
    if as_given or is_traced:
        note = _given(patch.id, before, after)
        is_given = not (is_traced and before.state in LACKS_IT)
    _check_states(patch.id, validation.switch, before, after, as_given=as_given)
    unknown = list(_check_disks(patch.id, validation.scheduler, before, after))
    metric, minimum = validation.metric, validation.symptom_at_least
    try:
        (old, unit), (new, other_unit) = before.figure(metric), after.figure(metric)
    except Unmeasured as error:
        for side in (before, after):
            if side.is_trace and side.lacks(metric):
                raise Refused(f"the trace {side.target} has no {metric.what}") from None
        raise Refused(f"the figure of {patch.id} is not available: {error}") from None
    if unit is not other_unit:
        raise Refused(f"{metric} is in {unit.value} before and in {other_unit.value} after")
    predicted = None
    if validation.predicted:
        with suppress(Unmeasured):
            predicted = before.figure(validation.predicted)[0]
    conditions = tuple(_conditions(validation, before, after))
    problems = [condition.problem for condition in conditions if condition.problem]
    if not as_given:
        problems += unknown
    elif unknown:
        note = f"{note}; --as-given asserts scheduler and disk"
    problems += [
        f"the trace {side.target} lacks events: waits may seem too long"
        for side in (before, after)
        if side.is_trace and any(side.is_lower_bound(each.metric) for each in validation.workload)
    ]
    smaller, value = (after, new) if new < old else (before, old)
    if smaller.is_lower_bound(metric):
        problems.append(
            f"{smaller.target} ended before the {metric.what} did: at least {human(value, unit)}"
        )
    if not note and State.UNDETERMINED in (before.state, after.state):
        problems.append(f"{patch.id} is undetermined on one side or both")
    if old < minimum:
        problems.append(
            f"{before.target} does not show the symptom: {metric.what} take {human(old, unit)}, "
            f"at least {_bound(minimum, unit)} are needed"
            + "; the other target does: swap BEFORE and AFTER if they are in the wrong order"
            * (new >= minimum)
        )
    return Pair(
        before, after, old, new, unit, predicted, conditions, tuple(problems), note, is_given,
        is_switched=not as_given and before.state in HAS_IT and after.state in HAS_IT,
    )  # fmt: skip


def _check_disks(patch: str, scheduler: str, before: Side, after: Side) -> Iterator[str]:
    """Yield reasons why the sides may differ in disk, or not use the patch's scheduler.

    :raises Refused: a side uses another scheduler
    """
    if not scheduler:
        return
    for side in (before, after):
        names = " and ".join(sorted(side.schedulers))
        if not names:
            what = "has no messages that name" if side.is_trace else "does not show"
            yield f"{side.target} {what} its scheduler: pass --as-given if it is {scheduler}"
        elif scheduler not in side.schedulers:
            raise Refused(f"{side.target} uses {names}, but {patch} changes {scheduler}")
        elif len(side.schedulers) > 1:
            yield f"{side.target} uses {names}: the figure may come from another scheduler"
    if before.devices != after.devices:
        first, second = (" and ".join(sorted(side.devices)) for side in (before, after))
        yield f"{before.target} has the devices {first}, {after.target} {second}"


def _given(patch: str, before: Side, after: Side) -> str:
    """Return the states and the user's assertion as a note."""
    proven = next((side.detected.reason for side in (before, after) if side.state in LACKS_IT), "")
    if before.is_trace and not proven:
        return f"traces do not show {patch}: kcensus assumes that only AFTER has it"
    states = f"{before.state.value} before and {after.state.value} after"
    if before.is_trace:
        return f"{patch} is {states} ({proven})"
    if before.state is after.state:
        states = f"{before.state.value} on both"
    return f"{patch} is {states}: --as-given asserts that another difference causes the effect"


def _check_states(patch: str, switch: str, before: Side, after: Side, *, as_given: bool) -> None:
    """Check that ``after`` has the patch, and that ``before`` lacks it or has it weakened."""
    first, second = before.state, after.state
    both = f"both of {before.target} and {after.target} have {patch}"
    if first is second is State.SUPERSEDED and not switch:
        raise Refused(f"{patch} is superseded on both of {before.target} and {after.target}")
    if second in LACKS_IT:
        if first in HAS_IT:
            raise Refused(
                f"{before.target} has {patch} and {after.target} lacks it: swap BEFORE and AFTER"
            )
        if after.is_trace:
            raise Refused(f"{after.target} comes from a kernel without {patch}; pass it as BEFORE")
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
    if before.nodes and after.nodes:
        alike = before.nodes == after.nodes
        yield Condition("NUMA nodes", before.nodes, after.nodes, Unit.COUNT, alike)
    if before.kernel and after.kernel:
        alike = series_of(before.kernel) == series_of(after.kernel)
        yield Condition("kernels", before.kernel, after.kernel, Unit.TEXT, alike)
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
            condition = replace(condition, problem=f"the workload is too small: {sizes}, {needed}")
        yield condition


def series_of(kernel: str) -> str:
    """Return the first two numbers of a release: ``6.12`` of ``6.12.117+deb13``."""
    return ".".join(kernel.split(".")[:2])


def _bound(value: float, unit: Unit) -> str:
    return human(int(value) if value == int(value) else value, unit)


def _condition(
    what: str, before: float | None, after: float | None, unit: Unit, within: float
) -> Condition:
    if before is None or after is None:
        return Condition(what, before, after, unit, None)
    alike = abs(before - after) <= within * max(before, after)
    problem = f"the sides are not alike: {what} {human(before, unit)} and {human(after, unit)}"
    return Condition(what, before, after, unit, alike, "" if alike else problem)
