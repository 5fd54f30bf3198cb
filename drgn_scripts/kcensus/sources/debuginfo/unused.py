# SPDX-License-Identifier: LGPL-2.1-or-later
"""Say what places of debug info hold, where they have nothing for a kernel, or for none."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import drgn

from kcensus.human import listed
from kcensus.sources.debuginfo.finder import below, debug_file, vmlinux_at, vmlinux_below
from kcensus.sources.debuginfo.given import split_given
from kcensus.sources.debuginfo.loading import loaded_modules
from kcensus.sources.debuginfo.packs.file import SUFFIX, Pack, is_pack
from kcensus.sources.debuginfo.packs.modules import module_name
from kcensus.sources.model import SYMBOLS, TargetError, kernel_release
from kcensus.sources.reader import os_error
from kcensus.text import printable

_MAX_NAMED = 3
_NAMES = re.compile(rf"vmlinux|\.ko|\.debug$|\.btf|^System\.map|{re.escape(SUFFIX)}$")
"""Names of files of debug info, types or symbols."""


def check(places: Iterable[Path]) -> None:
    """Check files and directories that the user passed with ``-s`` for many kernels.

    :raises TargetError: one cannot be read, or has nothing for any kernel
    """
    for path in places:
        if os.path.isdir(path):
            name = f"-s {printable(os.fspath(path))}"
            try:
                os.listdir(path)
            except OSError as error:
                raise os_error(name, error) from error
            if not any(map(_NAMES.search, itertools.chain(*(names for _, names in below(path))))):
                raise TargetError(f"{name}: has neither debug info nor a type pack of any kernel")
        elif is_pack(path):
            Pack(path)
        elif split_given([path])[1]:
            debug_file(path, "-s")


def unused(
    origin: str,
    places: Sequence[Path],
    release: str,
    build: str = "",
    error: str = "",
    known: Collection[Path] = (),
) -> str:
    """Return a sentence about places with nothing for a kernel; empty if they may serve later.

    :param origin: how they were passed: ``-s``
    :param places: directories, and files with debug info or type packs
    :param release: of the kernel
    :param build: its build ID or version, if known
    :param error: the sentence that this one ends; what it says is left out
    :param known: files that serve or are unusable, and their directories, which are left out
    """
    places = [path for path in places if path not in known]
    directories = [path for path in places if os.path.isdir(path)]
    if not places or any(_has_modules(place, release) for place in places):
        return ""
    packs = [path for path in places if path not in directories and is_pack(path)]
    files = [each for path in places if path not in directories for each in vmlinux_at(path)]
    packs += [path for directory in directories for path in _packs_in(directory)]
    files += [each for directory in directories for each in vmlinux_below(directory)]
    if any(str(file) in error for file in files):
        if not packs:
            return ""
        files = []
    counts = {"type pack" + "s" * (len(packs) != 1): len(packs), "vmlinux": len(files)}
    has = " and ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    # Only the named packs are read.
    named = [*map(_build, packs[:_MAX_NAMED]), *packs[_MAX_NAMED:], *files]
    builds = listed([*map(str, named)], _MAX_NAMED, "; ")
    shown = listed([printable(os.fspath(path)) for path in places], _MAX_NAMED)
    held = f"only {has} ({builds})" if has else "neither a type pack nor a vmlinux"
    if error:
        return f"{origin} {shown} has {held}"
    kernel = f"{release} ({build})" if build else release
    return f"{origin} {shown}: has nothing for kernel {kernel}, {held}; the dump's own types serve"


def _build(pack: Path) -> str:
    with contextlib.suppress(TargetError):
        return str(Pack(pack).head)
    return f"{printable(os.fspath(pack))}, which is damaged: copy it again"


def _packs_in(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
        yield from (directory / name for name in names)


def _has_modules(place: Path, release: str) -> bool:
    """Return whether a place has modules of the release, or of an unknown one."""
    if not os.path.isdir(place):
        return ".ko" in place.name
    for folder, files in below(place):
        if any(".ko" in name for name in files):
            releases = [after for before, after in pairwise(folder.parts) if before == "modules"]
            if not releases or release in releases:
                return True
    return False


def foreign_modules(
    prog: drgn.Program, files: Sequence[Path], shared: Collection[Path]
) -> dict[Path, str]:
    """Return a sentence about each file of a loaded module that is of another build of it.

    Such a file counts only if no other one is of the loaded build: files may be for several dumps.

    :param files: of modules
    :param shared: those in ``KCENSUS_SYMBOLS``
    """
    by_name: dict[str, list[Path]] = {}
    for path in files:
        by_name.setdefault(module_name(path), []).append(path)
    foreign = {}
    for module in loaded_modules(prog, by_name)[0] if by_name else ():
        own = module.build_id.hex() if module.build_id else None
        # A compressed file has none.
        builds = {path: _build_id(path) for path in by_name[module.name]}
        if not own or own in builds.values() or None in builds.values():
            continue
        for path, build_id in builds.items():
            origin = SYMBOLS if path in shared else "-s"
            foreign[path] = (
                f"{origin} {printable(os.fspath(path))}: is of another build of the module "
                f"{printable(module.name)} (build ID {build_id}) than the loaded one ({own}); pass "
                f"the file of exactly this kernel, {kernel_release(prog)}"
            )
    return foreign


def _build_id(path: Path) -> str | None:
    return next((each.identity.build_id for each in vmlinux_at(path)), None)
