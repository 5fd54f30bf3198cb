# SPDX-License-Identifier: LGPL-2.1-or-later
"""arm64."""

from __future__ import annotations

from collections.abc import Callable

import drgn

from kcensus.arch.model import Architecture

_ARGUMENTS = tuple(f"regs[{number}]" for number in range(6))

_FROM_PROGRAMS = ("el0t_64_irq", "el0t_32_irq", "el0_irq", "vectors")
"""Entries of interrupts of programs, and the code before any entry."""


def _physical(address: int, number: Callable[[str], int | None]) -> int | None:
    offset = number("kimage_voffset")
    return None if offset is None else (address - offset) % (1 << 64)


ARCHITECTURE = Architecture(
    name="aarch64",
    drgn=drgn.Architecture.AARCH64,
    elf_machine=183,
    crash="ARM64",
    has_signed_char=False,
    # The linear map is in the lower half of the kernel's addresses, from 2^52 or 2^48 bytes below
    # the end on; modules and the image are in the upper one, which is above it with both.
    image=0xFFFF_8000_0000_0000,
    arguments=_ARGUMENTS,
    compat_arguments=_ARGUMENTS,
    frame_pointer="x29",
    link="x30",
    syscalls=("__arm64_sys_", "__arm64_compat_sys_"),
    interrupts=("el1h_64_", "el1t_64_", "el1_", "__el1_irq", *_FROM_PROGRAMS),
    device_interrupts=(
        *(f"el1{mode}_64_{kind}" for mode in "ht" for kind in ("irq", "fiq", "error")),
        *("el1_irq", "el1_interrupt", "__el1_irq", *_FROM_PROGRAMS),
    ),
    switches=("__switch_to", "arm64_preempt_schedule_irq"),
    tag=0xFF << 56,
    # With CONFIG_KASAN_SW_TAGS, and with CONFIG_KASAN_HW_TAGS.
    tagging=("__hwasan_tag_memory", "kasan_flag_enabled"),
    # Not VA_BITS, which kernels of RISC-V have, too.
    marks=("kimage_voffset",),
    physical=_physical,
    stack_pointer="thread.cpu_context.sp",
    registers="thread.uw",
    # From entry.S; the address is in ELR_EL1.
    vectors=frozenset({"vectors"}),
    memdie=18,
    keys=tuple(
        f"thread.keys_{whose}.{key}.{half}"
        for whose, keys in (
            ("user", ("apia", "apib", "apda", "apdb", "apga")),
            ("kernel", ("apia",)),
        )
        for key in keys
        for half in ("lo", "hi")
    ),
)
