# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pressure stall information: shares of time in which tasks lacked memory, I/O or a CPU."""

from __future__ import annotations

import drgn

from kcensus.engine.gather import gather_words
from kcensus.engine.memory import Faults
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import DAMAGED

_AVERAGES = 2048
"""FIXED_1: averages of PSI are percentages times this."""
_STATES = {
    "io_some": "PSI_IO_SOME",
    "io_full": "PSI_IO_FULL",
    "memory_some": "PSI_MEM_SOME",
    "memory_full": "PSI_MEM_FULL",
    "cpu_some": "PSI_CPU_SOME",
}
_STALE_NS = 6 * 10**9
"""The kernel updates averages every 2 s unless all CPUs are idle; after that, they are old."""


def pressures(kernel: Kernel) -> dict[str, float]:
    """Return the shares of the last 10 s in which some or all tasks of the machine were stalled.

    Empty if the kernel does not count them, or has not updated them for a while.
    """
    prog = kernel.prog
    try:
        # Since Linux kernel commit eb414681d5a0 ("psi: pressure stall information for CPU, memory,
        # and IO") (in v4.20).
        group = prog["psi_system"]
        if int(prog["psi_disabled"].key.enabled.counter):
            return {}
        if _is_stale(kernel, group):
            return {}
        averages = {key: _average(group, name) for key, name in _STATES.items()}
    except DAMAGED:
        return {}
    return {key: value for key, value in averages.items() if value is not None}


def pressure(kernel: Kernel, cgroup: int) -> float | None:
    """Return the share of the last 10 s in which some task of a cgroup lacked memory.

    None if the kernel does not count that, or has not updated it for a while.

    :param cgroup: address of a ``struct cgroup``
    """
    try:
        # Since Linux kernel commit 2ce7135adc9a ("psi: cgroup support") (in v4.20); since commit
        # 5f69a6577bc3 ("psi: dont alloc memory for psi by default") (in v6.0), a pointer.
        group = drgn.Object(kernel.prog, "struct cgroup", address=cgroup).psi
        if group.type_.kind == drgn.TypeKind.POINTER and (not group or not group.enabled):
            return None
        return None if _is_stale(kernel, group) else _average(group, "PSI_MEM_SOME") or None
    except DAMAGED:
        return None


def _is_stale(kernel: Kernel, group: drgn.Object) -> bool:
    """Return whether the averages of a ``struct psi_group`` are old."""
    prog = kernel.prog
    clock = drgn.offsetof(prog.type("struct rq"), "clock")
    places = cpu_offsets(prog) + (int(prog["runqueues"].address_of_()) + clock)
    now, _ = gather_words(kernel.memory, places, "u8", Faults())
    return int(now.max()) - int(group.avg_last_update) > _STALE_NS


def _average(group: drgn.Object, state: str) -> float | None:
    """Return an average of 10 s as a share of 1; None if it is impossible."""
    number = int(group.prog_.constant(state))
    # BTF has an array of arrays as a single one: here, of three averages for each state.
    is_flat = group.avg.type_.type.kind != drgn.TypeKind.ARRAY
    average = int(group.avg[3 * number] if is_flat else group.avg[number][0])
    return average / _AVERAGES / 100 if 0 <= average <= 101 * _AVERAGES else None
