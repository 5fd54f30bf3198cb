# SPDX-License-Identifier: LGPL-2.1-or-later
"""Free slots of SLAB on a *synthetic* kernel, whose numbers can be in one of them."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.redaction.wiped import free_slots
from tests.unit.fakekernel import DIRECT_MAP, PAGE
from tests.unit.fakekernel.slab import SlabKernel


@pytest.mark.parametrize("where", ["behind", "inside"])
def test_all_is_wiped_but_the_numbers(where: str) -> None:
    k = SlabKernel()
    cache = k.cache("thing", 96, spare=1)
    slab, free = k.slab(cache, [9, 3, 7], where=where), [3, 5, 7, 9]
    k.array(k.cpu_array(cache, 0), [(slab, 5)])
    frames = np.zeros(slab.pfn + 2, np.bool_)
    frames[slab.pfn] = True
    report = ScanReport()
    wiped, links = free_slots(SlabMap(Memory(k.prog)), frames, report).inside(
        slab.address - DIRECT_MAP, PAGE
    )
    place = int(slab.struct.freelist) - slab.address
    numbers = {*range(place + slab.objects - 3, place + slab.objects)}
    slots = {at for slot in free for at in range(slot * 96, slot * 96 + 96)}
    assert {*np.flatnonzero(wiped).tolist()} == slots - numbers
    assert (len(slots & numbers), len(links)) == (3 if where == "inside" else 0, 0)
    assert report.complete
