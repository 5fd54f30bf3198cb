# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue: the files that come with the package, and those that users add.

A file ``ID.toml`` describes one patch or one series; any other ``.toml`` file with nothing but
``[[rules]]`` adds findings. Users add directories by name, or install a package with an entry
point of the group ``kcensus.patches``: a path, a package that holds the files, or a function that
returns either.
"""

from __future__ import annotations

import importlib.metadata
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kcensus.patches.model import FindingRule, Patch
from kcensus.patches.schema import CatalogueError, check_references, read_file
from kcensus.text import printable

_INSTALLED = Path(__file__).parent / "catalogue"
PACKAGED = (
    _INSTALLED
    if _INSTALLED.is_dir()
    # A checkout keeps the files in a folder of their own; a wheel has them beside this file.
    else Path(__file__).parents[3] / "kernel_patches" / "catalogue"
)
ENTRY_POINTS = "kcensus.patches"
_MAX_FILES = 2000


@dataclass(frozen=True)
class Catalogue:
    """What is known."""

    patches: Mapping[str, Patch]
    """By id, in the order of subsystem and id."""
    rules: tuple[FindingRule, ...] = ()
    """Of patch files and of files with rules only."""


def load(directories: Sequence[Path] = (), *, entry_points: bool = True) -> Catalogue:
    """The catalogue of the package, of installed entry points and of ``directories``.

    :raises CatalogueError: a directory or a file of it is unusable
    """
    patches: dict[str, Patch] = {}
    rules: list[tuple[str, FindingRule]] = []
    plugged = _plugged() if entry_points else []
    for path in _files([PACKAGED, *plugged, *directories]):
        read = read_file(path)
        found = read.rules if isinstance(read, Patch) else read
        rules += [(str(path), rule) for rule in found]
        if not isinstance(read, Patch):
            continue
        if read.id in patches:
            other = printable(patches[read.id].file)
            raise CatalogueError(f"{printable(str(path))}: id: {read.id!r} is taken by {other}")
        patches[read.id] = read
    check_references(patches, rules)
    ordered = sorted(patches.values(), key=lambda patch: (patch.subsystem, patch.id))
    return Catalogue({patch.id: patch for patch in ordered}, tuple(rule for _, rule in rules))


def _files(directories: Iterable[Path]) -> Iterable[Path]:
    for directory in directories:
        chosen = _in(directory)
        for path in sorted(directory.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                chosen += _in(path)
        if len(chosen) > _MAX_FILES:
            raise CatalogueError(f"{printable(str(directory))}: has more than {_MAX_FILES} files")
        yield from chosen


def _in(directory: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise CatalogueError(
            f"{printable(str(directory))}: is not a directory of patch files ({error.strerror})"
        ) from None
    return [
        directory / name for name in names if name.endswith(".toml") and not name.startswith(".")
    ]


def _plugged() -> list[Path]:
    """Directories that installed packages offer, in the order of their names."""
    directories = []
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        try:
            offered = point.load()
            if callable(offered):
                offered = offered()
            if isinstance(offered, types.ModuleType):
                offered = next(iter(offered.__path__))
            directories.append(Path(offered))
        except Exception as error:
            # Anything can happen in somebody else's package.
            problem = f"{type(error).__name__}: {error}"
            raise CatalogueError(
                printable(f"entry point {point.name} of {ENTRY_POINTS}: cannot be used ({problem})")
            ) from None
    return directories
