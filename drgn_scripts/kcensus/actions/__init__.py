# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the commands do: one module per command, imported when the command runs.

This package itself is light: it holds what a command line is parsed into, and the exit statuses.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kcensus import samples
from kcensus.limits import is_own_process
from kcensus.limits.cpu import limit_share
from kcensus.limits.memory import prepare


class Exit(enum.IntEnum):
    """Exit statuses; scripts rely on them."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    TARGET = 3
    FAILED = 4
    INCONCLUSIVE = 5
    """Only ``kcensus validate`` exits with this."""
    INCOMPLETE = 6
    """An analysis failed, so that findings may be missing."""
    INTERRUPTED = 128 + 2
    PIPE = 128 + 13


@dataclass(frozen=True)
class Reading:
    """How a target is opened and read: the values of ``reading_options()``."""

    symbols: tuple[Path, ...] = ()
    jobs: int | None = None
    allow_truncated: bool = False
    chunk_size: int | None = None
    no_progress: bool = False
    cpu_share: int | None = None
    """Percent of one CPU; None for no limit."""
    max_memory: int | None = None
    """Bytes of private memory; None for the default of the target."""


@dataclass(frozen=True)
class Showing:
    """How a result is shown: the values of ``showing_options()``."""

    json: str | None = None
    """A file, or ``-`` for standard output."""
    csv: Path | None = None
    parquet: Path | None = None
    html: Path | None = None
    dot: Path | None = None
    top: int = 10
    tables: tuple[str, ...] = ()
    """Tables to show; the first ones of the analysis where empty."""
    every_table: bool = False
    no_pager: bool = False
    fail_on: str | None = None


def is_sample(name: str) -> bool:
    """Return whether a word is the name of a capsule that comes with kcensus."""
    return samples.capsule(name) is not None


def named(place: str) -> Callable[[], Any]:
    """Return a function that imports ``module:name`` when it is called, and returns it."""

    def load() -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(module), name)

    return load


def deferred(place: str) -> Callable[..., Any]:
    """Return a function that imports the function ``module:name`` when it is called."""
    load = named(place)
    return lambda *args, **values: load()(*args, **values)


def action(place: str) -> Callable[..., Any]:
    """Return the callback of a command: a deferred function, called with its parsed options.

    Options that are fields of :class:`Reading` or :class:`Showing` are passed as one ``reading``
    and one ``showing``, all others by their names.
    """
    run = deferred(place)

    def callback(*args: Any, **values: Any) -> Any:
        for name, kind in (("reading", Reading), ("showing", Showing)):
            names = [field.name for field in fields(kind) if field.name in values]
            if names:
                values[name] = kind(**{key: values.pop(key) for key in names})
        reading = values.get("reading")
        if isinstance(reading, Reading) and is_own_process():
            # Before the function's module imports NumPy and drgn.
            prepare()
            if reading.cpu_share is not None:
                limit_share(reading.cpu_share)
        return run(*args, **values)

    return callback
