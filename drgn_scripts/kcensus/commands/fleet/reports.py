# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands ``kcensus fleet report`` and ``kcensus fleet show``."""

from __future__ import annotations

import datetime
import os
from dataclasses import replace

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.output import (
    check_output,
    check_tables,
    console,
    exit_status,
    show,
    write_files,
)
from kcensus.fleets import require_fleet
from kcensus.text import printable

_REPORT = """Show what the targets in a store suffer from.

Dumps with the same findings, deadlock, panic or stacks of blocked tasks are one cause, whatever
their hosts, devices and addresses. Causes come in the order of severity and hosts, each with the
command that opens the dump most like all others, and what differs in some. Before them are reasons
of targets without a report, or whose analyses failed; after them fixes that kernels lack with their
costs, hosts with figures far above those of hosts with the same kernel, and growth per host.

In the document of --json, `summary` has the numbers of `targets`, `reports`,
`replaced` (more dumps, whose paths have others now), `failed`, `incomplete` (an analysis failed),
`duplicates`, `hosts`, `causes`, `healthy` (nothing was found) and `healthy_incomplete` (nothing was
found, but an analysis failed), and the times of the `first` and `last` dump; `tables` has the
tables below."""

_SHOW = """Show the dumps of one cause, and what differs in some of them.

CAUSE is an id of `kcensus fleet report`, or its beginning."""


def _day(text: str) -> str:
    """Return a day: ``2026-01-31``."""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a day, such as 2026-01-31") from None


def _since() -> click.Option:
    return options.option(
        "--since", "DAY", "Only dumps of this day, in UTC, and later ones.", type=_day
    )


def _report(
    store: str, since: str | None, reading: options.Reading, showing: options.Showing
) -> Exit:
    require_fleet("scipy")
    from kcensus.fleets.report import Report
    from kcensus.fleets.report.page import write_page
    from kcensus.fleets.report.screen import write_fleet, write_tables
    from kcensus.fleets.report.tables import TABLES
    from kcensus.render.terminal import write_terminal

    check_output(showing)
    check_tables(showing, [spec.name for spec in TABLES])
    report = Report(store, since or "")
    has_page = showing.html is not None
    if showing.html:
        write_page(report, showing.html)
        click.echo(printable(str(showing.html)), err=showing.json == "-")
    if not write_files(report.result, replace(showing, html=None)) and not has_page:
        with console(showing) as screen:
            if showing.every_table:
                write_terminal(replace(report.result, findings=[]), screen, showing.top, every=True)
            elif showing.tables:
                write_tables(report.result, screen, showing.tables, showing.top)
            else:
                write_fleet(report, screen, showing.top)
    return exit_status(report.result.findings, showing.fail_on)


def _show(
    cause: str, store: str, since: str | None, reading: options.Reading, showing: options.Showing
) -> Exit:
    require_fleet("scipy")
    from kcensus.fleets.report import Report
    from kcensus.fleets.report.screen import write_dumps, write_tables
    from kcensus.fleets.report.tables import TABLES_OF_A_CAUSE

    check_output(showing)
    check_tables(showing, [spec.name for spec in TABLES_OF_A_CAUSE])
    if os.path.isdir(cause) and not os.path.exists(store):
        raise click.UsageError("CAUSE comes first, and then STORE.")
    report = Report(store, since or "")
    found = report.cause(cause)
    result = report.dumps(found)
    if showing.every_table:
        return show(result, showing)
    if not write_files(result, showing):
        with console(showing) as screen:
            if showing.tables:
                write_tables(result, screen, showing.tables, showing.top)
            else:
                write_dumps(report, found, screen, showing.top)
    return exit_status(result.findings, showing.fail_on)


REPORT = options.command(
    "report",
    _report,
    [
        click.Argument(["store"], type=options.PLACE),
        _since(),
        *options.showing(),
        options.help_tables("kcensus.fleets.report.tables:TABLES"),
        *options.running(),
    ],
    _REPORT,
    (
        ("kcensus fleet report fleet", "causes first, the gravest on top"),
        ("kcensus fleet report fleet --since 2026-01-30", "those since Friday"),
        ("kcensus fleet report fleet --html fleet.html", "a page to send"),
        ("kcensus fleet report fleet --json | jq -r '.tables.causes[].command'", "for a script"),
    ),
)
SHOW = options.command(
    "show",
    _show,
    [
        click.Argument(["cause"]),
        click.Argument(["store"], type=options.PLACE),
        _since(),
        *options.showing(),
        options.help_tables("kcensus.fleets.report.tables:TABLES_OF_A_CAUSE"),
        *options.running(),
    ],
    _SHOW,
    (("kcensus fleet show 9e7a82c9 fleet", "the dumps of one cause"),),
)
