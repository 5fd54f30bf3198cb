# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict of a validation as a :class:`~kcensus.results.Result`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kcensus.catalogue.model import Patch
from kcensus.catalogue.result import column
from kcensus.catalogue.validate import Judgement, Pair, Verdict
from kcensus.human import human, human_ratio
from kcensus.results import Figure, Finding, Result, Severity, Unit
from kcensus.results.tables import Show, Table, TableSpec

_SEVERITY = {
    Verdict.CONFIRMED: Severity.INFO,
    Verdict.CONTRADICTED: Severity.WARNING,
    Verdict.INCONCLUSIVE: Severity.NOTICE,
}
_ALWAYS, _DATA = Show.ALWAYS, Show.DATA
_SWITCH = "The variable that weakens the patch.", _DATA, Unit.NONE, "Int64"
PAIRS = TableSpec(
    "pairs",
    "Pairs",
    {
        "before": column("before.target", "before", "Target without the patch.", _ALWAYS),
        "after": column("after.target", "after", "Target with the patch.", _ALWAYS),
        "state_before": column(
            "before.detected.state.value", "patch before", "State of the patch before."
        ),
        "state_after": column(
            "after.detected.state.value", "patch after", "State of the patch after."
        ),
        "switch_before": column("before.switch", "switch before", *_SWITCH),
        "switch_after": column("after.switch", "switch after", *_SWITCH),
        "old": column("old", "figure before", "What the patch reduces.", _ALWAYS, Unit.NONE),
        "new": column("new", "figure after", "What the patch reduces.", _ALWAYS, Unit.NONE),
        "change": column("change", "reduction", "Share of the figure before.", _ALWAYS, Unit.RATIO),
        "useful": column("counts", "counts", "Whether the pair is alike.", _ALWAYS, Unit.NONE),
    },
    "One pair of targets.",
)
CONDITIONS = TableSpec(
    "conditions",
    "Conditions of each pair",
    {
        "pair": column("pair", "pair", "Number of the pair.", unit=Unit.NONE),
        "condition": column("condition.what", "condition", "What must be alike.", _ALWAYS),
        "before": column("before", "before", "Value before.", _ALWAYS),
        "after": column("after", "after", "Value after.", _ALWAYS),
        "alike": column("alike", "alike", "Whether the values are alike.", _ALWAYS),
        "problem": column("problem", "problem", "Why the pair proves nothing.", _DATA),
    },
    "One condition of one pair.",
)
TABLES = (PAIRS, CONDITIONS)


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
        f"{patch.id}: {sides[0].target} against {sides[1].target}"
        + (f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""),
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
        "claimed_change": Figure(judgement.claimed, ratio, "published reduction"),
        "pairs": Figure(len(pairs), Unit.COUNT, "pairs"),
    }
    if len(pairs) > 1:
        result.summary |= {
            "change_low": Figure(judgement.low, ratio, "reduction, 95% confidence, low"),
            "change_high": Figure(judgement.high, ratio, "reduction, 95% confidence, high"),
        }
    result.tables = {
        "pairs": _pairs(pairs, validation.switch),
        "conditions": CONDITIONS.of(_condition_rows(pairs)),
    }
    result.findings = [_finding(patch, judgement, old, new)]
    result.gaps = [
        replace(gap, what=f"{gap.what} ({name} on {side.target})")
        for side in sides
        for name, other in side.results.items()
        for gap in other.gaps
    ]
    return result


def _finding(patch: Patch, judgement: Judgement, old: float, new: float) -> Finding:
    validation, first = patch.validation, judgement.pairs[0]
    assert validation is not None
    change = f"{human_ratio(abs(judgement.change))} {'less' if judgement.change >= 0 else 'more'}"
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
    reasons += dict.fromkeys(pair.note for pair in judgement.pairs if pair.note)
    if validation.switch and first.before.switch is not None:
        values = [human(side.switch, Unit.COUNT) for side in (first.before, first.after)]
        reasons.append(f"{validation.switch} is {values[0]} before and {values[1]} after")
    if judgement.claimed is not None:
        reasons.append(f"published reduction, on another machine: {human_ratio(judgement.claimed)}")
    return Finding(
        id=f"patch-{judgement.verdict.value}:{patch.id}",
        severity=_SEVERITY[judgement.verdict],
        title=f"{judgement.verdict.value}: {validation.metric.what} {before} before, {after} "
        f"after, {change}",
        evidence="; ".join(reasons),
        # What else differs may be the cause where only the user's word says that the patch does.
        patch="" if any(pair.is_given for pair in judgement.pairs) else patch.id,
    )


def _pairs(pairs: Sequence[Pair], switch: str) -> Table:
    """Return the table of pairs, with the unit of their metric and the name of the switch."""
    table = PAIRS.of(pairs)
    changes: dict[str, dict[str, Any]] = {name: {"unit": pairs[0].unit} for name in ("old", "new")}
    if switch:
        for side in ("before", "after"):
            changes[f"switch_{side}"] = {"label": f"{switch} {side}", "show": Show.WIDE}
    table.columns = {
        name: replace(column, **changes.get(name, {})) for name, column in PAIRS.columns.items()
    }
    return table


def _condition_rows(pairs: Sequence[Pair]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            pair=number,
            condition=condition,
            before=human(condition.before, condition.unit),
            after=human(condition.after, condition.unit),
            alike={True: "yes", False: "no", None: "not known"}[condition.alike],
            problem=condition.problem or None,
        )
        for number, pair in enumerate(pairs, 1)
        for condition in pair.conditions
    ]
