# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus slab`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

import subprocess
from collections import Counter
from typing import Any

import pandas as pd
import pytest
from drgn.helpers.linux.slab import (
    find_containing_slab_cache,
    find_slab_cache,
    slab_cache_for_each_allocated_object,
)

from kcensus.analyses.slab.figures import NO_MEMCG, VECTORS, kmalloc_caches
from kcensus.api.objects import MergedCacheWarning, objects
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.slab.kmalloc_users import CONTRIBUTORS
from kcensus.results import CheckStatus
from kcensus.sources import Target
from tests.lab import Dump
from tests.lab.trials import meminfo_bytes, pairs, slabinfo
from tests.running import rows
from tests.vm import cases
from tests.vm.oracles.slab import Oracle

pytestmark = pytest.mark.machines

Case = cases.Case[Oracle]


@pytest.fixture(scope="module")
def case(mixed_dump: Dump, mixed_target: Target) -> Case:
    return Case.of(mixed_dump, mixed_target, "slab", Oracle)


@pytest.fixture(scope="module")
def caches(case: Case) -> Any:  # pandas-stubs: a cell may be any scalar
    return case.table("caches").set_index("cache")


def test_every_cache_equals_the_slow_walk(case: Case) -> None:
    found = rows(
        case.result, "caches", "cache", "slabs", "objects_total", "objects_active", "bytes"
    )
    assert sorted(found) == sorted(
        (name, truth.slabs, truth.total, len(truth.active), truth.pages * case.page)
        for name, truth in case.oracle.truth.items()
    )


def test_slow_walk_equals_drgns_own_iteration(case: Case) -> None:
    # The oracle is ours as well, so hold it against drgn on caches with all kinds of stores.
    names = [
        name
        for name in ("dentry", "kmalloc-16", "kmalloc-1k", "filp", "xfs_inode")
        if name in case.oracle.truth  # not merged, nor split by this kernel's kmalloc hardening
    ]
    assert len(names) >= 3
    for name in names:
        cache = find_slab_cache(case.prog, name)
        assert cache is not None
        walked = {
            int(found) for found in slab_cache_for_each_allocated_object(cache, "struct list_head")
        }
        assert case.oracle.truth[name].active == walked, name


def test_guest_counted_the_same(case: Case, caches: Any) -> None:
    """/proc/slabinfo, read last thing before the dump and again after it, brackets the dump.

    Between its last system call and the dump the guest spins in user space, so a cache whose
    figures stood still over all these reads had exactly these figures in the dump, too; of the
    others the dump must lie within what was read, widened by how much they moved.

    slabinfo calls everything active that is not free on a *node's partial list*; the slow walk
    counts the free objects that are elsewhere.
    """
    truth = case.dump.truth
    names = {name for name in truth if name.startswith("slabinfo.")} - {"slabinfo.boot"}
    reads = [slabinfo(truth[name]) for name in names]
    assert len(reads) >= 4
    still = 0
    for name, walked in case.oracle.truth.items():
        values = [read[name] for read in reads]
        ours = caches.loc[name]
        mine = (int(ours["objects_active"]) + walked.kept, int(ours["objects_total"]))
        still += len({value[:2] for value in values}) == 1
        for counted, *others in zip(mine, *(value[:2] for value in values), strict=True):
            low, high = min(others), max(others)
            assert low - (high - low) <= counted <= high + (high - low), name
        assert {value.slot_size for value in values} == {int(ours["slot_size"])}, name
    # A guest at rest leaves nearly all caches alone, else this test would prove little.
    assert still > 0.9 * len(case.oracle.truth)


def test_bytes_add_up(case: Case, caches: Any) -> None:
    parts = caches[["active_bytes", "free_bytes", "padding_bytes", "tail_bytes"]].sum(axis=1)
    assert parts.tolist() == caches["bytes"].tolist()
    for name, column in (("slab_bytes", "bytes"), ("active_bytes",) * 2, ("objects_active",) * 2):
        assert case.figure(name) == caches[column].sum()
    assert case.figure("utilization") == caches["active_bytes"].sum() / caches["bytes"].sum()
    reclaimable = caches.loc[caches["reclaimable"], "bytes"].sum()
    assert case.figure("reclaimable_bytes") == reclaimable
    assert case.figure("unreclaimable_bytes") == caches["bytes"].sum() - reclaimable


def test_histogram_of_fill(case: Case, caches: Any) -> None:
    expected = Counter[int]()
    for name, truth in case.oracle.truth.items():
        bins = Counter[int]()
        for (used, total), count in truth.slabs_by_used.items():
            bins[_bin(used, total)] += count
        found = [int(caches.loc[name, f"fill_{number}"]) for number in range(6)]
        assert found == [bins[number] for number in range(6)], name
        expected.update(bins)
    assert case.table("fill")["slabs"].tolist() == [expected[number] for number in range(6)]


def _bin(used: int, total: int) -> int:
    if used == total:
        return 5
    return used * 4 // total + 1 if used else 0


def test_nodes(case: Case) -> None:
    expected = Counter[int]()
    for truth in case.oracle.truth.values():
        expected.update(truth.nodes)
    frame = case.table("nodes")
    assert dict(zip(frame["node"], frame["bytes"] // case.page, strict=True)) == expected
    assert frame["objects_active"].sum() == case.figure("objects_active")


def test_memory_cgroups_equal_the_slow_walk(case: Case, caches: Any) -> None:
    paths = case.oracle.memcg_paths()
    frame = case.table("memcgs")
    charged = frame[frame["memcg"] != NO_MEMCG]
    assert sorted(charged["memcg"]) == sorted(paths.values())
    rest = frame.loc[frame["memcg"] == NO_MEMCG, "objects"].item()
    assert rest == case.figure("objects_active") - charged["objects"].sum()
    expected: Counter[tuple[str, str]] = Counter()
    sums: dict[str, Counter[str]] = {"objects": Counter(), "bytes": Counter()}
    for name, truth in case.oracle.truth.items():
        for memcg, count in truth.charged.items():
            expected[paths[memcg], name] += count
            sums["objects"][paths[memcg]] += count
            sums["bytes"][paths[memcg]] += count * int(caches.loc[name, "slot_size"])
    for column, sizes in sums.items():
        by_path = charged.groupby("memcg")[column].sum()
        assert by_path[by_path > 0].to_dict() == sizes, column
    by_cache = case.table("memcg_caches").groupby(["memcg", "cache"])["objects"].sum()
    assert by_cache.to_dict() == expected
    assert len(sums["objects"]) > 40, "the workload charges objects to many memory cgroups"


def test_memory_cgroups_online_and_offline(case: Case) -> None:
    """cgroup.stat counts the cgroups below the root, the workload knows which it made."""
    stat = pairs(case.dump.truth["cgroup.stat"])
    assert case.figure("memcgs_online") == stat["nr_descendants"] + 1
    assert case.figure("memcgs_offline") == stat["nr_dying_descendants"] > 0


def test_vector_bytes_equal_the_slots_they_occupy(case: Case) -> None:
    assert case.figure("obj_cgroup_vector_bytes") == case.oracle.vector_bytes


def test_old_controller(case: Case, caches: Any) -> None:
    """Every memory cgroup gets whole slabs of its own, and what is not charged shares some."""
    old = packed = 0
    for name, truth in case.oracle.truth.items():
        row = caches.loc[name]
        slab = case.page << int(row["order"])
        groups = list(truth.charged.values())
        groups.append(len(truth.active) - sum(groups))
        per_slab = int(row["objects_per_slab"])
        old += sum(-(-count // per_slab) for count in groups) * slab
        packed += -(-len(truth.active) // per_slab) * slab
    assert case.figure("old_controller_bytes") == old
    assert case.figure("packed_bytes") == packed
    assert case.figure("old_controller_utilization") == case.figure("active_bytes") / old


def test_kernels_own_counters(case: Case) -> None:
    checks = {check.name: check for check in case.result.checks}
    unreclaimable = checks.pop("SUnreclaim (meminfo, vmstat)")
    # kmalloc() beyond the slab caches is in the counter. Its pages are marked since 6.15; before,
    # all compound pages that can be its are, in these guests.
    assert unreclaimable.status is CheckStatus.EXPLAINED
    bound = unreclaimable.explained or unreclaimable.at_most
    # Page tables of Z are compound pages, too.
    if not case.dump.kernel.endswith("s390x"):
        assert unreclaimable.difference == bound
    # A check for a single cache means a difference.
    assert {name: check.status for name, check in checks.items()} == dict.fromkeys(
        (
            *("nr_slabs, all caches", "total_objects, all caches"),
            *("SReclaimable (meminfo, vmstat)", "charged slab objects"),
        ),
        CheckStatus.AGREE,
    )
    assert case.result.gaps == []


def test_meminfo_of_the_guest(case: Case) -> None:
    """The counters our checks are held against are those that the guest itself shows."""
    meminfo = meminfo_bytes(case.dump.truth["meminfo"])
    checks = {check.name.split()[0]: check for check in case.result.checks}
    for name in ("SReclaimable", "SUnreclaim"):
        counter = checks[name].counter
        assert counter is not None
        # /proc/meminfo leaves out what CPUs have counted and not folded yet: below 125 pages each.
        assert abs(meminfo[name] // case.page - counter) < 125 * 2 * len(case.table("nodes"))


def test_users_of_kmalloc_have_allocated_objects(case: Case) -> None:
    """What contributors name in caches of kmalloc() is what the slow walk finds allocated."""
    kernel = Kernel(case.prog)
    caches = kmalloc_caches(kernel.slab_map)
    names = {
        cache.name for cache, wanted in zip(kernel.slab_map.caches, caches, strict=True) if wanted
    }
    active: set[int] = set().union(*(case.oracle.truth[name].active for name in names))
    found: Counter[str] = Counter()
    for contributor in CONTRIBUTORS:
        try:
            yielded = list(contributor(kernel, ScanReport()))
        except LookupError:
            continue
        for user, addresses in yielded:
            held_by = kernel.slab_map.containing(addresses, Faults())
            inside = addresses[(held_by >= 0) & caches[held_by]]
            starts = set(inside.tolist()) & active
            # An array can be part of an object of another user.
            assert len(starts) >= 0.9 * len(set(inside.tolist())), user
            found[user] += len(starts)
    assert min(found[user] for user in ("list_lru lists", "external dentry names")) > 400


def test_what_kmalloc_allocated_adds_up(case: Case) -> None:
    frame = case.table("kmalloc")
    sums = frame.groupby("cache")["objects"].sum()
    for name, truth in case.oracle.truth.items():
        if "kmalloc-" in name:
            assert sums.get(name, 0) == len(truth.active), name
    vectors = frame.loc[frame["user"] == VECTORS, "bytes"].sum()
    # Since 7.0, vectors can be in unused space of slabs.
    inside = case.figure("obj_cgroup_vector_bytes") - vectors
    assert inside == 0 or case.dump.like == "7.3"


@pytest.mark.parametrize(
    ("type_name", "cache"), [("struct dentry", "dentry"), ("struct inode", "inode_cache")]
)
def test_objects_of_one_type(case: Case, type_name: str, cache: str) -> None:
    frame = objects(case.prog, type_name, [])
    assert set(frame.index) == case.oracle.truth[cache].active
    assert not frame.index.has_duplicates


def test_objects_of_all_caches(case: Case) -> None:
    slab_map = SlabMap(Memory(case.prog))
    report = ScanReport()
    addresses, columns = allocated(slab_map, slab_map.caches, slab_map.word, report)
    assert report.complete
    assert len(addresses) == case.figure("objects_active")
    assert set(addresses.tolist()) == set().union(
        *(truth.active for truth in case.oracle.truth.values())
    )
    for at in range(0, len(addresses), 1009):
        assert columns["word"][at] == case.prog.read_word(int(addresses[at]))


def test_two_processes_give_the_same(case: Case) -> None:
    alone = objects(case.prog, "struct dentry", ["d_inode", "d_lockref.count"])
    shared = objects(case.prog, "struct dentry", ["d_inode", "d_lockref.count"], jobs=2)
    pd.testing.assert_frame_equal(alone, shared)


def test_merged_caches_are_found_by_any_name(case: Case) -> None:
    frame = case.table("caches")
    merged = frame[frame["aliases"] != ""]
    assert len(merged) > 5
    row = merged.iloc[0]
    alias = row["aliases"].split(", ")[0]
    with pytest.warns(MergedCacheWarning):
        found = objects(case.prog, "struct list_head", ["next"], cache=alias)
    assert len(found) == row["objects_active"]


def test_containing_cache(case: Case) -> None:
    """Any address leads to its slab cache, as drgn finds it one by one."""
    dentries = objects(case.prog, "struct dentry", ["d_name.name"])
    slab_map = SlabMap(Memory(case.prog))
    addresses = dentries["d_name.name"].to_numpy()[::97].copy()
    ids = slab_map.containing(addresses, Faults())
    for address, id_ in zip(addresses.tolist(), ids.tolist(), strict=True):
        cache = find_containing_slab_cache(case.prog, address)
        expected = cache.value_() if cache else None
        assert (slab_map.caches[id_].address if id_ >= 0 else None) == expected


def kmem_s(dump: Dump) -> list[tuple[str | int, ...]]:
    """Return name, object size, allocated objects, slots and slabs, as crash's ``kmem -s`` does."""
    done = subprocess.run(
        ["crash", "-s", dump.vmlinux, dump.core],
        input="set scroll off\nkmem -s\nquit\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = (line.split(maxsplit=6) for line in done.stdout.splitlines())
    return [
        (fields[6].strip(), *map(int, fields[1:5]))
        for fields in lines
        if len(fields) == 7 and fields[1].isdigit()
    ]


@pytest.mark.usually("6.1")
@pytest.mark.kernels("5.10", "6.1")  # which crash can read
def test_crash_finds_the_same(case: Case) -> None:
    counted = ("object_size", "objects_active", "objects_total", "slabs")
    expected = kmem_s(case.dump)
    assert len(expected) > 100
    assert sorted(rows(case.result, "caches", "cache", *counted)) == sorted(expected)
