# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus patches``: which kernel patches a target has, and what they cost or save there."""

from __future__ import annotations

import click

from kcensus.actions import action, named
from kcensus.commands.shared.options import (
    catalogue_option,
    command,
    help_tables_option,
    showing_options,
)

_HELP = """Detect which kernel patches a kernel has, and what the absent ones cost.

Patches are detected from types, members and symbols, never from the version string; where none can
tell, kcensus says so and names the best other evidence. Fixes that are absent come first, then
undetermined patches, layout markers (which only change where tools look), and patches that were
never merged.

What the absence of a patch costs or its presence saves is a figure that an analysis measures on
the same target; the table "prices" names it. `kcensus patches show ID` shows everything the
catalogue says about one patch.

Without TARGET, list the catalogue; inside crash and drgn, show the kernel that is open there.
/proc/kcore is the running kernel."""


COMMAND = command(
    "patches",
    action("kcensus.actions.patches:run"),
    [
        click.Argument(["words"], nargs=-1, metavar="[TARGET | show ID]"),
        catalogue_option(),
        click.Option(
            ["--prices/--no-prices"],
            default=True,
            help="Run the analyses that measure costs and savings.",
        ),
        *showing_options(top=0),  # any patch may be the one of interest
        help_tables_option(named("kcensus.catalogue.result:TABLES")),
    ],
    "which kernel patches does this kernel have, and what do the absent ones cost?",
    _HELP,
    (
        ("kcensus patches vmcore", "the state of every patch, and what it costs or saves there"),
        ("kcensus patches vmcore --no-prices", "the states alone, without running any analysis"),
        ("kcensus patches show list-lru-memory", "everything about one patch"),
        ("kcensus patches --catalogue /etc/our-patches vmcore", "add your own patches and rules"),
    ),
)
