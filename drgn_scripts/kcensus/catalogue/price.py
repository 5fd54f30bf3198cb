# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a patch costs or saves on one machine.

The catalogue names the figure of an analysis that measures it. Figures that no analysis measured
are reported as missing, never estimated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kcensus.catalogue.files import Catalogue
from kcensus.catalogue.model import LACKS_IT, Detected, Evidence, FindingRule, Metric, State
from kcensus.human import human
from kcensus.results import Figure, Finding, Remedy, Result, Severity, Unit, rank


class Unmeasured(Exception):
    """A figure is not available; the text is a clause that says why."""


@dataclass(frozen=True)
class Price:
    """What a patch costs or saves on one machine."""

    detected: Detected
    metric: Metric
    value: float | None
    """None if it was not measured."""
    unit: Unit
    why_not: str = ""

    @property
    def is_cost(self) -> bool:
        """Whether the value is the cost of the absence, not the saving of the presence."""
        return self.detected.state in LACKS_IT

    @property
    def seconds(self) -> float | None:
        """Return the value if it was measured and is a time."""
        return None if self.unit is not Unit.SECONDS else self.value

    @property
    def bytes(self) -> int | None:
        """Return the value if it was measured and is in bytes."""
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
    """Return the figures that may say more about a patch than the debug info did."""
    undetectable = detected.patch.detection.undetectable
    if detected.state is not State.UNDETERMINED or undetectable is None:
        return ()
    return undetectable.shown_by


def weigh(detected: Detected, results: Mapping[str, Result]) -> Detected:
    """Return the state of a patch after a look at the figures of the same machine.

    :param results: by analysis
    """
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
    """Return the figure of every patch that has one for its state."""
    priced = []
    for patch in detected.values():
        if metric := metric_of(patch):
            try:
                priced.append(Price(patch, metric, *measure(metric, results)))
            except Unmeasured as error:
                priced.append(Price(patch, metric, None, Unit.BYTES, str(error)))
    return priced


def findings(
    catalogue: Catalogue, detected: Mapping[str, Detected], results: Mapping[str, Result]
) -> list[Finding]:
    """Return the findings of the rules, sorted by severity and cost."""
    made = []
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
            made.append(_finding(rule, value, unit, detected))
    return sorted(_unique(made), key=lambda finding: (rank(finding), finding.title))


def _unique(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield findings whose ids differ: rules about the same patch are numbered from the second."""
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.id] += 1
        number = seen[finding.id]
        yield finding if number == 1 else replace(finding, id=f"{finding.id}:{number}")


def _applies(rule: FindingRule, detected: Mapping[str, Detected]) -> bool:
    return not rule.patch or detected[rule.patch].state in rule.states


def _finding(
    rule: FindingRule, value: float, unit: Unit, detected: Mapping[str, Detected]
) -> Finding:
    evidence = [f"{rule.metric.what}: {rule.metric}"]
    if rule.patch:
        patch = detected[rule.patch]
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


def unmeasured(priced: Sequence[Price]) -> Mapping[str, int]:
    """Return how many figures are missing for each reason."""
    return Counter(price.why_not for price in priced if price.value is None)
