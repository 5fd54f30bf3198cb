# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the extension of crash starts for each command."""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence

import click

from kcensus import cli
from kcensus.actions import Exit
from kcensus.sources.crash import PROTOCOL, Crash, open_crash
from kcensus.sources.session import session


def main(argv: Sequence[str]) -> int:
    """Run a command on the kernel that crash has open; return its exit status.

    :param argv: a descriptor of a socket to crash, the version of the protocol that the extension
        speaks, ``--``, and the words of the command
    """
    fd, version, _, *args = argv
    if version != str(PROTOCOL):
        click.echo(
            f"kcensus: the extension of crash speaks protocol {version}, this kcensus {PROTOCOL}; "
            "run `make install` in crash_ext of the same version",
            err=True,
        )
        return Exit.USAGE
    # crash sends it where Ctrl-C reached only crash; leave the terminal as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    connect = functools.cache(lambda: Crash(int(fd)))
    with session(lambda request: open_crash(connect(), request)):
        return cli.main(args)
