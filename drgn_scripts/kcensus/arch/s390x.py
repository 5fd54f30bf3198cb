# SPDX-License-Identifier: LGPL-2.1-or-later
"""Z: big-endian; the kernel has an address space of its own, and no half of one."""

from __future__ import annotations

from collections.abc import Callable

import drgn

from kcensus.arch.model import Architecture

PSTATE = 1 << 48
"""PSW_MASK_PSTATE: the processor runs a program."""


def _physical(address: int, number: Callable[[str], int | None]) -> int | None:
    return None


ARCHITECTURE = Architecture(
    name="s390x",
    drgn=drgn.Architecture.S390X,
    elf_machine=22,
    crash="S390X",
    has_signed_char=False,
    # All physical memory is mapped at its own address or, since Linux kernel commit c98d2ecae08f
    # ("s390/mm: Uncouple physical vs virtual address spaces") (in v6.10), at a higher one; the
    # image is in that mapping, or above it.
    image=0,
    syscalls=("__s390x_sys_", "__s390_sys_"),
    interrupts=(),
    marks=(),
    stack_pointer="thread.ksp",
    link="r14",
    physical=_physical,
    state=("pswm", PSTATE),
    is_little=False,
    # Four levels of page tables map 8 PiB.
    addresses=range(1 << 53),
)
