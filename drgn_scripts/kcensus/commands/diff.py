# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus diff``: what changed from one target to another."""

from __future__ import annotations

import click

from kcensus.actions import action
from kcensus.commands.shared import command, showing_options, target_argument

_HELP = """Compare two kernels, or two dumps of one.

Runs every analysis on both and shows what differs in its figures and tables: rows that are new,
gone or changed, the largest change first. Ratios and the other columns of a table are in --json,
--csv and --parquet.

What is unreadable on one side is listed as a gap of that side, because it can look like a
change."""

COMMAND = command(
    "diff",
    action("kcensus.actions.diff:run"),
    [
        target_argument("before", required=True),
        target_argument("after", required=True),
        click.Option(
            ["--analyses"], metavar="NAME,…", help="Run these analyses only. Default: all."
        ),
        *showing_options(),
    ],
    "what changed between two kernels, or two dumps of one?",
    _HELP,
    (
        ("kcensus diff monday.vmcore friday.vmcore", "what grew in a week"),
        ("kcensus diff before.vmcore after.vmcore --analyses slab", "one analysis only"),
    ),
)
