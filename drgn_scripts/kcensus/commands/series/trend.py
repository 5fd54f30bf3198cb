# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus trend``: what grows in a store."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import click

from kcensus.actions import action, named
from kcensus.commands.shared.options import (
    CONTEXT_SETTINGS,
    example_lines,
    help_tables_option,
    showing_options,
)

_HELP = """Say what grows in a store of `kcensus record`, how fast, and when it reaches its limit.

A trend is the median slope of all pairs of records of the latest boot (Theil and Sen), with a 95 %
interval that takes into account that neighbouring records are alike. It begins where the series
last changed its course, and a daily cycle is taken out of it. "No trend" is an answer: then the
rise is what chance explains.

What reaches its limit first is on top: RAM for memory, 65,535 for ids of memory cgroups,
snapshot_cow_threshold for copies of a snapshot. A limit that is reached within 30 days, or has
been, is a finding, so that --fail-on can alert. It is at most a notice if the kernel can reclaim
most of the growth, if the growth slows, or if the host is not recorded any more, and for
information if it is more than 10 times the span of the records ahead.

Without --metric, all amounts of all analyses get a trend; shares, settings and what patches would
save do not."""

_EXAMPLES = (
    ("kcensus trend sample-series", "a store that comes with kcensus: it boots, then it grows"),
    ("kcensus trend /var/lib/kcensus", "what grows on any host, the most urgent first"),
    ("kcensus trend store --host web7 --since 7d", "one host, in the last seven days"),
    ("kcensus trend store --metric slab.slab_bytes", "one figure of all hosts, also if steady"),
    ("kcensus trend store --fail-on warning --json", "for a monitor: status 1 if a week is left"),
)
_UNITS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _since(text: str) -> datetime.datetime:
    """Return the time that ``7d``, ``2026-01-31`` or ``2026-01-31T12:00`` names, in UTC."""
    zone = datetime.timezone.utc
    try:
        if match := re.fullmatch(r"(\d{1,6})\s*(m|min|h|d|w)", text.strip()):
            age = datetime.timedelta(seconds=int(match[1]) * _UNITS[match[2]])
            return datetime.datetime.now(zone) - age
        time = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return time if time.tzinfo else time.replace(tzinfo=zone)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither an age such as 12h or 7d nor a date such as 2026-01-31"
        ) from None


COMMAND = click.Command(
    "trend",
    callback=action("kcensus.actions.series.trend:run"),
    params=[
        click.Argument(["store"], type=click.Path(path_type=Path)),
        click.Option(
            ["metrics", "--metric"],
            multiple=True,
            metavar="NAME",
            help="Only this metric: KEY or ANALYSIS.KEY, also of a table. May be repeated.",
        ),
        click.Option(
            ["hosts", "--host"],
            multiple=True,
            metavar="NAME",
            help="Only this host. May be repeated.",
        ),
        click.Option(
            ["--since"],
            type=_since,
            metavar="TIME",
            help="Only records from then on: an age (12h, 7d) or a date in UTC (2026-01-31).",
        ),
        *showing_options(),
        click.Option(["--no-progress"], is_flag=True, help="Do not draw progress bars."),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            help="Show the traceback of an error, as KCENSUS_DEBUG=1 does.",
        ),
        help_tables_option(named("kcensus.store.growth:TABLES")),
    ],
    help=_HELP,
    short_help="what grows in a store, how fast, and when is it full?",
    epilog=f"\b\nExamples:\n{example_lines(_EXAMPLES)}",
    context_settings=CONTEXT_SETTINGS,
)
