# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus record``: results of one or more targets, appended to a series."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus.actions import action
from kcensus.commands.shared.options import command, interval, target_argument

_HELP = """Append the figures of targets to a store, for `kcensus trend`.

A store is a directory of Parquet files by host and day, which pandas and DuckDB read as they are.
A record takes a few kilobytes: all figures of the summaries, the largest rows of the tables, and
the findings. So a series needs no dumps to be kept. TARGET can be a vmcore, a capsule, a file that
--json wrote, or a kernel that runs.

Each line that is printed is a record that is on disk. Recording the same dump again changes
nothing. Several kcensus may write to one store, and may be killed at any time.

--every records kernels that run until Ctrl-C: at once, then at multiples of the interval. An
analysis that fails, a guest that is restarted or a full disk do not stop it."""

COMMAND = command(
    "record",
    action("kcensus.actions.series.record:run"),
    [
        click.Argument(
            ["targets"],
            nargs=-1,
            metavar="[TARGET]...",
            shell_complete=target_argument().shell_complete,
        ),
        click.Option(
            ["--store"],
            type=click.Path(path_type=Path),
            required=True,
            metavar="DIR",
            help="The store; it is made unless it exists.",
        ),
        click.Option(
            ["--every"],
            type=interval,
            metavar="INTERVAL",
            help="Record again and again: 30s, 5m, 1h. For kernels that run.",
        ),
        click.Option(
            ["--count"],
            type=click.IntRange(1),
            metavar="N",
            help="With --every, stop after N times.",
        ),
        click.Option(
            ["--analyses"], metavar="NAME,…", help="Run these analyses only. Default: all."
        ),
    ],
    "append the figures of a target to a series over time",
    _HELP,
    (
        ("kcensus record vmcore --store series", "one dump; any number of them, from any host"),
        ("kcensus record *.json --store series", "what `kcensus report --json` wrote"),
        ("kcensus record --store series --every 5m", "the running kernel, until Ctrl-C"),
        ("kcensus record qmp:/run/guest.qmp --store series --every 1h", "a QEMU guest"),
        ("kcensus trend series", "what grows, how fast, and until when"),
    ),
)
