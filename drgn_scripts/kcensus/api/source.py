# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the functions of the public API read: a target of ours, or any drgn program."""

from __future__ import annotations

from typing import TypeAlias

import drgn

from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.progress import Progress
from kcensus.sources import Target

Readable: TypeAlias = drgn.Program | Target
"""A :class:`drgn.Program` of a Linux kernel with its debug info loaded, opened by anyone; or a
:class:`Target` from :func:`kcensus.open_target`, which loads the debug info of modules itself."""


def context_of(
    source: Readable,
    *,
    jobs: int | None = None,
    chunk_bytes: int | None = None,
    progress: Progress | None = None,
) -> Context:
    """Make the context that analyses of ``source`` run in.

    :param jobs: worker processes; None for as many as pay. A program that was opened elsewhere may
        not be shareable between processes, so there the default is 1
    """
    if isinstance(source, Target):
        return Context.of(source, progress=progress, jobs=jobs, chunk_bytes=chunk_bytes)
    if not isinstance(source, drgn.Program):
        raise TypeError(
            f"{type(source).__name__!r} is neither a drgn.Program nor a target of "
            "kcensus.open_target()"
        )
    live = bool(source.flags & drgn.ProgramFlags.IS_LIVE)
    size = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
    return Context(Kernel(source, live=live, jobs=jobs or 1, progress=progress, **size))
