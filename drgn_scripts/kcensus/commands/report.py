# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong here? All analyses, findings first."""

from __future__ import annotations

from pathlib import Path

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.output import check_output, console, exit_status, write_files
from kcensus.commands.shared.split import dividing
from kcensus.commands.shared.target import context_of, load_catalogue, opened

_HELP = """Run all analyses and detect patches.

Findings come first, sorted by severity and by the memory that they hold, each with the best remedy
as a command to paste; then one line per analysis, and the checks against the kernel's own counters.
--full adds the evidence and all remedies of each finding, and the figures and tables of each
analysis. `kcensus explain ID` explains a finding.

A failed analysis does not stop the others: a finding then says that the report is incomplete, and
the exit status is 6. TARGET can be a file that --json wrote."""


def _run(
    target: str | None,
    catalogue: tuple[Path, ...],
    full: bool,
    reading: options.Reading,
    showing: options.Showing,
) -> Exit:
    from kcensus import saved
    from kcensus.render.report import write_report
    from kcensus.reports import examine
    from kcensus.sources import session

    check_output(showing)
    patches = load_catalogue(catalogue)
    if saved.is_document(target):
        report = saved.load(str(target))
    else:
        with (
            dividing(target, reading) as divide,
            opened(target, reading) as (opened_target, progress),
        ):
            context = context_of(opened_target, progress, reading, divide(opened_target))
            report = examine(context, patches)
    session.keep(report)
    if showing.csv or showing.parquet:
        for name, error in report.errors.items():
            complain(f"{name} failed on this target: {error}")
    if not write_files(report, showing):
        with console(showing) as screen:
            write_report(report, screen, showing.top, full, showing.every_table)
    if not report.results or (report.errors and {*report.results} == {"patches"}):
        return Exit.TARGET
    return exit_status((finding for _, finding in report.findings), showing.fail_on)


COMMAND = options.command(
    "report",
    _run,
    [
        options.target(),
        options.flag("--full", "Show evidence, all remedies, figures and tables."),
        options.flag(
            "every_table --all", "Like --full, with all tables and figures, zeros included."
        ),
        options.catalogue(),
        options.option(
            "--reply",
            "[FILE]",
            "Write plain text for a ticket to FILE, in words for the customer; without FILE, print"
            " it.",
            is_flag=False,
            flag_value="-",
        ),
        options.flag("--brief", "With --html: findings alone, without figures and tables."),
        *options.showing(tables=False),
        options.scheduler(),
        *options.reading(),
    ],
    _HELP,
    (
        ("kcensus report sample", "try it on a kernel that comes with kcensus"),
        ("kcensus report vmcore -s vmlinux", "the first look at a dump"),
        ("kcensus report vmcore --reply", "a text to paste into a ticket"),
        ("kcensus report vmcore --html r.html --brief", "findings as a page to attach to a ticket"),
        ("kcensus report vmcore --json r.json --html r.html", "for a script, and a whole page"),
        ("kcensus report r.json --reply", "the text, from a document that --json wrote"),
        ("kcensus report vmcore --json | jq '.findings[]'", "findings for a script"),
    ),
)
