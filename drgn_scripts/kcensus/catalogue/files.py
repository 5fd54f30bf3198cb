# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalogue: the files of the package and of users.

A file ``ID.toml`` describes one patch or series; any other ``.toml`` file adds ``[[rules]]`` alone.
Users add directories by option, or by an entry point of the group ``kcensus.patches``: a path, a
package with the files, or a function that returns either.
"""

from __future__ import annotations

import functools
import importlib.metadata
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from kcensus.catalogue.model import Distribution, FindingRule, Patch
from kcensus.catalogue.schema import CatalogueError, check_references, read_distributions, read_file
from kcensus.samples import DISTRIBUTIONS, PATCHES
from kcensus.text import printable

_GROUP = "kcensus.patches"
_MAX_FILES = 2000


@dataclass(frozen=True)
class Catalogue:
    """All patches and rules."""

    patches: Mapping[str, Patch]
    """Patches by id, sorted by subsystem and id."""
    rules: tuple[FindingRule, ...] = ()
    """Rules of patch files and of files with rules only."""
    distributions: tuple[Distribution, ...] = ()
    """Distributions that packages are known of."""

    def validated(self, name: str, *, traces: bool) -> Patch:
        """Return the patch to judge, with its validation by traces if these are given.

        :raises LookupError: no patch has this id, or the patch has no such validation
        """
        ways = {
            patch.id: patch.trace_validation if traces else patch.validation
            for patch in self.patches.values()
        }
        if (validation := ways.get(name)) is None:
            is_known = name in ways
            problem = f"no validation{' by traces' * traces} is defined for"
            choices = ", ".join(each for each, way in ways.items() if way)
            others = "" if is_known else "; a catalogue of your own adds others"
            for series in self.patches.values():
                if ways[series.id] and name in {stage.patch for stage in series.stages}:
                    raise LookupError(
                        f"{name} is a stage of {series.id}, which is validated as a whole: "
                        f"`kcensus validate {series.id} BEFORE AFTER`"
                    )
            raise LookupError(
                f"{problem if is_known else 'unknown patch'} '{printable(name)}' "
                f"(choose from {choices}{others})"
            )
        return structs.replace(self.patches[name], validation=validation)


def load(directories: Sequence[Path] = (), *, entry_points: bool = True) -> Catalogue:
    """Return the catalogue of the package, of installed entry points and of ``directories``.

    :raises CatalogueError: a directory or a file in it is unusable
    """
    patches: dict[str, Patch] = {}
    rules: list[tuple[str, FindingRule]] = []
    for directory in (PATCHES, *(_entry_points() if entry_points else ()), *directories):
        for path in _files(directory):
            content = _read_once(path) if directory is PATCHES else read_file(path)
            if isinstance(content, Patch):
                other = patches.setdefault(content.id, content)
                if other is not content:
                    problem = f"{path}: id: {content.id!r} is already used by {other.file}"
                    raise CatalogueError(printable(problem))
                content = content.rules
            rules += [(str(path), rule) for rule in content]
    distributions = _distributions()
    check_references(patches, rules, distributions)
    ordered = sorted(patches.values(), key=lambda patch: (patch.subsystem, patch.id))
    return Catalogue(
        {patch.id: patch for patch in ordered}, tuple(rule for _, rule in rules), distributions
    )


# A notebook loads it for each report; it takes 60 ms.
_read_once = functools.cache(read_file)


@functools.cache
def _distributions() -> tuple[Distribution, ...]:
    return read_distributions(DISTRIBUTIONS)


def _files(directory: Path) -> list[Path]:
    try:
        entries = _visible(directory)
        nested = [entry for path in entries if path.is_dir() for entry in _visible(path)]
    except OSError as error:
        problem = f"{directory}: is not a directory of patch files ({error.strerror})"
        raise CatalogueError(printable(problem)) from None
    files = [path for path in (*entries, *nested) if path.suffix == ".toml" and not path.is_dir()]
    if len(files) > _MAX_FILES:
        raise CatalogueError(printable(f"{directory}: has more than {_MAX_FILES} patch files"))
    return files


def _visible(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def _entry_points() -> list[Path]:
    """Return the directories of installed packages, sorted by name of entry point."""
    directories = []
    for point in sorted(importlib.metadata.entry_points(group=_GROUP), key=lambda p: p.name):
        try:
            provided = point.load()
            if callable(provided):
                provided = provided()
            if isinstance(provided, types.ModuleType):
                provided = next(iter(provided.__path__))
            directories.append(Path(provided))
        except Exception as error:  # foreign code may raise anything
            problem = f"is not usable ({type(error).__name__}: {error})"
            place = f"entry point {point.name} of {_GROUP}"
            raise CatalogueError(printable(f"{place}: {problem}")) from None
    return directories
