# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of sleeping tasks, all unwound together, one frame of every stack a step.

Like the kernel, this needs no debug info of functions, but ORC tables, frame pointers, frame
records or back chains.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import drgn
import numpy as np

from kcensus.engine.chase import Lanes
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import spread
from kcensus.kernel.arch.model import Frames, StackMemory, Unwinder
from kcensus.kernel.arch.readers import Readers, readers_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.size import stack_size
from kcensus.kernel.symbols import described, symbols_of
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.tasks import Tasks

_MAX_FRAMES = 256
_BLOCK = 1 << 11
"""Stacks to walk at a time, with their pages in memory."""
_ENTRY = "ret_from_fork"


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


def stacks(kernel: Kernel, tasks: Tasks, rows: Numbers, faults: Faults) -> Stacks:
    """Return the stacks of tasks that are not on a CPU, by their rows among all tasks.

    :raises LookupError: no reader for this architecture, the debug info lacks a type, or the unwind
        tables are damaged
    """
    size = stack_size(kernel.prog)
    memory = StackMemory(kernel, tasks.stack[rows], size, faults)
    unwinder = _readers(kernel.prog).unwinder(memory)
    lane, pc, bottom, is_exact, is_cut = walk(
        memory, unwinder, *unwinder.starts(tasks.address[rows], tasks.sp[rows])
    )
    symbols, exact = symbols_of(kernel), set(pc[is_exact].tolist())
    # A function may be interrupted at its first instruction.
    known = {place: symbols(place - (place not in exact)) for place in np.unique(pc).tolist()}
    names = {place: name for place, (name, _) in known.items()}
    modules = {place: module for place, (_, module) in known.items() if module}
    if unwinder.ends_at_entry:
        entries = [place for place, name in names.items() if plain(name) == _ENTRY]
        is_cut[lane[np.isin(pc, np.array(entries, np.uint64))]] = False
    return Stacks(lane, pc, bottom, is_cut, names, size, modules)


def running_stack(
    kernel: Kernel, stack: int, registers: tuple[int, int, int, int]
) -> list[tuple[int, int]]:
    """Return the stack of a running task by the registers of its CPU.

    Each frame is its return address, and an address in the function; the innermost is first. Where
    the stack goes on in another one, such as that of interrupts, it is cut on some architectures.

    :param stack: lowest address of the task's stack
    :param registers: instruction, stack and frame pointer, and link register; 0 for none
    :raises LookupError: as for :func:`stacks`
    """
    low, size = np.array([stack], np.uint64), stack_size(kernel.prog)
    readers = _readers(kernel.prog)
    memory = StackMemory(kernel, low, size, Faults(), readers.cpu_stacks(kernel))
    pc, sp, base, link = (np.array([each], np.uint64) for each in registers)
    started = np.ones(1, np.bool_)
    _, places, _, exact, _ = walk(
        memory, readers.unwinder(memory), Frames(pc, sp, base, started, link), started
    )
    inside = places - (~exact).astype(np.uint64)
    return [*zip(places.tolist(), inside.tolist(), strict=True)]


def unknown_stacks(count: int) -> Stacks:
    """Return stacks without known frames."""
    none = np.empty(0, np.uint64)
    return Stacks(np.empty(0, np.int64), none, none, np.ones(count, np.bool_), {}, 0)


def _readers(prog: drgn.Program) -> Readers:
    readers = readers_of(prog.platform)
    if readers is None:
        raise LookupError("kcensus does not unwind stacks of this architecture")
    return readers


def walk(
    memory: StackMemory, unwinder: Unwinder, start: Frames, is_started: Mask
) -> tuple[Lanes, Words, Words, Mask, Mask]:
    """Return the frames of all stacks as (lane, pc, sp, is_exact), and which stacks were cut.

    A return address is behind the call; in an interrupted function, the address is exact.

    :param start: the innermost frames
    :param is_started: which of them are known
    """
    is_cut = ~is_started
    every = np.flatnonzero(is_started)
    parts = [(every[:0], start.pc[:0], start.sp[:0], start.is_exact[:0])]
    # All steps of a walk read the same few pages.
    for first in range(0, len(every), _BLOCK):
        lanes = every[first : first + _BLOCK]
        with memory.memory.keeping():
            parts += _walk(unwinder, lanes, start.rows(lanes), is_cut)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    lane, pc, sp, is_exact = (column[order] for column in columns)
    return lane, pc, sp, is_exact, is_cut


def _walk(
    unwinder: Unwinder, lanes: Lanes, frames: Frames, is_cut: Mask
) -> list[tuple[Lanes, Words, Words, Mask]]:
    """Return the frames of some stacks, a step of all at a time; note in ``is_cut``."""
    parts: list[tuple[Lanes, Words, Words, Mask]] = []
    while len(lanes) and len(parts) < _MAX_FRAMES:
        parts.append((lanes, frames.pc, frames.sp, frames.is_exact))
        step = unwinder.step(lanes, frames)
        is_cut[lanes[step.is_cut]] = True
        more = ~(step.is_done | step.is_cut)
        lanes, frames = lanes[more], step.callers.rows(more)
    is_cut[lanes] = True
    return parts
