# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel stacks of sleeping tasks as drgn unwinds them, for machines without a reader of ours."""

from __future__ import annotations

import contextlib

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.memory import Words
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.size import stack_size
from kcensus.kernel.symbols import symbols_of
from kcensus.kernel.tasks.stacks import Stacks

MOST = 256
"""Most stacks to unwind: drgn takes 11 ms for one of ppc64le, and 14 ms for one of s390x."""
_MAX_FRAMES = 256


def has_dwarf(kernel: Kernel) -> bool:
    """Return whether drgn has the debug info that its stack traces need.

    Without it, they have the registers of the innermost frame, and then up to 1,024 frames of
    whatever the frame pointer leads to.
    """
    with contextlib.suppress(LookupError):
        return bool(kernel.prog.main_module().debug_file_path)
    return False


def traced_stacks(kernel: Kernel, task: Words, stack: Words) -> Stacks:
    """Return the stacks of the first :data:`MOST` tasks; those of the others are cut at once.

    Like ours, they are without inlined functions and what is not on the task's own stack.

    :param task: addresses of ``struct task_struct``
    :param stack: lowest addresses of their stacks
    :raises LookupError: kcensus has a reader of its own, the debug info is not DWARF, or lacks a
        type
    """
    if readers_of(kernel.prog.platform) is not None:
        raise LookupError("drgn is not asked for stacks of this architecture")
    if not has_dwarf(kernel):
        raise LookupError("drgn unwinds stacks with DWARF only")
    size = stack_size(kernel.prog)
    is_cut = np.ones(len(task), np.bool_)
    lanes, pcs, sps = list[int](), list[int](), list[int]()
    for lane, address in enumerate(task[:MOST].tolist()):
        own = range(int(stack[lane]), int(stack[lane]) + size)
        for pc, sp in _frames(kernel.prog, address):
            if sp not in own:
                break
            lanes.append(lane)
            pcs.append(pc)
            sps.append(sp)
            is_cut[lane] = False
    symbols = symbols_of(kernel)
    known = {pc: symbols(pc - 1) for pc in set(pcs)}
    return Stacks(
        np.array(lanes, np.int64),
        np.array(pcs, np.uint64),
        np.array(sps, np.uint64),
        is_cut,
        {pc: name for pc, (name, _) in known.items()},
        size,
        {pc: module for pc, (_, module) in known.items() if module},
    )


def _frames(prog: drgn.Program, task: int) -> list[tuple[int, int]]:
    """Return pc and sp of each frame, the innermost first; none if drgn cannot tell."""
    frames = list[tuple[int, int]]()
    try:
        trace = prog.stack_trace(Object(prog, "struct task_struct *", value=task))
        for frame in list(trace)[:_MAX_FRAMES]:
            if not frame.is_inline:
                frames.append((int(frame.pc), int(frame.sp)))
    except DAMAGED:
        # The frames before the damaged one are good.
        return frames
    return frames
