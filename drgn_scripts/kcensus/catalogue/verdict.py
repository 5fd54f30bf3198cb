# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict of a validation as a :class:`~kcensus.results.Result`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd

from kcensus.catalogue.model import Patch
from kcensus.catalogue.validate import Judgement, Pair, Verdict
from kcensus.human import human, human_ratio
from kcensus.results import Figure, Finding, Gap, Result, Severity, Unit
from kcensus.results.tables import Column, Show, Table

_SEVERITY = {
    Verdict.CONFIRMED: Severity.INFO,
    Verdict.CONTRADICTED: Severity.WARNING,
    Verdict.INCONCLUSIVE: Severity.NOTICE,
}


def validation_result(patch: Patch, judgement: Judgement) -> Result:
    """Return the verdict on a patch with its figures, pairs and conditions."""
    validation = patch.validation
    assert validation is not None
    pairs = judgement.pairs
    # Figures and verdict are from the same pairs.
    shown = [pair for pair in pairs if not pair.problems] or pairs
    first = pairs[0]
    kernels = dict.fromkeys(side.kernel for pair in pairs for side in (pair.before, pair.after))
    result = Result(
        "validate",
        f"{patch.id}: {first.before.target} against {first.after.target}"
        + (f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""),
        ", then ".join(kernels),
        measures=False,
    )
    old, new = (
        statistics.median(values)
        for values in ([pair.old for pair in shown], [pair.new for pair in shown])
    )
    predictions = [pair.predicted for pair in shown if pair.predicted is not None]
    what, unit, ratio = validation.metric.what, first.unit, Unit.RATIO
    result.summary |= {
        "verdict": Figure(judgement.verdict.value, Unit.TEXT, "verdict"),
        "before": Figure(old, unit, f"{what} before"),
        "after": Figure(new, unit, f"{what} after"),
        "predicted": Figure(
            statistics.median(predictions) if predictions else None,
            unit,
            "predicted after",
        ),
        "change": Figure(judgement.change, ratio, "reduction"),
        "claimed_change": Figure(judgement.claimed, ratio, "published reduction"),
        "pairs": Figure(len(pairs), Unit.COUNT, "pairs"),
    }
    if len(pairs) > 1:
        result.summary |= {
            "change_low": Figure(judgement.low, ratio, "reduction, 95% confidence, low"),
            "change_high": Figure(judgement.high, ratio, "reduction, 95% confidence, high"),
        }
    result.tables = {"pairs": _pairs(pairs, validation.switch), "conditions": _conditions(pairs)}
    result.findings = [_finding(patch, judgement, old, new, unit)]
    for pair in pairs:
        for side in (pair.before, pair.after):
            for name, other in side.results.items():
                result.gaps += [
                    Gap(f"{gap.what} ({name} on {side.target})", gap.reason, gap.count, gap.effect)
                    for gap in other.gaps
                ]
    return result


def _finding(patch: Patch, judgement: Judgement, old: float, new: float, unit: Unit) -> Finding:
    validation = patch.validation
    assert validation is not None
    change = f"{human_ratio(abs(judgement.change))} {'less' if judgement.change >= 0 else 'more'}"
    figures = f"{validation.metric.what} {human(old, unit)} before, {human(new, unit)} after"
    reasons = list(judgement.reasons)
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        useful = [pair for pair in judgement.pairs if not pair.problems]
        what = "the pair is" if len(useful) == 1 else f"{len(useful)} pairs are"
        reasons.insert(0, f"{what} alike in memory, CPUs and workload{_unknown(useful)}")
    if validation.switch and judgement.pairs[0].before.switch is not None:
        sides = judgement.pairs[0].before.switch, judgement.pairs[0].after.switch
        shown = [human(side, Unit.COUNT) for side in sides]
        reasons.append(f"{validation.switch} is {shown[0]} before and {shown[1]} after")
    if judgement.claimed is not None:
        reasons.append(f"published reduction, on another machine: {human_ratio(judgement.claimed)}")
    return Finding(
        _SEVERITY[judgement.verdict],
        f"{judgement.verdict.value}: {figures}, {change}",
        evidence="; ".join(reasons),
        patch=patch.id,
    )


def _unknown(pairs: Sequence[Pair]) -> str:
    unknown = dict.fromkeys(
        condition.what for pair in pairs for condition in pair.conditions if condition.alike is None
    )
    return f" (unknown: {', '.join(unknown)})" if unknown else ""


def _pairs(pairs: Sequence[Pair], switch: str) -> Table:
    text, unit = Unit.TEXT, pairs[0].unit
    shown = Show.WIDE if switch else Show.DATA
    return Table.of(
        "Pairs",
        {
            "before": ([pair.before.target for pair in pairs], Column(text, "before", Show.ALWAYS)),
            "after": ([pair.after.target for pair in pairs], Column(text, "after", Show.ALWAYS)),
            "state_before": (
                [pair.before.detected.state.value for pair in pairs],
                Column(text, "patch before"),
            ),
            "state_after": (
                [pair.after.detected.state.value for pair in pairs],
                Column(text, "patch after"),
            ),
            "switch_before": (
                pd.Series([pair.before.switch for pair in pairs], dtype="Int64"),
                Column(Unit.NONE, f"{switch} before", shown),
            ),
            "switch_after": (
                pd.Series([pair.after.switch for pair in pairs], dtype="Int64"),
                Column(Unit.NONE, f"{switch} after", shown),
            ),
            "old": ([pair.old for pair in pairs], Column(unit, "figure before", Show.ALWAYS)),
            "new": ([pair.new for pair in pairs], Column(unit, "figure after", Show.ALWAYS)),
            "change": (
                [pair.change for pair in pairs],
                Column(Unit.RATIO, "reduction", Show.ALWAYS),
            ),
            "useful": (
                [not pair.problems for pair in pairs],
                Column(Unit.NONE, "counts", Show.ALWAYS),
            ),
        },
    )


def _conditions(pairs: Sequence[Pair]) -> Table:
    rows = [(at, one) for at, pair in enumerate(pairs, 1) for one in pair.conditions]
    text = Unit.TEXT
    alike = {True: "yes", False: "no", None: "not known"}
    return Table.of(
        "Conditions of each pair",
        {
            "pair": ([at for at, _ in rows], Column(Unit.NONE, "pair")),
            "condition": ([one.what for _, one in rows], Column(text, "condition", Show.ALWAYS)),
            "before": (
                [human(one.before, one.unit) for _, one in rows],
                Column(text, "", Show.ALWAYS),
            ),
            "after": (
                [human(one.after, one.unit) for _, one in rows],
                Column(text, "", Show.ALWAYS),
            ),
            "alike": ([alike[one.alike] for _, one in rows], Column(text, "", Show.ALWAYS)),
            "problem": ([one.problem or None for _, one in rows], Column(text, "", Show.DATA)),
        },
    )
