# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check on pairs of targets, without and with a patch, whether it has the promised effect.

A pair is comparable if memory, CPUs and workload are alike and the uptimes are similar.
"""

from __future__ import annotations

import enum
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
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
from kcensus.human import human, human_ratio, listed
from kcensus.results import Bound, Figure, Finding, Result, Severity, Unit
from kcensus.results.tables import (
    ALWAYS,
    DATA,
    NONE,
    RATIO,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    make_tables,
)

MIN_CHANGE = 0.1
"""Least relative change; smaller changes count as noise."""
_PREDICTED_SHARE = 0.5
"""Least share of the reduction that the model predicts from BEFORE. The model takes the least
memory that the patch allows (slabs packed full, lists only where BEFORE has objects), so that a
kernel with the patch uses more."""
_MACHINE = (
    ("RAM", "ram_bytes", Unit.BYTES, 0.05),
    ("CPUs", "cpus", Unit.COUNT, 0.0),
    ("uptime", "uptime_seconds", Unit.SECONDS, 0.75),
)
"""Properties to compare: name, attribute of :class:`Side`, unit, accepted relative difference."""
_RESAMPLES = 10_000
_LOGGED = re.compile("bfq|cfq")
"""Names of the queues of schedulers whose messages blktrace records."""


class Refused(Exception):
    """Two targets are not a valid pair; the text is one sentence with the reason."""


class Verdict(enum.Enum):
    """The conclusion from all pairs together."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


_SEVERITY = {
    Verdict.CONFIRMED: Severity.INFO,
    Verdict.CONTRADICTED: Severity.WARNING,
    Verdict.INCONCLUSIVE: Severity.NOTICE,
}
_NEXT = {
    Verdict.CONFIRMED: "",
    Verdict.CONTRADICTED: "Check whether the patch is active, and the workload of both sides the "
    'same: table "conditions"',
    Verdict.INCONCLUSIVE: "Add pairs of the same workload with --more",
}
"""Next steps."""
PAIRS = TableSpec("pairs", "Pairs", {
    "before": Column(TEXT, "", ALWAYS, "Target without the patch.", "before.target"),
    "after": Column(TEXT, "", ALWAYS, "Target with the patch.", "after.target"),
    "state_before": Column(TEXT, "patch before", WIDE, "Patch state before.", "before.state.value"),
    "state_after": Column(TEXT, "patch after", WIDE, "Patch state after.", "after.state.value"),
    "switch_before": Column(NONE, "", DATA, "Variable that weakens the patch.", "before.switch"),
    "switch_after": Column(NONE, "", DATA, "Variable that weakens the patch.", "after.switch"),
    "old": Column(NONE, "figure before", ALWAYS, "Figure that the patch reduces."),
    "new": Column(NONE, "figure after", ALWAYS, "Figure that the patch reduces."),
    "change": Column(RATIO, "reduction", ALWAYS, "Share of the figure before."),
    "useful": Column(NONE, "counts", ALWAYS, "Whether the pair is alike.", "counts"),
}, "One pair of targets.")  # fmt: skip
CONDITIONS = TableSpec("conditions", "Conditions of each pair", {
    "pair": Column(NONE, "", WIDE, "Number of the pair.", "number"),
    "condition": Column(TEXT, "", ALWAYS, "Property that must be alike.", "condition.what"),
    "before": Column(TEXT, "", ALWAYS, "Value before.",
        lambda row: human(row.condition.before, row.condition.unit)),
    "after": Column(TEXT, "", ALWAYS, "Value after.",
        lambda row: human(row.condition.after, row.condition.unit)),
    "alike": Column(TEXT, "", ALWAYS, "Whether the values are alike.",
        lambda row: {True: "yes", False: "no", None: "unknown"}[row.condition.alike]),
    "problem": Column(TEXT, "", DATA, "Why the pair proves nothing.",
        lambda row: row.condition.problem or None),
}, "One condition of one pair.", rows=lambda pairs: _rows(pairs))  # fmt: skip
TABLES = (PAIRS, CONDITIONS)


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


@dataclass(frozen=True)
class Judgement:
    """The verdict, with its basis."""

    verdict: Verdict
    reasons: tuple[str, ...]
    pairs: tuple[Pair, ...]
    change: float
    """Median over pairs, with its 95 % confidence interval :attr:`low` to :attr:`high`."""
    low: float
    high: float
    claimed: float | None
    """The published change."""
    predicted: float | None
    """Median of the changes that the model predicts; None without a prediction."""

    @property
    def confirmed_from(self) -> float:
        """Least change that confirms the patch."""
        return max(MIN_CHANGE, _PREDICTED_SHARE * (self.predicted or 0))

    @property
    def contradicted_below(self) -> float:
        """Change below which the patch is contradicted: none, or noise where much is predicted."""
        return MIN_CHANGE if _PREDICTED_SHARE * (self.predicted or 0) >= MIN_CHANGE else 0.0


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


def judge(patch: Patch, pairs: Sequence[Pair]) -> Judgement:
    """Return the verdict over all pairs that count."""
    useful = [pair for pair in pairs if pair.counts]
    reasons = list(dict.fromkeys(problem for pair in pairs for problem in pair.problems))
    changes = [pair.change for pair in useful or pairs]
    predictions = [pair.predicted_change for pair in useful or pairs]
    known = [each for each in predictions if each is not None]
    low, high = interval(changes)
    judgement = Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reasons=tuple(reasons),
        pairs=tuple(pairs),
        change=statistics.median(changes),
        low=low,
        high=high,
        claimed=_claimed(patch, pairs[0].unit),
        predicted=statistics.median(known) if known else None,
    )
    if not useful:
        return judgement
    if low >= judgement.confirmed_from and not all(pair.is_switched for pair in useful):
        return replace(judgement, verdict=Verdict.CONFIRMED)
    if high <= 0 or high < judgement.contradicted_below:
        return replace(judgement, verdict=Verdict.CONTRADICTED)
    return judgement


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median, by resampling with a fixed seed."""
    if len(changes) == 1:
        return changes[0], changes[0]
    values = np.sort(np.asarray(changes, float))
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _claimed(patch: Patch, unit: Unit) -> float | None:
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


def _claimed_what(patch: Patch) -> str:
    claim = patch.validation.claim if patch.validation else ""
    return next(figure.what for figure in patch.figures if claim and figure.run == claim)


def validation_result(patch: Patch, judgement: Judgement) -> Result:
    """Return the verdict on a patch with its figures, pairs and conditions."""
    validation = patch.validation
    assert validation is not None
    pairs = judgement.pairs
    # Figures and verdict are from the same pairs.
    shown = [pair for pair in pairs if pair.counts] or pairs
    sides = [side for pair in pairs for side in (pair.before, pair.after)]
    result = Result(
        "validate",
        f"{patch.id}: "
        + listed([f"{each.before.target} against {each.after.target}" for each in pairs], 1),
        ", then ".join(dict.fromkeys(side.kernel for side in sides)),
        measures=False,
    )
    old = statistics.median(pair.old for pair in shown)
    new = statistics.median(pair.new for pair in shown)
    predictions = [pair.predicted for pair in shown if pair.predicted is not None]
    predicted = statistics.median(predictions) if predictions else None
    what, unit, ratio = validation.metric.what, pairs[0].unit, Unit.RATIO
    result.summary = {
        "verdict": Figure(judgement.verdict.value, Unit.TEXT, "verdict"),
        "before": Figure(old, unit, f"{what} before"),
        "after": Figure(new, unit, f"{what} after"),
        "predicted": Figure(predicted, unit, "predicted after"),
        "change": Figure(judgement.change, ratio, "reduction"),
        "predicted_change": Figure(judgement.predicted, ratio, "predicted reduction"),
        "confirmed_from": Figure(judgement.confirmed_from, ratio, "confirmed from a reduction of"),
        "contradicted_below": Figure(
            judgement.contradicted_below, ratio, "contradicted below a reduction of"
        ),
        "claimed_change": Figure(judgement.claimed, ratio, "published reduction"),
        "pairs": Figure(len(pairs), Unit.COUNT, "pairs"),
    }
    if len(pairs) > 1:
        result.summary |= {
            "change_low": Figure(judgement.low, ratio, "reduction, 95% confidence, low"),
            "change_high": Figure(judgement.high, ratio, "reduction, 95% confidence, high"),
        }
    result.tables = make_tables((_pairs(pairs, validation.switch), CONDITIONS), pairs)
    result.findings = [_finding(patch, judgement, old, new)]
    result.gaps = [
        replace(gap, what=f"{gap.what} ({name} on {side.target})")
        for side in sides
        for name, other in side.results.items()
        for gap in other.gaps
    ]
    return result


def _less(reduction: float) -> str:
    return f"{human_ratio(abs(reduction))} {'less' if reduction >= 0 else 'more'}"


def _finding(patch: Patch, judgement: Judgement, old: float, new: float) -> Finding:
    validation, first = patch.validation, judgement.pairs[0]
    assert validation is not None
    change = _less(judgement.change)
    before, after = human(old, first.unit), human(new, first.unit)
    reasons = list(judgement.reasons)
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        useful = [pair for pair in judgement.pairs if pair.counts]
        what = "the pair is" if len(useful) == 1 else f"{len(useful)} pairs are"
        conditions = [condition for pair in useful for condition in pair.conditions]
        unknown = dict.fromkeys(one.what for one in conditions if one.alike is None)
        but = f" (unknown: {', '.join(unknown)})" if unknown else ""
        how = "workload" if first.before.is_trace else "memory, CPUs and workload"
        reasons.insert(0, f"{what} alike in {how}{but}")
    # Structures that each node has make a figure of more nodes larger.
    counted = [pair for pair in judgement.pairs if pair.counts]
    nodes = {(pair.before.nodes, pair.after.nodes) for pair in counted}
    reasons += [
        f"NUMA nodes differ: {one} and {other}"
        for one, other in sorted({each for each in nodes if all(each) and each[0] != each[1]})
    ]
    kernels = {(series_of(pair.before.kernel), series_of(pair.after.kernel)) for pair in counted}
    reasons += [
        f"the kernels differ by more than the patch: {one} and {other}"
        for one, other in sorted(kernels)
        if one != other
    ]
    reasons += dict.fromkeys(pair.note for pair in judgement.pairs if pair.note)
    if judgement.predicted is not None:
        reasons.append(f"the model predicts {_less(judgement.predicted)} from BEFORE, at best")
    is_switched = bool(counted) and all(pair.is_switched for pair in counted)
    if counted and not is_switched:
        least, most = (
            human_ratio(each) for each in (judgement.confirmed_from, judgement.contradicted_below)
        )
        reasons.append(
            f"a reduction of {least} or more confirms the patch, one below {most} contradicts it"
            if judgement.contradicted_below
            else f"a reduction of {least} or more confirms the patch, none contradicts it"
        )
    if validation.switch and first.before.switch is not None:
        values = [human(side.switch, Unit.COUNT) for side in (first.before, first.after)]
        reasons.append(f"{validation.switch} is {values[0]} before and {values[1]} after")
    no_remedy = _NEXT[judgement.verdict]
    if is_switched:
        effect = "limits" if judgement.change >= MIN_CHANGE else "does not limit"
        reasons.insert(
            0, f"both sides have {patch.id}: {validation.switch} {effect} {validation.metric.what}"
        )
        no_remedy = (
            "Choose a BEFORE that lacks the patch, or pass --as-given if "
            f"{validation.switch} of BEFORE switches it off"
        )
    if judgement.claimed is not None:
        reasons.append(
            f"published, on another machine: {_less(judgement.claimed)} {_claimed_what(patch)}"
        )
    return Finding(
        id=f"patch-{judgement.verdict.value}:{patch.id}",
        severity=_SEVERITY[judgement.verdict],
        title=f"{judgement.verdict.value}: {validation.metric.what} {before} before, {after} "
        f"after, {change}",
        evidence="; ".join(reasons),
        no_remedy=no_remedy,
        # If only the user's word says that the patch differs, something else may be the cause.
        patch="" if any(pair.is_given for pair in judgement.pairs) else patch.id,
    )


def _rows(pairs: Sequence[Pair]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(number=number, condition=condition)
        for number, pair in enumerate(pairs, 1)
        for condition in pair.conditions
    ]


def _pairs(pairs: Sequence[Pair], switch: str) -> TableSpec:
    """Return the declaration of the table of pairs with the unit of their figure."""
    columns = dict(PAIRS.columns)
    for name in ("old", "new"):
        columns[name] = replace(columns[name], unit=pairs[0].unit)
    for name in ("before", "after") if switch else ():
        column = columns[f"switch_{name}"]
        columns[f"switch_{name}"] = replace(column, label=f"{switch} {name}", show=WIDE)
    return replace(PAIRS, columns=columns)
