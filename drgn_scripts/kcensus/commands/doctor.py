# SPDX-License-Identifier: LGPL-2.1-or-later
"""Can this target be read, how well, and what is missing?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kcensus.analyses import analyses
from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.output import check_output, show
from kcensus.commands.shared.target import opened
from kcensus.results import Figure, Gap, Result, Unit, ratio
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.analyses import Analysis
    from kcensus.results.tables import TableSpec
    from kcensus.sources import Target


_UNFILTERED = "nothing, by its header"


def _tables() -> tuple[TableSpec, TableSpec]:
    from kcensus.results.tables import ALWAYS, TEXT, Column, TableSpec

    works = (
        "yes; partly: figures may be missing; no: the kernel lacks what it needs, it failed when"
        " the capsule was recorded, or the capsule is corrupt or for other analyses."
    )
    names = {
        "analysis": Column(TEXT, "", ALWAYS, "Name of the analysis.", lambda row: row[0]),
        "works": Column(TEXT, "", ALWAYS, works, lambda row: row[1]),
        "missing": Column(TEXT, help="Missing parts of the target.", get=lambda row: row[2]),
    }
    files = {
        "of": Column(TEXT, "", ALWAYS, "The kernel, or a module.", lambda row: row[0]),
        "place": Column(TEXT, "", ALWAYS, "File with its debug info.", lambda row: row[1]),
    }
    return (
        TableSpec("analyses", "Analyses", names, "An analysis.", rows="analyses"),
        TableSpec("debug_info", "Debug info", files, "A file with debug info.", rows="places"),
    )


def _run(target: str | None, reading: options.Reading, showing: options.Showing) -> Exit:
    from kcensus.sources import TargetError
    from kcensus.sources.capsule import BadCapsule

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
            # The facts about a dump help to find the missing part.
            show(result, showing)
        raise error from None
    status = show(result, showing)
    if corrupt:
        raise BadCapsule(corrupt)
    return status


def _file_facts(paths: Sequence[str], *, is_open: bool = False) -> dict[str, Figure]:
    """Return the facts in the headers of a dump, or of the parts of a split dump, which are alike.

    :param is_open: whether another program than drgn has opened it
    """
    from kcensus.sources import TargetError
    from kcensus.sources.formats.coverage import coverage
    from kcensus.sources.formats.sniff import sniff

    if not paths or not all(map(os.path.isfile, paths)):
        return {}
    facts = {"file_bytes": Figure(sum(map(os.path.getsize, paths)), Unit.BYTES, "file size")}
    try:
        header, memory = sniff(paths[0], is_open=is_open, searched=True), coverage(paths[0])
    except TargetError:
        return facts
    facts["format"] = Figure(header.format, Unit.TEXT, "format")
    if header.truncated:
        facts["truncated"] = Figure(header.missing_end, Unit.TEXT, "truncated")
        facts["missing_bytes"] = Figure(header.missing_bytes or None, Unit.BYTES, "missing")
    if memory:
        filtered = memory.filtered or _UNFILTERED
        share = ratio(memory.saved_bytes, memory.memory_bytes)
        # Bitmaps also count pages without written data.
        is_known = bool(header.missing_bytes or not header.truncated)
        facts |= {
            "filtered": Figure(filtered, Unit.TEXT, "filtered out"),
            "memory_bytes": Figure(memory.memory_bytes, Unit.BYTES, "memory of the machine"),
            "saved_bytes": Figure(
                memory.saved_bytes if is_known else None, Unit.BYTES, "memory in the file"
            ),
            "coverage": Figure(share if is_known else None, Unit.RATIO, "share of memory saved"),
        }
    return facts


def _lacks(affected: Mapping[str, Sequence[str]]) -> list[Gap]:
    """Return missing debug info as gaps, one for all modules with the same remedy.

    :param affected: names of analyses by the sentence about their missing debug info
    """
    from kcensus.sources.debuginfo.packages import by_remedy

    gaps = []
    for lack in by_remedy(affected):
        names = ", ".join(dict.fromkeys(name for each in lack.sentences for name in affected[each]))
        what = lack.what if lack.modules else f"needs of {names}"
        gaps.append(Gap(what, lack.remedy, 1, f"{names}: figures that depend on it are missing"))
    return gaps


def _unread_code(target: Target, analysis: Analysis) -> list[str]:
    """Return a sentence if an analysis would read machine code that kcensus does not."""
    from kcensus.arch import name_of
    from kcensus.kernel.waiting.reader import unread_code

    if not analysis.reads_stacks or not unread_code(target.prog.platform):
        return []
    return [
        f"kcensus does not read the machine code of {name_of(target.prog.platform)}: holders of "
        "locks without an owner are unknown"
    ]


def _unknown_arguments(target: Target, analysis: Analysis) -> list[str]:
    """Return a sentence if an analysis would read arguments of functions that types cannot tell."""
    if not analysis.reads_arguments or target.types == "DWARF":
        return []
    return [
        "arguments of functions are known with the vmlinux's debug info only (-s): spinlocks that "
        "tasks spin for are unknown"
    ]


def _left_out(target: Target, is_filtered: bool) -> list[Gap]:
    """Return the gap of a filtered dump of a kernel that older makedumpfiles misread.

    These kernels have ``page.compound_info`` in place of ``page.compound_head`` (v7.1 and later).
    makedumpfile's commit f50c015, after 1.7.9, reads it. A dump does not tell the version that
    wrote it.
    """
    if not is_filtered or b"OFFSET(page.compound_info)=" not in target.prog["VMCOREINFO"].string_():
        return []
    why = (
        "makedumpfile 1.7.9 and older leave out tail pages of this kernel's compound pages; if "
        "`makedumpfile -v` of the machine is that old, take the next dump with a newer one"
    )
    return [Gap("tail pages of compound pages", why, 1, "slab objects in them may be missing")]


def _absent(target: Target, analysis: Analysis) -> str:
    """Return the first member that an analysis needs and the kernel lacks; empty without any."""
    import drgn

    from kcensus.sources.capsule import NotRecorded

    for member in analysis.needs:
        kind, _, path = member.partition(".")
        try:
            drgn.offsetof(target.prog.type(kind), path)
        except NotRecorded:
            continue
        except (LookupError, TypeError):
            return member
    return ""


def _examine(target: Target, result: Result) -> str:
    """Fill in the result; return the reason why the target is unusable although it opens, or ""."""
    from kcensus.analyses.runner import Context
    from kcensus.arch import name_of
    from kcensus.kernel.kernel import Kernel
    from kcensus.results.tables import make_tables
    from kcensus.sources.debuginfo.packages import by_remedy

    result.target, result.kernel, result.live = target.name, target.kernel, target.live
    result.summary |= _file_facts(target.paths, is_open=True)
    context = Context(Kernel(target.prog, live=target.live), target)
    sections = ", ".join(target.verify())
    corrupt = f"is corrupt: its checksums do not match: {sections}; copy it again"
    if not sections:
        corrupt = ""
        # The machine names the sources of the modules' types, too.
        context.load_modules([*analyses().values()])
        result.machine = context.machine
        result.gaps += [
            Gap(each.what, each.reason, 1, each.effect)
            for each in context.kernel.size.contradictions
        ]
    result.summary["format"] = Figure(target.format, Unit.TEXT, "format")
    result.summary["architecture"] = Figure(
        name_of(target.prog.platform), Unit.TEXT, "architecture"
    )
    for key, label, value in target.facts():
        result.summary[key] = Figure(value, Unit.TEXT, label)
    if target.recorded_for is not None:
        verdict = f"wrong: {sections}" if sections else "all match"
        result.summary["digests"] = Figure(verdict, Unit.TEXT, "digests")
    truncation = context.truncation()
    result.gaps += truncation
    filtered = result.summary.get("filtered")
    result.gaps += _left_out(target, filtered is not None and filtered.value != _UNFILTERED)
    rows = []
    affected: dict[str, list[str]] = {}
    """Names of the analyses that lack something, by the sentence about it."""
    for name, analysis in analyses().items():
        lacks = [*target.need_modules(*analysis.needed_modules)] if analysis.needed_modules else []
        lacks += _unread_code(target, analysis) or _unknown_arguments(target, analysis)
        works = "partly" if lacks or truncation else "yes"
        if absent := _absent(target, analysis):
            lacks, works = [f"this kernel has no {absent}, which {name} needs"], "no"
        if target.recorded_for is not None and name not in target.recorded_for:
            lacks, works = ["the capsule was not recorded for this analysis"], "no"
        if name in target.failed:
            lacks, works = [f"failed when recorded: {target.failed[name]}"], "no"
        if corrupt:
            lacks, works = [f"the capsule {corrupt}"], "no"
        truncated = [gap.reason for gap in truncation if works == "partly"]
        missing = [lack.what if lack.modules else lack.remedy for lack in by_remedy(lacks)]
        rows.append((name, works, "; ".join([*truncated, *missing])))
        for sentence in lacks:
            affected.setdefault(sentence, []).append(name)
    result.gaps += _lacks(affected)
    places = target.modules.places() if target.modules else []
    result.tables = make_tables(_tables(), {"analyses": rows, "places": [*places]})
    return corrupt


COMMAND = options.command(
    "doctor",
    _run,
    [options.target(), *options.showing(), *options.reading()],
    "Check whether a target can be read.\n\nShows the kind of target, the share of memory it "
    "holds, the debug info found, and the gaps of each analysis.",
    (
        ("kcensus doctor vmcore", "which debug info does this dump need, and is it installed?"),
        ("kcensus doctor vmcore -s vmlinux", "which analyses will work?"),
        ("kcensus doctor case.capsule", "what was it recorded for, and is it intact?"),
    ),
)
