# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict on a patch with its figures, pairs and conditions, as a result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from kcensus.catalogue.model import Patch
from kcensus.catalogue.validate.judge import MIN_CHANGE, Judgement, Verdict
from kcensus.catalogue.validate.pairs import Pair, series_of
from kcensus.human import human, human_ratio, listed
from kcensus.results import Figure, Finding, Result, Severity, Unit
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
    "state_before": Column(TEXT, "patch before", ALWAYS, "Patch state before.",
        "before.state.value"),
    "state_after": Column(TEXT, "patch after", ALWAYS, "Patch state after.", "after.state.value"),
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
