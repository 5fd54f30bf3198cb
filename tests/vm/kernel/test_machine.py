# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the RAM of real kernels is used for, against the guest's own /proc/meminfo."""

from __future__ import annotations

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.sources import Target
from tests.lab import Dump
from tests.lab.trials import meminfo_bytes

_SLACK = 1 << 20
"""What the guest allocates and frees between its last look and the dump."""


def test_memory_is_what_the_guest_counted(mixed_dump: Dump, mixed_target: Target) -> None:
    counted = meminfo_bytes(mixed_dump.truth["meminfo"])
    found = machine(Kernel(mixed_target.prog))
    expected = {
        "free": counted["MemFree"],
        "page_cache": counted["Cached"] + counted["Buffers"] - counted["Shmem"],
        "shmem": counted["Shmem"],
        "anonymous": counted["AnonPages"],
        "slab_reclaimable": counted["SReclaimable"],
        "slab_unreclaimable": counted["SUnreclaim"],
        "page_tables": counted["PageTables"],
        "kernel_stacks": counted["KernelStack"],
        "per_cpu": counted["Percpu"],
        "huge_pages": counted["Hugetlb"],
    }
    for use, size in expected.items():
        assert abs(found.memory[use] - size) <= _SLACK, use
    assert sum(found.memory.values()) == found.ram_bytes
    assert expected["free"] > 100 * _SLACK
