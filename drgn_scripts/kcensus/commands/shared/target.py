# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open targets for commands."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcensus.analyses import ALIASES, Analysis, analyses
from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.options import Reading, session_is_open
from kcensus.limits import is_own_process, memory, yield_to_others
from kcensus.progress import Progress, SilentProgress
from kcensus.results import Result
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.analyses.runner import Context
    from kcensus.catalogue import Catalogue
    from kcensus.engine.workers import Each
    from kcensus.sources import Target


def progress_bars(
    no_progress: bool, *, with_rate: bool = False
) -> AbstractContextManager[Progress]:
    """Show progress on stderr if that is a terminal."""
    if sys.stderr.isatty() and not no_progress:
        from kcensus.render.progress import terminal_progress

        return terminal_progress(sys.stderr, with_rate=with_rate)
    return nullcontext(SilentProgress())


# In a session, each command gets the same target.
_complain_once = functools.cache(complain)


@contextmanager
def opened(spec: str | None, reading: Reading) -> Iterator[tuple[Target, Progress]]:
    """Open a target, and show progress while it is used; yield to other programs of its machine.

    :raises TargetError: the target cannot be opened, or the operating system or the memory fails
        while it is used
    """
    from kcensus import sources
    from kcensus.sources.debuginfo import debuginfod

    is_local = is_own_process() and sources.is_running_kernel(spec)
    if is_local:
        yield_to_others()
    limit = memory.limited(_limit(reading, is_local))
    # The limit is inside, so that its error is one of the target, and there is room to say so.
    with (
        progress_bars(reading.no_progress) as progress,
        errors_of_target(),
        limit,
        debuginfod.allowed(progress) if reading.debuginfod else nullcontext(),
    ):
        with progress.step("opening the target", 0):
            target = sources.open_target(
                spec,
                reading.symbols,
                allow_truncated=reading.allow_truncated,
                vmcoreinfo=reading.vmcoreinfo,
            )
        for note in target.notes:
            _complain_once(note)
        yield target, progress


@contextmanager
def errors_of_target() -> Iterator[None]:
    """Turn errors of the operating system and of memory into :class:`TargetError`."""
    from kcensus.sources import TargetError

    try:
        yield
    except (OSError, MemoryError) as error:
        if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
            memory.lift()
            raise TargetError(memory.exceeded("reading the target")) from error
        raise TargetError(f"the target cannot be read: {error}") from error


def _limit(reading: Reading, is_local: bool) -> int | None:
    """Return the private memory in bytes that this process may take; None for no limit.

    :param is_local: whether the target is the kernel that this process runs on
    """
    wanted = reading.max_memory
    if (wanted or reading.cpu_share) and (reading.jobs or 1) > 1:
        raise click.UsageError("--cpu-share and --max-memory limit one process: omit --jobs.")
    if wanted is None:
        # A process that reads several targets keeps its first limit. A target that cannot be
        # opened fails for its own reason.
        from kcensus.sources.live import KCORE

        is_readable = is_local and os.access(KCORE, os.R_OK)
        return memory.current() or (default_limit() if is_readable else None)
    if not memory.is_enforced():
        raise click.UsageError("--max-memory: this system ignores RLIMIT_DATA; omit the option.")
    return wanted


def default_limit() -> int | None:
    """Return the private memory that this process may take on this machine; None if unknown.

    :raises TargetError: too little is available
    """
    from kcensus.sources import TargetError

    try:
        return memory.affordable()
    except memory.Shortage as error:
        raise TargetError(str(error)) from None


def left_out(argument: str) -> str:
    """Return the session's target for an argument missing from the command line.

    :raises click.MissingParameter: there is no session
    """
    if session_is_open():
        return "session"
    raise click.MissingParameter(param_hint=f"'{argument}'", param_type="argument")


def saved_result(path: str | None, name: str) -> Result | None:
    """Return the result of one analysis from a JSON document; None if ``path`` is not one.

    :raises TargetError: the document lacks the analysis
    """
    from kcensus import saved
    from kcensus.sources import TargetError

    if not saved.is_document(path):
        return None
    report = saved.load(str(path))
    result = report.results.get(name)
    if result is None:
        has = ", ".join(report.results) or "no result"
        why = report.errors.get(name) or f"it has {has}"
        raise TargetError(f"'{printable(str(path))}' has no result of {name}: {why}")
    return result


def context_of(
    target: Target, progress: Progress, reading: Reading, divide: Each | None = None
) -> Context:
    """Return the context for analyses of ``target``.

    :param divide: of :func:`kcensus.commands.shared.split.dividing`
    """
    from kcensus.analyses.runner import Context

    is_limited = reading.cpu_share is not None or reading.max_memory is not None
    jobs = 1 if is_limited else reading.jobs
    return Context.of(
        target, progress=progress, jobs=jobs, chunk_bytes=reading.chunk_size, divide=divide
    )


def chosen_analyses(text: str | None) -> list[Analysis]:
    """Return the analyses in ``--analyses``, or all of them; refuse unknown names."""
    known = analyses()
    if text is None:
        return list(known.values())
    given = filter(None, map(str.strip, text.split(",")))
    names = dict.fromkeys(ALIASES.get(name, name) for name in given)
    problems = [f"unknown analysis {name!r}" for name in names if name not in known]
    if problem := next(iter(problems), "" if names else "the list is empty"):
        raise click.UsageError(f"--analyses: {problem} (choose from {', '.join(known)})")
    return [known[name] for name in names]


def load_catalogue(directories: Sequence[Path]) -> Catalogue:
    """Return the catalogue with the user's directories; refuse unusable ones."""
    from kcensus.catalogue import CatalogueError, load

    try:
        return load(directories)
    except CatalogueError as error:
        raise click.UsageError(str(error)) from None
