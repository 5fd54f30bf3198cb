# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus doctor``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.shared.output import check_output, show
from kcensus.actions.shared.target import opened
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.results import Figure, Gap, Result, Unit, ratio
from kcensus.results.tables import Column, Show, TableSpec
from kcensus.sources import Target, TargetError
from kcensus.sources.capsule import BadCapsule
from kcensus.sources.debuginfo.packages import by_remedy, debug_info_of
from kcensus.sources.formats.coverage import coverage
from kcensus.sources.formats.sniff import Sniffed, sniff, sniff_opened
from kcensus.text import printable

_TEXT = Unit.TEXT
_ANALYSES = TableSpec(
    "analyses",
    "Analyses",
    {
        "analysis": Column(_TEXT, "", Show.ALWAYS, "Name of the analysis."),
        "works": Column(
            _TEXT,
            "",
            Show.ALWAYS,
            "yes; partly: figures may be missing; no: it failed when the capsule was recorded, or"
            " the capsule is corrupt or for other analyses.",
        ),
        "missing": Column(_TEXT, help="What it lacks."),
    },
    "An analysis.",
)
_DEBUG_INFO = TableSpec(
    "debug_info",
    "Debug info",
    {
        "of": Column(_TEXT, "", Show.ALWAYS, "The kernel, or a module."),
        "place": Column(_TEXT, "", Show.ALWAYS, "File that its debug info is read from."),
    },
    "A file with debug info.",
)


def run(target: str | None, reading: Reading, showing: Showing) -> Exit:
    """Show what a target is, and what it lacks."""
    check_output(showing)
    result = Result("doctor", printable(target or "the running kernel"), "", measures=False)
    result.summary |= _file_facts(() if target is None else (target,))
    try:
        with (
            opened(target, reading) as (opened_target, progress),
            progress.step("examining the target", 0),
        ):
            corrupt = _examine(opened_target, result)
    except TargetError as error:
        if result.summary:
            # The facts about a dump help to find what it lacks.
            show(result, showing)
        raise error from None
    status = show(result, showing)
    if corrupt:
        raise BadCapsule(corrupt)
    return status


def _file_facts(
    paths: Sequence[str], describe: Callable[[str], Sniffed] = sniff
) -> dict[str, Figure]:
    """Return what the headers of a dump say; nothing for targets that are not dump files.

    :param paths: the parts of a split dump, whose headers are all alike; otherwise one file
    """
    if not paths or not all(map(os.path.isfile, paths)):
        return {}
    facts = {"file_bytes": Figure(sum(map(os.path.getsize, paths)), Unit.BYTES, "file size")}
    try:
        header, memory = describe(paths[0]), coverage(paths[0])
    except TargetError:
        return facts
    facts["format"] = Figure(header.format, _TEXT, "format")
    if header.truncated:
        facts["truncated"] = Figure(header.missing_end, _TEXT, "truncated")
        facts["missing_bytes"] = Figure(header.missing_bytes or None, Unit.BYTES, "missing")
    if memory:
        filtered = memory.filtered or "nothing, by its header"
        share = ratio(memory.saved_bytes, memory.memory_bytes)
        # Bitmaps also count pages whose data was never written.
        is_known = bool(header.missing_bytes or not header.truncated)
        facts |= {
            "filtered": Figure(filtered, _TEXT, "filtered out"),
            "memory_bytes": Figure(memory.memory_bytes, Unit.BYTES, "memory of the machine"),
            "saved_bytes": Figure(
                memory.saved_bytes if is_known else None, Unit.BYTES, "memory in the file"
            ),
            "coverage": Figure(share if is_known else None, Unit.RATIO, "share of memory saved"),
        }
    return facts


def _lacks(affected: Mapping[str, Sequence[str]]) -> list[Gap]:
    """Return what analyses lack as gaps, one for all modules whose debug info is found alike.

    :param affected: names of analyses by the sentence that says what they lack
    """
    gaps = []
    for remedy, modules in by_remedy(affected).items():
        sentences = [each for each in affected if each == remedy or each.endswith(f": {remedy}")]
        names = dict.fromkeys(name for each in sentences for name in affected[each])
        what = debug_info_of(modules) if modules else f"what {', '.join(names)} needs"
        effect = f"{', '.join(names)}: figures that depend on it are missing"
        gaps.append(Gap(what, remedy, 1, effect))
    return gaps


def _examine(target: Target, result: Result) -> str:
    """Fill in what there is to say about a target.

    :return: why it is unusable although it opens; empty if it is not
    """
    result.target, result.kernel, result.live = target.name, target.kernel, target.live
    result.summary |= _file_facts(target.paths, sniff_opened)
    context = Context(Kernel(target.prog, live=target.live), target)
    sections = ", ".join(target.verify())
    corrupt = f"is corrupt: its checksums do not match: {sections}; copy it again"
    if not sections:
        corrupt = ""
        result.machine = context.machine
        result.gaps += [
            Gap(each.what, each.reason, 1, each.effect)
            for each in context.kernel.size.contradictions
        ]
    result.summary["format"] = Figure(target.format, _TEXT, "format")
    for key, label, value in target.facts():
        result.summary[key] = Figure(value, _TEXT, label)
    if target.recorded_for is not None:
        verdict = f"wrong: {sections}" if sections else "all right"
        result.summary["digests"] = Figure(verdict, _TEXT, "digests")
    truncation = context.truncation()
    result.gaps += truncation
    rows = []
    affected: dict[str, list[str]] = {}
    """Names of the analyses that lack something, by the sentence that says what."""
    for name, analysis in analyses().items():
        lacks = target.need_modules(*analysis.modules) if analysis.modules else []
        works = "partly" if lacks or truncation else "yes"
        if target.recorded_for is not None and name not in target.recorded_for:
            lacks, works = ["the capsule was not recorded for this analysis"], "no"
        if name in target.failed:
            lacks, works = [f"failed when recorded: {target.failed[name]}"], "no"
        if corrupt:
            lacks, works = [f"the capsule {corrupt}"], "no"
        truncated = [gap.reason for gap in truncation if works == "partly"]
        missing = [
            debug_info_of(modules) if modules else sentence
            for sentence, modules in by_remedy(lacks).items()
        ]
        rows.append((name, works, "; ".join([*truncated, *missing])))
        for sentence in lacks:
            affected.setdefault(sentence, []).append(name)
    result.gaps += _lacks(affected)
    places = target.modules.places() if target.modules else []
    for spec, values in ((_ANALYSES, rows), (_DEBUG_INFO, places)):
        frame = pd.DataFrame(values, columns=pd.Index(list(spec.columns)), dtype=object)
        result.tables[spec.name] = spec.of(frame)
    return corrupt
