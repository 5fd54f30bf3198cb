# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command of an analysis: run it, and show its result."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import click

from kcensus.analyses import Analysis, Param
from kcensus.commands import Exit
from kcensus.commands.shared import options, values
from kcensus.commands.shared.output import check_output, check_tables, show
from kcensus.commands.shared.split import dividing
from kcensus.commands.shared.target import context_of, opened, progress_bars, saved_result
from kcensus.text import printable

_DOT = (
    "Write the graph to FILE, in the language of Graphviz: what --html draws, at most 60 nodes. "
    "JSON has all."
)


def analysis_command(analysis: Analysis) -> click.Command:
    """Return the command that runs ``analysis`` and shows its result."""
    return options.command(
        analysis.name,
        functools.partial(_run, analysis),
        [
            options.target(),
            *map(_own_option, analysis.params),
            *options.showing(),
            *([options.files("--dot", "FILE", _DOT)] if analysis.has_picture else []),
            options.help_tables(analysis.specs),
            options.scheduler(),
            *options.reading(),
        ],
        f"{analysis.question}\n\n{inspect.cleandoc(analysis.description)}".rstrip(),
        analysis.examples,
    )


def _own_option(param: Param) -> click.Option:
    flag = "--" + param.name.replace("_", "-")
    if param.type is bool:
        both = f"{flag}/--no-{flag[2:]}" if param.default else flag
        return click.Option([both], is_flag=True, default=bool(param.default), help=param.help)
    complete = values.several_of(lambda: param.choices) if param.choices else None
    return click.Option(
        [flag],
        type=param.type,
        default=param.default,
        show_default=param.default is not None,
        help=param.help,
        shell_complete=values.files if param.is_file else complete,
    )


def _run(
    analysis: Analysis,
    target: str | None,
    reading: options.Reading,
    showing: options.Showing,
    **params: Any,
) -> Exit:
    from kcensus.analyses.runner import Context
    from kcensus.reports import analyse

    check_output(showing)
    known = [spec.name for spec in analysis.tables()]
    if known:
        check_tables(showing, known)
    result = saved_result(target, analysis.name)
    if result is not None:
        for name in analysis.without_target:
            if params.get(name) is not None:
                raise click.UsageError(
                    f"--{name} needs the dump itself: '{printable(str(target))}' is a saved result."
                )
    elif analysis.needs_target(target, params):
        with (
            dividing(target, reading) as divide,
            opened(target, reading) as (opened_target, progress),
        ):
            context = context_of(opened_target, progress, reading, divide(opened_target))
            result = analyse(context, analysis, **params)
    else:
        with progress_bars(reading.no_progress) as progress:
            result = analyse(Context.without_target(progress), analysis, **params)
    return show(result, showing, analysis.first_tables, known)
