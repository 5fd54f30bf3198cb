# SPDX-License-Identifier: LGPL-2.1-or-later
"""The registers of programs of x86-64."""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.arch.model import UserRegisters

_COMPAT, _NATIVE = 0x23, 0x33
"""Code segments of programs: __USER32_CS and __USER_CS."""
_PADDINGS = (0, 16)
"""Bytes above the registers on a stack, TOP_OF_KERNEL_STACK_PADDING: 16 with CONFIG_X86_FRED."""


def user_registers(memory: Memory, top: Words, faults: Faults) -> UserRegisters:
    """Return the registers of programs below the ends of stacks.

    :raises LookupError: the debug info lacks ``struct pt_regs``
    """
    # The code segment marks the registers of a program for a walk along a stack.
    members = layout(memory.prog, "struct pt_regs", ["cs"])
    found, start = np.full(len(top), -1), np.zeros(len(top), np.uint64)
    for padding in _PADDINGS:
        place = top - np.uint64(padding + members.size)
        read = gather(memory, place, members, faults)
        segment = read["cs"].astype(np.int64) & 0xFFFF
        entered = read.readable & np.isin(segment, (_COMPAT, _NATIVE)) & (found < 0)
        found[entered], start[entered] = segment[entered], place[entered]
    row = np.flatnonzero(found >= 0)
    cs = members.fields["cs"]
    return UserRegisters(
        row=row,
        start=start[row],
        is_compat=(found[row] == _COMPAT).astype(np.int64),
        size=members.size,
        kept=((cs.offset, cs.dtype.itemsize),),
    )
