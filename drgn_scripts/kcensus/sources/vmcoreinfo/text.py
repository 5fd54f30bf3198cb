# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO: lines of text that a kernel leaves for the tools that read its dump."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import drgn

from kcensus.arch import KNOWN, Architecture
from kcensus.text import printable

Read = Callable[[int, int], bytes | bytearray]
"""Function that returns physical memory: (address, size); raises :class:`drgn.FaultError`."""

# VMCOREINFO_SYMBOL_ARRAY() of a pointer says where that leads, and vmemmap is no variable.
_VALUES = ("mem_section", "vmemmap")
_NEEDED = ("_stext", "init_uts_ns", "swapper_pg_dir")
_PAGE_SIZES = ("4096", "16384", "65536")
_UTS_BYTES = 1024
_UTS_FIELD = 65
_UTS_PLACES = (2 * _UTS_FIELD, 3 * _UTS_FIELD)


class BadVmcoreinfo(ValueError):
    """A VMCOREINFO is missing, damaged or of another kernel; the text is one sentence's end."""


class Vmcoreinfo:
    """The lines of VMCOREINFO, which is untrusted; what does not look right is left out."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @functools.cached_property
    def symbols(self) -> dict[str, int]:
        """SYMBOL lines: addresses of variables, and some values of pointers."""
        found = re.findall(rb"^SYMBOL\((\w{1,128})\)=([0-9a-f]{1,16})\s*$", self.text, re.MULTILINE)
        return {name.decode("ascii"): int(value, 16) for name, value in found}

    def own_symbols(self) -> dict[str, int]:
        """Return the addresses of variables and functions."""
        return {name: value for name, value in self.symbols.items() if name not in _VALUES}

    def number(self, name: str) -> int | None:
        """Return a NUMBER line: decimal, or 0x and hexadecimal digits."""
        pattern = rb"^NUMBER\(%b\)=(-?\d{1,20}|0x[0-9a-f]{1,16})\s*$" % re.escape(name.encode())
        match = re.search(pattern, self.text, re.MULTILINE)
        return int(match[1], 0) if match else None

    def word(self, name: str) -> str | None:
        """Return what follows ``name=``, such as OSRELEASE."""
        pattern = rb"^%b=[ \t]*([!-~]{1,256})\s*$" % re.escape(name.encode())
        match = re.search(pattern, self.text, re.MULTILINE)
        return match[1].decode("ascii") if match else None

    @property
    def build_id(self) -> str | None:
        """The build ID; None if it is not hexadecimal, because users paste it into a shell."""
        word = self.word("BUILD-ID") or ""
        return word if re.fullmatch("[0-9a-f]{2,128}", word) else None

    @property
    def kernel_offset(self) -> int:
        """Bytes by which KASLR moved the image from where it was linked; 0 without KASLR."""
        word = self.word("KERNELOFFSET") or "0"
        return int(word, 16) if re.fullmatch("[0-9a-f]{1,16}", word) else 0

    def is_complete(self) -> bool:
        """Return whether it has what opening a dump needs."""
        return (
            self.word("PAGESIZE") in _PAGE_SIZES
            and self.word("OSRELEASE") is not None
            and all(name in self.symbols for name in _NEEDED)
        )

    @property
    def architecture(self) -> Architecture | None:
        """The architecture, by the lines that only one has; None without such a line."""
        found = (
            each for each in KNOWN if any(self.number(name) is not None for name in each.marks)
        )
        return next(found, None)

    def physical(self, address: int) -> int | None:
        """Return the physical address of a variable of the image; None if it is unknown."""
        known = self.architecture
        return None if known is None else known.physical(address, self.number)

    def describes(self, read: Read) -> bool | None:
        """Return whether memory has the release of this kernel in init_uts_ns.

        :param read: reads physical memory
        :return: None if that cannot be told
        """
        place = self.physical(self.symbols["init_uts_ns"])
        release = self.word("OSRELEASE")
        if place is None or release is None:
            return None
        try:
            return has_release(bytes(read(place, _UTS_BYTES)), release)
        except (drgn.FaultError, ValueError, OverflowError):
            return None


def has_release(uts: bytes, release: str) -> bool:
    """Return whether ``uts``, the start of a struct uts_namespace, is that of a kernel."""
    return b"Linux\0" in uts and b"\0" + release.encode() + b"\0" in uts


def version_in_memory(prog: drgn.Program) -> str:
    """Return the version of a kernel, such as ``#1 SMP Debian 5.10.251-1 (2026-01-01)``.

    No types are needed. It is printable; empty if it is unreadable.
    """
    info = vmcoreinfo_of(prog)
    place, release = info.symbols.get("init_uts_ns"), (info.word("OSRELEASE") or "").encode()
    try:
        uts = bytes(prog.read(place or 0, _UTS_BYTES)) if place and release else b""
    except (drgn.FaultError, ValueError, OverflowError):
        return ""
    # struct new_utsname: the system's and the node's name, the release and the version.
    start = uts.find(b"Linux\0")
    fields = [uts[start + at :][:_UTS_FIELD].partition(b"\0")[0] for at in _UTS_PLACES]
    is_own = start >= 0 and fields[0] == release
    return printable(fields[1].decode(errors="replace")) if is_own else ""


def vmcoreinfo_of(prog: drgn.Program) -> Vmcoreinfo:
    """Return the VMCOREINFO with which a program was opened."""
    return Vmcoreinfo(prog["VMCOREINFO"].string_())
