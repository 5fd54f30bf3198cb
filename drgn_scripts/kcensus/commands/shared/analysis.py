# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes the command of an analysis."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import click

from kcensus.actions import action
from kcensus.analyses import Analysis, Param
from kcensus.commands.shared.options import (
    command,
    help_tables_option,
    showing_options,
    target_argument,
)


def analysis_command(analysis: Analysis) -> click.Command:
    """Return the command that runs ``analysis`` and shows its result."""
    return command(
        analysis.name,
        functools.partial(action("kcensus.actions.analysis:run"), analysis),
        [
            target_argument(),
            *map(_own_option, analysis.params),
            *showing_options(),
            *([_dot_option()] if analysis.picture else []),
            help_tables_option(analysis.tables),
        ],
        analysis.question,
        f"{analysis.question}\n\n{inspect.cleandoc(analysis.description)}".rstrip(),
        analysis.examples,
    )


def _dot_option() -> click.Option:
    return click.Option(
        ["--dot"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the graph to FILE, in the language of Graphviz: what --html draws, at most 60 "
        "nodes. JSON has all.",
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
