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
from kcensus.sources.model import TargetError, kernel_release
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo, vmcoreinfo_of

_MAX_PACKS = 1 << 12
"""Most packs of a directory to compare with a dump without a build ID."""


def split_packs(paths: Collection[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the type packs among files and directories with debug info, and all others."""
    packs = [path for path in paths if not os.path.isdir(path) and is_pack(path)]
    return tuple(packs), tuple(path for path in paths if path not in packs)


def use_pack(
    prog: drgn.Program, packs: Iterable[Path], places: Iterable[Path], shared: Iterable[Path] = ()
) -> PackDebugInfo | None:
    """Register the pack of a program's kernel; return None if there is none.

    :param packs: files that the user passed for this kernel
    :param places: directories, and other files
    :param shared: packs of many kernels
    :raises TargetError: a pack that the user passed is of another kernel or corrupt, or the pack of
        this kernel is
    """
    if (known := PackDebugInfo.of(prog)) is not None:
        return known
    vmcoreinfo = vmcoreinfo_of(prog)
    build_id, offset = vmcoreinfo.build_id, vmcoreinfo.kernel_offset
    given = [Pack(path) for path in packs]
    for pack in (*given, *_readable(shared), *_in_directories(places, build_id)):
        if _is_of(pack, prog, build_id, offset):
            _check(pack, vmcoreinfo)
            info = PackDebugInfo(prog, pack, offset)
            info.register()
            return info
    if given:
        wanted = f"build ID {build_id}" if build_id else "VMCOREINFO has no build ID"
        raise TargetError(
            f"{given[0].name} ({given[0].head}): is a type pack of another kernel than this one, "
            f"{kernel_release(prog)} ({wanted}); pass the pack or the vmlinux of exactly that build"
        )
    return None


def _in_directories(places: Iterable[Path], build_id: str | None) -> Iterator[Pack]:
    for directory in filter(os.path.isdir, places):
        if build_id is not None:
            path = directory / f"{build_id}{SUFFIX}"
            if is_pack(path):
                yield Pack(path)
            continue
        with suppress(OSError):
            names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
            yield from _readable(directory / name for name in islice(names, _MAX_PACKS))


def _readable(paths: Iterable[Path]) -> Iterator[Pack]:
    for path in paths:
        with suppress(TargetError):
            yield Pack(path)


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
