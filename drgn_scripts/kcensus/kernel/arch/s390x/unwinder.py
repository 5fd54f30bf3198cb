# SPDX-License-Identifier: LGPL-2.1-or-later
"""Steps along stacks of Z."""

from __future__ import annotations

import numpy as np

from kcensus.arch.s390x import PSTATE
from kcensus.engine.chase import Lanes
from kcensus.engine.layout import layout
from kcensus.engine.memory import Mask, Words
from kcensus.kernel.arch.back_chain import BackChain, Chain
from kcensus.kernel.arch.model import Frames, StackMemory


class Unwinder(BackChain):
    """The steps of Z, where a function's r14 is saved in its caller's frame.

    :raises LookupError: the debug info lacks a type
    """

    def __init__(self, stacks: StackMemory) -> None:
        prog = stacks.memory.prog
        # CONFIG_PACK_STACK has another order of members.
        frame = layout(prog, "struct stack_frame", {"back": "back_chain", "r14": "gprs[8]"})
        back, r14 = frame.fields["back"].offset, frame.fields["r14"].offset
        members = {"pc": "psw.addr", "sp": "gprs[15]", "link": "gprs[14]", "state": "psw.mask"}
        registers = layout(prog, "struct pt_regs", members)
        super().__init__(stacks, Chain(back, r14, registers, PSTATE, 2))
        self._size = frame.size

    def saved(self, lanes: Lanes, frames: Frames, back: Words) -> tuple[Words, Mask, Mask]:
        """Return the place of registers: behind a frame without a back chain."""
        place = frames.sp + np.uint64(self._size)
        last = self.stacks.high[lanes] - np.uint64(self.chain.registers.size)
        return place, back == 0, (back == 0) & (place == last)
