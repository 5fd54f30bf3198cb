# SPDX-License-Identifier: LGPL-2.1-or-later
"""Steps along stacks of arm64, by frame records.

A frame record is the caller's x29 and the return address, which also may have a pointer
authentication code (PAC). Where an exception interrupts the kernel, the registers that it saves
contain a record, which differs by release:

* until v5.10, and since v5.14, zeros end a stack whose task came from a program; since Linux kernel
  commit 7d7b720a4b80 ("arm64: Implement stack trace termination record") (in v5.14), any stack;
* since commit c2c6b27b5aa1 ("arm64: stacktrace: unwind exception boundaries") (in v6.13), records
  of zeros have a type behind them: the end of the stack, or registers;
* before, the record in the registers of an interrupted function has its x29 and pc.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import drgn
import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.gather import gather, gather_words, plausible, within
from kcensus.engine.layout import Layout, layout, word_dtype
from kcensus.engine.memory import Faults, Guess, Mask, Words
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.arch.back_chain import called_by_link
from kcensus.kernel.arch.model import Frames, StackMemory, Step
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.size import stack_size
from kcensus.kernel.symbols import image_range

_FINAL, _REGISTERS = 1, 2
"""FRAME_META_TYPE_FINAL and FRAME_META_TYPE_PT_REGS."""
_MODES = (4, 5, 8, 9)
"""Modes in pstate, PSR_MODE_MASK: EL1t, EL1h, and the same of EL2, where the kernel can run."""
_MODE = np.uint64(0x1F)
_SIGN = np.uint64(1 << 55)
"""This bit of an address is 1 in the kernel, whatever else the bits above it hold."""
_VA_BITS = 48
_MAX_ENTRY = 512
"""Most bytes of frames of entry code below the registers at the end of a stack."""
_STACKS = ("irq_stack_ptr", "sdei_stack_normal_ptr", "sdei_stack_critical_ptr")
"""Per-CPU pointers to stacks of the size of a task's."""
_NEW_ENTRY = "el0t_64_sync"
_OVERFLOW, _OVERFLOW_SIZE = "overflow_stack", 4096
"""Per-CPU array, and OVERFLOW_STACK_SIZE."""


class Unwinder:
    """The steps of arm64; see :class:`kcensus.kernel.arch.model.Unwinder`.

    :raises LookupError: the debug info lacks a type
    """

    def __init__(self, stacks: StackMemory) -> None:
        self.stacks, self.memory, self.faults = stacks, stacks.memory, stacks.faults
        prog = self.memory.prog
        members = {"pc": "pc", "sp": "sp", "base": "regs[29]", "link": "regs[30]"}
        members |= {"pstate": "pstate"}
        self.registers: Layout = layout(prog, "struct pt_regs", members)
        # Since Linux kernel commit 732674980139 ("arm64: unwind: reference pt_regs via embedded
        # stack frame") (in v4.14).
        self._record, self._has_types = 0, False
        with suppress(LookupError):
            record = prog.type("struct pt_regs").member("stackframe")
            self._record = record.offset
            self._has_types = drgn.sizeof(record.type) > 16
        self._has_last = _has_last_records(prog)
        self._mask = np.uint64(pac_mask(prog))
        self._code = image_range(prog)

    @property
    def ends_at_entry(self) -> bool:
        """Whether the entry of kernel threads ends a stack: until v5.14, it has no record."""
        return not self._has_last

    def starts(self, task: Words, sp: Words) -> tuple[Frames, Mask]:
        """Return the innermost frames of tasks without a CPU, and a mask of the known ones."""
        context = {name: f"thread.cpu_context.{name}" for name in ("fp", "sp", "pc")}
        members = layout(self.memory.prog, "struct task_struct", context)
        read = gather(self.memory, task, members, self.faults)
        pc = self.stripped(read["pc"])
        none = np.zeros(len(task), np.uint64)
        is_known = read.readable & self.stacks.inside(read["sp"]) & self._is_code(pc)
        return Frames(pc, read["sp"], read["fp"], none != 0, none), is_known

    def stripped(self, addresses: Words) -> Words:
        """Return addresses of code without PAC."""
        return np.where((addresses & _SIGN) != 0, addresses | self._mask, addresses)

    def step(self, lanes: Lanes, frames: Frames) -> Step:
        """Return the callers of a frame of some stacks."""
        base, every = frames.base, np.ones(len(lanes), np.bool_)
        back, ok = self.stacks.load(base, lanes, every)
        target, target_ok = self.stacks.load(base + np.uint64(8), lanes, ok)
        ok &= target_ok
        target = self.stripped(target)
        is_zero = ok & (back == 0) & (target == 0)
        kind = np.zeros(len(lanes), np.uint64)
        if self._has_types:
            kind, _ = self.stacks.load(base + np.uint64(16), lanes, is_zero)
        top = self.stacks.high[lanes] - np.uint64(self.registers.size)
        done = is_zero & (base == top + np.uint64(self._record))
        done &= (kind == _FINAL) | ~np.bool_(self._has_types)
        if not self._has_last:
            # Without a caller's x29, a stack ends at its upper end only: elsewhere, it is damaged.
            done |= (base == 0) & (frames.sp >= top - np.uint64(_MAX_ENTRY))
        link = self.stripped(frames.link)
        known = replace(frames, link=link)
        by_link = called_by_link(self.stacks, known, target, self._is_code(link))
        done &= ~by_link
        sp = np.where(back == 0, base + np.uint64(16), back)
        callers = Frames(
            pc=np.where(by_link, link, target),
            sp=np.where(by_link, base, sp),
            base=np.where(by_link, base, back),
            is_exact=~every,
            link=np.zeros(len(lanes), np.uint64),
        )
        saved = ok & ~by_link & np.where(is_zero, kind == _REGISTERS, self._record > 0)
        callers, saving = self._interrupted(lanes, base, callers, saved, is_zero)
        good = (ok & ~is_zero) | saving | by_link
        good &= self.stacks.is_further(lanes, frames, callers) & self._is_code(callers.pc)
        # Stacks can be in the same region of addresses as code.
        good &= ~self.stacks.inside(callers.pc, lanes)
        return Step(callers, done, ~good & ~done)

    def _interrupted(
        self, lanes: Lanes, base: Words, callers: Frames, wanted: Mask, is_marked: Mask
    ) -> tuple[Frames, Mask]:
        """Replace callers by the interrupted functions whose registers contain the frame record.

        :param base: places of frame records
        :param wanted: which of them may lie within registers
        :param is_marked: which do, by their type; others must have the x29 and pc of the registers
        :return: the callers, and which are interrupted
        """
        start = base - np.uint64(self._record)
        wanted = wanted & (self.stacks.index(start, lanes, self.registers.size) >= 0)
        saving = np.zeros(len(lanes), np.bool_)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return callers, saving
        read = gather(self.memory, start[rows], self.registers, Guess())
        pc = self.stripped(read["pc"])
        same = (read["base"] == callers.base[rows]) & (pc == callers.pc[rows])
        kernel = np.isin(read["pstate"] & _MODE, _MODES)
        found = read.readable & kernel & (same | is_marked[rows])
        saving[rows[found]] = True
        columns = [callers.pc.copy(), callers.sp.copy(), callers.base.copy(), callers.link.copy()]
        values = (pc, read["sp"], read["base"], read["link"])
        for column, value in zip(columns, values, strict=True):
            column[rows[found]] = value[found]
        return Frames(columns[0], columns[1], columns[2], saving, columns[3]), saving

    def _is_code(self, places: Words) -> Mask:
        return np.asarray(within(places, self._code) & ((places & np.uint64(3)) == 0))


def _has_last_records(prog: drgn.Program) -> bool:
    """Return whether any stack ends with a record.

    They came in the release of Linux kernel commit a5b43a87a760 ("arm64: entry: template the entry
    asm functions") (in v5.14), which renamed the entries of exceptions.
    """
    try:
        prog.symbol(_NEW_ENTRY)
    except LookupError:
        return False
    return True


def pac_mask(prog: drgn.Program) -> int:
    """Return the bits of an address of kernel code that may hold its PAC; all are 1 without one.

    VMCOREINFO has them since Linux kernel commit 203b1152d18c ("arm64/crash_core: Export
    KERNELPACMASK in vmcoreinfo") (in v5.8), 0 for a machine without PAC. Else, they are the bits
    above those of addresses.
    """
    mask = _number(prog, "KERNELPACMASK")
    if mask is not None:
        return mask
    bits = _number(prog, "VA_BITS") or _VA_BITS
    return (1 << 64) - (1 << min(max(bits, 32), _VA_BITS))


def _number(prog: drgn.Program, name: str) -> int | None:
    with suppress(*DAMAGED):
        text: bytes = prog["VMCOREINFO"].string_()
        pattern = rb"^NUMBER\(%s\)=(0x[0-9a-f]{1,16}|[0-9]{1,19})$" % name.encode()
        found = re.search(pattern, text, re.MULTILINE)
        return int(found[1], 0) if found else None
    return None


def cpu_stacks(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Return start and end of the CPUs' stacks for interrupts, overflows and firmware events."""
    prog, found = kernel.prog, list[tuple[int, int]]()
    word, size = word_dtype(prog), stack_size(prog)
    for name in (*_STACKS, _OVERFLOW):
        # Symbols are enough, which kernels without debug info have, too.
        with suppress(*DAMAGED):
            starts, length = cpu_offsets(prog) + np.uint64(prog.symbol(name).address), size
            if name == _OVERFLOW:
                length = _OVERFLOW_SIZE
            else:
                starts, _ = gather_words(kernel.memory, starts, word, Faults())
            # Damaged ones may reach beyond the last address.
            starts = starts[plausible(kernel.memory, starts, length)]
            found += [(start, start + length) for start in starts.tolist()]
    return tuple(found)
