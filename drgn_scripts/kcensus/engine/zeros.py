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
_NEVER_ZERO = (
    "__cpu_online_mask __cpu_possible_mask __cpu_present_mask __per_cpu_offset _job_cache "
    "_totalram_pages bit_wait_table blockdev_superblock cgrp_dfl_root class_kset "
    "clocksource_jiffies cpu_online_mask cpu_possible_mask dentry_hashtable exception_cache "
    "folio_wait_table fs_bio_set init_mm init_pid_ns init_task init_uts_ns jiffies jiffies_64 "
    "kthreadd_task log_buf max_pfn module_kset nr_cpu_ids nr_node_ids nr_threads "
    "page_wait_table pcpu_nr_units pending_cache prb rcu_num_nodes rcu_state saved_command_line "
    "slab_kset timekeeper timekeeper_data tk_core totalram_pages"
)
"""Variables without a list that are not 0 on any kernel that runs, separated by spaces."""


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

    A variable that may be 0 can be alone on a page that was never written. So it is lost if another
    one that was looked up is on its page, or if it is never 0 itself.
    """
    noted = cast("dict[tuple[str, FindObjectFlags, str | None], None]", prog.cache[note_variables])
    places, per_cpu = addresses_of(prog.platform), _per_cpu(prog)
    pages: dict[int, dict[str, Object]] = {}
    for name, flags, file in [*noted]:
        try:
            variable = prog.object(name, flags, file)
            address = variable.address_
        except (LookupError, drgn.FaultError, drgn.ObjectAbsentError, NotRecorded):
            continue
        # The address of a per-CPU variable can be an offset.
        if address is None or address not in places or address in per_cpu:
            continue
        if is_zeroed(prog, address):
            pages.setdefault(address & -int(prog["PAGE_SIZE"]), {})[name] = variable
    never_zero = _NEVER_ZERO.split()
    return sorted(
        name
        for found in pages.values()
        for name, variable in found.items()
        if len(found) > 1 or name in never_zero or _is_initialized(variable)
    )


def _is_initialized(variable: Object) -> bool:
    """Return whether a variable is never 0: a list that is empty points to itself.

    Since Linux kernel commit 0a835c4f090a ("Reimplement IDR and IDA using the radix tree") (in
    v4.11), an IDR has flags.
    """
    type_ = variable.type_
    if type_.kind != drgn.TypeKind.STRUCT:
        return False
    heads = (type_, *(member.type for member in type_.members or ()))
    return type_.has_member("idr_rt") or any(
        each.type_name() == "struct list_head" for each in heads
    )


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
