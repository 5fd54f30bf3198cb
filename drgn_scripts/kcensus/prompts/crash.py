# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entry point of the extension of crash, for each command."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from kcensus import cli
from kcensus.commands import Exit
from kcensus.sources import TargetError
from kcensus.sources.crash import PROTOCOL, Crash, open_crash
from kcensus.sources.session import session

_connections: list[Crash] = []
"""Closed by the end of the process only: crash ends a child that closes its connection before."""


def main(argv: Sequence[str]) -> int:
    """Run a command on the kernel that crash has open; return its exit status.

    :param argv: descriptor of a socket to crash, version of the protocol, ``--``, the command
    """
    fd, version, _, *args = argv
    if version != str(PROTOCOL):
        click.echo(
            f"kcensus: the extension of crash speaks protocol {version}, this kcensus {PROTOCOL}; "
            "run `make install` in crash_ext of the same version and load it again "
            "(`extend -u kcensus.so`, `extend kcensus.so`)",
            err=True,
        )
        return Exit.USAGE

    try:
        # Also for a command that needs no memory: crash reports a missing kcensus.
        connection = Crash(int(fd))
    except TargetError as error:
        click.echo(f"kcensus: {error}", err=True)
        return Exit.TARGET
    _connections.append(connection)
    paths = connection.facts.dumpfiles
    try:
        with (
            session(lambda request: open_crash(connection, request), paths=paths),
            _interruptible(),
        ):
            return cli.main(args)
    except KeyboardInterrupt:  # just before the command, or just after it
        return Exit.INTERRUPTED


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C reach the command; before and after, it ends the process without a stack trace.

    crash sends SIGTERM where Ctrl-C reached only crash; both leave the terminal as it was.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    original = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, original, strict=True):
            signal.signal(number, handler)
