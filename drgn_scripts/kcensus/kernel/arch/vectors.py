# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registers of programs outside of their tasks and stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import drgn

from kcensus.arch import architecture_of
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.arch.aarch64 import vectors as aarch64

_READERS: Mapping[drgn.Architecture, Callable[[Memory, Words, Faults], tuple[Words, Words]]] = {
    drgn.Architecture.AARCH64: aarch64.vectors
}


def vectors(memory: Memory, tasks: Words, faults: Faults) -> tuple[Words, Words]:
    """Return the start and the end of all vector and matrix registers with memory of their own.

    :param tasks: addresses of the ``struct task_struct``
    """
    architecture = architecture_of(memory.prog.platform)
    reader = _READERS.get(architecture.drgn) if architecture is not None else None
    if reader is None:
        return tasks[:0], tasks[:0]
    return reader(memory, tasks, faults)
