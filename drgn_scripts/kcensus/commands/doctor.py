# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus doctor``: what a target is, and what is missing to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kcensus.commands.shared import (
    CONTEXT_SETTINGS,
    Exit,
    Reading,
    Showing,
    check_output,
    examples_epilog,
    opened,
    reading_options,
    show,
    showing_options,
    take,
    target_argument,
)

if TYPE_CHECKING:
    from kcensus.results import Figure, Result
    from kcensus.sources import Target

_EXAMPLES = (
    ("kcensus doctor vmcore", "which debug info does this dump need, and is it here?"),
    ("kcensus doctor vmcore -s vmlinux", "which analyses will work?"),
    ("kcensus doctor case.capsule", "what was it recorded for, and is it whole?"),
)


def _run(target: str | None, **values: Any) -> Exit:
    from kcensus.results import Result
    from kcensus.sources import TargetError
    from kcensus.text import printable

    reading, showing = take(Reading, values), take(Showing, values)
    check_output(showing)
    name = printable(target or "the running kernel")
    result = Result("doctor", name, "", measures=False)
    result.summary |= _file_facts(target)
    try:
        with (
            opened(target, reading) as (opened_target, progress),
            progress.step("looking at it", 0),
        ):
            _examine(opened_target, result)
    except TargetError as error:
        if result.summary:
            # What is known of a dump helps to find what it lacks.
            show(result, showing)
        raise error from None
    return show(result, showing)


def _file_facts(path: str | None) -> dict[str, Figure]:
    """What the headers of a dump file say; nothing for other targets and unreadable files."""
    import os

    from kcensus.results import Figure, Unit
    from kcensus.sources import TargetError
    from kcensus.sources.formats.coverage import coverage
    from kcensus.sources.formats.sniff import sniff

    if path is None or not os.path.isfile(path):
        return {}
    facts = {"file_bytes": Figure(os.path.getsize(path), Unit.BYTES, "file")}
    try:
        sniffed, found = sniff(path), coverage(path)
    except TargetError:
        return facts
    facts["format"] = Figure(sniffed.format, Unit.TEXT, "format")
    if sniffed.truncated:
        facts["truncated"] = Figure(sniffed.truncated, Unit.TEXT, "truncated")
    if found:
        left_out = found.filtered or "nothing that the file tells of"
        facts |= {
            "filtered": Figure(left_out, Unit.TEXT, "left out"),
            "memory_bytes": Figure(found.memory_bytes, Unit.BYTES, "memory that was there"),
            "saved_bytes": Figure(found.saved_bytes, Unit.BYTES, "memory in the file"),
            "coverage": Figure(
                found.saved_bytes / max(found.memory_bytes, 1), Unit.RATIO, "coverage"
            ),
        }
    return facts


def _examine(target: Target, result: Result) -> None:
    from kcensus.analyses import analyses
    from kcensus.results import Figure, Gap, Unit
    from kcensus.results.tables import Column, Show, Table

    result.kernel, result.live = target.kernel, target.live
    result.summary |= {
        "format": Figure(target.format, Unit.TEXT, "format"),
        **{key: Figure(value, Unit.TEXT, label) for key, label, value in target.facts()},
    }
    names, states, missing = [], [], []
    for name, analysis in analyses().items():
        said = target.need_modules(*analysis.modules) if analysis.modules else []
        if target.recorded_for is not None and name not in target.recorded_for:
            said = ["it was not recorded for this analysis"]
            states.append("no")
        else:
            states.append("partly" if said else "yes")
        names.append(name)
        missing.append("; ".join(said))
        result.gaps += [Gap(f"what {name} needs", sentence, 1, _EFFECT) for sentence in said]
    text = Column(Unit.TEXT, show=Show.ALWAYS)
    places = target.modules.places() if target.modules else []
    result.tables |= {
        "analyses": Table.of(
            "Analyses",
            {
                "analysis": (names, text),
                "works": (states, text),
                "missing": (missing, Column(Unit.TEXT)),
            },
        ),
        "debug_info": Table.of(
            "Debug info",
            {
                "of": ([of for of, _ in places], text),
                "place": ([place for _, place in places], text),
            },
        ),
    }


_EFFECT = "its figures lack what only this describes"

COMMAND = click.Command(
    "doctor",
    callback=_run,
    params=[target_argument(), *showing_options(), *reading_options()],
    help="Can this target be read, and how well?\n\nTells what the target is, how much of the"
    " memory it holds, where debug info was found, and what each analysis still lacks.",
    short_help="can this target be read, how well, and what is missing?",
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
