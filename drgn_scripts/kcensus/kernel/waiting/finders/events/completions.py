# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks whose functions will complete a completion, or wake up the waiters of a bit.

A function on a stack that later completes another task's object holds up that task only if all code
of the module shows no other completer: interrupts, timers and running tasks are on no readable
stack. If code stores the address of the object, or passes it to a kernel function that may keep it,
any code may complete it.
"""

from __future__ import annotations

import drgn
import numpy as np
from drgn.helpers.linux.module import address_to_module, module_address_regions

from kcensus.engine.gather import within
from kcensus.kernel.code.call_sites import Action, CallSites
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import ABSENT
from kcensus.kernel.symbols import image_range
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.graph import COMPLETED_BY, TASK

_MAX_CODE = 1 << 22
"""Most bytes of a module's code to read."""
_HARMLESS = """
    wait_for_completion wait_for_completion_timeout wait_for_completion_interruptible
    wait_for_completion_killable wait_for_completion_io wait_for_completion_state
    try_wait_for_completion completion_done out_of_line_wait_on_bit out_of_line_wait_on_bit_lock
    out_of_line_wait_on_bit_timeout __init_swait_queue_head __init_waitqueue_head _printk printk
"""
"""Functions that do not complete their argument."""


class Completions(Finder):
    """Finds the tasks that will complete an object of other tasks."""

    about = "completions"

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.starts: dict[int, set[int] | None] = {}
        """Start addresses of the functions that complete each completion."""

    def find(self) -> None:
        """Add edges to the tasks with a function that completes an object."""
        sites = self.draft.sites
        lanes = self._of_type("struct completion", "unsigned long")
        # Code names only variables of the kernel and its modules.
        lanes = lanes[within(self.object[lanes], image_range(self.kernel.prog))]
        if not len(lanes):
            return
        kinds = {int(self.object[lane]): self.draft.kind_of(lane) for lane in lanes.tolist()}
        stacks = self.waits.stacks
        wanted = set(self.object[lanes].tolist())
        by_pc: dict[int, dict[int, bool]] = {}
        for pc in np.unique(stacks.pc).tolist():
            found = sites.completes(pc, stacks.names[pc])
            if wanted & set(found):
                by_pc[pc] = {each: found[each] for each in sorted(wanted & set(found))}
        for frame in np.flatnonzero(np.isin(stacks.pc, np.array(list(by_pc), np.uint64))).tolist():
            lane, pc = int(stacks.lane[frame]), int(stacks.pc[frame])
            # A task that waits for the object before it completes it is no completer now.
            others = sorted(by_pc[pc].keys() - {int(self.object[lane])})
            name = plain(stacks.names[pc])
            is_only = [by_pc[pc][each] and self._is_only(sites, pc, each) for each in others]
            self.build.edges(
                COMPLETED_BY,
                ([kinds[each] for each in others], np.array(others, np.uint64)),
                (TASK, np.repeat(self.waits.task[lane], len(others))),
                [f"{'only ' if each else ''}code of {name}" for each in is_only],
                strength=np.where(is_only, int(Strength.DERIVED), int(Strength.POSSIBLE)),
                frame=name,
            )

    def _is_only(self, sites: CallSites, pc: int, object_: int) -> bool:
        """Return whether only the function at ``pc`` completes an object."""
        if object_ not in self.starts:
            self.starts[object_] = completers(self.kernel, sites, object_, pc)
        start = sites.start_of(pc)
        return start is not None and self.starts[object_] == {start}


def completers(kernel: Kernel, sites: CallSites, object_: int, pc: int) -> set[int] | None:
    """Return the start addresses of the functions that complete an object of a module.

    :param pc: an address in code of this module
    :return: None for an object of another module, or of the kernel itself, and for code missing
        from the dump
    """
    prog = kernel.prog
    try:
        module = address_to_module(prog, object_)
        if not module:
            return None
        regions = module_address_regions(module)
    except (*ABSENT, AttributeError, ValueError, drgn.FaultError):
        return None
    text = [(start, size) for start, size in regions if start <= pc < start + size]
    if not text or text[0][1] > _MAX_CODE:
        return None
    start, size = text[0]
    try:
        code = prog.read(start, size)
    except drgn.FaultError:
        return None
    targets = {
        at
        for at, actions in sites.targets.items()
        if any(action is Action.COMPLETE for action, *_ in actions)
    }
    harmless = targets | {at for name in _HARMLESS.split() for at in sites.addresses(name)}
    calls = sites.completing(code, start, object_, targets, harmless)
    if calls is None:
        return None
    found = {sites.start_of(call) for call in calls}
    return None if None in found else {each for each in found if each is not None}


FINDER = Completions
