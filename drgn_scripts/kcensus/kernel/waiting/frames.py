# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of running and runnable tasks; :mod:`.waits` has those of sleeping tasks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from functools import partial

import drgn
import numpy as np
from drgn import Object

from kcensus.arch import KERNEL, KNOWN, architecture_of
from kcensus.engine.memory import Faults, Numbers
from kcensus.kernel.code.text import text_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import ABSENT
from kcensus.kernel.symbols import described, symbols_of
from kcensus.kernel.tasks.functions import plain, waits_in
from kcensus.kernel.tasks.stacks import Stacks, running_stack, stacks, unknown_stacks
from kcensus.kernel.tasks.tasks import Tasks, tasks
from kcensus.sources.capsule import NotRecorded
from kcensus.text import printable

_MAX_FRAMES = 256
_MAX_INTERRUPT = 8
"""Most frames of the interrupt that preempted a task."""

SPINS = frozenset(
    {"queued_spin_lock_slowpath", "queued_read_lock_slowpath", "queued_write_lock_slowpath"}
).union(*(each.spins for each in KNOWN))
"""Functions that spin until a lock is free; their argument is ``lock``."""
_LOCKS = ("raw_spin_lock", "raw_read_lock", "raw_write_lock")
_INTERRUPTS = tuple(prefix for each in KNOWN for prefix in each.interrupts)
_VECTORS = frozenset().union(*(each.vectors for each in KNOWN))
_OF_DEVICES = tuple(prefix for each in KNOWN for prefix in each.device_interrupts)
_UNREADABLE = (
    *(*ABSENT, NotRecorded, AttributeError, ValueError, NotImplementedError),
    drgn.FaultError,
)


def has_dwarf(kernel: Kernel) -> bool:
    """Return whether drgn has the debug info that its stack traces need.

    Without it, they have the registers of the innermost frame, and then up to 1,024 frames of
    whatever the frame pointer leads to.
    """
    with contextlib.suppress(LookupError):
        return bool(kernel.prog.main_module().debug_file_path)
    return False


def runnable_stacks(kernel: Kernel, tasks: Tasks, rows: Numbers) -> Stacks:
    """Return the stacks of tasks without a CPU, by their rows among all tasks."""
    try:
        return stacks(kernel, tasks, rows, Faults())
    except LookupError:
        return unknown_stacks(len(rows))


def interrupted_in(functions: Sequence[str]) -> str:
    """Return the function in which a task was interrupted.

    :param functions: the innermost first
    """
    names = [plain(name) for name in functions]
    inside = range(min(len(names), _MAX_INTERRUPT))
    entries = [at for at in inside if names[at].startswith(_INTERRUPTS)]
    return waits_in(names[entries[-1] + 1 :] if entries else names)


def running_frames(kernel: Kernel, task: int) -> list[tuple[int, int]]:
    """Return the stack of a running task: each return address, and an address in the function.

    The innermost frame is first; inlined functions are left out. Empty if unknown.
    """
    places = list[tuple[int, int]]()
    with contextlib.suppress(*_UNREADABLE):
        if not has_dwarf(kernel):
            return _unwound(kernel, task)
        trace = running_trace(kernel, task) or ()
        for frame in itertools.takewhile(partial(_is_of_kernel, kernel.prog), trace):
            if not frame.is_inline:
                places.append((frame.pc, frame.pc if frame.interrupted else frame.pc - 1))
        if _has_link(kernel):
            # Of an interrupted function without unwind information, drgn loses the caller, which
            # is known to the link register only.
            places = max(places, _unwound(kernel, task), key=len)
    return places


def runs_program(kernel: Kernel, task: int) -> bool:
    """Return whether a running task is in its program, not in the kernel; False if unknown."""
    with contextlib.suppress(*_UNREADABLE):
        trace = kernel.prog.stack_trace(Object(kernel.prog, "struct task_struct *", value=task))
        return not _is_of_kernel(kernel.prog, trace[0])
    return False


def _is_of_kernel(prog: drgn.Program, frame: drgn.StackFrame) -> bool:
    """Return whether a frame is of the kernel; all frames further inside must be."""
    architecture = architecture_of(prog.platform)
    if architecture is None or not architecture.state:
        return bool(frame.pc >= KERNEL)
    name, bit = architecture.state
    with contextlib.suppress(LookupError):
        return bool(frame.pc) and not frame.register(name) & bit
    # Only registers that were saved have the state; other frames are of callers in the kernel.
    return bool(frame.pc)


def _has_link(kernel: Kernel) -> bool:
    architecture = architecture_of(kernel.prog.platform)
    return architecture is not None and bool(architecture.link)


def _unwound(kernel: Kernel, task: int) -> list[tuple[int, int]]:
    """Return the stack of a running task by its registers and the kernel's own tables."""
    object_ = Object(kernel.prog, "struct task_struct *", value=task)
    frame = kernel.prog.stack_trace(object_)[0]
    architecture = architecture_of(kernel.prog.platform)
    if architecture is None or not _is_of_kernel(kernel.prog, frame):
        return []
    registers = frame.registers()
    base, link = (
        int(registers[name]) if name else 0
        for name in (architecture.frame_pointer, architecture.link)
    )
    return running_stack(kernel, int(object_.stack), (frame.pc, frame.sp, base, link))


def running_trace(kernel: Kernel, task: int) -> drgn.StackTrace | None:
    """Return the stack of a running task as drgn has it.

    None without debug info, or without the registers of the CPU, which a dump has after a panic.
    """
    prog = kernel.prog
    with contextlib.suppress(*_UNREADABLE):
        if not has_dwarf(kernel):
            return None
        trace = prog.stack_trace(Object(prog, "struct task_struct *", value=task))
        if len(trace) <= _MAX_FRAMES:  # else it went astray
            return trace
    return None


def runs_in(functions: Sequence[str]) -> str:
    """Return the function in which a running task is, without interrupts and spinning for locks.

    :param functions: the innermost first
    """
    names = [plain(name) for name in functions]
    inside = [at for at, name in enumerate(names) if name.startswith(_OF_DEVICES)]
    names = names[inside[-1] + 1 :] if inside else names
    return next((name for name in names if not is_spin(name)), "")


def is_at_vector(functions: Sequence[str]) -> bool:
    """Return whether an exception has just come in: the interrupted function may lack a frame.

    :param functions: of a running task, the innermost first
    """
    return bool(functions) and plain(functions[0]) in _VECTORS


def staying(kernel: Kernel, frames: Iterable[tuple[int, str]], function: str) -> str:
    """Return the function that keeps a task: one, or its caller if no task stays in it.

    A loop that calls a function without loops, such as ``kthread_should_stop()``, may be
    interrupted in that one.

    :param frames: address in the code and name of each, the innermost first
    :param function: of one of the frames
    """
    rest = itertools.dropwhile(lambda frame: plain(frame[1]) != function, frames)
    inner, caller = next(rest, None), next(rest, None)
    if inner is None or caller is None:
        return function
    text = text_of(kernel)
    with contextlib.suppress(*_UNREADABLE):
        extent = text.functions.extent(inner[0]) if text.is_decoded else None
        # A call may be the last thing in a function.
        is_own = extent is not None and symbols_of(kernel)(inner[0])[0] == inner[1]
        if extent is not None and is_own and text.is_passing(extent):
            return plain(caller[1])
    return function


def spins(kernel: Kernel, task: int) -> bool:
    """Return whether a running task is in the slow path of a spinlock."""
    symbols = symbols_of(kernel)
    return any(symbols(inside)[0] in SPINS for _, inside in running_frames(kernel, task))


def is_spin(name: str) -> bool:
    """Return whether a function takes a lock by spinning for it."""
    return name in SPINS or name.lstrip("_").startswith(_LOCKS)


def place_of(kernel: Kernel, pid: int) -> str:
    """Return the function in which a task runs or sleeps, with its module; empty if unknown."""
    known = tasks(kernel)
    symbols = symbols_of(kernel)
    for row in np.flatnonzero((known.pid == pid) & ~known.has_exited).tolist():
        if known.is_on_cpu[row]:
            running = running_frames(kernel, int(known.address[row]))
            names = [symbols(inside) for _, inside in running]
            function = runs_in([name for name, _ in names])
            inner = [pc for pc, _ in running]
        else:
            found = runnable_stacks(kernel, known, np.array([row]))
            inner = found.pc[found.frames(0)].tolist()
            names = [(found.names[pc], found.modules.get(pc, "")) for pc in inner]
            functions = [name for name, _ in names]
            function = waits_in(functions) if known.is_asleep[row] else interrupted_in(functions)
        if not known.is_asleep[row]:
            frames = zip(inner, (name for name, _ in names), strict=True)
            function = staying(kernel, frames, function)
        module = next((module for name, module in names if plain(name) == function), "")
        return printable(described(function, module)) if function else ""
    return ""
