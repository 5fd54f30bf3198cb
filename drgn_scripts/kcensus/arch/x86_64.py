# SPDX-License-Identifier: LGPL-2.1-or-later
"""x86-64."""

from __future__ import annotations

from collections.abc import Callable

import drgn

from kcensus.arch.model import Architecture

_IMAGE = 0xFFFF_FFFF_8000_0000
"""Address of physical_base in the mapping of the image, __START_KERNEL_map."""

_OLD_INTERRUPTS = ("apic_timer_interrupt", "reschedule_interrupt", "retint_kernel")
"""Entries of interrupts until Linux 5.7; later ones begin with ``asm_``."""


def _physical(address: int, number: Callable[[str], int | None]) -> int | None:
    base = number("phys_base")
    return None if base is None else (address - _IMAGE + base) % (1 << 64)


ARCHITECTURE = Architecture(
    name="x86_64",
    drgn=drgn.Architecture.X86_64,
    elf_machine=62,
    crash="X86_64",
    has_signed_char=True,
    image=_IMAGE,
    arguments=("di", "si", "dx", "r10", "r8", "r9"),
    compat_arguments=("bx", "cx", "dx", "si", "di", "bp"),
    frame_pointer="rbp",
    syscalls=("__x64_sys_", "__ia32_sys_"),
    interrupts=("asm_", *_OLD_INTERRUPTS),
    device_interrupts=("asm_sysvec_", "asm_common_interrupt", "asm_exc_nmi", *_OLD_INTERRUPTS),
    spins=("native_queued_spin_lock_slowpath", "__pv_queued_spin_lock_slowpath"),
    marks=("phys_base",),
    physical=_physical,
    stack_pointer="thread.sp",
    # Since Linux kernel commit cb7ca40a3882 ("x86/fpu: Make task_struct::thread constant size") (in
    # v6.16), they follow the task instead of ending it; see x86_task_fpu().
    registers="thread.fpu",
    memdie=20,
    # The fixed mapping, where vsyscall is.
    fixed=0xFFFF_FFFF_FF00_0000,
)
