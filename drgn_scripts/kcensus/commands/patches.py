# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which kernel patches does this kernel have, and what do the absent ones cost?"""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options, values
from kcensus.commands.shared.output import check_output, show, stdout
from kcensus.commands.shared.target import context_of, load_catalogue, opened, saved_result
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.catalogue import Catalogue

_HELP = """Detect the kernel patches of a kernel, and the costs of the absent ones.

Patches are detected from types, members and symbols, never from the version string; where none can
tell, kcensus says so and names the best other evidence. Absent fixes come first, then undetermined
patches, layout markers (which only change where tools look), and patches never merged.

The cost of an absent patch, or the saving of a present one, is a figure of an analysis on the same
target; the table "prices" names it. `kcensus patches show ID` shows everything the catalogue says
about one patch, and which package of a distribution has it first; with --all, also how that is
known.

Without TARGET, list the catalogue; inside crash and drgn, show the open kernel. /proc/kcore is the
running kernel."""


def _run(
    words: tuple[str, ...],
    catalogue: tuple[Path, ...],
    prices: bool,
    reading: options.Reading,
    showing: options.Showing,
) -> Exit:
    from kcensus.catalogue.result import catalogue_result
    from kcensus.reports import price

    check_output(showing)
    known = load_catalogue(catalogue)
    if words[:1] == ("show",):
        if len(words) != 2:
            raise click.UsageError("show needs the id of one patch.")
        return _show_story(known, words[1], showing)
    if len(words) > 1:
        raise click.UsageError(f"{len(words)} arguments given: pass one TARGET, or `show ID`")
    if not words and not options.session_is_open():
        return show(catalogue_result(known), showing)
    spec = words[0] if words else None
    if spec and spec in known.patches and not Path(spec).exists():
        raise click.UsageError(f"{spec} is a patch: `kcensus patches show {spec}` describes it.")
    if result := saved_result(spec, "patches"):
        return show(result, showing)
    with opened(spec, reading) as (target, progress):
        result = price(context_of(target, progress, reading), known, prices=prices)
    return show(result, showing)


def _show_story(catalogue: Catalogue, identifier: str, showing: options.Showing) -> Exit:
    from kcensus.catalogue.story import document, story
    from kcensus.render.json import dumps
    from kcensus.render.plain import SCHEMA

    if showing.csv or showing.parquet or showing.html:
        raise click.UsageError("show writes text or --json; drop the other output option.")
    patch = catalogue.patches.get(identifier)
    if patch is None:
        near = _nearest(catalogue, identifier)
        hint = f"did you mean '{near}'?" if near else "`kcensus patches` lists all"
        raise click.UsageError(f"unknown patch '{printable(identifier)}' ({hint})")
    if showing.json:
        text = dumps({"schema": SCHEMA, **document(patch, catalogue.distributions)}, indent=2)
        stdout(encoding="utf-8").write(f"{text}\n")
    else:
        width = min(shutil.get_terminal_size((100, 0)).columns, 100)
        every = showing.every_table
        stdout().write(story(patch, catalogue, width, sources=every))
    return Exit.DONE


def _nearest(catalogue: Catalogue, identifier: str) -> str | None:
    """Return the closest id, of a series rather than of one of its stages."""
    begins = [name for name in catalogue.patches if identifier and name.startswith(identifier)]
    series = [name for name in begins if catalogue.patches[name].stages]
    close = difflib.get_close_matches(identifier, catalogue.patches, 1)
    return next(iter([*series, *close, *begins]), None)


COMMAND = options.command(
    "patches",
    _run,
    [
        click.Argument(
            ["words"], nargs=-1, metavar="[TARGET | show ID]", shell_complete=values.patch_words
        ),
        options.catalogue(),
        options.flag(
            "--prices/--no-prices", "Run the analyses that measure costs and savings.", default=True
        ),
        *options.showing(top=0),  # any patch may be the one of interest
        options.help_tables("kcensus.catalogue.result:TABLES"),
        *options.reading(),
    ],
    _HELP,
    (
        ("kcensus patches vmcore", "the state of every patch, and what it costs or saves there"),
        ("kcensus patches vmcore --no-prices", "the states alone, without running any analysis"),
        ("kcensus patches show list-lru-memory", "everything about one patch"),
        ("kcensus patches show list-lru-xarray --all", "where its first packages are known from"),
        ("kcensus patches --catalogue /etc/our-patches vmcore", "add your own patches and rules"),
    ),
)
