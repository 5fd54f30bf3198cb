# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a patch costs or saves on one machine: figures of the analyses, as the catalogue names them.

The catalogue says which figure stands for a patch; the analyses measure it. What no analysis has
measured is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcensus.human import human
from kcensus.patches.catalogue import Catalogue
from kcensus.patches.model import Detected, FindingRule, Metric, State
from kcensus.results import Finding, Result, Severity, Unit

_LACKING = (State.ABSENT, State.PARTLY)


class Unmeasured(Exception):
    """A figure is not to be had; the text is a clause that says why."""


@dataclass(frozen=True)
class Price:
    """What a patch means for one machine."""

    detected: Detected
    metric: Metric
    value: float | None
    """None where it was not measured."""
    unit: Unit
    why_not: str = ""

    @property
    def is_cost(self) -> bool:
        """What the absence of the patch costs, rather than what its presence saves."""
        return self.detected.state in _LACKING


def metric_of(detected: Detected) -> Metric | None:
    """The figure that tells what the state of a patch means."""
    if detected.state in _LACKING:
        return detected.patch.costs
    return detected.patch.saves if detected.state is State.PRESENT else None


def analyses_wanted(catalogue: Catalogue, detected: Mapping[str, Detected]) -> tuple[str, ...]:
    """Names of the analyses whose figures :func:`prices` and :func:`findings` need."""
    wanted = {metric.analysis for one in detected.values() if (metric := metric_of(one))}
    wanted |= {rule.metric.analysis for rule in catalogue.rules if _applies(rule, detected)}
    return tuple(sorted(wanted))


def measure(metric: Metric, results: Mapping[str, Result]) -> tuple[float, Unit]:
    """The value of a metric and its unit.

    :param results: results by analysis
    :raises Unmeasured: the analysis did not run, or has no such figure
    """
    result = results.get(metric.analysis)
    if result is None:
        raise Unmeasured(f"{metric.analysis} has no result here")
    value, unit = _figure(result, metric.key)
    if metric.minus:
        other, other_unit = _figure(result, metric.minus)
        if other_unit is not unit:
            raise Unmeasured(f"{metric} subtracts {other_unit.value} from {unit.value}")
        value -= other
    return value, unit


def _figure(result: Result, key: str) -> tuple[float, Unit]:
    figure = result.summary.get(key)
    if figure is None:
        raise Unmeasured(f"{result.analysis} has no figure {key} here")
    if isinstance(figure.value, bool) or not isinstance(figure.value, (int, float)):
        raise Unmeasured(f"{result.analysis}.{key} is no number here")
    if not math.isfinite(figure.value):
        raise Unmeasured(f"{result.analysis}.{key} is a share of nothing here")
    return figure.value, figure.unit


def prices(detected: Mapping[str, Detected], results: Mapping[str, Result]) -> list[Price]:
    """For every patch with a figure that fits its state, that figure."""
    found = []
    for one in detected.values():
        metric = metric_of(one)
        if metric is None:
            continue
        try:
            value, unit = measure(metric, results)
        except Unmeasured as error:
            found.append(Price(one, metric, None, Unit.BYTES, str(error)))
        else:
            found.append(Price(one, metric, value, unit))
    return found


def findings(
    catalogue: Catalogue, detected: Mapping[str, Detected], results: Mapping[str, Result]
) -> list[Finding]:
    """What the rules of the catalogue make of the figures; the costliest first."""
    found = []
    for rule in catalogue.rules:
        if not _applies(rule, detected):
            continue
        try:
            value, unit = measure(rule.metric, results)
        except Unmeasured:
            continue  # the price of the patch says so already, and why
        if _outside(rule, value):
            found.append(_finding(rule, value, unit, detected))
    return sorted(found, key=lambda one: (-one.severity, -(one.cost_bytes or 0), one.title))


def _applies(rule: FindingRule, detected: Mapping[str, Detected]) -> bool:
    return not rule.patch or detected[rule.patch].state in rule.states


def _outside(rule: FindingRule, value: float) -> bool:
    """Whether all bounds that a rule gives are reached."""
    return (rule.at_least is None or value >= rule.at_least) and (
        rule.at_most is None or value <= rule.at_most
    )


def _finding(
    rule: FindingRule, value: float, unit: Unit, detected: Mapping[str, Detected]
) -> Finding:
    evidence = [f"{rule.metric.what}: {rule.metric}"]
    if rule.patch:
        one = detected[rule.patch]
        evidence.append(f"{rule.patch} is {one.state.value} ({one.reason})")
    return Finding(
        Severity[rule.severity.upper()],
        rule.title.replace("{value}", human(value, unit)),
        evidence=rule.evidence or "; ".join(evidence),
        remedy=rule.remedy,
        patch=rule.patch,
        cost_bytes=int(value) if unit is Unit.BYTES else None,
    )


def unmeasured(priced: Sequence[Price]) -> dict[str, int]:
    """Why figures are missing, and how many for each reason."""
    reasons: dict[str, int] = {}
    for price in priced:
        if price.value is None:
            reasons[price.why_not] = reasons.get(price.why_not, 0) + 1
    return reasons
