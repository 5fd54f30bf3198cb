# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn's plugin: the command ``%kcensus`` on the open program, in crash mode too.

drgn imports this module whenever it opens a kernel, so it imports only what drgn has loaded anyway.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from drgn import Program, ProgramFlags
from drgn.commands import (
    DEFAULT_COMMAND_NAMESPACE,
    CommandExitStatusError,
    CommandNotFoundError,
    custom_command,
    parse_shell_command,
)

_NAME = "kcensus"


class CommandFailed(CommandExitStatusError):
    """A ``%kcensus`` command ended with another status than 0, and without a result to keep."""

    def __init__(self, command: str, exit_status: int, sentence: str) -> None:
        super().__init__(command, exit_status)
        self.sentence = sentence
        """The error as a sentence; empty if the output has it."""

    def __str__(self) -> str:
        return self.sentence or super().__str__()


@custom_command(
    name=_NAME,
    description="census of kernel memory and I/O",
    usage="**kcensus** [*command*] [*options*]",
    long_description="""
    Run a command of kcensus on the program that is open here. The commands and options are those
    of the command line; without a target, they read the program that is open.

    "kcensus --help" lists the commands, and "kcensus COMMAND --help" explains one.

    At drgn's prompt, _ is the result of the last command, and kcensus.last["slab"] the last result
    of "kcensus slab". Crash mode does not set _: leave it, `import kcensus`, and use kcensus.last.
    A result has tables as DataFrames; the result of "kcensus report" has results["slab"], ...

    Examples:

    |  kcensus report
    |      all analyses, findings first
    |  kcensus slab --top 5
    |      the fill of every slab cache, and the owners of the objects
    |  kcensus dentries | head -30
    |      the first lines
    |  kcensus memcgs --json > memcgs.json
    |      all rows of all tables, in bytes
    |  kcensus diff monday.json
    |      the growth since Monday
    |  kcensus explain list-lru-arrays
    |      the meaning of a finding, and the remedy
    """,
    enabled=lambda prog: bool(prog.flags & ProgramFlags.IS_LINUX_KERNEL),
    parse=parse_shell_command,
)
def run(prog: Program, name: str, args: Sequence[str], **_: Any) -> Any:
    """Run ``%kcensus``, and return the shown result, if any, in the form of :mod:`kcensus`.

    An exit status about a result, such as that of ``--fail-on``, is a line on stderr: an exception
    would leave ``_`` at drgn's prompt as the result of an earlier command.

    :raises CommandFailed: it failed
    """
    import shlex

    import click

    from kcensus.api.answers import answer_of, last
    from kcensus.cli import run as run_command
    from kcensus.commands import Exit
    from kcensus.sources.opened import adopt
    from kcensus.sources.session import session

    answers: list[Any] = []
    errors: list[str] = []

    def keep(result: Any) -> None:
        answer = answer_of(result)
        answers.append(answer)
        last[getattr(result, "analysis", "report")] = answer

    with (
        _unchanged_options(prog),
        _unchanged_stream(),
        session(lambda request: adopt(prog, request.symbols), keep),
    ):
        status = run_command(args, errors.append)
    if answers and status in (Exit.FINDING, Exit.INCONCLUSIVE, Exit.INCOMPLETE):
        errors.append(f"{_NAME}: exit status {status:d} (`{_NAME} --help` explains it)")
        click.echo("\n".join(errors), err=True)
    elif status not in (Exit.DONE, Exit.PIPE):
        raise CommandFailed(shlex.join([name, *args]), status, "\n".join(errors))
    return answers[-1] if answers else None


@contextmanager
def _unchanged_options(prog: Program) -> Iterator[None]:
    """Take back the directories of debug info that a command adds."""
    options = prog.debug_info_options
    directories, kernel_directories = options.directories, options.kernel_directories
    try:
        yield
    finally:
        options.directories, options.kernel_directories = directories, kernel_directories


@contextmanager
def _unchanged_stream() -> Iterator[None]:
    """Take back the encoding that a command gives the standard output of the prompt."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    encoding, errors = stream.encoding, stream.errors
    try:
        yield
    finally:
        try:
            stream.reconfigure(encoding=encoding, errors=errors)
        except OSError:  # the rest cannot be written
            if stream is not sys.__stdout__:
                # drgn closes the file or pipe of `>` or `|`; that must not fail a second time.
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())


def drgn_prog_set(prog: Program) -> None:
    """Add the command to crash mode, unless drgn's crash mode is disabled."""
    crash_mode = sys.modules.get("drgn.commands._crash.common")
    try:
        command = DEFAULT_COMMAND_NAMESPACE.lookup(prog, _NAME)
    except CommandNotFoundError:  # not a kernel
        return
    if crash_mode is not None:
        crash_mode.CRASH_COMMAND_NAMESPACE.register(_NAME, command)
