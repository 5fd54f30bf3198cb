# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pressure stall information of *synthetic* cgroups."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm import pressure as module
from kcensus.kernel.mm.pressure import pressure
from tests.unit.fakekernel import FakeKernel

_TYPES = """
struct rq 64 : 8 unsigned long clock
struct psi_group 128 : 8 unsigned long avg_last_update; 16 unsigned long [6][3] avg
struct cgroup 256 : 64 struct psi_group psi
"""
_SECOND = 10**9


@pytest.mark.parametrize(("age", "found"), [(2, 0.5), (60, None)])
def test_averages_of_a_cgroup_that_are_old_tell_nothing(
    monkeypatch: pytest.MonkeyPatch, age: int, found: float | None
) -> None:
    k = FakeKernel("6.10", _TYPES)
    k.enum("psi_states", ["PSI_IO_SOME", "PSI_IO_FULL", "PSI_MEM_SOME"])
    monkeypatch.setattr(module, "cpu_offsets", lambda _: np.zeros(1, np.uint64))
    queue = k.variable("runqueues", "struct rq")
    k.set(queue.clock, 100 * _SECOND)
    cgroup = k.alloc("struct cgroup")
    k.set(cgroup.psi.avg_last_update, (100 - age) * _SECOND)
    k.set(cgroup.psi.avg[2][0], 50 * 2048)
    assert pressure(Kernel(k.prog), int(cgroup.address_)) == found
