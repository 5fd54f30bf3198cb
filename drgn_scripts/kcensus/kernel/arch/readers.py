# SPDX-License-Identifier: LGPL-2.1-or-later
"""The readers of each architecture that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import drgn

from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.arch.aarch64 import registers as aarch64_registers
from kcensus.kernel.arch.aarch64 import unwinder as aarch64_unwinder
from kcensus.kernel.arch.aarch64.decoder import AArch64
from kcensus.kernel.arch.aarch64.vectors import vectors as aarch64_vectors
from kcensus.kernel.arch.instructions import Decoder
from kcensus.kernel.arch.model import StackMemory, Unwinder, UserRegisters
from kcensus.kernel.arch.ppc64le import unwinder as ppc64le_unwinder
from kcensus.kernel.arch.s390x import unwinder as s390x_unwinder
from kcensus.kernel.arch.x86_64 import registers as x86_64_registers
from kcensus.kernel.arch.x86_64 import unwinder as x86_64_unwinder
from kcensus.kernel.arch.x86_64.decoder import X86
from kcensus.kernel.kernel import Kernel


def _no_vectors(memory: Memory, tasks: Words, faults: Faults) -> tuple[Words, Words]:
    return tasks[:0], tasks[:0]


class Readers(NamedTuple):
    """What reads memory that no other architecture has."""

    unwinder: Callable[[StackMemory], Unwinder]
    decoder: Decoder | None = None
    """Of machine code; None if kcensus does not read it."""
    user_registers: Callable[[Memory, Words, Faults], UserRegisters] | None = None
    """Returns where the registers of programs lie, given the ends of kernel stacks; None if that is
    unknown, and so are those outside of stacks."""
    cpu_stacks: Callable[[Kernel], tuple[tuple[int, int], ...]] = lambda _: ()
    """Returns the start and the end of each stack that CPUs have besides those of tasks."""
    vectors: Callable[[Memory, Words, Faults], tuple[Words, Words]] = _no_vectors
    """Returns starts and ends of registers of programs outside of tasks and stacks, given the
    addresses of the ``struct task_struct``."""


_READERS = {
    drgn.Architecture.X86_64: Readers(
        x86_64_unwinder.Unwinder, X86(), x86_64_registers.user_registers
    ),
    drgn.Architecture.AARCH64: Readers(
        aarch64_unwinder.Unwinder,
        AArch64(),
        aarch64_registers.user_registers,
        aarch64_unwinder.cpu_stacks,
        aarch64_vectors,
    ),
    drgn.Architecture.PPC64: Readers(ppc64le_unwinder.Unwinder),
    drgn.Architecture.S390X: Readers(s390x_unwinder.Unwinder),
}


def readers_of(platform: drgn.Platform | None) -> Readers | None:
    """Return the readers for a program's architecture; None if there are none."""
    return None if platform is None else _READERS.get(platform.arch)
