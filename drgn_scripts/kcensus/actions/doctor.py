# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus doctor``."""

from __future__ import annotations

import os

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.output import check_output, show
from kcensus.actions.target import opened
from kcensus.analyses import analyses
from kcensus.results import Figure, Gap, Result, Unit, ratio
from kcensus.results.tables import Column, Show, TableSpec
from kcensus.sources import Target, TargetError
from kcensus.sources.formats.coverage import coverage
from kcensus.sources.formats.sniff import sniff
from kcensus.text import printable

_ANALYSES = TableSpec(
    "analyses",
    "Analyses",
    {
        "analysis": Column(Unit.TEXT, show=Show.ALWAYS, help="Name of the analysis."),
        "works": Column(
            Unit.TEXT,
            show=Show.ALWAYS,
            help="yes; partly: figures may be missing; no: the capsule is for other analyses.",
        ),
        "missing": Column(Unit.TEXT, help="What it lacks."),
    },
    "An analysis.",
)
_DEBUG_INFO = TableSpec(
    "debug_info",
    "Debug info",
    {
        "of": Column(Unit.TEXT, show=Show.ALWAYS, help="The kernel, or a module."),
        "place": Column(Unit.TEXT, show=Show.ALWAYS, help="File that its debug info is read from."),
    },
    "A file with debug info.",
)


def run(target: str | None, reading: Reading, showing: Showing) -> Exit:
    """Show what a target is, and what it lacks."""
    check_output(showing)
    result = Result("doctor", printable(target or "the running kernel"), "", measures=False)
    result.summary |= _file_facts(target)
    try:
        with (
            opened(target, reading) as (opened_target, progress),
            progress.step("examining the target", 0),
        ):
            _examine(opened_target, result)
    except TargetError as error:
        if result.summary:
            # The facts about a dump help to find what it lacks.
            show(result, showing)
        raise error from None
    return show(result, showing)


def _file_facts(path: str | None) -> dict[str, Figure]:
    """Return what the headers of a dump file say; nothing for targets that are not a dump file."""
    if path is None or not os.path.isfile(path):
        return {}
    facts = {"file_bytes": Figure(os.path.getsize(path), Unit.BYTES, "file size")}
    try:
        header, memory = sniff(path), coverage(path)
    except TargetError:
        return facts
    facts["format"] = Figure(header.format, Unit.TEXT, "format")
    if header.truncated:
        facts["truncated"] = Figure(header.truncated, Unit.TEXT, "truncated")
    if memory:
        share = ratio(memory.saved_bytes, memory.memory_bytes)
        facts |= {
            "filtered": Figure(
                memory.filtered or "nothing, by its header", Unit.TEXT, "filtered out"
            ),
            "memory_bytes": Figure(memory.memory_bytes, Unit.BYTES, "memory of the machine"),
            "saved_bytes": Figure(memory.saved_bytes, Unit.BYTES, "memory in the file"),
            "coverage": Figure(share, Unit.RATIO, "share of memory saved"),
        }
    return facts


def _examine(target: Target, result: Result) -> None:
    result.kernel, result.live = target.kernel, target.live
    result.summary |= {
        "format": Figure(target.format, Unit.TEXT, "format"),
        **{key: Figure(value, Unit.TEXT, label) for key, label, value in target.facts()},
    }
    rows: dict[str, list[str]] = {"analysis": [], "works": [], "missing": []}
    for name, analysis in analyses().items():
        lacks = target.need_modules(*analysis.modules) if analysis.modules else []
        works = "partly" if lacks else "yes"
        if target.recorded_for is not None and name not in target.recorded_for:
            lacks, works = ["the capsule was not recorded for this analysis"], "no"
        for column, value in zip(rows, (name, works, "; ".join(lacks)), strict=True):
            rows[column].append(value)
        result.gaps += [
            Gap(f"what {name} needs", sentence, 1, "figures that depend on it are missing")
            for sentence in lacks
        ]
    places = target.modules.places() if target.modules else []
    files = {"of": [of for of, _ in places], "place": [place for _, place in places]}
    result.tables |= {"analyses": _ANALYSES.of(rows), "debug_info": _DEBUG_INFO.of(files)}
