# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open a dump whose VMCOREINFO is given by the user, or found in its memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import drgn

from kcensus.sources.custom import program_of
from kcensus.sources.formats.sniff import Sniffed
from kcensus.sources.model import TargetError
from kcensus.sources.vmcoreinfo import memory
from kcensus.sources.vmcoreinfo.given import at_place, read_vmcoreinfo
from kcensus.sources.vmcoreinfo.search import candidates, search_vmcoreinfo
from kcensus.sources.vmcoreinfo.text import BadVmcoreinfo, Read, Vmcoreinfo, has_release
from kcensus.text import printable

_UTS_BYTES = 1024


def open_dump(path: str, sniffed: Sniffed, given: Path | None) -> tuple[drgn.Program, Sniffed]:
    """Return a program of the dump, and what is known about its format.

    :param given: the file with VMCOREINFO; None to take the note, or else to search for it
    :raises TargetError: the VMCOREINFO is unusable or not of this dump
    :raises Exception: drgn cannot open the dump
    """
    name = printable(path)
    if given is None and not sniffed.no_vmcoreinfo:
        prog = drgn.Program()
        prog.set_core_dump(path)
        return prog, sniffed
    info = None
    try:
        if given is not None:
            found = read_vmcoreinfo(given)
            text = found if isinstance(found, bytes) else at_place(found, _physical(path, sniffed))
            info = Vmcoreinfo(text)
        source = "given" if given is not None else "from its memory"
        described = replace(sniffed, format=f"{sniffed.format}, VMCOREINFO {source}")
        if sniffed.is_raw:
            return _open_raw(path, info), described
        if info is None:
            stored = memory.of_elf(path)
            info = Vmcoreinfo(search_vmcoreinfo(stored.read, stored.ranges))
    except BadVmcoreinfo as error:
        if given is not None:
            raise TargetError(f"--vmcoreinfo {printable(str(given))}: {error}") from error
        raise TargetError(
            f"{name}: {sniffed.no_vmcoreinfo}; {error} either: if you have that of this boot, pass "
            "it with --vmcoreinfo"
        ) from error
    prog = _open_elf(path, info) if sniffed.no_vmcoreinfo else None
    if prog is None:
        prog = drgn.Program(vmcoreinfo=info.text)
        prog.set_core_dump(path)
    _check(prog, info, name)
    return prog, described


def _open_elf(path: str, info: Vmcoreinfo) -> drgn.Program | None:
    """Return a program of an ELF dump whose only segment begins at physical address 0.

    Without VMCOREINFO in the dump, drgn takes this for an unknown address. QEMU writes such dumps
    on Z. None for other dumps.
    """
    stored = memory.of_elf(path)
    if stored.architecture is None or [start for start, _ in stored.ranges] != [0]:
        return None
    size = stored.ranges[0][1]
    return program_of(stored.architecture.drgn, info.text, stored.read, memory_bytes=size)


def _physical(path: str, sniffed: Sniffed) -> Read:
    """Return a function that reads physical memory of a dump without VMCOREINFO."""
    if sniffed.is_raw:
        return memory.of_raw(path).read
    if sniffed.no_vmcoreinfo:
        return memory.of_elf(path).read
    prog = drgn.Program()
    prog.set_core_dump(path)
    return lambda address, size: prog.read(address, size, True)


def _open_raw(path: str, given: Vmcoreinfo | None) -> drgn.Program:
    """Return a program of a raw image, whose first byte is the start of the machine's RAM."""
    whole = memory.of_raw(path)
    infos = candidates(whole.read, whole.ranges) if given is None else iter([given])
    for info in infos:
        if info.architecture is None:
            continue
        # RAM of arm64 begins at another address than 0, which the image may have or not.
        for start in dict.fromkeys((0, info.number("PHYS_OFFSET") or 0)):
            image = whole.moved(start)
            if 0 <= start < 1 << 52 and info.describes(image.read):
                size = image.ranges[-1][0] + image.ranges[-1][1]
                arch, text = info.architecture.drgn, info.text
                return program_of(arch, text, image.read, memory_bytes=size)
    raise BadVmcoreinfo(
        "its memory has no VMCOREINFO"
        if given is None
        else "it is not the VMCOREINFO of this image"
    )


def _check(prog: drgn.Program, info: Vmcoreinfo, name: str) -> None:
    """Raise :class:`TargetError` unless the memory has the kernel of VMCOREINFO.

    Another boot of the same kernel has other addresses, because of KASLR.
    """
    try:
        uts = bytes(prog.read(info.symbols["init_uts_ns"], _UTS_BYTES))
    except (drgn.FaultError, ValueError, OverflowError):
        uts = b""
    release = info.word("OSRELEASE") or ""
    if not has_release(uts, release):
        raise TargetError(
            f"{name}: has no kernel {release} where the VMCOREINFO says; pass that of the same boot"
        )
