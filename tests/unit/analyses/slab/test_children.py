# SPDX-License-Identifier: LGPL-2.1-or-later
"""Child caches of memory cgroups, on *synthetic* kernels up to 5.8."""

from __future__ import annotations

from kcensus.analyses.slab.figures import NO_MEMCG
from kcensus.results import CheckStatus
from tests.running import rows
from tests.unit.analyses.slab.making import analyse, child_era, families, values, world
from tests.unit.fakekernel import PAGE


@child_era
def test_children_are_counted_with_their_roots(era: str) -> None:
    result = analyse(families(era))
    assert rows(result, "caches", "cache", "slabs", "objects_total", "objects_active", "bytes") == [
        ("dentry", 3, 63, 41, 3 * PAGE),
        ("filp", 1, 16, 16, PAGE),
    ]
    assert rows(result, "caches", *(f"fill_{at}" for at in range(6))) == [
        (0, 1, 0, 1, 0, 1),
        (0, 0, 0, 0, 0, 1),
    ]
    assert rows(result, "memcgs", "memcg", "objects", "bytes") == [
        (NO_MEMCG, 37, 21 * 192 + 16 * 256),
        ("/a", 15, 15 * 192),
        ("/b", 5, 5 * 192),
        ("/", 0, 0),
    ]
    assert rows(result, "cache_nodes", "cache", "node", "slabs") == [
        ("dentry", 0, 2),
        ("dentry", 1, 1),
        ("filp", 0, 1),
    ]
    figures = values(result)
    assert figures["controller"] == "per cache"
    assert figures["caches"] == 2
    assert figures["objects_charged"] == 20
    assert figures["obj_cgroup_vector_bytes"] == 0
    # A slab for the dentries of a, of b and of no cgroup each, and one for the files.
    assert figures["old_controller_bytes"] == figures["slab_bytes"] == 4 * PAGE
    assert figures["packed_bytes"] == 3 * PAGE
    assert figures["old_controller_extra_bytes"] == PAGE
    assert figures["reclaimable_bytes"] == 3 * PAGE
    assert {check.status for check in result.checks} == {CheckStatus.AGREE}


@child_era
def test_without_children_nobody_is_charged(era: str) -> None:
    result = analyse(world(era).k)
    assert values(result)["controller"] in ("none", "not at all")
    assert values(result)["objects_charged"] == 0
    # Nothing would be split up, so both ways need the same.
    assert values(result)["old_controller_bytes"] == values(result)["packed_bytes"] == 13 * PAGE
    assert rows(result, "memcg_caches", "memcg") == []
