# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pages that are all zero, where the kernel must have an object: they are lost, not empty."""

from __future__ import annotations

from typing import TypeVar, cast

import drgn
from drgn import FindObjectFlags, Object, Program

from kcensus.arch import addresses_of
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.capsule.uses import reading_nothing
from kcensus.sources.faults import ZEROED

T = TypeVar("T", bound=Object)
_FINDER = "kcensus variables"


def is_zeroed(prog: Program, address: int) -> bool:
    """Return whether the page of an address is all zero; unreadable ones are not."""
    try:
        size = int(prog["PAGE_SIZE"])
        with reading_nothing(prog):
            return not any(prog.read(address & -size, size))
    except (drgn.FaultError, LookupError, NotRecorded):
        return False


def is_lost(variable: Object) -> bool:
    """Return whether a variable is zero because its whole page is; unreadable ones are not."""
    return is_zeroed(variable.prog_, int(variable.address_ or 0))


def present(struct: T) -> T:
    """Return a struct to which a pointer leads.

    :raises drgn.FaultError: it begins on a page that is all zero
    """
    address = int(struct.address_ or 0)
    if is_zeroed(struct.prog_, address):
        raise drgn.FaultError(ZEROED, address)
    return struct


def note_variables(prog: Program) -> None:
    """Note from now on which variables are looked up, for :func:`lost_variables`."""
    if _FINDER in prog.registered_object_finders():
        return
    noted: dict[tuple[str, FindObjectFlags, str | None], None] = {}
    prog.cache[note_variables] = noted

    def find(_prog: Program, name: str, flags: FindObjectFlags, file: str | None) -> None:
        if flags & FindObjectFlags.VARIABLE:
            noted[name, flags, file] = None

    prog.register_object_finder(_FINDER, find, enable_index=0)


def lost_variables(prog: Program) -> list[str]:
    """Return the names of variables that were looked up, and are on pages that are all zero.

    Variables of a kernel, or of a module, share their pages with others that are not zero.
    """
    noted = cast("dict[tuple[str, FindObjectFlags, str | None], None]", prog.cache[note_variables])
    lost, places, per_cpu = set(), addresses_of(prog.platform), _per_cpu(prog)
    for name, flags, file in [*noted]:
        try:
            address = prog.object(name, flags, file).address_
        except (LookupError, drgn.FaultError, drgn.ObjectAbsentError, NotRecorded):
            continue
        # The address of a per-CPU variable can be an offset.
        if address is None or address not in places or address in per_cpu:
            continue
        if is_zeroed(prog, address):
            lost.add(name)
    return sorted(lost)


def _per_cpu(prog: Program) -> range:
    """Return the addresses of the per-CPU variables of the kernel image, if they are in it.

    Since Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative percpu offsets") (in
    v6.15). Their memory is used again after the start.
    """
    try:
        start, end = (prog.symbol(f"__per_cpu_{each}").address for each in ("start", "end"))
    except (LookupError, NotRecorded):
        return range(0)
    return range(start, end)
