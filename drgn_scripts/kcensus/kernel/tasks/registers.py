# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registers that programs had when they entered the kernel, at the top of their kernel stacks."""

from __future__ import annotations

import numpy as np

from kcensus.arch import architecture_of
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.arch.model import UserRegisters
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.size import stack_size

UNKNOWN = np.uint64((1 << 64) - 1)
"""An argument that is unknown."""


def user_registers(kernel: Kernel, stacks: Words, faults: Faults) -> UserRegisters:
    """Return where the registers of programs lie on kernel stacks.

    :param stacks: lowest addresses of the stacks; those of kernel threads have none
    :raises LookupError: no reader for this architecture, or the debug info lacks the registers
    """
    readers = readers_of(kernel.prog.platform)
    if readers is None or readers.user_registers is None:
        raise LookupError("the place of the registers of programs is unknown on this architecture")
    top = stacks + np.uint64(stack_size(kernel.prog))
    return readers.user_registers(kernel.memory, top, faults)


def arguments(kernel: Kernel, stacks: Words, number: int, faults: Faults) -> Words:
    """Return an argument of the system call of each task; :data:`UNKNOWN` where unknown.

    :param stacks: lowest addresses of the stacks
    :param number: from 0 on
    :raises LookupError: as for :func:`user_registers`
    """
    found = user_registers(kernel, stacks, faults)
    architecture = architecture_of(kernel.prog.platform)
    assert architecture is not None
    values = np.full(len(stacks), UNKNOWN)
    for is_compat, names in enumerate((architecture.arguments, architecture.compat_arguments)):
        rows = np.flatnonzero(found.is_compat == is_compat)
        if len(rows):
            members = layout(kernel.prog, "struct pt_regs", {"value": names[number]})
            read = gather(kernel.memory, found.start[rows], members, faults)
            rows = rows[read.readable]
            values[found.row[rows]] = read["value"][read.readable].astype(np.uint64)
    return values
