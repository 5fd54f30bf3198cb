# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the type pack of a kernel among files and directories."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import drgn

from kcensus.sources.debuginfo.loading import holds
from kcensus.sources.debuginfo.packs.file import SUFFIX, Pack, is_pack
from kcensus.sources.debuginfo.packs.loaded import PackDebugInfo
from kcensus.sources.model import SYMBOLS, TargetError, kernel_release
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo, version_in_memory, vmcoreinfo_of

_MAX_PACKS = 1 << 12
"""Most packs of a directory to compare with a dump without a build ID."""


def split_packs(paths: Collection[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the type packs among files and directories with debug info, and all others."""
    packs = [path for path in paths if not os.path.isdir(path) and is_pack(path)]
    return tuple(packs), tuple(path for path in paths if path not in packs)


def use_pack(
    prog: drgn.Program,
    packs: Iterable[Path],
    places: Iterable[Path],
    shared: Iterable[Path] = (),
    unusable: dict[Path, str] | None = None,
) -> PackDebugInfo | None:
    """Register the pack of a program's kernel; return None if there is none.

    :param packs: files that the user passed for this kernel
    :param places: directories, and other files
    :param shared: packs of many kernels, and directories
    :param unusable: is filled with those of ``shared`` that are corrupt, and those of a directory
        that may be of another kernel, with a sentence each
    :raises TargetError: a pack that the user passed is of another kernel or corrupt, or the pack of
        this kernel in ``places`` is
    """
    unusable = {} if unusable is None else unusable
    if (known := PackDebugInfo.of(prog)) is not None:
        return known
    vmcoreinfo = vmcoreinfo_of(prog)
    build_id, offset = vmcoreinfo.build_id, vmcoreinfo.kernel_offset
    given = [Pack(path) for path in packs]

    def use(pack: Pack) -> PackDebugInfo | None:
        if not _is_of(pack, prog, build_id, offset):
            return None
        _check(pack, vmcoreinfo)
        info = PackDebugInfo(prog, pack, offset)
        info.register()
        return info

    for pack in given:
        if info := use(pack):
            return info
    for path in _in_directories(places, build_id):
        try:
            pack = Pack(path)
        except TargetError as error:
            if build_id is not None:
                raise
            unusable[path] = f"-s {error}"
            continue
        if info := use(pack):
            return info
    for path in _all_of(shared, build_id):
        try:
            if info := use(Pack(path)):
                return info
        except TargetError as error:
            unusable[path] = f"{SYMBOLS} {error}"
    if given:
        version = version_in_memory(prog) or "VMCOREINFO has no build ID"
        wanted = f"build ID {build_id}" if build_id else version
        facts = str(given[0].head) if build_id else given[0].head.banner
        raise TargetError(
            f"{given[0].name} ({facts}): is a type pack of another kernel than this one, "
            f"{kernel_release(prog)} ({wanted}); pass the pack or the vmlinux of exactly that build"
        )
    return None


def _all_of(paths: Iterable[Path], build_id: str | None) -> Iterator[Path]:
    for path in paths:
        if os.path.isdir(path):
            yield from _in_directories([path], build_id)
        elif is_pack(path):
            yield path


def _in_directories(places: Iterable[Path], build_id: str | None) -> Iterator[Path]:
    """Yield the packs in directories that may be of a kernel."""
    for directory in filter(os.path.isdir, places):
        if build_id is not None:
            path = directory / f"{build_id}{SUFFIX}"
            if path.is_file():
                yield path
            continue
        with suppress(OSError):
            names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
            yield from (directory / name for name in islice(names, _MAX_PACKS))


def _is_of(pack: Pack, prog: drgn.Program, build_id: str | None, offset: int) -> bool:
    # As with a vmlinux: without a build ID in VMCOREINFO, the banner must be in memory.
    if build_id is not None:
        return pack.head.build_id == build_id
    return holds(prog, pack.head.contents, offset)


def _check(pack: Pack, vmcoreinfo: Vmcoreinfo) -> None:
    """Refuse a pack whose symbols are elsewhere than VMCOREINFO says."""
    offset = vmcoreinfo.kernel_offset
    for name, linked in pack.head.anchors:
        address = vmcoreinfo.symbols.get(name)
        if address is not None and linked + offset & (1 << 64) - 1 != address:
            raise TargetError(
                f"{pack.name}: does not belong to this dump: {name} is at {linked + offset:#x} by "
                f"the type pack, and at {address:#x} by VMCOREINFO"
            )
