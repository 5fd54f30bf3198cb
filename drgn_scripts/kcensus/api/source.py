# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sources of the public API: a target of kcensus, or any drgn program."""

from __future__ import annotations

from typing import TypeAlias

import drgn

from kcensus.analyses.runner import Context
from kcensus.progress import Progress
from kcensus.sources import Target
from kcensus.sources.opened import adopt

Readable: TypeAlias = drgn.Program | Target
"""A :class:`drgn.Program` of a Linux kernel, opened by anyone; or a :class:`Target` from
:func:`kcensus.open_target`."""


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
    :raises TargetError: the program is not a Linux kernel, or lacks its debug info
    """
    if isinstance(source, drgn.Program):
        source, jobs = adopt(source), jobs or 1
    if not isinstance(source, Target):
        kind = type(source).__name__
        raise TypeError(f"{kind!r} is neither a drgn.Program nor a target of kcensus.open_target()")
    return Context.of(source, progress=progress, jobs=jobs, chunk_bytes=chunk_bytes)
