# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs between architectures and needs no memory to know: one file for each.

Readers of memory, such as of stacks and of machine code, are in :mod:`kcensus.kernel.arch`.
"""

from __future__ import annotations

import drgn

from kcensus.arch import aarch64, x86_64
from kcensus.arch.model import KERNEL, MAX_MEMORY_BYTES, POINTERS, Architecture

__all__ = [
    "KERNEL",
    "KNOWN",
    "MAX_MEMORY_BYTES",
    "POINTERS",
    "Architecture",
    "architecture_of",
    "by_machine",
    "by_name",
    "names",
]

KNOWN: tuple[Architecture, ...] = (x86_64.ARCHITECTURE, aarch64.ARCHITECTURE)
"""The architectures whose kernels kcensus reads."""


def architecture_of(platform: drgn.Platform | None) -> Architecture | None:
    """Return the architecture of a program; None for one that kcensus does not read."""
    if platform is None:
        return None
    return next((each for each in KNOWN if each.is_of(platform)), None)


def by_name(name: str) -> Architecture | None:
    """Return an architecture by the name that uname(2) and type packs have."""
    return next((each for each in KNOWN if each.name == name), None)


def by_machine(machine: int, *, is_little: bool) -> Architecture | None:
    """Return an architecture by ``e_machine`` and the byte order of an ELF file of 64 bits."""
    found = (each for each in KNOWN if each.elf_machine == machine)
    return next((each for each in found if each.is_little == is_little), None)


def names() -> str:
    """Return all names, for sentences."""
    *first, last = (each.name for each in KNOWN)
    return f"{', '.join(first)} and {last}"
