# SPDX-License-Identifier: LGPL-2.1-or-later
"""Steps along stacks of POWER."""

from __future__ import annotations

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Words
from kcensus.kernel.arch.back_chain import BackChain, Chain
from kcensus.kernel.arch.model import Frames, StackMemory

_RETURN = 16
"""STACK_FRAME_LR_SAVE, in bytes."""
_MARKERS = (np.uint64(0x5347_4552), np.uint64(0x7265_6773_6865_7265))
"""STACK_FRAME_REGS_MARKER, and that until Linux kernel commit 17773afdcd15 ("powerpc/64: use 32-bit
immediate for STACK_FRAME_REGS_MARKER") (in v6.1). The new one is in the byte order of Linux kernel
commit 19c95df1277c ("powerpc: Reverse stack frame marker on little endian") (in v6.1)."""
_PLACES = (32, 96)
"""Offsets of the marker in the frame of an interrupt, with the smallest frame of ELF ABI version 2
and, before, with that of version 1. Behind the marker and 8 unused bytes are the registers."""
_USER = 1 << 14
"""MSR_PR."""
_LAST = 128
"""Most bytes of the last frame besides registers."""


class Unwinder(BackChain):
    """The steps of POWER.

    :raises LookupError: the debug info lacks ``struct pt_regs``
    """

    def __init__(self, stacks: StackMemory) -> None:
        members = {"pc": "nip", "sp": "gpr[1]", "link": "link", "state": "msr"}
        registers = layout(stacks.memory.prog, "struct pt_regs", members)
        super().__init__(stacks, Chain(0, _RETURN, registers, _USER, 4))

    def starts(self, task: Words, sp: Words) -> tuple[Frames, Mask]:
        """Return the innermost frames; the first one is of ``_switch()``, in assembly."""
        back, ok = self.stacks.load(sp, np.arange(len(task)), sp != 0)
        return super().starts(task, np.where(ok, back, np.uint64(0)))

    def saved(self, lanes: Lanes, frames: Frames, back: Words) -> tuple[Words, Mask, Mask]:
        """Return the place of registers behind a marker; kernel threads end without."""
        place, saves = np.zeros(len(lanes), np.uint64), np.zeros(len(lanes), np.bool_)
        for offset in _PLACES:
            at = frames.sp + np.uint64(offset)
            marker, ok = self.stacks.load(at, lanes, ~saves)
            found = ok & np.isin(marker, _MARKERS)
            place[found], saves = at[found] + np.uint64(16), saves | found
        end = self.stacks.high[lanes] - np.uint64(self.chain.registers.size + _LAST)
        return place, saves, (back == 0) & (frames.sp >= end)
