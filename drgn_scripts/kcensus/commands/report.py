# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus report``: all analyses of a target, findings first."""

from __future__ import annotations

import click

from kcensus.actions import action
from kcensus.commands.patches import catalogue_option
from kcensus.commands.shared import (
    CONTEXT_SETTINGS,
    examples_epilog,
    reading_options,
    showing_options,
    target_argument,
)

_HELP = """Run all analyses and detect patches.

Findings come first, sorted by what they cost and by severity; then one line per analysis, and
whether the figures agree with the kernel's own counters. --full adds the evidence of each finding
and the figures and tables of each analysis. An analysis that fails says why and does not stop the
others."""

_EXAMPLES = (
    ("kcensus report sample", "try it on a kernel that comes with kcensus"),
    ("kcensus report vmcore -s vmlinux", "the first look at a dump"),
    ("kcensus report vmcore --html report.html", "a page to attach to a ticket"),
    ("kcensus report vmcore --json | jq '.findings[]'", "findings for a script"),
)

COMMAND = click.Command(
    "report",
    callback=action("kcensus.actions.report:run"),
    params=[
        target_argument(),
        click.Option(["--full"], is_flag=True, help="Show evidence, and all figures and tables."),
        catalogue_option(),
        *showing_options(tables=False),
        *reading_options(),
    ],
    help=_HELP,
    short_help="what is wrong here? All analyses, findings first",
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
