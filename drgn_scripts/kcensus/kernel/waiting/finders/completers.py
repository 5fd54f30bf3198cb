# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which code completes a completion, or wakes up who waits for a bit: all of it, of one module.

A function on a stack that completes later what another task waits for keeps that task only if none
but it does: an interrupt, a timer, or a task that runs is on no stack that can be read.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

import drgn
from drgn.helpers.linux.module import address_to_module, module_address_regions

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import ABSENT
from kcensus.kernel.tasks.call_sites import Action, CallSites

_MAX_CODE = 1 << 22
"""Bytes of a module to look at."""
_WINDOW = 40
"""Bytes between the address of an object and the call that it is for."""
_CALL = re.compile(rb"[\xe8\xe9](?=(....))", re.DOTALL)


def completers(kernel: Kernel, sites: CallSites, object_: int, pc: int) -> set[int] | None:
    """Return where the functions begin that complete an object of a module.

    :param pc: an address in code of this module
    :return: None for an object that is in another module, or in the kernel itself, and for code
        that is not in the dump
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
    found = {sites.start_of(call) for call in calls_with(code, start, object_, targets)}
    return None if None in found else {each for each in found if each is not None}


def calls_with(code: bytes, start: int, object_: int, targets: Container[int]) -> Iterator[int]:
    """Yield where code goes on after calls of some functions with an object as their argument.

    :param start: address of the code
    :param targets: addresses of the functions
    """
    for place in _mentions(code, start, object_):
        for call in _CALL.finditer(code, place, min(place + _WINDOW, len(code))):
            after = start + call.start() + 5
            if after + int.from_bytes(call[1], "little", signed=True) in targets:
                yield after


def _mentions(code: bytes, start: int, object_: int) -> Iterator[int]:
    """Yield the offsets behind the address of an object in code: whole, or from there."""
    for found in re.finditer(re.escape((object_ & 0xFFFFFFFF).to_bytes(4, "little")), code):
        yield found.end()
    for found in re.finditer(rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(....))", code, re.DOTALL):
        after = found.end() + 4
        if start + after + int.from_bytes(found[1], "little", signed=True) == object_:
            yield after
