# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks whose functions will complete a completion, or wake up the waiters of a bit.

A function on a stack that later completes another task's object holds up that task only if all code
of the module shows no other completer: interrupts, timers and running tasks are on no readable
stack. If code stores the address of the object, or passes it to a kernel function that may keep it,
any code may complete it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

import drgn
import numpy as np
from drgn.helpers.linux.module import address_to_module, module_address_regions

from kcensus.kernel.code.call_sites import Action, CallSites
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.names import ABSENT
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.graph import COMPLETED_BY, TASK

_VARIABLES = (1 << 64) - (1 << 31)
"""Lowest address of the variables of the kernel and its modules, which code names."""
_MAX_CODE = 1 << 22
"""Most bytes of a module's code to read."""
_WINDOW = 40
"""Most bytes between the address of an object and the call with it."""
_TAKES = re.compile(rb"(?=([\x48\x49\x4c\x4d])(\xc7|\x8d)(.)(....))", re.DOTALL)
"""mov $number, register; or lea distance(%rip), register."""
_STORE = (
    rb"[\x48\x49]\xc7(?:\x05....|[\x00-\x3f]|\x04.|[\x40-\x7f].|\x44..|[\x80-\xbf]....|\x84.....)"
)
"""Encoding of mov $number, memory, without the number."""
_FIRST = 7
"""%rdi."""
_ARGUMENTS = (7, 6, 2, 1, 8, 9)
_HARMLESS = """
    wait_for_completion wait_for_completion_timeout wait_for_completion_interruptible
    wait_for_completion_killable wait_for_completion_io wait_for_completion_state
    try_wait_for_completion completion_done out_of_line_wait_on_bit out_of_line_wait_on_bit_lock
    out_of_line_wait_on_bit_timeout __init_swait_queue_head __init_waitqueue_head _printk printk
"""
"""Functions that do not complete their argument."""
_CALL = re.compile(rb"[\xe8\xe9](?=(....))", re.DOTALL)


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
        lanes = lanes[self.object[lanes] >= np.uint64(_VARIABLES)]
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
    if escapes(code, start, object_, harmless):
        return None
    found = {sites.start_of(call) for call in calls_with(code, start, object_, targets)}
    return None if None in found else {each for each in found if each is not None}


def escapes(code: bytes, start: int, object_: int, harmless: Container[int]) -> bool:
    """Return whether code passes the address of an object to unknown code.

    It does by a store of the address, by a load into a register for no argument, or by a call of a
    kernel function that is not known to complete the object, wait for it or print it.
    """
    for found in _TAKES.finditer(code):
        prefix, is_lea, form = found[1][0], found[2] == b"\x8d", found[3][0]
        number, end = int.from_bytes(found[4], "little", signed=True), found.end(4)
        if is_lea:
            address, register = start + end + number, form >> 3 & 7 | (prefix & 4) << 1
            is_taken = form & 0xC7 == 0x05
        else:
            address, register = number % (1 << 64), form & 7 | (prefix & 1) << 3
            is_taken = form & 0xF8 == 0xC0
        if address != object_ or not is_taken:
            continue
        call = _CALL.search(code, end, end + _WINDOW)
        if register not in _ARGUMENTS or call is None:
            return True
        target = start + call.start() + 5 + int.from_bytes(call[1], "little", signed=True)
        is_own = start <= target < start + len(code)
        if target not in harmless and (register == _FIRST or not is_own):
            return True
    word = (object_ & 0xFFFFFFFF).to_bytes(4, "little")
    return re.search(_STORE + re.escape(word), code, re.DOTALL) is not None


def calls_with(code: bytes, start: int, object_: int, targets: Container[int]) -> Iterator[int]:
    """Yield the return addresses of calls of some functions with an object as their argument.

    :param start: address of the code
    :param targets: addresses of the functions
    """
    for place in _mentions(code, start, object_):
        for call in _CALL.finditer(code, place, min(place + _WINDOW, len(code))):
            after = start + call.start() + 5
            if after + int.from_bytes(call[1], "little", signed=True) in targets:
                yield after


def _mentions(code: bytes, start: int, object_: int) -> Iterator[int]:
    """Yield the offsets after each address of an object in code, absolute or relative."""
    for found in re.finditer(re.escape((object_ & 0xFFFFFFFF).to_bytes(4, "little")), code):
        yield found.end()
    for found in re.finditer(rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(....))", code, re.DOTALL):
        after = found.end() + 4
        if start + after + int.from_bytes(found[1], "little", signed=True) == object_:
            yield after


FINDER = Completions
