# SPDX-License-Identifier: LGPL-2.1-or-later
"""POWER, little-endian, with the radix MMU."""

from __future__ import annotations

from collections.abc import Callable

import drgn

from kcensus.arch.model import Architecture

_LINEAR = 0xC000_0000_0000_0000
"""Address of physical address 0; the image is in this mapping, too."""


def _physical(address: int, number: Callable[[str], int | None]) -> int | None:
    return address - _LINEAR if address >= _LINEAR else None


ARCHITECTURE = Architecture(
    name="ppc64le",
    drgn=drgn.Architecture.PPC64,
    elf_machine=21,
    crash="PPC64",
    has_signed_char=False,
    image=_LINEAR,
    # The functions of system calls have no prefix of their own.
    syscalls=(),
    interrupts=(),
    marks=("RADIX_MMU",),
    stack_pointer="thread.ksp",
    link="lr",
    physical=_physical,
    switches=("__switch_to",),
)
