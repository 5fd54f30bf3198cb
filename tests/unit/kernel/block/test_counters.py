# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters of requests in flight on *synthetic* memory: partitions, and local_t of powerpc."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import disks
from tests.unit.fakekernel import FakeKernel, add_types

_DISK = 0xFFFF_8880_0000_1000


@pytest.mark.parametrize("local", ["0 struct atomic a", "0 long v"], ids=["x86", "powerpc"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_partitions_count(local: str, is_damaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "cpu_offsets", lambda prog: np.array([0, 64], np.uint64))
    k = FakeKernel("6.13")
    types = {
        "struct atomic": (8, "0 long counter"),
        "struct local": (8, local),
        "struct disk_stats": (64, "0 struct local [2] in_flight"),
        "struct block_device": (8, "0 struct disk_stats * bd_stats"),
    }
    add_types(k.prog, types, "block")
    parts = []
    # Of the whole disk and of a partition; requests end on other CPUs than they begin on.
    for reads, writes in (([1, 0], [0, 0]), ([5, -2], [0, 4])):
        part = k.alloc("struct block_device")
        stats = k.alloc("struct disk_stats [2]", alone=True)
        k.set(part.bd_stats, stats)
        for cpu in range(2):
            for way, values in enumerate((reads, writes)):
                place = stats[cpu].in_flight[way]
                k.write_words(int(place.address_), values[cpu] % (1 << 64))
        parts.append(int(part.address_))
    if is_damaged:
        k.set(part.bd_stats, 0)
    found = disks._in_flight(
        Memory(k.prog),
        np.array(parts, np.uint64),
        np.full(2, _DISK, np.uint64),
        np.array([0, 1]),
        np.array([_DISK], np.uint64),
        Faults(),
    )
    assert found.tolist() == ([[-1, -1]] if is_damaged else [[4, 4]])
