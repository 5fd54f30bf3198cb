# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens targets for commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import click

from kcensus import saved, sources
from kcensus.actions import Reading
from kcensus.analyses import Analysis, analyses
from kcensus.analyses.runner import Context
from kcensus.progress import Progress, SilentProgress
from kcensus.render.progress import terminal_progress
from kcensus.results import Result
from kcensus.sources import Target, TargetError, session
from kcensus.text import printable


def progress_bars(no_progress: bool) -> AbstractContextManager[Progress]:
    """Show progress on stderr if that is a terminal."""
    if sys.stderr.isatty() and not no_progress:
        return terminal_progress(sys.stderr)
    return nullcontext(SilentProgress())


@contextmanager
def opened(spec: str | None, reading: Reading) -> Iterator[tuple[Target, Progress]]:
    """Open a target, and show progress while it is used.

    :raises TargetError: the target cannot be opened, or the operating system fails while it is
        used
    """
    with progress_bars(reading.no_progress) as progress:
        try:
            with progress.step("opening the target", 0):
                target = sources.open_target(
                    spec, reading.symbols, allow_truncated=reading.allow_truncated
                )
            yield target, progress
        except OSError as error:
            raise TargetError(f"the target cannot be read: {error}") from error


def left_out(argument: str) -> str:
    """Return the target that a session has for an argument that the command line lacks.

    :param argument: its name in the usage
    :raises click.MissingParameter: there is no session
    """
    if session.is_open():
        return session.SPEC
    raise click.MissingParameter(param_hint=f"'{argument}'", param_type="argument")


def saved_result(path: str | None, name: str) -> Result | None:
    """Return the result of one analysis from a JSON document; None if ``path`` is not one.

    :raises TargetError: the document lacks the analysis
    """
    if not saved.is_document(path):
        return None
    report = saved.load(str(path))
    result = report.results.get(name)
    if result is None:
        has = ", ".join(report.results) or "no result"
        why = report.errors.get(name) or f"it has {has}"
        raise TargetError(f"'{printable(str(path))}' has no result of {name}: {why}")
    return result


def context_of(target: Target, progress: Progress, reading: Reading) -> Context:
    """Return the context that analyses of ``target`` run in."""
    return Context.of(target, progress=progress, jobs=reading.jobs, chunk_bytes=reading.chunk_size)


def chosen_analyses(text: str | None) -> list[Analysis]:
    """Return the analyses that ``--analyses`` names, or all of them.

    :raises click.UsageError: the name of an analysis is unknown, or there is none
    """
    known = analyses()
    if text is None:
        return list(known.values())
    names = dict.fromkeys(filter(None, map(str.strip, text.split(","))))
    unknown = [f"unknown analysis {name!r}" for name in names if name not in known]
    if unknown or not names:
        problem = unknown[0] if unknown else "the list is empty"
        raise click.UsageError(f"--analyses: {problem} (choose from {', '.join(known)})")
    return [known[name] for name in names]
