# SPDX-License-Identifier: LGPL-2.1-or-later
"""Costs and savings of patches on one machine, by figures of analyses, never by estimates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kcensus.catalogue.files import Catalogue
from kcensus.catalogue.model import LACKS_IT, Detected, Evidence, FindingRule, Metric, State
from kcensus.human import human
from kcensus.results import Bound, Figure, Finding, Remedy, Result, Severity, Unit, rank

_FLIPPED = {Bound.AT_LEAST: Bound.AT_MOST, Bound.AT_MOST: Bound.AT_LEAST}
"""Bounds of a number without its minus sign."""


class Unmeasured(Exception):
    """A figure is not available; the text is a clause with the reason."""


@dataclass(frozen=True)
class Price:
    """The cost or saving of a patch on one machine."""

    detected: Detected
    metric: Metric
    value: float | None
    """None if it was not measured, for the reason in :attr:`why_not`."""
    unit: Unit
    why_not: str = ""
    bound: Bound = Bound.EXACT

    @property
    def kind(self) -> str:
        """Whether the absence or the presence costs or saves."""
        saves = self.is_cost == self.is_negative
        return f"{'absence' if self.is_cost else 'presence'} {'saves' if saves else 'costs'}"

    @property
    def amount(self) -> str | None:
        """The amount of :attr:`kind` for a screen, such as ``at least 5.0 MiB``."""
        if self.value is None:
            return None
        bound = _FLIPPED.get(self.bound, self.bound) if self.is_negative else self.bound
        return f"{bound.value} {human(abs(self.value), self.unit)}".lstrip()

    @property
    def is_negative(self) -> bool:
        """Whether the patch costs more than it saves here."""
        return self.value is not None and self.value < 0

    @property
    def is_cost(self) -> bool:
        """Whether the value is the cost of the absence, not the saving of the presence."""
        return self.detected.state in LACKS_IT

    @property
    def seconds(self) -> float | None:
        """The value in seconds if it was measured and is a time."""
        return self.value if self.unit is Unit.SECONDS else None

    @property
    def bytes(self) -> int | None:
        """The value in bytes if it was measured and is in bytes."""
        return None if self.value is None or self.unit is not Unit.BYTES else int(self.value)


def metric_of(detected: Detected) -> Metric | None:
    """Return the figure that measures a patch in its state, if any."""
    if detected.state in LACKS_IT:
        return detected.patch.costs
    return detected.patch.saves if detected.state is State.PRESENT else None


def analyses_wanted(catalogue: Catalogue, detected: Mapping[str, Detected]) -> tuple[str, ...]:
    """Return the names of the analyses that :func:`prices` and :func:`findings` need, sorted."""
    wanted = {metric.analysis for patch in detected.values() if (metric := metric_of(patch))}
    wanted |= {rule.metric.analysis for rule in catalogue.rules if _applies(rule, detected)}
    wanted |= {each.metric.analysis for patch in detected.values() for each in evidence_of(patch)}
    return tuple(sorted(wanted))


def evidence_of(detected: Detected) -> tuple[Evidence, ...]:
    """Return the figures that may tell more about a patch than the debug info."""
    undetectable = detected.patch.detection.undetectable
    is_open = detected.state is State.UNDETERMINED
    return undetectable.shown_by if is_open and undetectable else ()


def weigh(detected: Detected, results: Mapping[str, Result]) -> Detected:
    """Return the state of a patch, revised by the figures of the same machine."""
    for evidence in evidence_of(detected):
        try:
            value, unit = measure(evidence.metric, results)
        except Unmeasured:
            continue
        if value >= evidence.at_least:
            shown = f"{evidence.metric} is {human(value, unit)}: {evidence.why}"
            before = "" if evidence.state is not State.UNDETERMINED else f"{detected.reason}; "
            return replace(detected, state=evidence.state, reason=f"{before}{shown}")
    return detected


def measure(metric: Metric, results: Mapping[str, Result]) -> tuple[float, Unit]:
    """Return the value of a metric and its unit.

    :param results: by analysis
    :raises Unmeasured: the analysis did not run or does not report the figure
    """
    result = results.get(metric.analysis)
    if result is None:
        raise Unmeasured(f"{metric.analysis} has no result")
    value, unit = _figure(result, metric.key)
    if metric.minus:
        other, other_unit = _figure(result, metric.minus)
        if other_unit is not unit:
            raise Unmeasured(f"{metric} subtracts {other_unit.value} from {unit.value}")
        value -= other
    return value, unit


def _bound(metric: Metric, results: Mapping[str, Result]) -> Bound:
    """Return the bound of a measured metric."""
    summary = results[metric.analysis].summary
    bound = summary[metric.key].bound
    other = summary[metric.minus].bound if metric.minus else Bound.EXACT
    return Bound.of(
        over=bound in (Bound.AT_MOST, Bound.ABOUT) or other in (Bound.AT_LEAST, Bound.ABOUT),
        under=bound in (Bound.AT_LEAST, Bound.ABOUT) or other in (Bound.AT_MOST, Bound.ABOUT),
    )


def _figure(result: Result, key: str) -> tuple[float, Unit]:
    figure = result.summary.get(key)
    if figure is None:
        raise Unmeasured(f"{result.analysis} does not report {key}")
    if isinstance(figure.value, bool) or not isinstance(figure.value, (int, float)):
        raise Unmeasured(f"{result.analysis}.{key} is not a number")
    if not math.isfinite(figure.value):
        raise Unmeasured(f"{result.analysis}.{key} is not finite")
    return figure.value, figure.unit


def prices(detected: Mapping[str, Detected], results: Mapping[str, Result]) -> list[Price]:
    """Return the prices of all patches with a figure for their state."""
    priced = []
    for patch in detected.values():
        if metric := metric_of(patch):
            try:
                value, unit = measure(metric, results)
                bound = _bound(metric, results)
                priced.append(Price(patch, metric, value, unit, bound=bound))
            except Unmeasured as error:
                priced.append(Price(patch, metric, None, Unit.BYTES, str(error)))
    return priced


def findings(
    catalogue: Catalogue, detected: Mapping[str, Detected], results: Mapping[str, Result]
) -> list[Finding]:
    """Return the findings of the rules, sorted by severity and cost."""
    made: list[Finding] = []
    seen: Counter[str] = Counter()
    for rule in catalogue.rules:
        if not _applies(rule, detected):
            continue
        try:
            value, unit = measure(rule.metric, results)
        except Unmeasured:
            continue  # reported with the price of the patch
        least = -math.inf if rule.at_least is None else rule.at_least
        most = math.inf if rule.at_most is None else rule.at_most
        if least <= value <= most:
            finding = _finding(rule, value, unit, detected)
            # Rules about the same patch are numbered from the second on.
            seen[finding.id] += 1
            number = seen[finding.id]
            made.append(finding if number == 1 else replace(finding, id=f"{finding.id}:{number}"))
    return sorted(made, key=lambda finding: (rank(finding), finding.title))


def _applies(rule: FindingRule, detected: Mapping[str, Detected]) -> bool:
    return not rule.patch or detected[rule.patch].state in rule.states


def _finding(
    rule: FindingRule, value: float, unit: Unit, detected: Mapping[str, Detected]
) -> Finding:
    evidence = [f"{rule.metric.what}: {rule.metric}"]
    if patch := detected.get(rule.patch):
        evidence.append(f"{rule.patch} is {patch.state.value} ({patch.reason})")
    return Finding(
        id=f"rule:{rule.patch or rule.metric}",
        severity=Severity[rule.severity.upper()],
        title=rule.title.replace("{value}", human(value, unit)),
        evidence=rule.evidence or "; ".join(evidence),
        figures={rule.metric.key: Figure(value, unit)},
        remedies=(Remedy(effect=rule.remedy),) if rule.remedy else (),
        patch=rule.patch,
    )
