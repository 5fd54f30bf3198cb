# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of sleeping tasks, all unwound together, one frame of every stack a step.

Like the kernel, this needs no debug info of functions, but ORC tables or frame pointers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_words
from kcensus.engine.layout import Layout, layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Memory, Numbers, Words
from kcensus.engine.rows import spread
from kcensus.kernel.arch.x86_64 import orc
from kcensus.kernel.arch.x86_64.orc import OrcTables, has_tables
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.size import stack_size
from kcensus.kernel.symbols import described, symbols_of
from kcensus.kernel.tasks.functions import plain
from kcensus.sources.capsule.uses import Use

_MAX_FRAMES = 256
_BLOCK = 1 << 11
"""Stacks to walk at a time, with their pages in memory."""
_ENTRY = "ret_from_fork"
_MAX_PADDING = 64
"""TOP_OF_KERNEL_STACK_PADDING at the end of a stack, at most, and words below saved registers."""


@dataclass(frozen=True)
class Stacks:
    """The frames of some stacks, stack by stack, from the innermost outwards."""

    lane: Lanes
    """Index of the stack of each frame, ascending."""
    pc: Words
    """Return address of each frame."""
    sp: Words
    """The frame's stack pointer, which is the lowest address of its data."""
    is_cut: Mask
    """Whether each stack could not be followed to its end."""
    names: dict[int, str]
    """Function by ``pc``, or its address without a symbol."""
    size: int
    modules: dict[int, str] = field(default_factory=dict)
    """Module by ``pc``, for functions in modules."""

    def __len__(self) -> int:
        return len(self.is_cut)

    @cached_property
    def _starts(self) -> Numbers:
        return np.searchsorted(self.lane, np.arange(len(self) + 1))

    def frames(self, stack: int) -> slice:
        """Return the rows of one stack's frames."""
        return slice(int(self._starts[stack]), int(self._starts[stack + 1]))

    def part(self, rows: Numbers) -> Stacks:
        """Return some of the stacks."""
        lane, index = spread(np.diff(self._starts)[rows])
        frame = self._starts[rows][lane] + index
        return replace(
            self, lane=lane, pc=self.pc[frame], sp=self.sp[frame], is_cut=self.is_cut[rows]
        )

    def functions(self, stack: int) -> list[str]:
        """Return the functions of one stack, the innermost first; without inlined ones."""
        return [self.names[pc] for pc in self.pc[self.frames(stack)].tolist()]

    def modules_of(self, stack: int) -> set[str]:
        """Return the modules of the functions of one stack."""
        places = self.pc[self.frames(stack)].tolist() if self.modules else []
        return {self.modules[pc] for pc in places if pc in self.modules}

    def places_from(self, stack: int, place: int) -> list[int]:
        """Return ``pc`` of the frame at an address on a stack, and of its callers."""
        rows = self.frames(stack)
        inner = int(np.searchsorted(self.sp[rows], np.uint64(place), "right")) - 1
        return self.pc[rows][inner:].tolist() if inner >= 0 else []

    def function_at(self, stack: int, place: int) -> str:
        """Return the function of the frame at an address on a stack; empty outside."""
        return next((self.names[pc] for pc in self.places_from(stack, place)), "")

    def having(self, functions: frozenset[str]) -> Numbers:
        """Return the stacks with any of the functions, ascending."""
        places = [pc for pc, name in self.names.items() if plain(name) in functions]
        return np.unique(self.lane[np.isin(self.pc, np.array(places, np.uint64))])

    def described(self, stack: int) -> list[str]:
        """Return the functions of one stack as the kernel prints them: ``name [module]``."""
        places = self.pc[self.frames(stack)].tolist()
        return [described(self.names[pc], self.modules.get(pc, "")) for pc in places]


def stacks(kernel: Kernel, stack: Words, sp: Words, faults: Faults) -> Stacks:
    """Return the stacks of tasks that are not on a CPU.

    :param stack: lowest addresses of the stacks
    :param sp: their stack pointers
    :raises LookupError: the machine is not x86-64, the debug info lacks a type, or the unwind
        tables are damaged
    """
    memory, prog = kernel.memory, kernel.prog
    size = stack_size(prog)
    walk = _Walk(memory, stack, size, faults)
    lane, pc, bottom, _, is_cut = walk.run(*walk.starts(sp))
    symbols = symbols_of(kernel)
    known = {place: symbols(place - 1) for place in np.unique(pc).tolist()}
    names = {place: name for place, (name, _) in known.items()}
    modules = {place: module for place, (_, module) in known.items() if module}
    if walk.tables is None or not walk.tables.mark_ends:
        # The entry of kernel threads has no caller, but may leave in bp what bp was at their
        # creation.
        entries = [place for place, name in names.items() if plain(name) == _ENTRY]
        is_cut[lane[np.isin(pc, np.array(entries, np.uint64))]] = False
    return Stacks(lane, pc, bottom, is_cut, names, size, modules)


def running_stack(kernel: Kernel, stack: int, pc: int, sp: int, bp: int) -> list[tuple[int, int]]:
    """Return the stack of a running task by the registers of its CPU.

    Each frame is its return address, and an address in the function; the innermost is first. The
    stack is cut where it goes on in another one, such as that of interrupts.

    :param stack: lowest address of the task's stack
    :raises LookupError: as for :func:`stacks`
    """
    low, size = np.array([stack], np.uint64), int(kernel.prog["THREAD_SIZE"])
    walk, started = _Walk(kernel.memory, low, size, Faults()), np.ones(1, np.bool_)
    pcs, sps, bps = (np.array([each], np.uint64) for each in (pc, sp, bp))
    _, places, _, exact, _ = walk.run(pcs, sps, bps, started, exact=started)
    inside = places - (~exact).astype(np.uint64)
    return [*zip(places.tolist(), inside.tolist(), strict=True)]


def unknown_stacks(count: int) -> Stacks:
    """Return stacks without known frames."""
    none = np.empty(0, np.uint64)
    return Stacks(np.empty(0, np.int64), none, none, np.ones(count, np.bool_), {}, 0)


class _Walk:
    def __init__(self, memory: Memory, stack: Words, size: int, faults: Faults) -> None:
        self.memory, self.faults = memory, faults
        self.low, self.high = stack, stack + np.uint64(size)
        self.word = word_dtype(memory.prog)
        self.registers: Layout = layout(memory.prog, "struct pt_regs", ["ip", "sp", "bp", "cs"])
        self.tables: OrcTables | None = None
        # Without CONFIG_UNWINDER_ORC, the kernel is built with frame pointers; with it, they lead
        # nowhere, so damaged tables leave no way to unwind.
        if has_tables(memory.prog):
            self.tables = OrcTables(memory, faults)

    def holds(self, addresses: Words, lanes: Lanes | None = None, room: int = 8) -> Mask:
        """Return which addresses have ``room`` bytes within their stack."""
        low, high = (self.low, self.high) if lanes is None else (self.low[lanes], self.high[lanes])
        inside: Mask = (addresses >= low) & (addresses <= high - np.uint64(room))
        inside &= (addresses & np.uint64(7)) == 0
        return inside

    def starts(self, sp: Words) -> tuple[Words, Words, Words, Mask]:
        """Return pc, sp and bp of the innermost frame of each stack, and which are readable."""
        places = np.where(self.holds(sp), sp, np.uint64(0))
        try:
            frame = layout(self.memory.prog, "struct inactive_task_frame", ["bp", "ret_addr"])
        except LookupError:
            # Until Linux kernel commit 0100301bfdf5 ("sched/x86: Rewrite the switch_to() code") (in
            # v4.9), __schedule() itself switches stacks, with its bp last on the old one.
            bp, readable = gather_words(self.memory, places, self.word, self.faults)
            inside = self.memory.prog.symbol("__schedule").address + 1
            return np.full(len(sp), inside, np.uint64), sp, bp, readable
        start = gather(self.memory, places, frame, self.faults)
        return start["ret_addr"], sp + np.uint64(frame.size), start["bp"], start.readable

    def run(
        self, pc: Words, sp: Words, bp: Words, started: Mask, exact: Mask | None = None
    ) -> tuple[Lanes, Words, Words, Mask, Mask]:
        """Return the frames of all stacks as (lane, pc, sp, exact), and which stacks were cut.

        A return address is behind the call; in an interrupted function, the address is ``exact``.
        """
        exact = np.zeros(len(pc), np.bool_) if exact is None else exact
        is_cut = ~(started & _is_code(pc))
        every = np.flatnonzero(~is_cut)
        parts = [(every[:0], pc[:0], sp[:0], exact[:0])]
        # All steps of a walk read the same few pages.
        for start in range(0, len(every), _BLOCK):
            block = every[start : start + _BLOCK]
            with self.memory.keeping():
                parts += self._walk(block, pc[block], sp[block], bp[block], exact[block], is_cut)
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        lane, all_pc, all_sp, all_exact = (column[order] for column in columns)
        return lane, all_pc, all_sp, all_exact, is_cut

    def _walk(
        self, lanes: Lanes, pc: Words, sp: Words, bp: Words, interrupted: Mask, is_cut: Mask
    ) -> list[tuple[Lanes, Words, Words, Mask]]:
        """Return the frames of some stacks, a step of all at a time; note in ``is_cut``."""
        parts: list[tuple[Lanes, Words, Words, Mask]] = []
        step = self._by_orc if self.tables is not None else self._by_frame_pointer
        while len(lanes) and len(parts) < _MAX_FRAMES:
            parts.append((lanes, pc, sp, interrupted))
            pc, above, bp, interrupted, done, cut = step(lanes, pc, sp, bp, interrupted)
            # A caller's frame is at a higher address: no walk goes round in circles.
            cut |= ~done & ((above <= sp) | (above > self.high[lanes]) | ~_is_code(pc))
            is_cut[lanes[cut]] = True
            more = ~(done | cut)
            lanes, pc, sp, bp = lanes[more], pc[more], above[more], bp[more]
            interrupted = interrupted[more]
        is_cut[lanes] = True
        return parts

    def _load(self, addresses: Words, lanes: Lanes, wanted: Mask) -> tuple[Words, Mask]:
        """Return words of the stacks; 0 for unwanted ones, and outside of the stack."""
        ok = wanted & self.holds(addresses, lanes)
        values, readable = gather_words(
            self.memory,
            np.where(ok, addresses, np.uint64(0)),
            self.word,
            self.faults,
            use=Use.UNKNOWN,  # functions save any register
        )
        return values, ok & readable

    def _by_frame_pointer(
        self, lanes: Lanes, pc: Words, sp: Words, bp: Words, interrupted: Mask
    ) -> tuple[Words, Words, Words, Mask, Mask, Mask]:
        """Take one step: [bp] is the caller's bp, and the return address is above it.

        Return the callers' pc, sp, bp and ``interrupted``, and which stacks end, or are cut, here.
        """
        back, ok = self._load(bp, lanes, np.ones(len(lanes), np.bool_))
        target, target_ok = self._load(bp + np.uint64(8), lanes, ok)
        above = bp + np.uint64(16)
        # The outermost frame has no caller: entry code clears bp, or marks saved registers with bit
        # 0. If it does neither, there is no return address right below these registers.
        outermost = above >= self.high[lanes] - np.uint64(self.registers.size + _MAX_PADDING)
        done = (bp == 0) | ((bp & np.uint64(1)) != 0)
        done |= target_ok & (target == 0) & outermost
        return target, above, back, interrupted, done, ~target_ok & ~done

    def _by_orc(
        self, lanes: Lanes, pc: Words, sp: Words, bp: Words, interrupted: Mask
    ) -> tuple[Words, Words, Words, Mask, Mask, Mask]:
        """Take one step by the rules for all places; see :meth:`_by_frame_pointer`."""
        assert self.tables is not None
        rules = self.tables.rules(np.where(interrupted, pc, pc - np.uint64(1)))
        offset = rules.sp_offset.view(np.uint64)
        kind = rules.kind.copy()
        register = rules.sp_register
        frame = np.where(np.isin(register, (orc.BP, orc.BP_INDIRECT)), bp, sp)
        above = frame + offset
        loaded, ok = self._load(above, lanes, register == orc.BP_INDIRECT)
        above = np.where(register == orc.BP_INDIRECT, loaded, above)
        # Since Linux kernel commit 87ccc826bf1c ("x86/unwind/orc: Change REG_SP_INDIRECT") (in
        # v5.12), the word at the stack pointer comes first, the offset is added to it. Before, the
        # offset came first: such a frame leads to no code, and the stack is cut there.
        inner, inner_ok = self._load(sp, lanes, register == orc.SP_INDIRECT)
        above = np.where(register == orc.SP_INDIRECT, inner + offset, above)
        ok |= inner_ok | np.isin(register, (orc.BP, orc.SP))
        call, regs, partial = (
            (kind == each) & ok for each in (orc.CALL, orc.REGS, orc.REGS_PARTIAL)
        )
        target, target_ok = self._load(above - np.uint64(8), lanes, call)
        at = above + rules.bp_offset.view(np.uint64)
        at = np.where(rules.bp_register == orc.BP, bp + rules.bp_offset.view(np.uint64), at)
        saved = np.isin(rules.bp_register, (orc.PREVIOUS_SP, orc.BP))
        older, older_ok = self._load(at, lanes, saved & (call | partial))
        caller_bp = np.where(saved & older_ok, older, bp)
        # An interrupt or exception saved the registers of the interrupted code.
        members = self.registers.fields
        base = np.where(regs, above, above - np.uint64(members["ip"].offset))
        saving = (regs | partial) & self.holds(base, lanes, room=self.registers.size)
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
        return target, above, caller_bp, saving, done, ~good & ~done


def _is_code(places: Words) -> Mask:
    """Return which addresses are in the highest 2 GiB, like code of the kernel and modules."""
    return places >= np.uint64((1 << 64) - (1 << 31))
