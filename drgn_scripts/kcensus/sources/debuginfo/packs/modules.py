# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the files of modules for a type pack."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from kcensus.sources.formats import elf
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader
from kcensus.text import printable

_MAX_DEPTH = 12
"""Levels of folders to search for modules; a debug tree has eight."""
_MAX_MODINFO = 1 << 16
_VERMAGIC = re.compile(rb"(?:^|\0)vermagic=([!-~]{1,64})")


def module_name(path: Path) -> str:
    """Return the name of a module, as the kernel shows it, from the name of its file."""
    return path.name.partition(".ko")[0].replace("-", "_")


def module_files(
    vmlinux: Path, given: Collection[Path], names: Collection[str]
) -> tuple[list[Path], list[str]]:
    """Return a file for each of the named modules, those with debug info first.

    :param given: files and directories; if empty, those beside the vmlinux are searched
    :param names: modules to look for
    :return: also a sentence for each module of which there are files of other releases only
    :raises TargetError: a given path is missing or is not a module
    """
    places = given or [vmlinux.absolute().parent]
    own = _release(vmlinux)
    found: dict[str, Path] = {}
    skipped: dict[str, str] = {}
    for place in places:
        if not os.path.lexists(place):
            raise TargetError(f"{printable(str(place))}: no such file")
        if not os.path.isdir(place) and ".ko" not in place.name:
            raise TargetError(f"{printable(str(place))}: is not a module (.ko) or a directory")
        files = list(_below(place, names)) if os.path.isdir(place) else [place]
        for path in sorted(files, key=lambda path: (".ko.debug" not in path.name, path)):
            name = module_name(path)
            if name not in names or name in found:
                continue
            release = _release(path)
            if own and release and release != own:
                why = f"is for Linux {printable(release)}, not {printable(own)}"
                skipped.setdefault(name, f"{printable(str(path))}: {why}")
            else:
                found[name] = path
    return list(found.values()), [why for name, why in skipped.items() if name not in found]


def _release(path: Path) -> str | None:
    """Return the release of the kernel of a vmlinux or module; None if it is unknown."""
    try:
        with FileReader(path) as reader:
            if reader.read(0, len(elf.MAGIC)) == elf.MAGIC:
                header = elf.read_header(reader)
                info = elf.section(reader, header, b".modinfo", _MAX_MODINFO) or b""
                if match := _VERMAGIC.search(info):
                    return match[1].decode("ascii")
                if header.supported and (release := elf.identity(reader, header).release):
                    return release
    except TargetError:
        return None
    # Files of debug info have neither, but are in /usr/lib/debug/lib/modules/RELEASE.
    parts = path.absolute().parts
    folders = [after for before, after in itertools.pairwise(parts[:-1]) if before == "modules"]
    return folders[-1] if folders else None


def _below(directory: Path, names: Collection[str]) -> Iterator[Path]:
    base = len(directory.parts)
    for folder, folders, files in os.walk(directory):
        if len(Path(folder).parts) - base >= _MAX_DEPTH:
            folders.clear()
        for name in files:
            if ".ko" in name and module_name(Path(name)) in names:
                yield Path(folder, name)
