# SPDX-License-Identifier: LGPL-2.1-or-later
"""What readers of one architecture share: stacks in memory, steps along them, and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather_words
from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.kernel.kernel import Kernel
from kcensus.sources.capsule.uses import Use


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


@dataclass(frozen=True)
class Frames:
    """One frame of each of some stacks."""

    pc: Words
    sp: Words
    """Stack pointer, or the lowest known address of the frame's data."""
    base: Words
    """Frame pointer: rbp, or x29."""
    is_exact: Mask
    """Whether the function was interrupted at ``pc``; else that is behind a call."""
    link: Words
    """Register with the return address of an interrupted function; 0 where there is none."""

    def rows(self, wanted: Mask | Numbers) -> Frames:
        """Return some of the frames."""
        pc, sp, base, link = (each[wanted] for each in (self.pc, self.sp, self.base, self.link))
        return Frames(pc, sp, base, self.is_exact[wanted], link)


@dataclass(frozen=True)
class Step:
    """The callers of some frames."""

    callers: Frames
    is_done: Mask
    """Whether the stack ends with the frame: it has no caller."""
    is_cut: Mask
    """Whether the caller is unknown."""


class Unwinder(Protocol):
    """Finds callers, of the same frame of many stacks at once."""

    @property
    def ends_at_entry(self) -> bool:
        """Whether a stack is complete that reaches the entry of kernel threads, without another
        mark of its end.
        """

    def starts(self, task: Words, sp: Words) -> tuple[Frames, Mask]:
        """Return the innermost frames of tasks without a CPU, and a mask of the known ones."""

    def step(self, lanes: Lanes, frames: Frames) -> Step:
        """Return the callers of a frame of some stacks."""


class StackMemory:
    """The memory of some stacks of ``size`` bytes each.

    :param low: their lowest addresses
    :param others: more stacks of the CPU, from which a walk goes on in that of the task
    """

    def __init__(
        self,
        kernel: Kernel,
        low: Words,
        size: int,
        faults: Faults,
        others: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.kernel, self.faults = kernel, faults
        ordered = np.array(sorted(others), np.uint64).reshape(-1, 2)
        self._lows, self._highs = ordered[:, 0], ordered[:, 1]
        self.memory: Memory = kernel.memory
        self.low, self.high = low, low + np.uint64(size)
        self.word = word_dtype(kernel.prog)

    def inside(self, addresses: Words, lanes: Lanes | None = None, room: int = 8) -> Mask:
        """Return which aligned addresses have ``room`` bytes within the stack of their task."""
        low, high = (self.low, self.high) if lanes is None else (self.low[lanes], self.high[lanes])
        inside: Mask = (addresses >= low) & (addresses <= high - np.uint64(room))
        inside &= (addresses & np.uint64(7)) == 0
        return inside

    def index(self, addresses: Words, lanes: Lanes, room: int = 8) -> Numbers:
        """Return the stack of each aligned address: 0 for the task's, then the others, or -1."""
        index = np.where(self.inside(addresses, lanes, room), 0, -1)
        if len(self._lows):
            at = np.searchsorted(self._lows, addresses, "right") - 1
            within = (at >= 0) & (addresses <= self._highs[at] - np.uint64(room))
            within &= (index < 0) & ((addresses & np.uint64(7)) == 0)
            index[within] = at[within] + 1
        return index

    def is_further(self, lanes: Lanes, frames: Frames, callers: Frames) -> Mask:
        """Return which callers' frames are at higher addresses, or in a stack further out."""
        here, there = self.index(frames.sp, lanes), self.index(callers.sp, lanes)
        # An interrupted function may have used no stack.
        ahead = (callers.sp > frames.sp) | (frames.is_exact & (callers.sp == frames.sp))
        # From a stack of the CPU, a walk goes on in another one, and never leaves the task's.
        outwards = (here > 0) & (here != there)
        return np.asarray((there >= 0) & (outwards | ((here == there) & ahead)))

    def load(self, addresses: Words, lanes: Lanes, wanted: Mask) -> tuple[Words, Mask]:
        """Return words of the stacks; 0 for unwanted ones, and outside of any stack."""
        ok = wanted & (self.index(addresses, lanes) >= 0)
        values, readable = gather_words(
            self.memory,
            np.where(ok, addresses, np.uint64(0)),
            self.word,
            self.faults,
            use=Use.UNKNOWN,  # functions save any register
        )
        return values, ok & readable
