# SPDX-License-Identifier: LGPL-2.1-or-later
"""Steps along stacks of x86-64, by ORC tables or by frame pointers."""

from __future__ import annotations

import numpy as np

from kcensus.arch.x86_64 import ARCHITECTURE
from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Mask, Words
from kcensus.kernel.arch.model import Frames, StackMemory, Step
from kcensus.kernel.arch.x86_64 import orc
from kcensus.kernel.arch.x86_64.orc import OrcTables, has_tables

_MAX_PADDING = 64
"""TOP_OF_KERNEL_STACK_PADDING at the end of a stack, at most, and words below saved registers."""


class Unwinder:
    """The steps of x86-64; see :class:`kcensus.kernel.arch.model.Unwinder`.

    :raises LookupError: the debug info lacks a type, or the unwind tables are damaged
    """

    def __init__(self, stacks: StackMemory) -> None:
        self.stacks, self.memory, self.faults = stacks, stacks.memory, stacks.faults
        prog = self.memory.prog
        self.registers: Layout = layout(prog, "struct pt_regs", ["ip", "sp", "bp", "cs"])
        # Without CONFIG_UNWINDER_ORC, the kernel is built with frame pointers; with it, they lead
        # nowhere, so damaged tables leave no way to unwind.
        self.tables = OrcTables(self.memory, self.faults) if has_tables(prog) else None

    @property
    def ends_at_entry(self) -> bool:
        """Whether the entry of kernel threads ends a stack.

        It has no caller, but may leave in bp what bp was at their creation.
        """
        return self.tables is None or not self.tables.mark_ends

    def starts(self, task: Words, sp: Words) -> tuple[Frames, Mask]:
        """Return the innermost frames of tasks without a CPU, and a mask of the known ones."""
        places = np.where(self.stacks.inside(sp), sp, np.uint64(0))
        not_exact, no_link = np.zeros(len(sp), np.bool_), np.zeros(len(sp), np.uint64)
        try:
            frame = layout(self.memory.prog, "struct inactive_task_frame", ["bp", "ret_addr"])
        except LookupError:
            # Until Linux kernel commit 0100301bfdf5 ("sched/x86: Rewrite the switch_to() code") (in
            # v4.9), __schedule() itself switches stacks, with its bp last on the old one.
            bp, readable = gather_words(self.memory, places, self.stacks.word, self.faults)
            inside = self.memory.prog.symbol("__schedule").address + 1
            pc = np.full(len(sp), inside, np.uint64)
            return Frames(pc, sp, bp, not_exact, no_link), readable & _is_code(pc)
        start = gather(self.memory, places, frame, self.faults)
        pc, sp = start["ret_addr"], sp + np.uint64(frame.size)
        return Frames(pc, sp, start["bp"], not_exact, no_link), start.readable & _is_code(pc)

    def step(self, lanes: Lanes, frames: Frames) -> Step:
        """Return the callers of a frame of some stacks."""
        by_rules = self._by_orc if self.tables is not None else self._by_frame_pointer
        callers, is_done, is_cut = by_rules(lanes, frames)
        # A caller's frame is at a higher address: no walk goes round in circles.
        high = self.stacks.high[lanes]
        astray = (callers.sp <= frames.sp) | (callers.sp > high) | ~_is_code(callers.pc)
        return Step(callers, is_done, is_cut | (~is_done & astray))

    def _by_frame_pointer(self, lanes: Lanes, frames: Frames) -> tuple[Frames, Mask, Mask]:
        """Take one step: [bp] is the caller's bp, and the return address is above it.

        Return the callers, which stacks end, and which are cut here.
        """
        bp, load = frames.base, self.stacks.load
        back, ok = load(bp, lanes, np.ones(len(lanes), np.bool_))
        target, target_ok = load(bp + np.uint64(8), lanes, ok)
        above = bp + np.uint64(16)
        # The outermost frame has no caller: entry code clears bp, or marks saved registers with bit
        # 0. If it does neither, there is no return address right below these registers.
        outermost = above >= self.stacks.high[lanes] - np.uint64(self.registers.size + _MAX_PADDING)
        done = (bp == 0) | ((bp & np.uint64(1)) != 0)
        done |= target_ok & (target == 0) & outermost
        callers = Frames(target, above, back, frames.is_exact, frames.link)
        return callers, done, ~target_ok & ~done

    def _by_orc(self, lanes: Lanes, frames: Frames) -> tuple[Frames, Mask, Mask]:
        """Take one step by the rules for all places; see :meth:`_by_frame_pointer`."""
        assert self.tables is not None
        pc, sp, bp, load = frames.pc, frames.sp, frames.base, self.stacks.load
        rules = self.tables.rules(np.where(frames.is_exact, pc, pc - np.uint64(1)))
        offset = rules.sp_offset.view(np.uint64)
        kind = rules.kind.copy()
        register = rules.sp_register
        frame = np.where(np.isin(register, (orc.BP, orc.BP_INDIRECT)), bp, sp)
        above = frame + offset
        loaded, ok = load(above, lanes, register == orc.BP_INDIRECT)
        above = np.where(register == orc.BP_INDIRECT, loaded, above)
        # Since Linux kernel commit 87ccc826bf1c ("x86/unwind/orc: Change REG_SP_INDIRECT") (in
        # v5.12), the word at the stack pointer comes first, the offset is added to it. Before, the
        # offset came first: such a frame leads to no code, and the stack is cut there.
        inner, inner_ok = load(sp, lanes, register == orc.SP_INDIRECT)
        above = np.where(register == orc.SP_INDIRECT, inner + offset, above)
        ok |= inner_ok | np.isin(register, (orc.BP, orc.SP))
        call, regs, partial = (
            (kind == each) & ok for each in (orc.CALL, orc.REGS, orc.REGS_PARTIAL)
        )
        target, target_ok = load(above - np.uint64(8), lanes, call)
        at = above + rules.bp_offset.view(np.uint64)
        at = np.where(rules.bp_register == orc.BP, bp + rules.bp_offset.view(np.uint64), at)
        saved = np.isin(rules.bp_register, (orc.PREVIOUS_SP, orc.BP))
        older, older_ok = load(at, lanes, saved & (call | partial))
        caller_bp = np.where(saved & older_ok, older, bp)
        # An interrupt or exception saved the registers of the interrupted code.
        members = self.registers.fields
        base = np.where(regs, above, above - np.uint64(members["ip"].offset))
        saving = (regs | partial) & self.stacks.inside(base, lanes, room=self.registers.size)
        read = gather(
            self.memory, np.where(saving, base, np.uint64(0)), self.registers, self.faults
        )
        saving &= read.readable
        user = saving & ((read["cs"] & 3) != 0)
        target = np.where(saving, read["ip"], target)
        above = np.where(saving, read["sp"], above)
        caller_bp = np.where(saving & regs, read["bp"], caller_bp)
        done = (kind == orc.END) | user
        good = (call & target_ok & (older_ok | ~saved)) | saving
        return Frames(target, above, caller_bp, saving, frames.link), done, ~good & ~done


def _is_code(places: Words) -> Mask:
    """Return which addresses are in the highest 2 GiB, like code of the kernel and modules."""
    return places >= np.uint64(ARCHITECTURE.image)
