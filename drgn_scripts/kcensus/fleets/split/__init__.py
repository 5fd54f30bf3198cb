# SPDX-License-Identifier: LGPL-2.1-or-later
"""One dump, read by the workers of a Dask cluster.

Analyses read memory in bulk with :meth:`Memory.each`: tasks that do not depend on one another, with
results in order. Here, the function of the tasks *travels*: with its closure, but without the
program, which each worker opens itself from shared storage. What comes back are the results and
the rows of shared columns that the tasks filled, so that the answer is the same to the last bit.
Whatever does not come back is done by the *leader*, the process of the command.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass, field

import drgn

from kcensus.render.plain import installed_version

_HEAD = 1 << 20
"""First bytes of a file that are compared, with its header."""
_PART, _PARTS = 1 << 16, 16
"""Size and number of the parts behind, evenly distributed."""


@dataclass(frozen=True)
class Order:
    """A target for workers to open, with the options of the command; all paths are absolute."""

    id: str
    """Differs between two commands."""
    path: str
    symbols: tuple[str, ...] = ()
    places: str = ""
    """The environment variable ``KCENSUS_SYMBOLS``."""
    allow_truncated: bool = False
    vmcoreinfo: str | None = None
    debuginfod: bool = False


@dataclass(frozen=True)
class Opened:
    """A target that was opened, or the reason why not."""

    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """By name of a program, its version."""
    files: dict[str, str] = field(default_factory=dict)
    """By path, size and digest of parts of the content."""


@dataclass(frozen=True)
class Outcome:
    """What became of a share, a range of tasks."""

    content: bytes = b""
    """Results and rows of columns, as of :func:`travel.answer`; empty if they are missing."""
    error: str = ""
    signal: int = 0
    """That killed the process."""


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all machines."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"kcensus": installed_version(), "drgn": drgn.__version__, "Python": python}


def identity(paths: tuple[str, ...]) -> dict[str, str]:
    """Return size and digest of files, of which 2 MiB are read, by path.

    :raises OSError: one cannot be read
    """
    found = {}
    for path in paths:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(file.read(_HEAD))
            for part in range(_PARTS):
                file.seek(max(size - _PART, 0) * part // (_PARTS - 1))
                digest.update(file.read(_PART))
        found[path] = f"{size} {digest.hexdigest()}"
    return found
