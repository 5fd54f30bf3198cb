# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus capsule create``: the part of a vmcore that can be mailed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from drgn_scripts.commands.shared import (
    CONTEXT_SETTINGS,
    Exit,
    Reading,
    chosen_analyses,
    examples_epilog,
    opened,
    reading_options,
    take,
    target_argument,
)
from drgn_scripts.text import printable

_EXAMPLES = (
    ("kcensus capsule create vmcore case.capsule -s vmlinux", "everything kcensus can look at"),
    ("kcensus capsule create vmcore case.capsule --analyses slab,dentries", "some of it"),
    ("kcensus report case.capsule", "look at it, anywhere"),
)


def _check_out(target: str, out: Path, force: bool) -> None:
    """Refuse an impossible place before any work is done."""
    if os.path.lexists(out) and not force:
        raise click.UsageError(f"{out} exists; choose another name, or overwrite it with --force.")
    if not out.parent.is_dir():
        raise click.UsageError(f"{out.parent} is no directory.")
    if out.is_dir():
        raise click.UsageError(f"{out} is a directory.")
    if out.exists() and os.path.exists(target) and out.samefile(target):
        raise click.UsageError(f"{out} is the target itself; choose another name.")


def _create(
    target: str, out: Path, analyses: str | None, level: int, force: bool,
    **values: Any,
) -> Exit:  # fmt: skip
    from drgn_scripts.capsule import create
    from drgn_scripts.render.directory import OutputError
    from drgn_scripts.target.capsule.container import CannotWrite

    wanted = chosen_analyses(analyses)
    _check_out(target, out, force)
    reading = take(Reading, values)
    with opened(target, reading) as (opened_target, progress):
        try:
            made = create(
                opened_target,
                out,
                wanted,
                level=level,
                progress=progress,
                chunk_bytes=reading.chunk_size,
            )
        except CannotWrite as reason:
            raise OutputError(f"{out}: {reason}") from reason
    for name, error in made.failed.items():
        click.echo(f"kcensus: {name} cannot be answered from this target: {error}", err=True)
    unread = f", {made.unreadable:,} more could not be read" if made.unreadable else ""
    click.echo(
        f"{printable(str(out))}: {out.stat().st_size:,} bytes, {made.stored:,} pages{unread}, "
        f"for {', '.join(made.analyses)}"
    )
    return Exit.DONE


COMMAND = click.Group(
    "capsule",
    help="Make capsules.\n\nA capsule is the part of a vmcore that analyses read, with the types"
    " they used: small, readable without debug info, and without the rest of the memory. Every"
    " analysis takes one in place of a vmcore.",
    short_help="Record the part of a vmcore that analyses read, small enough to be mailed.",
    context_settings=CONTEXT_SETTINGS,
    commands=[
        click.Command(
            "create",
            callback=_create,
            params=[
                target_argument("target", required=True),
                click.Argument(["out"], type=click.Path(path_type=Path)),
                click.Option(
                    ["--analyses"],
                    metavar="NAME,…",
                    help="Record for these only. Default: all of them.",
                ),
                click.Option(
                    ["--level"],
                    type=click.IntRange(1, 19),
                    default=3,
                    show_default=True,
                    help="Compression: 1 is fast, 19 small.",
                ),
                click.Option(["--force"], is_flag=True, help="Overwrite OUT."),
                *reading_options(),
            ],
            help="Run analyses on TARGET, and write what they read to OUT.",
            short_help="Record a target.",
            epilog=examples_epilog(_EXAMPLES),
            context_settings=CONTEXT_SETTINGS,
        )
    ],
)
