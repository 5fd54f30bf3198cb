# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answer the questions of agents about dumps (Model Context Protocol)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.limits.memory import MIN_BYTES
from kcensus.text import how_to_install

_HELP = """Answer the questions of agents about dumps: a server of the Model Context Protocol.

The server speaks the protocol on standard input and output; a client, such as an editor or a chat
program with agents, starts it with this command. It has a tool for the list of targets, the report,
each analysis, tables, explanations, patches, the comparison of two targets, and the objects of slab
caches. Answers have the figures, checks and gaps of --json.

Only files below the directories DIR can be asked about, and the samples that come with kcensus;
symbolic links that lead elsewhere are refused. Nothing is written, no command runs, and the running
kernel is not read without --live. Each target is read by a process of its own, which ends with a
call that is cancelled or takes too long.

Standard error has the log."""
_SECONDS = 300
_MAX_DIGITS = 6


def _seconds(text: str) -> int:
    if not (text.isdecimal() and len(text) <= _MAX_DIGITS and int(text)):
        raise click.BadParameter(f"{text!r} is not a number of seconds >= 1")
    return int(text)


def _run(directories: tuple[Path, ...], live: bool, timeout: int, reading: options.Reading) -> Exit:
    if options.session_is_open():
        raise click.UsageError("a server for agents runs outside of crash and drgn: `kcensus mcp`")
    if find_spec("mcp") is None:
        raise click.UsageError(f"the server needs the package mcp: {how_to_install('mcp')}.")
    from kcensus.agents.messages import Settings
    from kcensus.agents.places import PlaceError, Places
    from kcensus.agents.server import serve

    try:
        places = Places.of(directories, allow_live=live)
    except PlaceError as error:
        raise click.UsageError(str(error)) from None
    for path in reading.symbols:
        if not path.exists():
            raise click.UsageError(f"-s: '{path}' does not exist")
    if sys.stdin.isatty():
        click.echo("kcensus: waiting for a client on standard input (Ctrl-C ends it)", err=True)
    settings = Settings(
        roots=places.roots,
        allow_live=live,
        symbols=tuple(str(path.absolute()) for path in reading.symbols),
        allow_truncated=reading.allow_truncated,
        memory=reading.max_memory,
    )
    serve(places, settings, timeout)
    return Exit.DONE


COMMAND = options.command(
    "mcp",
    _run,
    [
        click.Argument(["directories"], nargs=-1, metavar="[DIR]...", type=options.PATH),
        options.flag("--live", "Let agents read the running kernel, too (needs root)."),
        options.option(
            "--timeout",
            "SECONDS",
            "Longest time of a call.",
            type=_seconds,
            default=str(_SECONDS),
            show_default=True,
        ),
        options.option(
            "--max-memory",
            "SIZE",
            "Private memory of each process that reads a target; there are at most three. Default: "
            "a sixth of what is available when it starts, but at least 320 MiB.",
            type=options.size(MIN_BYTES, f"{MIN_BYTES >> 20}M, such as 512M or 2G"),
        ),
        options.flag("--allow-truncated", "Read truncated dumps."),
        options.symbols(),
    ],
    _HELP,
    (
        ("kcensus mcp /srv/dumps", "serve the dumps below a directory"),
        ("kcensus mcp", "only the samples that come with kcensus, to try it"),
        ("kcensus mcp /srv/dumps -s /srv/packs", "with type packs for kernels without BTF"),
    ),
)
