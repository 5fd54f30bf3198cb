# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus patches``."""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from kcensus.actions import Exit, Reading, Showing
from kcensus.actions.shared.output import check_output, show, stdout
from kcensus.actions.shared.target import context_of, opened, saved_result
from kcensus.catalogue import Catalogue, CatalogueError, load
from kcensus.catalogue.result import catalogue_result
from kcensus.catalogue.story import document, story
from kcensus.render.plain import SCHEMA
from kcensus.reports import price
from kcensus.sources import session
from kcensus.text import printable


def run(
    words: tuple[str, ...],
    catalogue: tuple[Path, ...],
    prices: bool,
    reading: Reading,
    showing: Showing,
) -> Exit:
    """Show the patches of a target, the catalogue, or everything about one patch."""
    check_output(showing)
    known = load_catalogue(catalogue)
    if words[:1] == ("show",):
        if len(words) != 2:
            raise click.UsageError("show needs the id of one patch.")
        return _show_story(known, words[1], showing)
    if len(words) > 1:
        raise click.UsageError(f"{len(words)} arguments given: pass one TARGET, or `show ID`")
    if not words and session.is_open():
        words = (session.SPEC,)
    if not words:
        return show(catalogue_result(known), showing)
    if result := saved_result(words[0], "patches"):
        return show(result, showing)
    with opened(words[0], reading) as (target, progress):
        result = price(context_of(target, progress, reading), known, prices=prices)
    return show(result, showing)


def load_catalogue(directories: Sequence[Path]) -> Catalogue:
    """Return the catalogue with the user's directories.

    :raises click.UsageError: a directory or file is unusable
    """
    try:
        return load(directories)
    except CatalogueError as error:
        raise click.UsageError(str(error)) from None


def _show_story(catalogue: Catalogue, identifier: str, showing: Showing) -> Exit:
    if showing.csv or showing.parquet or showing.html:
        raise click.UsageError("show writes text or --json; drop the other output option.")
    patch = catalogue.patches.get(identifier)
    if patch is None:
        near = _nearest(catalogue, identifier)
        hint = f"did you mean '{near}'?" if near else "`kcensus patches` lists all"
        raise click.UsageError(f"unknown patch '{printable(identifier)}' ({hint})")
    if showing.json:
        text = json.dumps({"schema": SCHEMA, **document(patch)}, indent=2, ensure_ascii=False)
        stdout(encoding="utf-8").write(f"{text}\n")
    else:
        width = min(shutil.get_terminal_size((100, 0)).columns, 100)
        stdout().write(story(patch, catalogue.patches, width))
    return Exit.DONE


def _nearest(catalogue: Catalogue, identifier: str) -> str | None:
    """Return the id that was meant, of a series rather than of one of its stages."""
    begins = [name for name in catalogue.patches if identifier and name.startswith(identifier)]
    series = [name for name in begins if catalogue.patches[name].stages]
    close = difflib.get_close_matches(identifier, catalogue.patches, 1)
    return next(iter([*series, *close, *begins]), None)
