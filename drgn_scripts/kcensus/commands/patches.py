# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus patches``: which kernel patches a target has, and what they cost or save there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
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
    json_stdout,
    opened,
    reading_options,
    show,
    showing_options,
    take,
    text_stdout,
)

if TYPE_CHECKING:
    from kcensus.catalogue import Catalogue

QUESTION = "which kernel patches does this kernel have, and what do the absent ones cost?"

_HELP = """Detect which kernel patches a kernel has, and what the absent ones cost.

Patches are detected from types, members and symbols, never from the version string; where none can
tell, kcensus says so and names the best other evidence. Fixes that are absent come first, then
undetermined patches, layout markers (which only change where tools look), and patches that were
never merged.

What the absence of a patch costs or its presence saves is a figure that an analysis measures on
the same target; the table "prices" names it. `kcensus patches show ID` shows everything the
catalogue says about one patch.

Without TARGET, list the catalogue. /proc/kcore is the running kernel."""

_EXAMPLES = (
    ("kcensus patches vmcore", "the state of every patch, and what it costs or saves there"),
    ("kcensus patches vmcore --no-prices", "the states alone, without running any analysis"),
    ("kcensus patches show list-lru-memory", "everything about one patch"),
    ("kcensus patches --catalogue /etc/our-patches vmcore", "add your own patches and rules"),
)


def _run(words: tuple[str, ...], catalogue: tuple[Path, ...], prices: bool, **values: Any) -> Exit:
    reading, showing = take(Reading, values), take(Showing, values)
    check_output(showing)
    known = load_catalogue(catalogue)
    if words[:1] == ("show",):
        if len(words) != 2:
            raise click.UsageError("show needs the id of one patch.")
        return _show_story(known, words[1], showing)
    if len(words) > 1:
        raise click.UsageError(f"{len(words)} arguments given; give one TARGET, or show ID.")
    if not words:
        from kcensus.catalogue.result import catalogue_result

        return show(catalogue_result(known), showing)
    from kcensus.analyses.runner import Context
    from kcensus.reports import price

    with opened(words[0], reading) as (target, progress):
        context = Context.of(target, progress=progress, **context_options(reading))
        result = price(context, known, prices=prices)
    return show(result, showing)


def catalogue_option() -> click.Option:
    """Return the option --catalogue."""
    return click.Option(
        ["--catalogue"],
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="Add a directory of patch files and rules. May be repeated.",
    )


def load_catalogue(directories: Sequence[Path]) -> Catalogue:
    """Return the catalogue with the user's directories.

    :raises click.UsageError: a directory or file is unusable
    """
    from kcensus.catalogue import CatalogueError, load

    try:
        return load(directories)
    except CatalogueError as error:
        raise click.UsageError(str(error)) from None


def _show_story(catalogue: Catalogue, identifier: str, showing: Showing) -> Exit:
    import difflib
    import json
    import shutil

    from kcensus.catalogue.story import document, story
    from kcensus.text import printable

    if showing.csv or showing.parquet or showing.html:
        raise click.UsageError("show writes text or --json; drop the other output option.")
    patch = catalogue.patches.get(identifier)
    if patch is None:
        near = difflib.get_close_matches(identifier, catalogue.patches, 1)
        hint = f"did you mean '{near[0]}'?" if near else "`kcensus patches` lists all"
        raise click.UsageError(f"unknown patch '{printable(identifier)}' ({hint})")
    if showing.json:
        out = json_stdout()
        out.write(json.dumps(document(patch), indent=2, ensure_ascii=False) + "\n")
    else:
        width = min(shutil.get_terminal_size((100, 0)).columns, 100)
        text_stdout().write(story(patch, catalogue.patches, width))
    return Exit.DONE


def _options() -> list[click.Parameter]:
    options = showing_options()
    for option in options:
        if option.name == "top":
            option.default = "0"  # all: any patch may be the one of interest
    return options


COMMAND = click.Command(
    "patches",
    callback=_run,
    params=[
        click.Argument(["words"], nargs=-1, metavar="[TARGET | show ID]"),
        catalogue_option(),
        click.Option(
            ["--prices/--no-prices"],
            default=True,
            help="Run the analyses that measure costs and savings.",
        ),
        *_options(),
        *reading_options(),
    ],
    help=_HELP,
    short_help=QUESTION,
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
