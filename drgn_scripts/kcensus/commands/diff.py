# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus diff``: what grew from one target to another."""

from __future__ import annotations

import click

from kcensus.actions import action
from kcensus.commands.shared.options import command, showing_options, target_argument

_HELP = """Say what grew between two kernels, or two dumps of one.

Runs every analysis on both. The memory that grew comes first, the largest growth on top; then
follow the figures and the rows of tables that differ. Rows are matched by name; --all shows all
tables, and ratios and the other columns are in --json, --csv and --parquet.

Each side is a target, or a file that --json wrote, of a report or of one analysis. Inside crash
and drgn, AFTER can be left out: it is then the kernel that is open there. What is
unreadable on one side is listed as a gap of that side, because it can look like a change; if an
analysis fails on one side, the exit status is 6."""

COMMAND = command(
    "diff",
    action("kcensus.actions.diff:run"),
    [
        target_argument("before", required=True),
        target_argument("after", metavar="AFTER"),
        click.Option(
            ["--analyses"], metavar="NAME,…", help="Run these analyses only. Default: all."
        ),
        *showing_options(),
    ],
    "what grew between two kernels, or two dumps of one?",
    _HELP,
    (
        ("kcensus diff monday.vmcore friday.vmcore", "what grew in a week"),
        ("kcensus diff before.vmcore after.vmcore --analyses slab", "one analysis only"),
        ("kcensus diff monday.json vmcore", "against what `report --json` wrote on Monday"),
    ),
)
