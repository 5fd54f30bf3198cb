# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command that an analysis is."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from kcensus.commands.shared import (
    CONTEXT_SETTINGS,
    Exit,
    Reading,
    Showing,
    check_output,
    context_options,
    examples_epilog,
    opened,
    progress_bars,
    reading_options,
    show,
    showing_options,
    take,
    target_argument,
)

if TYPE_CHECKING:
    from kcensus.analyses import Analysis, Param


def analysis_command(analysis: Analysis) -> click.Command:
    """The command that runs ``analysis`` and shows its result."""
    own = [_own_option(param) for param in analysis.params]
    description = inspect.cleandoc(analysis.description)

    def run(target: str | None, **values: Any) -> Exit:
        from kcensus.analyses.runner import Context

        reading, showing = take(Reading, values), take(Showing, values)
        check_output(showing)
        if analysis.needs_target(target, values):
            with opened(target, reading) as (opened_target, progress):
                context = Context.of(opened_target, progress=progress, **context_options(reading))
                result = context.run(analysis, **values)
        else:
            with progress_bars(reading.no_progress) as progress:
                result = Context.without_target(progress).run(analysis, **values)
        return show(result, showing)

    return click.Command(
        analysis.name,
        callback=run,
        params=[target_argument(), *own, *showing_options(), *reading_options()],
        help=f"{analysis.question}\n\n{description}" if description else analysis.question,
        short_help=analysis.question,
        epilog=examples_epilog(analysis.examples),
        context_settings=CONTEXT_SETTINGS,
    )


def _own_option(param: Param) -> click.Option:
    flag = "--" + param.name.replace("_", "-")
    if param.type is bool:
        both = f"{flag}/--no-{flag[2:]}" if param.default else flag
        return click.Option([both], is_flag=True, default=bool(param.default), help=param.help)
    return click.Option(
        [flag],
        type=param.type,
        default=param.default,
        show_default=param.default is not None,
        help=param.help,
    )
