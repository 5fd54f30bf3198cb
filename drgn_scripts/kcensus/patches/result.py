# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue, and what was found out about it, as a :class:`~kcensus.results.Result`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from kcensus.patches.catalogue import Catalogue
from kcensus.patches.model import UNITS, Detected, Patch, State, Status
from kcensus.patches.price import Price, findings, prices, unmeasured
from kcensus.results import Figure, Gap, Result, Unit
from kcensus.results.tables import Column, Show, Table

_RANK = {
    State.ABSENT: 0,
    State.PARTLY: 1,
    State.UNKNOWN: 2,
    State.PRESENT: 3,
    State.SUPERSEDED: 4,
}
_NOT_UPSTREAM = (Status.NEVER_MERGED, Status.DISTRIBUTION, Status.REVERTED)


def catalogue_result(catalogue: Catalogue) -> Result:
    """The catalogue alone, without any kernel."""
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
            "release": ([patch.release or None for patch in patches], Column(text, "mainline")),
            "status": ([patch.status.value for patch in patches], Column(text, "status")),
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
    """Every published figure: as it was published, and in base units."""
    rows = [(patch, figure) for patch in patches for figure in patch.figures]
    text, none = Unit.TEXT, Unit.NONE
    return Table.of(
        "Published figures",
        {
            "patch": ([patch.id for patch, _ in rows], Column(text, "patch", Show.ALWAYS)),
            "figure": ([figure.name for _, figure in rows], Column(text, "figure", Show.ALWAYS)),
            "what": ([figure.what for _, figure in rows], Column(text, "what")),
            "run": ([figure.run for _, figure in rows], Column(text, "run", Show.DATA)),
            "moment": ([figure.moment.value for _, figure in rows], Column(text, "when")),
            "bound": ([figure.bound.value for _, figure in rows], Column(text, "meant")),
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
    """Which patches a kernel has, and what that means there.

    :param results: results of analyses on the same target, by name
    :param lacking: one sentence for each module whose debug info was not found
    :param failed: why an analysis has no result, by name
    :param priced: whether analyses were asked at all
    """
    result = Result("patches", target, kernel, live, measures=False)
    found = prices(detected, results) if priced else []
    for state in State:
        count = sum(one.state is state for one in detected.values())
        result.summary[state.name.lower()] = Figure(count, Unit.COUNT, f"patches {state.value}")
    result.tables["patches"] = _patches(detected, found)
    if priced:
        result.tables["prices"] = _prices(found)
    result.tables["figures"] = figures_table(list(catalogue.patches.values()))
    result.findings = findings(catalogue, detected, results)
    result.gaps = _gaps(lacking, found, failed or {})
    return result


def _gaps(lacking: Sequence[str], found: Sequence[Price], failed: Mapping[str, str]) -> list[Gap]:
    gaps = [
        Gap("module debug info", sentence, 1, "patches of this module cannot be told")
        for sentence in lacking
    ]
    for reason, count in unmeasured(found).items():
        analysis = reason.split(" ", 1)[0]
        why = f"{reason}: {failed[analysis]}" if analysis in failed else reason
        gaps.append(Gap("figures", why, count, "what these patches cost or save is not known"))
    return gaps


def _order(one: Detected, cost: float | None) -> tuple[float, int, bool, str, str]:
    """What costs most first; then what is missing, and of that first what could be there."""
    missing = one.patch.status in _NOT_UPSTREAM and one.state is State.ABSENT
    rank = _RANK[State.PRESENT] if missing else _RANK[one.state]
    return (-(cost or 0), rank, missing, one.patch.subsystem, one.patch.id)


def _patches(detected: Mapping[str, Detected], found: Sequence[Price]) -> Table:
    in_bytes = {price.detected.patch.id: price for price in found if price.unit is Unit.BYTES}
    costs = {name: price.value for name, price in in_bytes.items() if price.is_cost}
    saves = {name: price.value for name, price in in_bytes.items() if not price.is_cost}
    rows = sorted(detected.values(), key=lambda one: _order(one, costs.get(one.patch.id)))
    text = Unit.TEXT
    return Table.of(
        "Patches",
        {
            "patch": ([one.patch.id for one in rows], Column(text, "patch", Show.ALWAYS)),
            "state": ([one.state.value for one in rows], Column(text, "state", Show.ALWAYS)),
            "stage": ([one.stage or None for one in rows], Column(text, "stage", Show.DATA)),
            "cost_bytes": (
                _whole([costs.get(one.patch.id) for one in rows]),
                Column(Unit.BYTES, "absence costs", Show.ALWAYS),
            ),
            "saving_bytes": (
                _whole([saves.get(one.patch.id) for one in rows]),
                Column(Unit.BYTES, "presence saves"),
            ),
            "reason": ([one.reason for one in rows], Column(text, "because", Show.ALWAYS)),
            "subsystem": (
                [one.patch.subsystem for one in rows],
                Column(text, "subsystem", Show.DATA),
            ),
            "release": (
                [one.patch.release or None for one in rows],
                Column(text, "mainline", Show.DATA),
            ),
            "status": ([one.patch.status.value for one in rows], Column(text, "status", Show.DATA)),
            "title": ([one.patch.title for one in rows], Column(text, "title", Show.DATA)),
        },
    )


def _whole(values: Sequence[float | None]) -> pd.Series[int]:
    """Exact integers, of which some are missing."""
    return pd.Series([None if value is None else int(value) for value in values], dtype="Int64")


def _prices(found: Sequence[Price]) -> Table:
    rows = sorted(found, key=lambda one: (-(one.value or 0), one.detected.patch.id))
    text = Unit.TEXT
    kinds = ["absence costs" if price.is_cost else "presence saves" for price in rows]
    in_bytes = [price.value if price.unit is Unit.BYTES else None for price in rows]
    return Table.of(
        "How costs and savings were computed",
        {
            "patch": (
                [price.detected.patch.id for price in rows],
                Column(text, "patch", Show.ALWAYS),
            ),
            "kind": (kinds, Column(text, "what")),
            "bytes": (_whole(in_bytes), Column(Unit.BYTES, "bytes", Show.ALWAYS)),
            "formula": ([str(price.metric) for price in rows], Column(text, "figure", Show.ALWAYS)),
            "meaning": ([price.metric.what for price in rows], Column(text, "which is", Show.DATA)),
        },
    )
