# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus validate``: does a patch have the promised effect on a pair of dumps?"""

from __future__ import annotations

import click

from kcensus.actions import action, named
from kcensus.commands.shared.options import (
    catalogue_option,
    command,
    help_tables_option,
    showing_options,
    target_argument,
)

_HELP = """Check whether a patch has the promised effect on pairs of dumps.

BEFORE is a target without the patch, AFTER one with it, under the same workload. The figure that
the patch reduces is measured on both, and compared with the published figures and with what the
model predicts from BEFORE. Both may have the patch if a module parameter switches it off, such as
snapshot_cow_threshold of dm-snapshot.

A patch of I/O schedulers can also be judged by two traces of blktrace, or what blkparse printed of
them, which need no dump (--traces). A trace does not show types: that the kernel of AFTER has the
patch is taken as given, unless the messages of its scheduler prove the opposite. With --as-given,
this holds for dumps, too: where types cannot tell, or a tunable takes the place of the patch.

Both sides must use the scheduler that the patch changes. Only BFQ and CFQ leave messages with their
names in a trace; for others, --as-given says that the scheduler and the disk are the right ones.

A pair counts only if memory, CPUs, workload and uptime are alike; the table "conditions" shows
them. With several pairs the figures are medians, with a 95% confidence interval.

\b
Exit status: 0 confirmed, 1 contradicted, 5 inconclusive,
             2 not a valid pair, 3 a target is unusable."""

COMMAND = command(
    "validate",
    action("kcensus.actions.validate:run"),
    [
        click.Argument(["patch"]),
        target_argument("before", required=True),
        target_argument("after", required=True),
        click.Option(
            ["--more"],
            type=str,
            nargs=2,
            multiple=True,
            metavar="BEFORE AFTER",
            help="Another pair. May be repeated.",
        ),
        click.Option(
            ["--traces"],
            is_flag=True,
            help="BEFORE and AFTER are traces: PREFIX of the files of blktrace, their directory, "
            "or a file with the output of blkparse.",
        ),
        click.Option(
            ["--as-given"],
            is_flag=True,
            help="Take as given that the patch, or a tunable, is what differs; of traces also the "
            "scheduler and the disk.",
        ),
        catalogue_option(),
        *showing_options(),
        help_tables_option(named("kcensus.catalogue.verdict:TABLES")),
    ],
    "does a patch have the promised effect on these dumps?",
    _HELP,
    (
        ("kcensus validate list-lru-memory old.vmcore new.vmcore", "one pair"),
        (
            "kcensus validate list-lru-memory a1 b1 --more a2 b2 --more a3 b3",
            "several pairs, for a confidence interval",
        ),
        (
            "kcensus validate cfq-async-starvation --traces old/sda new/sda",
            "two traces of blktrace: the longest waits of async writes",
        ),
    ),
)
