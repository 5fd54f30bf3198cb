# SPDX-License-Identifier: LGPL-2.1-or-later
"""The facts about an architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import drgn

KERNEL = 1 << 63
"""Lowest address of the kernel, on most architectures."""
POINTERS = 0xFF << 56
"""Lowest address of its memory: x86-64 has its direct map from 0xff11000000000000 on with 5 levels
of page tables, arm64 its linear map from 0xfff0000000000000 on with 52 bits."""
MAX_MEMORY_BYTES = 1 << 52
"""A bound above all physical addresses, and below all addresses of kernels."""
UPPER_HALF = range(KERNEL, 1 << 64)


@dataclass(frozen=True)
class Architecture:
    """One architecture; addresses and sizes are bytes."""

    name: str
    """As uname(2) has it, in dumps and in type packs."""
    drgn: drgn.Architecture
    elf_machine: int
    """``e_machine`` of ELF files."""
    crash: str
    """As the crash utility names it."""
    has_signed_char: bool
    """The choice of the machine's ABI; the kernel's own since Linux kernel commit 3bc753c06dd0
    ("kbuild: treat char as always unsigned") (in v6.2)."""
    image: int
    """Lowest address at which the kernel, its modules and their variables can be."""
    syscalls: tuple[str, ...]
    """Prefixes of the functions of system calls, besides those of all architectures."""
    interrupts: tuple[str, ...]
    """Prefixes of the functions that an interrupt or exception calls first."""
    marks: tuple[str, ...]
    """Numbers of VMCOREINFO, ``NUMBER(name)``, that only this architecture has."""
    stack_pointer: str
    """Member of ``struct task_struct`` with the stack pointer of a task that has no CPU."""
    physical: Callable[[int, Callable[[str], int | None]], int | None]
    """Returns the physical address of a variable of the image, given its address and a look-up of
    VMCOREINFO's numbers; None if it is unknown."""
    arguments: tuple[str, ...] = ()
    """Members of ``struct pt_regs`` with the arguments of a system call."""
    compat_arguments: tuple[str, ...] = ()
    """As ``arguments``, of programs of 32 bits."""
    registers: str = ""
    """First member of ``struct task_struct`` with registers of programs besides the general ones,
    such as vectors and keys of pointer authentication; up to the end of its slot, all is theirs."""
    frame_pointer: str = ""
    """Register that leads from frame to frame, as drgn names it; empty where the stack pointer
    does."""
    link: str = ""
    """Register with the return address of the innermost function, as drgn names it; empty where
    that is on the stack."""
    state: tuple[str, int] | None = None
    """Register with the state of the processor, as drgn names it, and the bit that programs have;
    None where addresses tell programs from the kernel."""
    device_interrupts: tuple[str, ...] = ()
    """Prefixes of the functions that an interrupt calls first, without those of exceptions: their
    work is not that of the interrupted task."""
    spins: tuple[str, ...] = ()
    """Functions that spin until a lock is free, besides those of all architectures; their argument
    is ``lock``."""
    switches: tuple[str, ...] = ()
    """Functions in which any task leaves its CPU, besides those of all architectures."""
    tag: int = 0
    """Bits of pointers that may hold a tag instead of ones; 0 without."""
    tagging: tuple[str, ...] = ()
    """Symbols of kernels that may tag pointers."""
    vectors: frozenset[str] = frozenset()
    """Symbols of the code that an exception reaches first, where the interrupted address is still
    in a register that dumps do not have."""
    memdie: int | None = None
    """Bit of ``thread_info.flags`` of a victim of the OOM killer, TIF_MEMDIE, before v4.10; None if
    it is unknown."""
    keys: tuple[str, ...] = ()
    """Members of ``struct task_struct`` that are keys which sign pointers, a word each."""
    fixed: int = 1 << 64
    """Lowest address that KASLR does not move, behind the kernel."""
    is_little: bool = True
    addresses: range = UPPER_HALF
    """The addresses of the kernel's memory, from the lowest possible one on."""

    def is_of(self, platform: drgn.Platform) -> bool:
        """Return whether a program is of this architecture, with 64 bits and its byte order."""
        flags = drgn.PlatformFlags
        is_little = bool(platform.flags & flags.IS_LITTLE_ENDIAN)
        is_wide = bool(platform.flags & flags.IS_64_BIT)
        return platform.arch == self.drgn and is_wide and is_little == self.is_little

    @property
    def platform(self) -> drgn.Platform:
        """What drgn wants to know of it."""
        return drgn.Platform(self.drgn)
