# SPDX-License-Identifier: LGPL-2.1-or-later
"""The registers of programs of arm64."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.arch import KERNEL
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.arch.model import UserRegisters

_MODE = np.uint64(0x1F)
"""PSR_MODE_MASK, and PSR_MODE32_BIT of a program of 32 bits."""
_NATIVE, _COMPAT = np.uint64(0), np.uint64(0x10)
"""PSR_MODE_EL0t and PSR_AA32_MODE_USR."""
_PADDINGS = (0, 16)
"""Bytes above the registers on a stack: 16 until Linux kernel commit 34be98f4944f ("arm64: kernel:
remove {THREAD,IRQ_STACK}_START_SP") (in v4.14)."""


def user_registers(memory: Memory, top: Words, faults: Faults) -> UserRegisters:
    """Return the registers of programs below the ends of stacks.

    :raises LookupError: the debug info lacks ``struct pt_regs``
    """
    members = layout(memory.prog, "struct pt_regs", ["pc", "sp", "pstate"])
    found, start = np.zeros(len(top), np.bool_), np.zeros(len(top), np.uint64)
    is_compat = np.zeros(len(top), np.int64)
    for padding in _PADDINGS:
        place = top - np.uint64(padding + members.size)
        read = gather(memory, place, members, faults)
        mode = read["pstate"] & _MODE
        entered = read.readable & np.isin(mode, (_NATIVE, _COMPAT)) & ~found
        # Zeros seem to be of a program, whose mode is 0.
        entered &= (read["pc"] | read["sp"]) != 0
        entered &= (read["pc"] < np.uint64(KERNEL)) & (read["sp"] < np.uint64(KERNEL))
        found |= entered
        start[entered], is_compat[entered] = place[entered], mode[entered] == _COMPAT
    row = np.flatnonzero(found)
    return UserRegisters(
        row=row,
        start=start[row],
        is_compat=is_compat[row],
        size=members.size,
        kept=_kept(memory.prog.type("struct pt_regs")),
    )


def _kept(type_: drgn.Type) -> tuple[tuple[int, int], ...]:
    """Return the place of the frame record with which walks along a stack end.

    Since Linux kernel commit 732674980139 ("arm64: unwind: reference pt_regs via embedded stack
    frame") (in v4.14), the registers have one.
    """
    try:
        record = type_.member("stackframe")
    except LookupError:
        return ()
    return ((record.offset, drgn.sizeof(record.type)),)
