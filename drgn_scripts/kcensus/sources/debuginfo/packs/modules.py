# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the files of modules for a type pack."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from kcensus.sources.model import TargetError
from kcensus.text import printable

_MAX_DEPTH = 12
"""Levels of folders to search for modules; a debug tree has eight."""


def module_name(path: Path) -> str:
    """Return the name of a module, as the kernel shows it, from the name of its file."""
    return path.name.partition(".ko")[0].replace("-", "_")


def module_files(vmlinux: Path, given: Collection[Path], names: Collection[str]) -> list[Path]:
    """Return a file for each of the named modules, those with debug info first.

    :param given: files and directories; if empty, those beside the vmlinux are searched
    :param names: modules to look for
    :raises TargetError: a given path is missing or is not a module
    """
    places = given or [vmlinux.absolute().parent]
    found: dict[str, Path] = {}
    for place in places:
        if not os.path.lexists(place):
            raise TargetError(f"{printable(str(place))}: no such file")
        if not os.path.isdir(place) and ".ko" not in place.name:
            raise TargetError(f"{printable(str(place))}: is not a module (.ko) or a directory")
        files = list(_below(place, names)) if os.path.isdir(place) else [place]
        for path in sorted(files, key=lambda path: (".ko.debug" not in path.name, path)):
            if module_name(path) in names:
                found.setdefault(module_name(path), path)
    return list(found.values())


def _below(directory: Path, names: Collection[str]) -> Iterator[Path]:
    base = len(directory.parts)
    for folder, folders, files in os.walk(directory):
        if len(Path(folder).parts) - base >= _MAX_DEPTH:
            folders.clear()
        for name in files:
            if ".ko" in name and module_name(Path(name)) in names:
                yield Path(folder, name)
