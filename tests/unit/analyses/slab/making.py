# SPDX-License-Identifier: LGPL-2.1-or-later
"""*Synthetic* kernels whose every figure was computed by hand, for tests of slab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kcensus.results import Check, CheckStatus, Finding, Result
from tests.running import on, runner
from tests.unit import fakekernel
from tests.unit.fakekernel import ERAS, FakeKernel, Memcg, Slab

run = runner("slab")
OBJCG_ERAS = [name for name, era in ERAS.items() if era.vector]
every_objcg_era = pytest.mark.parametrize("era", OBJCG_ERAS)
child_era = pytest.mark.parametrize("era", ["4.18", "4.19"])


@dataclass
class World:
    k: FakeKernel
    slabs: dict[str, Slab]
    groups: dict[str, Memcg]


def world(era: str | fakekernel.Era = "6.10") -> World:
    k = FakeKernel(era)
    groups = {name: k.memcg(name, k.root) for name in ("a", "b")}
    groups["dead"] = k.memcg("dead", groups["b"], flags=16)
    # 21 objects a slab and 64 bytes left over.
    dentry = k.cache("dentry", 192, reclaimable=True)
    # 16 objects a slab, 24 bytes of padding each.
    filp = k.cache("filp", 232, 256)
    # 23 objects on four pages and 192 bytes left over; on one page, 5 and 576.
    big = k.cache("big", 700, 704, 2)
    kmalloc = k.cache("kmalloc-256", 256)
    slabs = {}
    for name, cache, free, order, node in (
        ("d0", dentry, [], 0, 0),
        ("d1", dentry, range(15, 21), 0, 1),
        ("d2", dentry, range(21), 0, 0),
        ("f0", filp, range(12, 16), 0, 0),
        ("f1", filp, [], 0, 1),
        ("b0", big, [20, 21, 22], 2, 0),
        ("b1", big, [4], 0, 1),
        ("k0", kmalloc, range(2, 16), 0, 0),
    ):
        slabs[name] = k.slab(cache, free, order=order, node=node)
        # So that small chunks of the page array hold two slabs at most.
        k.pages(5)
    if k.era.cpu_slab:
        k.cpu_slab(slabs["d0"], 1, [0, 1])
    else:
        k.cpu_sheaf(dentry, 1, "main", k.sheaf([(slabs["d0"], 0), (slabs["d0"], 1)]))
    k.settle()
    return World(k, slabs, groups)


UNLISTED = {"memory cgroups": 1}
"""Gap of the memory cgroup of :func:`charged_world` that no list has."""


def charged_world(era: str) -> World:
    """Charge 22 of the 88 objects."""
    made = world(era)
    k, slabs = made.k, made.slabs
    a, b, dead = (made.groups[name] for name in ("a", "b", "dead"))
    # The objcg of a dead group was handed to its parent.
    k.set(dead.objcg.memcg, b.object)
    lost = k.alloc("struct obj_cgroup")
    k.set(lost.memcg, k.alloc("struct mem_cgroup"))
    unknown = Memcg(k.root.object, lost, "")
    # Two of the vectors lie in kmalloc-256; the others in no slab at all.
    k.charge(slabs["d0"], {2: a, 3: a, 4: a, 5: b}, at=slabs["k0"].object(0))
    k.charge(slabs["d1"], dict.fromkeys(range(10), b), at=slabs["k0"].object(1))
    k.charge(slabs["f0"], {0: a, 11: a})
    k.charge(slabs["f1"], {15: unknown})
    k.charge(slabs["b0"], dict.fromkeys(range(5), dead))
    return made


def analyse(kernel: FakeKernel, *, chunk_bytes: int = 4 << 20, jobs: int = 1) -> Result:
    return run(on(kernel.prog, jobs=jobs, chunk_bytes=chunk_bytes))


def values(result: Result) -> dict[str, Any]:
    return {name: figure.value for name, figure in result.summary.items()}


def check(result: Result, name: str) -> Check:
    return next(check for check in result.checks if check.name == name)


def all_agree(result: Result) -> bool:
    """Return whether all figures that have a counter agree with it."""
    return all(
        check.status is CheckStatus.AGREE for check in result.checks if check.counter is not None
    )


def families(era: str) -> FakeKernel:
    """Root caches with children: 41 dentries on three slabs, 16 files on one."""
    k = FakeKernel(era)
    a, b = k.memcg("a", k.root), k.memcg("b", k.root)
    dentry, filp = k.cache("dentry", 192, reclaimable=True), k.cache("filp", 232, 256)
    of_a = k.cache("dentry(2:a)", 192, reclaimable=True, root=dentry, memcg=a)
    of_b = k.cache("dentry(3:b)", 192, reclaimable=True, root=dentry, memcg=b)
    k.cache("filp(3:b)", 232, 256, root=filp, memcg=b)
    k.slab(dentry)
    k.slab(of_a, range(15, 21))
    k.slab(of_b, range(5, 21), node=1)
    k.slab(filp)
    k.settle()
    return k


def finding(result: Result, id_: str) -> Finding:
    return next(each for each in result.findings if each.id == id_)


def gaps(result: Result) -> dict[str, int]:
    return {gap.what: gap.count for gap in result.gaps}
