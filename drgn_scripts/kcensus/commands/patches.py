# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus patches``: which kernel patches a target has, and what that means there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from kcensus.patches import Catalogue
    from kcensus.patches.model import Detected
    from kcensus.progress import Progress
    from kcensus.reports import Report
    from kcensus.results import Result
    from kcensus.sources import Target

QUESTION = "which kernel patches does this kernel have, and what does that mean here?"

_HELP = """Which kernel patches does this kernel have, and what does that mean here?

Patches are told by what the debug info has or lacks, never by a version. Where a patch leaves no
trace in types, the best evidence there is takes its place, and it is said so.

What the absence of a patch costs, or its presence saves, is a figure that an analysis measures on
the same target; the table of prices names it. `kcensus patches show ID` tells all that is known of
one patch.

Without TARGET, the catalogue is listed. The running kernel is /proc/kcore."""

_EXAMPLES = (
    ("kcensus patches vmcore", "every patch of the catalogue, and what it costs or saves there"),
    ("kcensus patches vmcore --no-prices", "the same without running any analysis"),
    ("kcensus patches show list-lru-memory", "the story of one patch"),
    ("kcensus patches --catalogue /etc/our-patches vmcore", "with patches and rules of your own"),
)


def _run(words: tuple[str, ...], catalogue: tuple[Path, ...], prices: bool, **values: Any) -> Exit:
    reading, showing = take(Reading, values), take(Showing, values)
    check_output(showing)
    known = load_catalogue(catalogue)
    if words[:1] == ("show",):
        if len(words) != 2:
            raise click.UsageError("show takes the id of one patch.")
        return _show_story(known, words[1], showing)
    if len(words) > 1:
        raise click.UsageError(f"only one TARGET can be given, or show ID; not {len(words)} words.")
    if not words:
        from kcensus.patches.result import catalogue_result

        return show(catalogue_result(known), showing)
    with opened(words[0], reading) as (target, progress):
        result = examine(target, known, progress, context_options(reading), prices=prices)
    return show(result, showing)


def catalogue_option() -> click.Option:
    """The option that adds to the catalogue."""
    return click.Option(
        ["--catalogue"],
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="A directory of patch files and rules of your own. May be repeated.",
    )


def load_catalogue(directories: Sequence[Path]) -> Catalogue:
    """The catalogue with the user's directories.

    :raises click.UsageError: a file of it is unusable
    """
    from kcensus.patches import CatalogueError, load

    try:
        return load(directories)
    except CatalogueError as error:
        raise click.UsageError(str(error)) from None


def examine(
    target: Target,
    catalogue: Catalogue,
    progress: Progress,
    options: Mapping[str, Any],
    *,
    prices: bool = True,
) -> Result:
    """Detect all patches on a target, and run the analyses whose figures they name.

    :param options: for :meth:`kcensus.analyses.runner.Context.of`
    """
    from kcensus.analyses import analyses
    from kcensus.patches.price import analyses_wanted
    from kcensus.reports import report

    lacking, detected = _detect(target, catalogue)
    wanted = analyses_wanted(catalogue, detected) if prices else ()
    known = analyses()
    made = report(
        target,
        [known[name] for name in wanted if name in known],
        progress=progress,
        **options,
    )
    absent = {name: "there is no analysis of this name" for name in wanted if name not in known}
    return _result(target, catalogue, (lacking, detected), made, absent, priced=prices)


def judge(target: Target, catalogue: Catalogue, made: Report) -> Result:
    """Detect all patches on a target whose analyses have run already."""
    return _result(target, catalogue, _detect(target, catalogue), made, {}, priced=True)


def _detect(target: Target, catalogue: Catalogue) -> tuple[list[str], dict[str, Detected]]:
    from kcensus.patches import Prober, detect, modules

    lacking = target.need_modules(*modules(catalogue.patches))
    return lacking, detect(catalogue.patches, Prober(target.prog, lacking), target.kernel)


def _result(
    target: Target,
    catalogue: Catalogue,
    found: tuple[list[str], dict[str, Detected]],
    made: Report,
    absent: Mapping[str, str],
    *,
    priced: bool,
) -> Result:
    from kcensus.patches.result import patches_result

    lacking, detected = found
    return patches_result(
        catalogue,
        detected,
        {one.name: one.result for one in made.sections if one.result},
        target=target.name,
        kernel=target.kernel,
        live=target.live,
        lacking=lacking,
        failed={one.name: one.error for one in made.sections if not one.result} | dict(absent),
        priced=priced,
    )


def _show_story(catalogue: Catalogue, identifier: str, showing: Showing) -> Exit:
    import difflib
    import json
    import shutil

    from kcensus.patches.story import document, story
    from kcensus.text import printable

    if showing.csv or showing.parquet or showing.html:
        raise click.UsageError("the story of a patch is text or --json.")
    patch = catalogue.patches.get(identifier)
    if patch is None:
        near = difflib.get_close_matches(identifier, catalogue.patches, 1)
        hint = f"; is {near[0]} meant?" if near else "; `kcensus patches` lists all"
        raise click.UsageError(f"no patch '{printable(identifier)}' is known{hint}")
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
            option.default = "0"  # somebody may look for any of them
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
            help="Run the analyses that tell what a patch costs or saves.",
        ),
        *_options(),
        *reading_options(),
    ],
    help=_HELP,
    short_help=QUESTION,
    epilog=examples_epilog(_EXAMPLES),
    context_settings=CONTEXT_SETTINGS,
)
