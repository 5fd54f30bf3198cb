# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types and symbols that the user passed without debug info: BTF and System.map."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import drgn

from kcensus.sources.debuginfo.btf.format import MAGIC
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols, from_file
from kcensus.sources.debuginfo.kallsyms.files import is_of_running_kernel, is_symbols
from kcensus.sources.model import SYMBOLS, TargetError
from kcensus.sources.reader import FileReader
from kcensus.text import printable


@dataclass(frozen=True)
class Given:
    """Files that the user passed, by their content."""

    btf: Path | None = None
    symbols: Path | None = None
    """A System.map, /proc/kallsyms or a copy of that."""
    shared: frozenset[Path] = field(default=frozenset(), compare=False)
    """Files for many kernels."""

    def prefix(self, path: Path) -> str:
        """Return the words before a path in messages: the option, or the variable."""
        return f"{SYMBOLS if path in self.shared else '-s'} "

    def name(self, path: Path) -> str:
        """Return a path as the user passed it."""
        return self.prefix(path) + printable(os.fspath(path))

    def read_symbols(self, prog: drgn.Program) -> Symbols:
        """Return the symbols in the file of them.

        :raises TargetError: they are unusable, or of another kernel
        """
        assert self.symbols is not None
        try:
            return from_file(self.symbols, prog)
        except BadKallsyms as error:
            raise TargetError(f"{self.name(self.symbols)}: {error}") from error


def split_given(paths: Iterable[Path], origin: str = "-s") -> tuple[Given, tuple[Path, ...]]:
    """Return BTF and a list of symbols among files and directories, and all others.

    :param origin: how they were passed
    :raises TargetError: there are two of a kind, or one cannot be read
    """
    given: dict[str, Path] = {}
    others = []
    for path in paths:
        kind = "" if os.path.isdir(path) else _kind(path, origin)
        if not kind:
            others.append(path)
        elif given.setdefault(kind, path) != path:
            raise TargetError(f"{origin} {path}: another file of this kind is given: {given[kind]}")
    return Given(given.get("btf"), given.get("symbols")), tuple(others)


_IN_DIRECTORY = ("System.map-{0}", "System.map", "{0}.btf", "{0}.btf.tar.xz", "vmlinux.btf")


def in_directories(paths: Iterable[Path], release: str) -> list[Path]:
    """Return the lists of symbols and BTF in directories, and in ``boot`` below, by their names.

    Files without a release in their name may be of another kernel.

    :param release: of the kernel, untrusted
    """
    names = [name.format(release) for name in _IN_DIRECTORY]
    folders = [folder for path in paths if os.path.isdir(path) for folder in (path, path / "boot")]
    files = (folder / name for folder in folders for name in names if "/" not in name)
    return [path for path in files if os.path.isfile(path)]


def _kind(path: Path, origin: str) -> str:
    if re.search(r"\.btf(\.tar)?(\.xz)?$", path.name):
        return "btf"
    if is_of_running_kernel(path):
        return "symbols"
    with FileReader(path, f"{origin} ") as reader:
        start = reader.read(0, 64)
    if start.startswith(MAGIC):
        return "btf"
    return "symbols" if is_symbols(start) else ""
