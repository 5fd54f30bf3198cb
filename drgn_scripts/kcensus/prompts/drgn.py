# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``%kcensus`` of drgn, which the plugin (``kcensus_drgn.py``) calls."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from drgn import Program
from drgn.commands import CommandExitStatusError


class CommandFailed(CommandExitStatusError):
    """A ``%kcensus`` command ended with another status than 0, and without a result to keep."""

    def __init__(self, command: str, exit_status: int, sentence: str) -> None:
        super().__init__(command, exit_status)
        self.sentence = sentence
        """The error as a sentence; empty if the output has it."""

    def __str__(self) -> str:
        return self.sentence or super().__str__()


def run(prog: Program, name: str, args: Sequence[str]) -> Any:
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

    # No shell does it at this prompt.
    args = [os.path.expanduser(word) for word in args]
    with (
        _unchanged_options(prog),
        _unchanged_stream(),
        session(lambda request: adopt(prog, request.symbols, request.shared), keep),
    ):
        status = run_command(args, errors.append)
    if answers and status in (Exit.FINDING, Exit.INCONCLUSIVE, Exit.INCOMPLETE):
        errors.append(f"{name}: exit status {status:d} (`{name} --help` explains it)")
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


def completions(line: str) -> tuple[str, list[str]]:
    """Return the last word of a line, and the words that can take its place.

    :param line: begins with a command, such as ``slab``
    """
    import glob

    from kcensus.cli import completions as words_for

    if any(character in line for character in "|<>;\"'\\"):
        return "", []
    *args, word = re.split(r"\s+", line)
    found: dict[str, None] = {}
    for value, kind in words_for(args, word):
        if kind in ("file", "dir"):
            for path in sorted(glob.glob(f"{glob.escape(word)}*")):
                found[f"{path}/" if os.path.isdir(path) else f"{path} "] = None
        else:
            found[f"{value} "] = None
    return word, list(found)
