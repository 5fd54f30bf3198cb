# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus report``: all analyses of a target, findings first."""

from __future__ import annotations

import click

from kcensus.actions import action
from kcensus.commands.shared.options import (
    catalogue_option,
    command,
    showing_options,
    target_argument,
)

_HELP = """Run all analyses and detect patches.

Findings come first, sorted by severity and by the memory that they hold, each with the best remedy
as a command to paste; then one line per analysis, and whether the figures agree with the kernel's
own counters. --full adds the evidence and all remedies of each finding, and the figures and tables
of each analysis. `kcensus explain ID` explains a finding.

An analysis that fails does not stop the others: the report is then incomplete, which is its first
finding, and the exit status is 6. TARGET can be a file that --json wrote."""

COMMAND = command(
    "report",
    action("kcensus.actions.report:run"),
    [
        target_argument(),
        click.Option(
            ["--full"], is_flag=True, help="Show evidence, all remedies, figures and tables."
        ),
        click.Option(
            ["every_table", "--all"],
            is_flag=True,
            help="Like --full, with all tables and figures, also those that are 0.",
        ),
        catalogue_option(),
        *showing_options(tables=False),
    ],
    "what is wrong here? All analyses, findings first",
    _HELP,
    (
        ("kcensus report sample", "try it on a kernel that comes with kcensus"),
        ("kcensus report vmcore -s vmlinux", "the first look at a dump"),
        ("kcensus report vmcore --html report.html", "a page to attach to a ticket"),
        ("kcensus report vmcore --json r.json --html r.html", "for a script and for a ticket"),
        ("kcensus report vmcore --json | jq '.findings[]'", "findings for a script"),
    ),
)
