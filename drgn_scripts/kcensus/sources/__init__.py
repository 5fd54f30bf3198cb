# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where memory and types come from: the running kernel, a vmcore, a QEMU guest.

Each source of memory is one module of this package that defines ``SOURCE`` (a
:class:`~kcensus.sources.model.Source`); :func:`open_target` finds it by itself. To add a
source, add a file.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import pkgutil
from collections.abc import Sequence
from pathlib import Path

from kcensus.sources.model import Request, Source, Target, TargetError
from kcensus.text import printable

__all__ = ["Target", "TargetError", "open_target"]

# drgn reports missing debug info and unreadable modules on its own logger. Without any handler,
# Python prints those lines on the terminal, on top of the one sentence that we say about them.
logging.getLogger("drgn").addHandler(logging.NullHandler())


@functools.cache
def _sources() -> tuple[Source, ...]:
    """All sources in alphabetical order of their modules, fallbacks last."""
    found = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        source = getattr(module, "SOURCE", None)
        if isinstance(source, Source):
            found.append(source)
    return tuple(sorted(found, key=lambda source: source.fallback))


def open_target(
    spec: str | os.PathLike[str] | None,
    symbols: Sequence[str | os.PathLike[str]] = (),
    *,
    allow_truncated: bool = False,
) -> Target:
    """Open a kernel for reading and load the debug info of the kernel itself.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> target.kernel, target.live
    ('5.10.0-43-cloud-amd64', False)

    :param spec: None for the running kernel, the path of a vmcore, or ``qmp:PATH`` for a QEMU
        guest whose QMP socket is PATH
    :param symbols: files and directories with debug info, tried before drgn's own search
    :param allow_truncated: open a dump that lacks its end; what is missing reads as a gap
    :raises TargetError: if the target or its debug info is unusable
    """
    spec = os.fspath(spec) if spec is not None else None
    if spec == "":
        raise TargetError("the target's name is empty; leave it out to read the running kernel")
    for source in _sources():
        if source.claims(spec):
            return source.open(Request(spec, tuple(map(Path, symbols)), allow_truncated))
    raise TargetError(f"{printable(spec or '')}: is no kind of target that kcensus knows")
