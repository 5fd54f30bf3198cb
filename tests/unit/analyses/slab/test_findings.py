# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the slabs of *synthetic* kernels."""

from __future__ import annotations

import pytest

from kcensus.results import Severity, severity
from tests.unit.analyses.slab.making import (
    analyse,
    charged_world,
    child_era,
    every_objcg_era,
    families,
    finding,
    values,
    world,
)
from tests.unit.fakekernel import PAGE, FakeKernel


@pytest.fixture
def no_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings from a byte on: synthetic kernels are small."""
    monkeypatch.setattr(severity, "MIN_BYTES", 1)


@pytest.mark.usefixtures("no_minimum")
@pytest.mark.parametrize(
    ("pages", "expected"), [(40, Severity.WARNING), (32, Severity.CRITICAL), (45, None)]
)
def test_slabs_that_take_a_large_share_of_memory(pages: int, expected: Severity | None) -> None:
    k = world().k
    k.set_ram(pages)
    found = [each for each in analyse(k).findings if each.id == "slab-size"]
    assert [each.severity for each in found] == ([expected] if expected is not None else [])
    for each in found:
        assert each.is_generic
        assert each.holds == 11 * PAGE
        assert each.memory["slab:dentry"] == 3 * PAGE
        assert each.figures["unreclaimable_bytes"].value == 8 * PAGE
        assert each.evidence.index("big") < each.evidence.index("dentry")
        assert "see `kcensus dentries TARGET`" in each.evidence
        assert "slub_debug=U,big" in each.remedies[0].effect


@pytest.mark.usefixtures("no_minimum")
def test_caches_whose_slabs_are_less_than_half_full() -> None:
    k = world().k
    for _ in range(3):
        k.slab(k.caches[0], range(1, 21))
    k.settle()
    k.set_ram(200)
    found = [each for each in analyse(k).findings if each.id.startswith("slab-waste")]
    # 37 dentries fit in two slabs of six; big and filp have none that is less than half full, the
    # only slab of kmalloc-256 is needed.
    (dentry,) = found
    assert dentry.is_generic
    assert dentry.memory == {"slab:dentry": 4 * PAGE - 3 * 192}
    figures = {name: figure.value for name, figure in dentry.figures.items()}
    assert figures["slabs_less_than_half_full"] == 4
    assert figures["slabs_empty"] == 1
    (remedy,) = dentry.remedies
    assert remedy.returns == PAGE
    assert remedy.command == "echo 1 > /sys/kernel/slab/dentry/shrink"
    assert remedy.knobs == ("/sys/kernel/slab/dentry/shrink",)


@pytest.mark.usefixtures("no_minimum")
def test_without_empty_slabs_shrinking_is_not_offered() -> None:
    k = FakeKernel()
    cache = k.cache("some", 64)
    for _ in range(8):
        k.slab(cache, range(1, 64))
    other = k.cache("$(reboot)", 64)
    for _ in range(8):
        k.slab(other, range(64))
    for alias in ("also", "too"):
        k.alias(cache, alias)
    k.set(cache.object.refcount, 4)
    k.settle()
    k.set_ram(200)
    found = {each.id: each for each in analyse(k).findings}
    for id_ in ("slab-waste:some", "slab-waste:$(reboot)"):
        assert not found[id_].remedies
        assert found[id_].no_remedy
    assert "also, too, 1 that sysfs" in found["slab-waste:some"].evidence


@pytest.mark.ends
@every_objcg_era
@pytest.mark.usefixtures("no_minimum")
def test_vectors_without_a_charged_object(era: str) -> None:
    made = charged_world(era)
    k, slabs = made.k, made.slabs
    assert not [each for each in analyse(k).findings if each.id == "slab-vectors"]
    k.charge(slabs["f0"], {}, at=slabs["k0"].object(0))
    k.charge(slabs["d0"], {}, at=slabs["k0"].object(1))
    k.charge(slabs["d1"], dict.fromkeys(range(10), made.groups["b"]))
    k.set_ram(2)
    vectors = finding(analyse(k), "slab-vectors")
    assert vectors.memory == {"slab:kmalloc-256": 2 * 256}
    figures = {name: figure.value for name, figure in vectors.figures.items()}
    assert figures == {
        "idle_vector_bytes": 512, "vectors": 5, "vectors_idle": 2, "objects_charged": 16
    }  # fmt: skip
    assert (vectors.patch == "") == (era >= "7")
    assert "cgroup.memory=nokmem" in vectors.remedies[0].effect
    assert vectors.returns == 512
    # Below 5 % of RAM, the price is too high.
    k.set_ram(3)
    vectors = finding(analyse(k), "slab-vectors")
    assert vectors.severity is Severity.NOTICE
    assert not vectors.remedies
    assert vectors.no_remedy


@child_era
@pytest.mark.usefixtures("no_minimum")
def test_child_caches_cost_what_their_pages_do_not_hold(era: str) -> None:
    k = families(era)
    k.set_ram(200)
    result = analyse(k)
    found = finding(result, "slab-child-caches")
    # Of a 15 of 21 dentries, of b 5.
    assert found.memory == {"slab:dentry": 2 * PAGE - 20 * 192}
    assert values(result)["child_cache_bytes"] == 2 * PAGE
    assert values(result)["child_cache_unused_bytes"] == 2 * PAGE - 20 * 192
    assert found.figures["child_caches"].value == 3
    assert found.patch == "slab-objcg-controller"


@child_era
def test_a_memory_cgroup_that_has_taken_over_child_caches(era: str) -> None:
    k = families(era)
    dentry, b = k.caches[0], k.memcg("heir", k.root)
    for number in range(3):
        k.slab(
            k.cache(f"dentry({number}:gone)", 192, reclaimable=True, root=dentry, memcg=b),
            range(1, 21),
        )
    k.settle()
    figures = values(analyse(k))
    # 44 dentries on three slabs, packed; one slab for each of the six caches.
    assert figures["old_controller_bytes"] == 7 * PAGE
    assert figures["old_controller_extra_bytes"] == 3 * PAGE
