# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus report``: everything that can be said of a target, the gravest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kcensus.commands import patches
from kcensus.commands.shared import (
    CONTEXT_SETTINGS,
    Exit,
    Reading,
    Showing,
    check_output,
    context_options,
    examples_epilog,
    gravest,
    json_stdout,
    list_written,
    opened,
    reading_options,
    showing_options,
    take,
    target_argument,
    text_stdout,
)
from kcensus.text import printable

if TYPE_CHECKING:
    pass

_EXAMPLES = (
    ("kcensus report sample", "see what it does, on a kernel that comes with kcensus"),
    ("kcensus report vmcore -s vmlinux --top 3", "the first look at a dump"),
    ("kcensus report vmcore --html report.html", "for somebody else"),
    ("kcensus report vmcore --json | jq '.findings[]'", "findings for a script"),
)


def _run(target: str | None, catalogue: tuple[Path, ...], **values: Any) -> Exit:
    from kcensus.analyses import analyses
    from kcensus.analyses.runner import Context
    from kcensus.reports import examine

    reading, showing = take(Reading, values), take(Showing, values)
    check_output(showing)
    known = patches.load_catalogue(catalogue)
    with opened(target, reading) as (opened_target, progress):
        made = examine(
            Context.of(opened_target, progress=progress, **context_options(reading)), known
        )
    results = [section.result for section in made.sections if section.result]
    if showing.csv or showing.parquet:
        for section in made.sections:
            if section.result is None:  # no file would tell
                sentence = printable(f"{section.name} cannot be answered: {section.error}")
                click.echo(f"kcensus: {sentence}", err=True)
        written: list[Path] = []
        for result in results:
            if showing.csv:
                from kcensus.render.csvdir import write_csv

                written += write_csv(result, showing.csv / result.analysis)
            elif showing.parquet:
                from kcensus.render.parquet import write_parquet

                written += write_parquet(result, showing.parquet / result.analysis)
        list_written(written)
    elif showing.html:
        from kcensus.render.html import write_report_html

        list_written(write_report_html(made, showing.html))
    elif showing.json:
        from kcensus.render.json import write_report_json

        write_report_json(made, json_stdout())
    else:
        from kcensus.render.terminal import console_for, write_report

        write_report(made, console_for(text_stdout()), showing.top)
    if not any(result.analysis in analyses() for result in results):
        return Exit.TARGET
    return gravest((finding for _, finding in made.findings), showing.fail_on)


COMMAND = click.Command(
    "report",
    callback=_run,
    params=[
        target_argument(),
        patches.catalogue_option(),
        *showing_options(),
        *reading_options(),
    ],
    help="What is wrong here?\n\nRuns all analyses, and tells which patches the kernel has. The"
    " findings of all come first, the gravest and dearest on top; then follow the figures of each."
    " An analysis that fails says why, and does not stop the others.",
    short_help="what is wrong here? All analyses, findings first",
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
