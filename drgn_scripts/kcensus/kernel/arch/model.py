# SPDX-License-Identifier: LGPL-2.1-or-later
"""What readers of one architecture return."""

from __future__ import annotations

from dataclasses import dataclass

from kcensus.engine.memory import Numbers, Words


@dataclass(frozen=True)
class UserRegisters:
    """The registers that programs had when they entered the kernel, a row per stack with them."""

    row: Numbers
    """Index of each stack, ascending."""
    start: Words
    """Address of the ``struct pt_regs``."""
    is_compat: Numbers
    """1 for a program of 32 bits, else 0."""
    size: int
    """Bytes of a ``struct pt_regs``."""
    kept: tuple[tuple[int, int], ...]
    """Offset and size of its members that walks along the stack need, ascending and without
    overlaps; they hold nothing of the program."""
