# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue and the states of its patches as a :class:`~kcensus.results.Result`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from kcensus.catalogue.files import Catalogue
from kcensus.catalogue.model import HAS_IT, UNITS, Detected, Kind, Patch, State
from kcensus.catalogue.price import Price, findings, prices, unmeasured
from kcensus.results import Figure, Gap, Result, Unit
from kcensus.results.tables import Column, Show, Table

_ABSENT = {
    "absent_fixes": "fixes and features absent",
    "absent_markers": "layout markers absent",
    "absent_unmerged": "unmerged patches absent",
}
"""Summary key of each class of absent patches, and its label."""


def catalogue_result(catalogue: Catalogue) -> Result:
    """Return the catalogue alone, without a kernel."""
    patches = list(catalogue.patches.values())
    result = Result("patches", "the catalogue", "(no target given)", measures=False)
    result.summary["patches"] = Figure(len(patches), Unit.COUNT, "patches and series")
    result.summary["figures"] = Figure(
        sum(len(patch.figures) for patch in patches), Unit.COUNT, "published figures"
    )
    text = Unit.TEXT
    result.tables["patches"] = Table.of(
        "Patches",
        {
            "patch": ([patch.id for patch in patches], Column(text, "patch", Show.ALWAYS)),
            "subsystem": ([patch.subsystem for patch in patches], Column(text, "subsystem")),
            "release": ([patch.release or None for patch in patches], Column(text, "release")),
            "status": ([patch.status.value for patch in patches], Column(text, "status")),
            "kind": ([patch.kind.value for patch in patches], Column(text, "kind", Show.DATA)),
            "title": ([patch.title for patch in patches], Column(text, "title", Show.ALWAYS)),
            "detectable": (
                [patch.detection.undetectable is None for patch in patches],
                Column(Unit.NONE, "detectable", Show.DATA),
            ),
        },
    )
    result.tables["figures"] = figures_table(patches)
    return result


def figures_table(patches: Sequence[Patch]) -> Table:
    """Return every published figure, as published and in base units."""
    rows = [(patch, figure) for patch in patches for figure in patch.figures]
    text, none = Unit.TEXT, Unit.NONE
    return Table.of(
        "Published figures",
        {
            "patch": ([patch.id for patch, _ in rows], Column(text, "patch", Show.ALWAYS)),
            "figure": ([figure.name for _, figure in rows], Column(text, "figure", Show.ALWAYS)),
            "what": ([figure.what for _, figure in rows], Column(text, "what")),
            "run": ([figure.run for _, figure in rows], Column(text, "run", Show.DATA)),
            "moment": ([figure.moment.value for _, figure in rows], Column(text, "moment")),
            "bound": ([figure.bound.value for _, figure in rows], Column(text, "bound")),
            "value": ([figure.value for _, figure in rows], Column(none, "value", Show.ALWAYS)),
            "to": ([figure.to for _, figure in rows], Column(none, "to")),
            "unit": ([figure.unit for _, figure in rows], Column(text, "unit", Show.ALWAYS)),
            "base_value": (
                [figure.base for _, figure in rows],
                Column(none, "in base units", Show.DATA),
            ),
            "base_unit": (
                [UNITS[figure.unit][0] for _, figure in rows],
                Column(text, "base unit", Show.DATA),
            ),
        },
        detail=True,
    )


def patches_result(
    catalogue: Catalogue,
    detected: Mapping[str, Detected],
    results: Mapping[str, Result],
    *,
    target: str,
    kernel: str,
    live: bool = False,
    lacking: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
    priced: bool = True,
) -> Result:
    """Return the state of each patch on a kernel, and what it costs or saves there.

    :param results: of the analyses of the same target, by name
    :param lacking: one sentence for each module whose debug info is missing
    :param failed: why an analysis has no result, by name
    :param priced: whether to include costs and savings
    """
    result = Result("patches", target, kernel, live, measures=False)
    all_prices = prices(detected, results) if priced else []
    absent = [one.patch for one in detected.values() if one.state is State.ABSENT]
    classes = [_absent_class(patch) for patch in absent]
    for key, label in _ABSENT.items():
        result.summary[key] = Figure(classes.count(key), Unit.COUNT, label)
    states = [one.state for one in detected.values()]
    for state in State:
        label = f"patches {state.value}"
        result.summary[state.name.lower()] = Figure(states.count(state), Unit.COUNT, label)
    result.tables["patches"] = _patches(detected, all_prices)
    if priced:
        result.tables["prices"] = _prices(all_prices)
    result.tables["figures"] = figures_table(list(catalogue.patches.values()))
    result.findings = findings(catalogue, detected, results)
    result.gaps = _gaps(lacking, all_prices, failed or {})
    return result


def _absent_class(patch: Patch) -> str:
    """Return the key in ``_ABSENT`` of a patch that is absent."""
    if not patch.is_upstream:
        return "absent_unmerged"
    return "absent_markers" if patch.kind is Kind.MARKER else "absent_fixes"


def _gaps(
    lacking: Sequence[str], all_prices: Sequence[Price], failed: Mapping[str, str]
) -> list[Gap]:
    gaps = [
        Gap("module debug info", sentence, 1, "patches of this module are undetermined")
        for sentence in lacking
    ]
    for reason, count in unmeasured(all_prices).items():
        analysis = reason.split(" ", 1)[0]
        why = f"{reason}: {failed[analysis]}" if analysis in failed else reason
        gaps.append(Gap("figures", why, count, "the cost or saving of these patches is unknown"))
    return gaps


def _section(one: Detected) -> int:
    """Return the section of the table: what is missing comes first, unmerged patches after it."""
    if one.state in HAS_IT:
        return 4 + (one.state is State.SUPERSEDED)
    if one.state is State.UNDETERMINED:
        return 1
    return {"absent_fixes": 0, "absent_markers": 2, "absent_unmerged": 3}[_absent_class(one.patch)]


def _patches(detected: Mapping[str, Detected], all_prices: Sequence[Price]) -> Table:
    in_bytes = {price.detected.patch.id: price for price in all_prices if price.unit is Unit.BYTES}
    costs = {name: price.value for name, price in in_bytes.items() if price.is_cost}
    saves = {name: price.value for name, price in in_bytes.items() if not price.is_cost}
    series = {stage.patch: name for name, one in detected.items() for stage in one.patch.stages}

    def order(one: Detected) -> tuple[object, ...]:
        # Stages follow their series: their costs are contained in its cost.
        name = one.patch.id
        leader = series.get(name, name)
        cost, leader_cost = costs.get(name) or 0, costs.get(leader) or 0
        return (
            _section(one),
            -leader_cost,
            one.patch.subsystem,
            leader,
            name != leader,
            -cost,
            name,
        )

    rows = sorted(detected.values(), key=order)
    text = Unit.TEXT
    return Table.of(
        "Patches",
        {
            "patch": ([one.patch.id for one in rows], Column(text, "patch", Show.ALWAYS)),
            "state": ([one.state.value for one in rows], Column(text, "state", Show.ALWAYS)),
            "stage": ([one.stage or None for one in rows], Column(text, "stage", Show.DATA)),
            "history": ([one.patch.history for one in rows], Column(text, "mainline")),
            "cost_bytes": (
                _whole([costs.get(one.patch.id) for one in rows]),
                Column(Unit.BYTES, "absence costs", Show.ALWAYS),
            ),
            "saving_bytes": (
                _whole([saves.get(one.patch.id) for one in rows]),
                Column(Unit.BYTES, "presence saves"),
            ),
            "reason": ([one.reason for one in rows], Column(text, "because", Show.ALWAYS)),
            "series": (
                [series.get(one.patch.id) for one in rows],
                Column(text, "part of", Show.DATA),
            ),
            "kind": ([one.patch.kind.value for one in rows], Column(text, "kind", Show.DATA)),
            "subsystem": (
                [one.patch.subsystem for one in rows],
                Column(text, "subsystem", Show.DATA),
            ),
            "release": (
                [one.patch.release or None for one in rows],
                Column(text, "release", Show.DATA),
            ),
            "status": ([one.patch.status.value for one in rows], Column(text, "status", Show.DATA)),
            "title": ([one.patch.title for one in rows], Column(text, "title", Show.DATA)),
        },
    )


def _whole(values: Sequence[float | None]) -> pd.Series[int]:
    """Return exact integers, some of them missing."""
    return pd.Series([None if value is None else int(value) for value in values], dtype="Int64")


def _prices(all_prices: Sequence[Price]) -> Table:
    rows = sorted(all_prices, key=lambda one: (-(one.value or 0), one.detected.patch.id))
    text = Unit.TEXT
    kinds = ["absence costs" if price.is_cost else "presence saves" for price in rows]
    in_bytes = [price.value if price.unit is Unit.BYTES else None for price in rows]
    return Table.of(
        "How costs and savings are computed",
        {
            "patch": (
                [price.detected.patch.id for price in rows],
                Column(text, "patch", Show.ALWAYS),
            ),
            "kind": (kinds, Column(text, "kind")),
            "bytes": (_whole(in_bytes), Column(Unit.BYTES, "bytes", Show.ALWAYS)),
            "formula": ([str(price.metric) for price in rows], Column(text, "figure", Show.ALWAYS)),
            "meaning": ([price.metric.what for price in rows], Column(text, "meaning", Show.DATA)),
        },
    )
