# SPDX-License-Identifier: LGPL-2.1-or-later
"""Users of the objects of kmalloc(), on *synthetic* kernels."""

from __future__ import annotations

import numpy as np
import pytest
from drgn import FaultError

from kcensus.analyses.slab import figures as slab_figures
from kcensus.analyses.slab.figures import NOT_ATTRIBUTED, VECTORS
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.slab.kmalloc_users import Objects
from tests.running import rows
from tests.unit.analyses.slab.making import World, analyse, charged_world, every_objcg_era, gaps


@every_objcg_era
def test_users_of_kmalloc(era: str) -> None:
    made = charged_world(era)
    k = made.k
    k.slab(k.caches[3], range(3, 16))
    k.settle()
    assert rows(analyse(k), "kmalloc", "cache", "user", "objects", "bytes", "share") == [
        ("kmalloc-256", NOT_ATTRIBUTED, 3, 768, 0.6),
        ("kmalloc-256", VECTORS, 2, 512, 0.4),
    ]


def test_no_object_has_two_users(monkeypatch: pytest.MonkeyPatch) -> None:
    made = charged_world("6.10")
    slab, other = made.slabs["k0"], made.slabs["f0"]
    first, second = slab.object(0), slab.object(1)

    def some(_kernel: Kernel, _report: ScanReport) -> Objects:
        # A vector, the middle of an object, another cache's, none, and one that is free.
        for each in (first, second + 8, other.object(0), 0, slab.object(2)):
            yield "some", np.array([each, each], np.uint64)

    def absent(_kernel: Kernel, _report: ScanReport) -> Objects:
        yield "more", np.array([slab.object(3)], np.uint64)
        raise LookupError("no such type")

    def unreadable(_kernel: Kernel, report: ScanReport) -> Objects:
        report.objects_unreadable += 5
        yield from ()
        raise FaultError("page excluded from this synthetic dump", 0)

    monkeypatch.setattr(slab_figures, "CONTRIBUTORS", (some, absent, unreadable))
    result = analyse(made.k)
    assert rows(result, "kmalloc", "user", "objects") == [
        (VECTORS, 2), ("more", 1), ("some", 1)
    ]  # fmt: skip
    assert gaps(result) == {
        "users of kmalloc()": 1,
        "slots of objects with pointers to kmalloc() objects": 5,
        "objects of kmalloc()": 2,
    }


def test_structures_of_memory_cgroups_are_users(made: World) -> None:
    k, slab = made.k, made.slabs["k0"]
    for at, name in enumerate(("a", "b")):
        k.set(made.groups[name].object.css.cgroup, slab.object(at))
        k.write_words(slab.object(at) + 32, int(k.root.object.css.cgroup.kn))
    assert rows(analyse(k), "kmalloc", "user", "objects") == [("cgroup", 2)]
