# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO: lines of text that a kernel leaves for the tools that read its dump."""

from __future__ import annotations

import functools
import re

# VMCOREINFO_SYMBOL_ARRAY() of a pointer says where that leads, and vmemmap is no variable.
_VALUES = ("mem_section", "vmemmap")


class Vmcoreinfo:
    """The lines of VMCOREINFO, which is untrusted; what does not look right is left out."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @functools.cached_property
    def symbols(self) -> dict[str, int]:
        """SYMBOL lines: addresses of variables, and some values of pointers."""
        found = re.findall(rb"^SYMBOL\((\w{1,128})\)=([0-9a-f]{1,16})\s*$", self.text, re.MULTILINE)
        return {name.decode(): int(value, 16) for name, value in found}

    def own_symbols(self) -> dict[str, int]:
        """Return the addresses of variables and functions."""
        return {name: value for name, value in self.symbols.items() if name not in _VALUES}

    def number(self, name: str) -> int | None:
        """Return a NUMBER line, decimal or 0x and hexadecimal digits."""
        pattern = rb"^NUMBER\(%b\)=(-?\d{1,20}|0x[0-9a-f]{1,16})\s*$" % re.escape(name.encode())
        match = re.search(pattern, self.text, re.MULTILINE)
        return int(match[1], 0) if match else None

    def word(self, name: str) -> str | None:
        """Return what follows ``name=``, such as OSRELEASE."""
        pattern = rb"^%b=([!-~]{1,256})\s*$" % re.escape(name.encode())
        match = re.search(pattern, self.text, re.MULTILINE)
        return match[1].decode("ascii") if match else None

    @property
    def kernel_offset(self) -> int:
        """Bytes by which KASLR moved the image from where it was linked; 0 without KASLR."""
        word = self.word("KERNELOFFSET") or "0"
        return int(word, 16) if re.fullmatch("[0-9a-f]{1,16}", word) else 0
