# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus explain``: what a finding or a term means."""

from __future__ import annotations

import click

from kcensus.actions import action
from kcensus.commands.shared.options import CONTEXT_SETTINGS, example_lines

_HELP = """Explain a finding or a term.

For the id of a finding: what it means, how it was determined, and what to do about it. For a term
of the kernel or of kcensus, as outputs use it: what it is. Without a word, list all."""

_EXAMPLES = (
    ("kcensus explain list-lru-arrays", "a finding, by its id"),
    ("kcensus explain obj_cgroup vector", "a term"),
    ("kcensus explain", "all findings and terms"),
)

COMMAND = click.Command(
    "explain",
    callback=action("kcensus.actions.explain:run"),
    params=[
        click.Argument(["words"], nargs=-1, metavar="[ID | TERM]"),
        click.Option(["--no-pager"], is_flag=True, help="Do not show long output in a pager."),
    ],
    help=_HELP,
    short_help="what does this finding, or this term, mean?",
    epilog=f"\b\nExamples:\n{example_lines(_EXAMPLES)}",
    context_settings=CONTEXT_SETTINGS,
)
