# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue and the states of its patches as a :class:`~kcensus.results.Result`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import pandas as pd

from kcensus.catalogue.files import Catalogue
from kcensus.catalogue.model import HAS_IT, UNITS, Detected, Kind, State
from kcensus.catalogue.price import Price, findings, prices, unmeasured, weigh
from kcensus.results import Figure, Gap, Result, Unit
from kcensus.results.tables import Column, Show, TableSpec
from kcensus.sources.debuginfo.packages import missing_debug_info

_ABSENT = {
    "absent_fixes": "fixes and features absent",
    "absent_markers": "layout markers absent",
    "absent_unmerged": "unmerged patches absent",
}
"""Summary key of each class of absent patches, and its label."""
_SECTIONS = ("absent_fixes", "undetermined", "absent_markers", "absent_unmerged", "has it")
"""Classes of patches in the order of the table: what may be missing comes first."""


def column(
    path: str,
    label: str,
    help: str,
    show: Show = Show.WIDE,
    unit: Unit = Unit.TEXT,
    dtype: str | None = None,
) -> Column:
    """Return a column with one attribute of each row; ``path`` may have dots."""
    get = attrgetter(path)
    return Column(
        unit, label, show, help, lambda rows: pd.Series(list(map(get, rows)), dtype=dtype)
    )


_ALWAYS, _DATA = Show.ALWAYS, Show.DATA
_BYTES = Unit.BYTES, "Int64"  # exact, some of them missing
_SECONDS = Unit.SECONDS, "Float64"
_PATCH = column("patch.id", "patch", "Id in the catalogue.", _ALWAYS)
_SUBSYSTEM = column("patch.subsystem", "subsystem", "Kernel subsystem.")
_RELEASE = column("release", "release", "First mainline release with the patch.")
_STATUS = column("patch.status.value", "status", "What became of the patch in the mainline.")
_KIND = column("patch.kind.value", "kind", "fix, or marker: only changes a layout.", _DATA)
_TITLE = column("patch.title", "title", "Title of the patch.", _ALWAYS)

CATALOGUE = TableSpec(
    "patches",
    "Patches",
    {
        "patch": _PATCH,
        "subsystem": _SUBSYSTEM,
        "release": _RELEASE,
        "status": _STATUS,
        "kind": _KIND,
        "title": _TITLE,
        "detectable": column(
            "detectable", "detectable", "Whether the debug info shows it.", _DATA, Unit.NONE
        ),
    },
    "One patch or series of the catalogue.",
)
"""In place of :data:`PATCHES` where no kernel is given."""
PATCHES = TableSpec(
    "patches",
    "Patches",
    {
        "patch": _PATCH,
        "state": column("state.value", "state", "Whether the kernel has the patch.", _ALWAYS),
        "stage": column("stage", "stage", "Last stage of the series that is present.", _DATA),
        "history": column(
            "patch.history", "mainline", "What became of it in the mainline.", _ALWAYS
        ),
        "cost_bytes": column(
            "cost", "absence costs", "What its absence costs here.", _ALWAYS, *_BYTES
        ),
        "cost_seconds": column(
            "delay", "absence delays", "How long its absence delays I/O here.", _ALWAYS, *_SECONDS
        ),
        "saving_bytes": column(
            "saving", "presence saves", "What its presence saves here.", Show.WIDE, *_BYTES
        ),
        "reason": column("reason", "because", "What in the debug info decides."),
        "series": column("series", "part of", "Id of the series it is a stage of.", _DATA),
        "kind": _KIND,
        "subsystem": replace(_SUBSYSTEM, show=_DATA),
        "release": replace(_RELEASE, show=_DATA),
        "status": replace(_STATUS, show=_DATA),
        "title": replace(_TITLE, show=_DATA),
    },
    "One patch or series, by state and cost.",
)
PRICES = TableSpec(
    "prices",
    "How costs and savings are computed",
    {
        "patch": _PATCH,
        "kind": column("kind", "kind", "Whether absence or presence costs or saves it."),
        "bytes": column("bytes", "bytes", "Cost or saving.", _ALWAYS, *_BYTES),
        "seconds": column("seconds", "time", "Cost or saving of time.", _ALWAYS, *_SECONDS),
        "formula": column("formula", "figure", "Figure that measures it.", _ALWAYS),
        "meaning": column("metric.what", "meaning", "What the figure measures.", _DATA),
    },
    "One patch whose cost or saving an analysis measures, by size.",
)
FIGURES = TableSpec(
    "figures",
    "Published figures",
    {
        "patch": _PATCH,
        "figure": column("figure.name", "figure", "Name of the figure.", _ALWAYS),
        "what": column("figure.what", "what", "What was measured."),
        "run": column("figure.run", "run", "Measurement that it belongs to.", _DATA),
        "moment": column("figure.moment.value", "moment", "before or after the patch."),
        "bound": column("figure.bound.value", "bound", "Precision as published."),
        "value": column("figure.value", "value", "Value as published.", _ALWAYS, Unit.NONE),
        "to": column("figure.to", "to", "Upper end of a range.", unit=Unit.NONE),
        "unit": column("figure.unit", "unit", "Unit of the value.", _ALWAYS),
        "base_value": column(
            "figure.base", "in base units", "The value in base units.", _DATA, Unit.NONE
        ),
        "base_unit": column("base_unit", "base unit", "bytes, seconds, pages, …", _DATA),
    },
    "One figure that was published about a patch.",
    detail=True,
)
TABLES = (PATCHES, PRICES, FIGURES)


def catalogue_result(catalogue: Catalogue) -> Result:
    """Return the catalogue alone, without a kernel."""
    result = Result("patches", "the catalogue", "(no target given)", measures=False)
    patches, figures = list(catalogue.patches.values()), _figure_rows(catalogue)
    result.summary["patches"] = Figure(len(patches), Unit.COUNT, "patches and series")
    result.summary["figures"] = Figure(len(figures), Unit.COUNT, "published figures")
    rows = [
        SimpleNamespace(
            patch=patch,
            release=patch.release or None,
            detectable=patch.detection.undetectable is None,
        )
        for patch in patches
    ]
    result.tables = {"patches": CATALOGUE.of(rows), "figures": FIGURES.of(figures)}
    return result


def _figure_rows(catalogue: Catalogue) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(patch=patch, figure=figure, base_unit=UNITS[figure.unit][0])
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
    result.tables["patches"] = PATCHES.of(_patch_rows(detected, all_prices, series))
    if priced:
        result.tables["prices"] = PRICES.of(_price_rows(all_prices, series))
    result.tables["figures"] = FIGURES.of(_figure_rows(catalogue))
    result.findings = findings(catalogue, detected, results)
    result.gaps = _gaps(lacking, all_prices, failed or {})
    return result


def _class(detected: Detected) -> str:
    """Return the class in ``_SECTIONS`` of a patch."""
    if detected.state in HAS_IT:
        return "has it"
    if detected.state is State.UNDETERMINED:
        return "undetermined"
    if not detected.patch.is_upstream:
        return "absent_unmerged"
    return "absent_markers" if detected.patch.kind is Kind.MARKER else "absent_fixes"


def _gaps(
    lacking: Sequence[str], all_prices: Sequence[Price], failed: Mapping[str, str]
) -> list[Gap]:
    gaps = [
        Gap(missing_debug_info(sentence), sentence, 1, "patches of this module are undetermined")
        for sentence in lacking
    ]
    for reason, count in unmeasured(all_prices).items():
        analysis = reason.split(" ", 1)[0]
        why = f"{reason}: {failed[analysis]}" if analysis in failed else reason
        gaps.append(Gap("figures", why, count, "the cost or saving of these patches is unknown"))
    return gaps


def _patch_rows(
    detected: Mapping[str, Detected], all_prices: Sequence[Price], series: Mapping[str, str]
) -> list[SimpleNamespace]:
    amounts = {
        (price.detected.patch.id, price.is_cost): price.bytes
        for price in all_prices
        # Where the patch would cost memory here, its absence costs nothing; see the prices.
        if price.bytes is not None and price.bytes >= 0
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
            patch=detected[name].patch,
            state=detected[name].state,
            stage=detected[name].stage or None,
            reason=detected[name].reason,
            cost=amounts.get((name, True)),
            delay=delays.get(name),
            saving=amounts.get((name, False)),
            series=series.get(name),
            release=detected[name].patch.release or None,
        )
        for name in sorted(detected, key=order)
    ]


def _kind(price: Price) -> str:
    """Return what the bytes of a price are; a patch may also cost more than it saves."""
    is_negative = price.value is not None and price.value < 0
    if price.is_cost:
        return "absence saves" if is_negative else "absence costs"
    return "presence costs" if is_negative else "presence saves"


def _price_rows(all_prices: Sequence[Price], series: Mapping[str, str]) -> list[SimpleNamespace]:
    def order(price: Price) -> tuple[object, ...]:
        name = price.detected.patch.id
        return name in series, price.unit is Unit.SECONDS, -(price.value or 0), name

    largest_first = sorted(all_prices, key=order)
    return [
        SimpleNamespace(
            patch=price.detected.patch,
            kind=_kind(price),
            bytes=None if price.bytes is None else abs(price.bytes),
            seconds=None if price.seconds is None else abs(price.seconds),
            formula=str(price.metric),
            metric=price.metric,
        )
        for price in largest_first
    ]
