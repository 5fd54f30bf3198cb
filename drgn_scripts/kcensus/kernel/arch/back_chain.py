# SPDX-License-Identifier: LGPL-2.1-or-later
"""Steps along stacks whose frames are linked: a function stores the caller's stack pointer (back
chain) in its frame, and its return address in the caller's frame, as the ABIs of POWER and Z demand
from every function that calls others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, within
from kcensus.engine.layout import Layout
from kcensus.engine.memory import Guess, Mask, Words
from kcensus.kernel.arch.model import Frames, StackMemory, Step
from kcensus.kernel.symbols import image_range, symbols_of


class Chain(NamedTuple):
    """The layout of frames and of saved registers."""

    back: int
    """Offset of the back chain in a frame."""
    target: int
    """Offset of the return address of a function that the frame's function called."""
    registers: Layout
    """``struct pt_regs``: ``pc``, ``sp`` and ``link``, and ``state`` with the bit ``user``."""
    user: int
    """Bit of ``state`` that programs have, and the kernel has not."""
    alignment: int
    """Of instructions."""


class BackChain(ABC):
    """The steps; see :class:`kcensus.kernel.arch.model.Unwinder`."""

    ends_at_entry = False
    chain: Chain

    def __init__(self, stacks: StackMemory, chain: Chain) -> None:
        self.stacks, self.chain = stacks, chain
        self._code = image_range(stacks.memory.prog)

    @abstractmethod
    def saved(self, lanes: Lanes, frames: Frames, back: Words) -> tuple[Words, Mask, Mask]:
        """Return where frames save registers of interrupted code, which do, and which are the last.

        :param back: the back chain of each frame
        """

    def starts(self, task: Words, sp: Words) -> tuple[Frames, Mask]:
        """Return the innermost frames of tasks without a CPU, and a mask of the known ones."""
        lanes = np.arange(len(task))
        target, ok = self.stacks.load(sp + np.uint64(self.chain.target), lanes, sp != 0)
        none = np.zeros(len(task), np.uint64)
        ok &= self.stacks.inside(sp) & self._is_code(target)
        return Frames(target, sp, none, none != 0, none), ok

    def step(self, lanes: Lanes, frames: Frames) -> Step:
        """Return the callers of a frame of some stacks."""
        load, every = self.stacks.load, np.ones(len(lanes), np.bool_)
        back, ok = load(frames.sp + np.uint64(self.chain.back), lanes, every)
        target, target_ok = load(back + np.uint64(self.chain.target), lanes, ok)
        place, saves, is_last = self.saved(lanes, frames, back)
        by_link = called_by_link(self.stacks, frames, target, self._is_code(frames.link))
        pc = np.where(by_link, frames.link, target)
        sp = np.where(by_link, frames.sp, back)
        link, exact = np.zeros(len(lanes), np.uint64), saves & ~is_last & ~by_link & ok
        exact &= self.stacks.index(place, lanes, self.chain.registers.size) >= 0
        read = gather(
            self.stacks.memory, np.where(exact, place, np.uint64(0)), self.chain.registers, Guess()
        )
        # Registers of an earlier interrupt may be left where a function has not written.
        exact &= read.readable & ((back == read["sp"]) | (back == 0))
        is_user = exact & ((read["state"] & np.uint64(self.chain.user)) != 0)
        pc, sp = np.where(exact, read["pc"], pc), np.where(exact, read["sp"], sp)
        callers = Frames(pc, sp, link, exact, np.where(exact, read["link"], link))
        done = ok & ~by_link & (is_last | is_user)
        good = by_link | exact | target_ok
        good &= self.stacks.is_further(lanes, frames, callers) & self._is_code(callers.pc)
        return Step(callers, done, ~good & ~done)

    def _is_code(self, places: Words) -> Mask:
        inside = within(places, self._code) & (places != 0)
        return np.asarray(inside & ((places & np.uint64(self.chain.alignment - 1)) == 0))


def called_by_link(stacks: StackMemory, frames: Frames, target: Words, is_code: Mask) -> Mask:
    """Return which interrupted functions had no frame, so that the innermost one is their caller's.

    Such a function is a leaf, or at its begin or end, and the link register has its return address.
    In any other function, that is in the function itself, behind its last call, or before its first
    call, as in its frame.

    :param target: return addresses in the innermost frames
    :param is_code: which link registers have an address of code
    """
    symbols = symbols_of(stacks.kernel)
    wanted = frames.is_exact & is_code & (frames.link != target)
    for row in np.flatnonzero(wanted).tolist():
        own, _ = symbols(int(frames.pc[row]))
        other, _ = symbols(int(frames.link[row]) - 1)
        wanted[row] = own.split(".")[0] != other.split(".")[0]
    return np.asarray(wanted)
