# SPDX-License-Identifier: LGPL-2.1-or-later
"""What does this finding, or this term, mean?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from kcensus import explain
from kcensus.analyses import analyses
from kcensus.commands import Exit
from kcensus.commands.shared import options, values
from kcensus.commands.shared.output import console
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.render.screen import Screen

_INDENT = 2

_HELP = """Explain a finding or a term.

The id of a finding shows its meaning, how it was determined, and what to do. A term of the kernel
or of kcensus shows its definition. Without a word, list all."""


def _run(words: tuple[str, ...], showing: options.Showing) -> Exit:
    wanted = " ".join(words)
    kind = explain.explanation(wanted)
    term = explain.term(wanted)
    columns = [] if not wanted or kind or term else _columns(wanted)
    if wanted and not (kind or term or columns):
        raise click.UsageError(_unknown(wanted))
    from kcensus.render.screen import Screen

    with console(showing) as made:
        screen = Screen(made)
        if not wanted:
            _list(screen)
        if kind:
            _finding(kind, screen)
        if term:
            _term(term, screen)
        for line in columns:
            screen.prose(line)
    return Exit.DONE


def _list(screen: Screen) -> None:
    from rich.text import Text

    kinds = explain.kinds().items()
    screen.section("Findings", [(Text(kind), [Text(each.title)]) for kind, each in kinds])
    screen.heading("Terms")
    screen.prose(", ".join(explain.terms()), _INDENT)


def _finding(kind: explain.Explanation, screen: Screen) -> None:
    from rich.text import Text

    screen.prose(Text(f"{kind.kind}: {kind.title}", style="bold"))
    for heading, text in (
        ("In plain words", kind.plain),
        ("What it means", kind.means),
        ("How it was determined", kind.determined),
        ("What to do", kind.remedy),
    ):
        screen.blank()
        screen.heading(heading)
        for paragraph in text.strip().split("\n\n"):
            screen.prose(" ".join(paragraph.split()), _INDENT)
    _terms(kind.terms, screen)


def _term(term: explain.Term, screen: Screen) -> None:
    from rich.text import Text

    screen.prose(Text(term.name, style="bold"))
    screen.prose(term.means, _INDENT)
    _terms(term.see, screen)


def _terms(names: Iterable[str], screen: Screen) -> None:
    from rich.text import Text

    rows = [(Text(name), [Text(each.means)]) for name in names if (each := explain.term(name))]
    if rows:
        screen.blank()
        screen.heading("Terms")
        screen.tagged(rows)


def _columns(word: str) -> list[str]:
    from kcensus.render.plain import label

    return [
        f"{name}, table {spec.name}, column {key} ({label(key, column.label)}): {column.help}"
        for name, analysis in analyses().items()
        for spec in analysis.tables()
        for key, column in spec.columns.items()
        if word.lower() in (key, column.heading(key).lower())
    ]


def _unknown(word: str) -> str:
    from kcensus.catalogue import load

    if word in load().patches:
        hint = f"it is a patch: `kcensus patches show {word}`"
    else:
        known = {each.lower(): each for each in explain.words()}
        near = difflib.get_close_matches(word.partition(":")[0].lower(), known, 1)
        hint = f"did you mean '{known[near[0]]}'?" if near else "`kcensus explain` lists all"
    return f"unknown finding or term '{printable(word)}' ({hint})"


COMMAND = options.command(
    "explain",
    _run,
    [
        click.Argument(["words"], nargs=-1, metavar="[ID | TERM]", shell_complete=values.explained),
        options.no_pager(),
    ],
    _HELP,
    (
        ("kcensus explain list-lru-arrays", "a finding, by its id"),
        ("kcensus explain obj_cgroup vector", "a term"),
        ("kcensus explain", "all findings and terms"),
    ),
)
