# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs between architectures and needs no memory to know: one file for each.

Readers of memory, such as of stacks and of machine code, are in :mod:`kcensus.kernel.arch`.
"""

from __future__ import annotations

import drgn

from kcensus.arch import aarch64, ppc64le, s390x, x86_64
from kcensus.arch.model import KERNEL, MAX_MEMORY_BYTES, POINTERS, UPPER_HALF, Architecture

__all__ = [
    "KERNEL",
    "KNOWN",
    "MAX_MEMORY_BYTES",
    "POINTERS",
    "Architecture",
    "addresses_of",
    "architecture_of",
    "by_machine",
    "by_name",
    "name_of",
    "names",
]

KNOWN: tuple[Architecture, ...] = tuple(
    each.ARCHITECTURE for each in (x86_64, aarch64, ppc64le, s390x)
)
"""The architectures whose kernels kcensus reads."""


def architecture_of(platform: drgn.Platform | None) -> Architecture | None:
    """Return the architecture of a program; None for one that kcensus does not read."""
    if platform is None:
        return None
    return next((each for each in KNOWN if each.is_of(platform)), None)


def addresses_of(platform: drgn.Platform | None) -> range:
    """Return the addresses at which the memory of a program's kernel can be."""
    architecture = architecture_of(platform)
    return UPPER_HALF if architecture is None else architecture.addresses


def name_of(platform: drgn.Platform | None) -> str:
    """Return the name of a program's architecture: uname(2)'s, or drgn's, or "unknown"."""
    if platform is None:
        return "unknown"
    architecture = architecture_of(platform)
    return platform.arch.name.lower() if architecture is None else architecture.name


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
