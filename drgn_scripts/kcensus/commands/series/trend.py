# SPDX-License-Identifier: LGPL-2.1-or-later
"""What grows in a store, how fast, and when is it full?"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.output import check_output, check_tables, show, stdout
from kcensus.commands.shared.target import progress_bars
from kcensus.store import require_store
from kcensus.store.ceilings import MAX_EXTRAPOLATION, STALE_INTERVALS, URGENT_POINTS

_HELP = f"""Show the growth in a store of `kcensus record`: its rates, and the times to its limits.

A trend is the median slope of all pairs of records of the latest boot (Theil and Sen), with a 95 %
interval that allows for the likeness of neighbouring records, and for daily cycles. It begins where
the rate last changed. "No trend" means that chance or a cycle explains the rise.

The series that reaches its limit first is on top: RAM for memory, 65,535 for ids of memory cgroups,
snapshot_cow_threshold for copies of a snapshot. Growths share bytes: "kernel memory together" has
each byte once, and "memory in use" is RAM without free memory, page cache and reclaimable slabs, in
records that have RAM by use. A limit reached already, or within 30 days at the earliest, is a
finding, so that --fail-on can alert: critical from a day on, a warning from 7 days on. It is at
most a notice if the kernel can reclaim most of the growth, or if the limit only makes tasks wait.
It is at most a warning if fewer than {URGENT_POINTS} records show it, unless the limit is nearer
than they reach back, or if the host has no recent record.

Times count from now; of dumps and of a simulated clock, from the last record. A record is recent
for {STALE_INTERVALS} times the usual interval between records of its host, and at least an hour. A
host that recorded its running kernel and has no recent record is a finding, too.
Beyond {MAX_EXTRAPOLATION} times the span of its records, a series has no forecast and no finding.

The band holds 95 % of new records if the growth goes on; its edges reach the limit at the earliest
and the latest time. Until records span 7 days, it allows for the unseen part of a week. --html and
--svg draw records, trend, band and limit.

Without --metric, all amounts of all analyses get a trend; shares, settings and savings by patches
do not."""

_SVG = "Write the chart of the first growth, or of the one metric, as a picture."

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


def _run(
    store: Path,
    metrics: Sequence[str],
    hosts: Sequence[str],
    since: datetime.datetime | None,
    reading: options.Reading,
    showing: options.Showing,
) -> Exit:
    require_store("scipy")
    from kcensus.store.dataset import provenance
    from kcensus.store.growth import BLOCKS, FIRST_TABLES, LETTERS, TABLES, growth
    from kcensus.store.selection import left_out, present, select

    check_output(showing)
    check_tables(showing, [spec.name for spec in TABLES])
    is_screen = not any((showing.json, showing.csv, showing.parquet, showing.html, showing.svg))
    is_unicode = (stdout().encoding or "").lower().startswith("utf") or not is_screen
    damaged: dict[str, str] = {}
    with progress_bars(reading.no_progress) as progress:
        with progress.step("reading the store", 0):
            rows, context = select(
                store, metrics=metrics, hosts=hosts, since=since, damaged=damaged
            )
        levels = BLOCKS if is_unicode else LETTERS
        result = growth(
            rows, str(store), context=context, now=present(store), levels=levels,
            provenance=provenance(store), left_out=left_out(store, since, hosts),
            damaged=damaged, progress=progress,
        )  # fmt: skip
    # A user who asks for one metric wants its trend whichever way it goes.
    return show(result, showing, () if metrics else FIRST_TABLES)


COMMAND = options.command(
    "trend",
    _run,
    [
        click.Argument(["store"], type=options.PATH),
        options.option(
            "metrics --metric",
            "NAME",
            "Only this metric: KEY or ANALYSIS.KEY, also of a table. May be repeated.",
            multiple=True,
        ),
        options.option("hosts --host", "NAME", "Only this host. May be repeated.", multiple=True),
        options.option(
            "--since",
            "TIME",
            "Only records from then on: an age (12h, 7d) or a date in UTC (2026-01-31).",
            type=_since,
        ),
        *options.showing(),
        options.files("--svg", "FILE", _SVG),
        options.help_tables("kcensus.store.growth:TABLES"),
        *options.running(),
    ],
    _HELP,
    (
        ("kcensus trend sample-series", "weeks of a guest that grows; they come with kcensus"),
        ("kcensus trend /var/lib/kcensus", "what grows on any host, the most urgent first"),
        ("kcensus trend store --host web7 --since 7d", "one host, in the last seven days"),
        ("kcensus trend store --metric slab.slab_bytes", "one figure of all hosts, also if steady"),
        ("kcensus trend store --html growth.html --svg growth.svg", "charts, for a report"),
        (
            "kcensus trend store --fail-on warning --json",
            "for a monitor: status 1 if a week is left",
        ),
    ),
)
