# SPDX-License-Identifier: LGPL-2.1-or-later
"""All analyses on kernels with SLAB and frame pointers, against /proc and slow walks with drgn."""

from __future__ import annotations

import re

import pytest

from kcensus.engine.layout import layout
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.results import CheckStatus
from tests.lab.trials import meminfo_bytes, pairs
from tests.sample.guest import Guest
from tests.sample.slab.walk import Walked, walk


@pytest.fixture(scope="module")
def walked(mixed: Guest) -> dict[str, Walked]:
    return walk(mixed.prog)


def test_no_gap_and_no_counter_that_differs(guest: Guest) -> None:
    assert len(guest.results) >= 7
    for name, result in guest.results.items():
        gaps = {each.what for each in result.gaps}
        # Readers of rwsems, and owners of semaphores, are not in the kernel.
        assert not gaps or (guest.name, gaps) == ("bfq", {"holders of locks"}), name
        assert not [each for each in result.checks if each.status is CheckStatus.DIFFER], name


def test_caches_at_rest_are_those_of_slabinfo(guest: Guest) -> None:
    frame = guest.results["slab"].tables["caches"].frame.set_index("cache")
    slab_map = guest.kernel.slab_map
    for cache in slab_map.caches:
        if cache.name not in guest.truth["slabinfo"]:
            continue
        in_arrays = len(parked(slab_map, [cache]).address)
        row = frame.loc[cache.name]
        # slabinfo counts the objects in arrays as active.
        ours = [row["objects_active"] + in_arrays, row["objects_total"], row["slabs"]]
        assert ours == guest.truth["slabinfo"][cache.name], cache.name
    assert len(frame) == guest.truth["caches"]
    # All caches of a guest without work are at rest.
    assert len(guest.truth["slabinfo"]) >= (len(frame) if guest.name == "mixed" else 80)


def test_slabs_are_those_of_meminfo(guest: Guest) -> None:
    meminfo = meminfo_bytes(guest.truth["meminfo"])
    ours = {name: guest.value("slab", f"{name}_bytes") for name in ("reclaimable", "unreclaimable")}
    # Counters of CPUs that are not folded yet, and kmalloc() beyond the slab caches.
    assert abs(ours["reclaimable"] - meminfo["SReclaimable"]) <= 1 << 20
    assert 0 <= meminfo["SUnreclaim"] - ours["unreclaimable"] <= 8 << 20


def test_every_cache_equals_the_slow_walk(mixed: Guest, walked: dict[str, Walked]) -> None:
    frame = mixed.results["slab"].tables["caches"].frame.set_index("cache")
    assert {*frame.index} == {*walked}
    for name, cache in walked.items():
        row = frame.loc[name]
        assert (row["slabs"], row["objects_total"]) == (cache.slabs, cache.total), name
        assert row["objects_active"] == cache.active - len(cache.parked), name


def test_objects_are_those_of_the_slow_walk(mixed: Guest, walked: dict[str, Walked]) -> None:
    slab_map, none, seen = mixed.kernel.slab_map, layout(mixed.prog, "struct list_head", {}), set()
    for cache in slab_map.caches:
        report = ScanReport()
        address, _ = allocated(slab_map, [cache], none, report)
        if report.slabs or walked[cache.name].unread:
            continue  # the capsule lacks pages of slabs that no analysis needs
        assert report.complete
        assert sorted(address.tolist()) == sorted(walked[cache.name].allocated), cache.name
        seen |= {cache.name} if len(address) else set()
    assert {"dentry", "kcopyd_job"} <= seen
    assert len(seen) > 20


def test_dentries_are_those_of_dentry_state(mixed: Guest) -> None:
    mixed.check_dentry_state()


def test_memory_cgroups_are_those_of_cgroup_stat(mixed: Guest) -> None:
    stat = pairs(mixed.truth["cgroup.stat"])
    assert mixed.value("memcgs", "memcgs_online") == stat["nr_descendants"] + 1
    assert mixed.value("memcgs", "memcgs_offline") == stat["nr_dying_descendants"] > 0


def test_stacks_are_those_of_proc_pid_stack(guest: Guest) -> None:
    assert guest.stacks() == guest.truth["stacks"]
    assert len(guest.truth["stacks"]) > 40


def test_tasks_in_state_d(bfq: Guest) -> None:
    blocked = {int(pid) for pid in bfq.truth["blocked"]}
    frame = bfq.results["waits"].tables["tasks"].frame
    found = {*frame.loc[frame["state"] == "D", "pid"].tolist()}
    assert blocked <= found
    # Some have slept again between the reads.
    assert 30 < len(blocked) <= len(found) < len(blocked) + 6
    assert len(found) == bfq.value("waits", "tasks_blocked") == bfq.value("iosched", "sleepers")


def test_requests_are_those_in_flight(bfq: Guest) -> None:
    truth = bfq.truth["disks.last"]
    busy = set(re.findall(r"^([0-9a-f]{16}) \{\.op=.*state=in_flight", truth, re.MULTILINE))
    frame = bfq.results["iosched"].tables["requests"].frame
    found = frame.loc[frame["state"] == "dispatched", "address"]
    assert {f"{address:016x}" for address in found} == busy
    assert bfq.value("iosched", "dispatched") == len(busy) == 3
