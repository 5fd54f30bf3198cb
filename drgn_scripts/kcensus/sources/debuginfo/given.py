# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types and symbols that the user passed without debug info: BTF and System.map."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kcensus.sources.debuginfo.btf.format import MAGIC
from kcensus.sources.debuginfo.kallsyms.files import is_of_running_kernel, is_symbols
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader


@dataclass(frozen=True)
class Given:
    """Files that the user passed, by their content."""

    btf: Path | None = None
    symbols: Path | None = None
    """A System.map, /proc/kallsyms or a copy of that."""


def split_given(paths: Iterable[Path]) -> tuple[Given, tuple[Path, ...]]:
    """Return BTF and a list of symbols among files and directories, and all others.

    :raises TargetError: there are two of a kind
    """
    given: dict[str, Path] = {}
    others = []
    for path in paths:
        kind = "" if os.path.isdir(path) else _kind(path)
        if not kind:
            others.append(path)
        elif given.setdefault(kind, path) != path:
            raise TargetError(f"-s {path}: another file of this kind is given: {given[kind]}")
    return Given(given.get("btf"), given.get("symbols")), tuple(others)


def _kind(path: Path) -> str:
    if re.search(r"\.btf(\.tar)?(\.xz)?$", path.name):
        return "btf"
    if is_of_running_kernel(path):
        return "symbols"
    with FileReader(path, "-s ") as reader:
        start = reader.read(0, 64)
    if start.startswith(MAGIC):
        return "btf"
    return "symbols" if is_symbols(start) else ""
