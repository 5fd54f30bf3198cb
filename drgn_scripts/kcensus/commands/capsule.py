# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus capsule create``: the part of a vmcore that the analyses need."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus.actions import action
from kcensus.commands.shared.options import CONTEXT_SETTINGS, command, target_argument

_CREATE = command(
    "create",
    action("kcensus.actions.capsule:create"),
    [
        target_argument(required=True),
        # Inside crash and drgn, the only word is OUT.
        click.Argument(["out"], type=click.Path(path_type=Path), required=False, metavar="OUT"),
        click.Option(
            ["--analyses"], metavar="NAME,…", help="Record for these analyses only. Default: all."
        ),
        click.Option(
            ["--level"],
            type=click.IntRange(1, 19),
            default=3,
            show_default=True,
            help="Compression: 1 is the fastest, 19 the smallest.",
        ),
        click.Option(
            ["--redact"],
            type=click.Choice(["names"]),
            multiple=True,
            help="Replace names of files, cgroups, device-mapper devices, processes and the host"
            " with pseudonyms of the same shape, and wipe free memory and registers of programs."
            " Other memory contents stay.",
        ),
        click.Option(
            ["--redact-key"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A secret of 16 bytes or more; the same key gives the same pseudonyms in every"
            " capsule. Default: a random key that is not saved.",
        ),
        click.Option(["--force"], is_flag=True, help="Overwrite OUT."),
    ],
    "create a capsule of a target",
    "Run the analyses on TARGET and write what they read to OUT. Inside crash and drgn, TARGET can"
    " be left out.",
    (
        ("kcensus capsule create vmcore case.capsule -s vmlinux", "for all analyses"),
        ("kcensus capsule create vmcore case.capsule --analyses slab,dentries", "for two of them"),
        (
            "kcensus capsule create vmcore case.capsule --redact names",
            "without names of files, cgroups, devices, processes and the host",
        ),
        ("kcensus report case.capsule", "analyze it on any machine, without debug info"),
    ),
)


@click.pass_context
def _show_help(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


COMMAND = click.Group(
    "capsule",
    callback=_show_help,
    invoke_without_command=True,
    help="Extract the part of a vmcore that the analyses need, small enough to attach to a ticket."
    "\n\nA capsule holds the memory that analyses read and the types they used. Every command"
    " takes it in place of the vmcore, without debug info."
    "\n\nPages of programs and files are not in it. For iosched, it holds the kernel stacks of"
    " tasks in state D: addresses, numbers, and what functions of the kernel keep in local"
    " variables, such as a part of a path, or of data that they copy or encrypt.",
    short_help="extract the part of a vmcore that the analyses need",
    context_settings=CONTEXT_SETTINGS,
    commands=[_CREATE],
)
