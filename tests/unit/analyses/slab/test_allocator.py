# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analysis on a *synthetic* kernel with SLAB."""

from __future__ import annotations

import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.knobs import has_knob
from tests.running import rows
from tests.unit.analyses.slab.making import all_agree, analyse, check, gaps
from tests.unit.fakekernel.slab import SlabKernel


@pytest.fixture
def k() -> SlabKernel:
    k = SlabKernel()
    filp, wide = k.cache("filp", 256, spare=1), k.cache("wide", 512, order=1, spare=1)
    first = k.slab(filp, [4, 1], colour=64)
    k.slab(filp, where="inside", node=1)
    k.slab(wide, range(15), where="outside")
    k.array(k.cpu_array(filp, 1), [(first, 0), (first, 2)])
    k.settle()
    return k


def test_objects_and_counters(k: SlabKernel) -> None:
    result = analyse(k)
    found = rows(result, "caches", "cache", "slabs", "objects_total", "objects_active")
    assert sorted(found) == [("filp", 2, 30, 26), ("wide", 1, 15, 0)]
    counters = {each.name: (each.ours, each.counter) for each in result.checks}
    assert counters["total_slabs, all caches"] == (3, 3)
    assert counters["free_objects, all caches"] == (17, 17)
    assert all_agree(result)
    assert not gaps(result)


def test_a_wrong_counter_shows(k: SlabKernel) -> None:
    k.set(k.node(k.caches[0], 0).free_objects, 7)
    assert check(analyse(k), "free_objects, filp").difference == 5


def test_no_command_is_for_files_that_slab_lacks(k: SlabKernel) -> None:
    cache = k.caches[1]
    for _ in range(300):
        k.slab(cache, range(15))
    k.settle()
    k.set_ram(30000)
    finding = next(each for each in analyse(k).findings if each.id == "slab-waste:wide")
    assert not finding.remedies
    assert "SLAB" in finding.no_remedy
    assert has_knob(Kernel(k.prog), "/sys/kernel/slab/wide/shrink") is False
