# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue and the states of its patches as a :class:`~kcensus.results.Result`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

from kcensus.catalogue.files import Catalogue
from kcensus.catalogue.model import HAS_IT, UNITS, Detected, Kind, State
from kcensus.catalogue.packages import where_fixed
from kcensus.catalogue.price import Price, findings, prices, weigh
from kcensus.results import Figure, Gap, Result, Unit
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    DATA,
    NONE,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    make_tables,
)
from kcensus.sources.debuginfo.packages import module_gaps

_ABSENT = {
    "absent_fixes": "fixes and features absent",
    "absent_markers": "layout markers absent",
    "absent_unmerged": "unmerged patches absent",
}
"""Summary key of each class of absent patches, and its label."""
_SECTIONS = ("absent_fixes", "undetermined", "absent_markers", "absent_unmerged", "has it")
"""Classes of patches in the order of the table, possibly missing ones first."""

_PATCH = Column(TEXT, "", ALWAYS, "Id in the catalogue.", "patch.id")
CATALOGUE = TableSpec("patches", "Patches", {
    "patch": _PATCH,
    "subsystem": Column(TEXT, "", WIDE, "Kernel subsystem.", "patch.subsystem"),
    "release": Column(TEXT, "", WIDE, "First mainline release with the patch.",
        lambda row: row.patch.release or None),
    "status": Column(TEXT, "", WIDE, "When mainline merged it, or the state of its posting.",
        "patch.status.value"),
    "kind": Column(TEXT, "", DATA, "fix, or marker: only changes a layout.", "patch.kind.value"),
    "title": Column(TEXT, "", ALWAYS, "Title of the patch.", "patch.title"),
    "detectable": Column(NONE, "", DATA, "Whether the debug info shows it.",
        lambda row: row.patch.detection.undetectable is None),
}, "One patch or series of the catalogue.", rows="patches")  # fmt: skip
"""Replaces :data:`PATCHES` without a kernel."""
PATCHES = TableSpec("patches", "Patches", {
    "patch": _PATCH,
    "state": Column(TEXT, "", ALWAYS, "Whether the kernel has the patch.", "state.value"),
    "stage": Column(TEXT, "", DATA, "Last present stage of a series.",
        lambda row: row.stage or None),
    "history": Column(TEXT, "mainline", ALWAYS,
        "When mainline merged it, or the state of its posting.", "patch.history"),
    "cost_bytes": Column(BYTES, "absence costs", ALWAYS, "Cost of the absent patch on this "
        "kernel; negative if the patch would take more than it returns.",
        lambda row: row.bytes.get((row.patch.id, True))),
    "cost_seconds": Column(SECONDS, "absence delays", ALWAYS,
        "Delay of I/O by the absent patch on this kernel; 0 for none.",
        lambda row: row.seconds.get(row.patch.id), unknown=(0,)),
    "saving_bytes": Column(BYTES, "presence saves", WIDE,
        "Saving by the present patch on this kernel; negative if it takes more than it returns.",
        lambda row: row.bytes.get((row.patch.id, False))),
    "reason": Column(TEXT, "because", WIDE, "Evidence in the debug info."),
    "packages": Column(TEXT, "", DATA,
        "First package with the patch in the distribution of this kernel, as far as known."),
    "series": Column(TEXT, "part of", DATA, "Id of the series with this stage.",
        lambda row: row.series.get(row.patch.id)),
    **{
        name: replace(CATALOGUE.columns[name], show=DATA)
        for name in ("kind", "subsystem", "release", "status", "title")
    },
}, "One patch or series, by state and cost.", rows="patches")  # fmt: skip


def _size(value: float | None) -> float | None:
    return None if value is None else abs(value)


PRICES = TableSpec("prices", "How costs and savings are computed", {
    "patch": replace(_PATCH, get="detected.patch.id"),
    "kind": Column(TEXT, "", ALWAYS, "absence costs or presence saves; absence saves or presence "
        "costs, if the patch takes more than it returns here."),
    "amount": Column(TEXT, "", ALWAYS, "Cost or saving, with its bound if it is one."),
    "bytes": Column(BYTES, "", DATA, "Cost or saving.", lambda row: _size(row.bytes)),
    "seconds": Column(SECONDS, "time", DATA, "Cost or saving of time.",
        lambda row: _size(row.seconds)),
    "formula": Column(TEXT, "figure", WIDE, "Measured figure.",
        lambda price: str(price.metric)),
    "meaning": Column(TEXT, "", DATA, "Meaning of the figure.", "metric.what"),
}, "A patch with a measured cost or saving, by size.", rows="prices")  # fmt: skip
FIGURES = TableSpec("figures", "Published figures", {
    "patch": _PATCH,
    "figure": Column(TEXT, "", ALWAYS, "Name of the figure.", "figure.name"),
    "what": Column(TEXT, "", WIDE, "Measured quantity.", "figure.what"),
    "run": Column(TEXT, "", DATA, "Measurement with this figure.", "figure.run"),
    "moment": Column(TEXT, "", WIDE, "before or after the patch.", "figure.moment.value"),
    "bound": Column(TEXT, "", WIDE, "Precision as published.", "figure.bound.value"),
    "value": Column(NONE, "", ALWAYS, "Value as published.", "figure.value"),
    "to": Column(NONE, "", WIDE, "Upper end of a range.", "figure.to"),
    "unit": Column(TEXT, "", ALWAYS, "Unit of the value.", "figure.unit"),
    "base_value": Column(NONE, "in base units", DATA, "The value in base units.", "figure.base"),
    "base_unit": Column(TEXT, "", DATA, "bytes, seconds, pages, …",
        lambda row: UNITS[row.figure.unit][0]),
}, "One published figure of a patch.", detail=True, rows="figures")  # fmt: skip
TABLES = (PATCHES, PRICES, FIGURES)


def catalogue_result(catalogue: Catalogue) -> Result:
    """Return the catalogue alone, without a kernel."""
    result = Result("patches", "the catalogue", "(no target given)", measures=False)
    patches, figures = list(catalogue.patches.values()), _figure_rows(catalogue)
    result.summary["patches"] = Figure(len(patches), Unit.COUNT, "patches and series")
    result.summary["figures"] = Figure(len(figures), Unit.COUNT, "published figures")
    rows = {"patches": [SimpleNamespace(patch=patch) for patch in patches], "figures": figures}
    result.tables = make_tables((CATALOGUE, FIGURES), rows)
    return result


def _figure_rows(catalogue: Catalogue) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(patch=patch, figure=figure)
        for patch in catalogue.patches.values()
        for figure in patch.figures
    ]


def patches_result(
    catalogue: Catalogue,
    detected: Mapping[str, Detected],
    results: Mapping[str, Result],
    *,
    target: str,
    kernel: str,
    live: bool = False,
    build: str = "",
    lacking: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
    priced: bool = True,
) -> Result:
    """Return the state of each patch on a kernel, with its costs or savings there.

    :param results: of the analyses of the same target, by name
    :param build: of the kernel, which tells its distribution, with ``kernel``
    :param lacking: one sentence for each module without debug info
    :param failed: reasons of analyses without a result, by name
    :param priced: include costs and savings
    """
    result = Result("patches", target, kernel, live, measures=False)
    detected = {name: weigh(one, results) for name, one in detected.items()}
    all_prices = prices(detected, results) if priced else []
    classes = [_class(patch) for patch in detected.values() if patch.state is State.ABSENT]
    for key, label in _ABSENT.items():
        result.summary[key] = Figure(classes.count(key), Unit.COUNT, label)
    states = [patch.state for patch in detected.values()]
    for state in State:
        label = f"patches {state.value}{', all kinds' * (state is State.ABSENT)}"
        result.summary[state.name.lower()] = Figure(states.count(state), Unit.COUNT, label)
    series = {stage.patch: name for name, one in detected.items() for stage in one.patch.stages}
    largest = sorted(
        all_prices,
        key=lambda price: (
            price.detected.patch.id in series,
            price.unit is Unit.SECONDS,
            -(price.value or 0),
            price.detected.patch.id,
        ),
    )
    rows = {
        "patches": _patch_rows(detected, all_prices, series, catalogue, f"{kernel} {build}"),
        "prices": largest if priced else None,
        "figures": _figure_rows(catalogue),
    }
    result.tables = make_tables(TABLES, rows)
    result.findings = findings(catalogue, detected, results)
    result.gaps = module_gaps(lacking, "patches of these modules are undetermined")
    missing = Counter(price.why_not for price in all_prices if price.value is None)
    for reason, count in missing.items():
        failure = (failed or {}).get(reason.split(" ", 1)[0])
        why = f"{reason}: {failure}" if failure is not None else reason
        effect = "the cost or saving of these patches is unknown"
        result.gaps.append(Gap("figures", why, count, effect))
    return result


def _class(detected: Detected) -> str:
    if detected.state in HAS_IT:
        return "has it"
    if detected.state is State.UNDETERMINED:
        return "undetermined"
    if not detected.patch.is_upstream:
        return "absent_unmerged"
    return "absent_markers" if detected.patch.kind is Kind.MARKER else "absent_fixes"


def _patch_rows(
    detected: Mapping[str, Detected],
    all_prices: Sequence[Price],
    series: Mapping[str, str],
    catalogue: Catalogue,
    kernel: str,
) -> list[SimpleNamespace]:
    amounts = {
        (price.detected.patch.id, price.is_cost): price.bytes
        for price in all_prices
        if price.bytes is not None
    }
    delays = {
        price.detected.patch.id: price.seconds
        for price in all_prices
        if price.is_cost and price.seconds is not None and price.seconds >= 0
    }

    def order(name: str) -> tuple[object, ...]:
        return (
            _SECTIONS.index(_class(detected[name])),
            detected[name].state is State.SUPERSEDED,
            name in series,  # the cost of a stage is contained in that of its series
            -amounts.get((name, True), 0),
            -delays.get(name, 0),
            detected[name].patch.subsystem,
            series.get(name, ""),
            name,
        )

    return [
        SimpleNamespace(
            **vars(detected[name]),
            bytes=amounts,
            seconds=delays,
            series=series,
            packages=where_fixed(detected[name].patch, kernel, catalogue.distributions) or None,
        )
        for name in sorted(detected, key=order)
    ]
