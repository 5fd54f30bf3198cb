# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus capsule create``: the part of a vmcore that can be mailed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from kcensus.commands.shared import (
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
from kcensus.text import printable

_EXAMPLES = (
    ("kcensus capsule create vmcore case.capsule -s vmlinux", "everything kcensus can look at"),
    ("kcensus capsule create vmcore case.capsule --analyses slab,dentries", "some of it"),
    (
        "kcensus capsule create vmcore case.capsule --redact names",
        "without the names of files, cgroups, devices, processes and the host",
    ),
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


_SHORTEST_KEY = 16


def _key(path: Path | None, redact: tuple[str, ...]) -> bytes | None:
    if path is None:
        return None
    if "names" not in redact:
        raise click.UsageError("--redact-key is for --redact names.")
    try:
        key = path.read_bytes()
    except OSError as error:
        from kcensus.sources.reader import os_reason

        raise click.UsageError(f"--redact-key {path}: {os_reason(error)}.") from None
    if len(key) < _SHORTEST_KEY:
        raise click.UsageError(f"--redact-key {path}: is no key; it takes {_SHORTEST_KEY} bytes.")
    return key


def _create(
    target: str, out: Path, analyses: str | None, level: int, force: bool,
    redact: tuple[str, ...], redact_key: Path | None, **values: Any,
) -> Exit:  # fmt: skip
    from kcensus.capsule import create
    from kcensus.render.directory import OutputError
    from kcensus.sources.capsule.container import CannotWrite

    wanted, key = chosen_analyses(analyses), _key(redact_key, redact)
    _check_out(target, out, force)
    reading = take(Reading, values)
    with opened(target, reading) as (opened_target, progress):
        try:
            made = create(
                opened_target,
                out,
                wanted,
                level=level,
                redact=redact,
                key=key,
                progress=progress,
                chunk_bytes=reading.chunk_size,
            )
        except CannotWrite as reason:
            raise OutputError(f"{out}: {reason}") from reason
    for name, error in made.failed.items():
        click.echo(f"kcensus: {name} cannot be answered from this target: {error}", err=True)
    for sentence in made.unredacted:
        click.echo(f"kcensus: not everything could be redacted: {printable(sentence)}", err=True)
    unread = f", {made.unreadable:,} more could not be read" if made.unreadable else ""
    click.echo(
        f"{printable(str(out))}: {out.stat().st_size:,} bytes, {made.stored:,} pages{unread}, "
        f"for {', '.join(made.analyses)}" + (f"; redacted: {', '.join(redact)}" if redact else "")
    )
    return Exit.DONE


COMMAND = click.Group(
    "capsule",
    help="Make capsules.\n\nA capsule is the part of a vmcore that analyses read, with the types"
    " they used: small, readable without debug info, and without the rest of the memory. Every"
    " analysis takes one in place of a vmcore.",
    short_help="record the part of a vmcore that analyses read, small enough to be mailed",
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
                click.Option(
                    ["--redact"],
                    type=click.Choice(["names"]),
                    multiple=True,
                    help="Replace the names of files, cgroups, device-mapper devices, processes"
                    " and the host by pseudonyms of the same shape, and wipe free memory. Other"
                    " contents of memory stay.",
                ),
                click.Option(
                    ["--redact-key"],
                    type=click.Path(path_type=Path),
                    metavar="FILE",
                    help="A secret of 16 bytes or more: capsules that were made with the same have"
                    " the same pseudonyms. Default: a random one, which nobody keeps.",
                ),
                click.Option(["--force"], is_flag=True, help="Overwrite OUT."),
                *reading_options(),
            ],
            help="Run analyses on TARGET, and write what they read to OUT.",
            short_help="record a target",
            epilog=examples_epilog(_EXAMPLES),
            context_settings=CONTEXT_SETTINGS,
        )
    ],
)
