# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sources of the public API: a target of kcensus, or any drgn program."""

from __future__ import annotations

import os
from typing import TypeAlias

import drgn

from kcensus.analyses.runner import Context
from kcensus.progress import Progress
from kcensus.sources import Target, open_target, shared_places
from kcensus.sources.opened import adopt

Readable: TypeAlias = drgn.Program | Target | str | os.PathLike[str]
"""A :class:`drgn.Program` of a Linux kernel, opened by anyone; a :class:`Target` from
:func:`kcensus.open_target`; or the path or name that this function takes, which is opened anew by
each call."""


def target_of(source: Readable) -> Target:
    """Return the target of a source.

    :raises TargetError: it cannot be opened, is not a Linux kernel, or lacks its debug info
    :raises TypeError: it is none of :data:`Readable`
    """
    if isinstance(source, Target):
        return source
    if isinstance(source, drgn.Program):
        return adopt(source, shared=shared_places())
    if isinstance(source, (str, os.PathLike)):
        return open_target(source)
    kind = type(source).__name__
    raise TypeError(
        f"{kind!r} is not a source: pass a drgn.Program, a target of kcensus.open_target(), or a "
        "path"
    )


def program_of(source: Readable) -> drgn.Program:
    """Return the program of a source; one that was opened elsewhere as it is."""
    return source if isinstance(source, drgn.Program) else target_of(source).prog


def context_of(
    source: Readable,
    *,
    jobs: int | None = None,
    chunk_bytes: int | None = None,
    progress: Progress | None = None,
) -> Context:
    """Make the context for analyses of ``source``.

    :param jobs: worker processes; None for the best number. Only its owner knows whether processes
        can share a program that was opened elsewhere: there the default is 1
    :raises TargetError: it cannot be opened, is not a Linux kernel, or lacks its debug info
    """
    if isinstance(source, drgn.Program):
        jobs = jobs or 1
    return Context.of(target_of(source), progress=progress, jobs=jobs, chunk_bytes=chunk_bytes)
