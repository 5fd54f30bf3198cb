# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus list-lru`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.mm import compound_nr, virt_to_page
from drgn.helpers.linux.slab import find_containing_slab_cache

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import Stage, xa_nodes
from kcensus.analyses.list_lru.tables import NO_MEMCG
from kcensus.kernel.kernel import Kernel
from kcensus.results import CheckStatus
from kcensus.sources import Target
from tests.lab import Dump, build
from tests.lab.trials import kmalloc_slot, pairs, slabinfo
from tests.running import rows
from tests.vm import cases
from tests.vm.cases import analyzed, opened, remedy
from tests.vm.oracles.list_lru import LruTruth, Oracle

pytestmark = pytest.mark.machines

Case = cases.Case[Oracle]


@pytest.fixture(scope="module")
def case(kernel: str) -> Case:
    dump = build(kernel, "list-lru")
    before = f"kmalloc-32={slots(dump, 'boot')}" if kernel == "5.10" else None
    return Case.of(dump, opened(dump), "list-lru", Oracle, before=before)


def slots(dump: Dump, when: str) -> int:
    return slabinfo(dump.truth[f"slabinfo.{when}"])["kmalloc-32"].total


def test_every_list_lru_equals_the_slow_walk(case: Case) -> None:
    columns = (
        *("owner", "kind", "memcg_aware", "items", "root_items", "memcg_items", "slots"),
        *("dead_slots", "empty_slots", "node_array_bytes", "pointer_bytes", "list_bytes"),
        *("xa_nodes", "xa_node_bytes", "bytes", "dead_bytes", "empty_bytes"),
    )
    expected = [
        (address, *(getattr(truth, name) for name in columns))
        for address, truth in case.oracle.lrus.items()
    ]
    assert sorted(rows(case.result, "lrus", "address", *columns)) == sorted(expected)
    assert len(expected) > 240
    assert case.oracle.total("memcg_items") > 1000, "the workload uses per-memcg lists"


def test_summary_equals_the_slow_walk(case: Case) -> None:
    oracle, highest = case.oracle, max(case.oracle.by_id)
    maps = sum(truth.shrinker_map_bytes for truth in oracle.memcgs.values())
    totals = ("memcg_aware", "items", "slots", "dead_slots", "empty_slots", "empty_bytes")
    expected = {
        **{name: oracle.total(name) for name in totals},
        "list_lrus": len(oracle.lrus),
        "dead_slot_bytes": oracle.total("dead_bytes"),
        "shrinker_map_bytes": maps,
        "structural_bytes": oracle.total("bytes") + maps,
        "highest_id": highest,
        "ids_in_use": len(oracle.by_id),
        "nr_cache_ids_needed": highest + 1 if case.dump.like == "5.10" else None,
        "super_blocks": len({truth.super_block for truth in oracle.lrus.values()} - {0}),
    }
    assert {name: case.figure(name) for name in expected} == expected
    assert maps > 0


def test_super_blocks_and_owners_add_up(case: Case) -> None:
    blocks: dict[int, list[LruTruth]] = {}
    owners: dict[tuple[str, str], list[LruTruth]] = {}
    for truth in case.oracle.lrus.values():
        if truth.super_block:
            blocks.setdefault(truth.super_block, []).append(truth)
        owners.setdefault((truth.owner, truth.kind), []).append(truth)

    def sums(truths: list[LruTruth], *names: str) -> tuple[int, ...]:
        return tuple(sum(getattr(truth, name) for truth in truths) for name in names)

    summed: tuple[str, ...] = ("bytes", "dead_bytes", "empty_bytes", "slots")
    found = rows(case.result, "super_blocks", "address", "dentries", "inodes", *summed)
    expected = []
    for address, truths in blocks.items():
        items = {truth.kind: truth.items for truth in truths}
        expected.append((address, items["dentry"], items["inode"], *sums(truths, *summed)))
    assert sorted(found) == sorted(expected)
    summed = ("items", "slots", "bytes")
    assert sorted(rows(case.result, "owners", "owner", "kind", "lrus", *summed)) == sorted(
        (*key, len(truths), *sums(truths, *summed)) for key, truths in owners.items()
    )


def test_mount_points(case: Case) -> None:
    listed = {line.split()[1] for line in case.dump.truth["mounts"].splitlines()}
    frame = case.table("super_blocks")
    tmpfs = set(frame.loc[frame["type"] == "tmpfs", "mount"])
    assert {f"/run/user/{number}" for number in range(100)} <= tmpfs <= listed | {""}
    assert frame.loc[frame["type"] == "xfs", ["mount", "id"]].to_numpy().tolist() == [
        ["/srv", "ram0"]
    ]


def test_memory_cgroups_equal_the_slow_walk(case: Case) -> None:
    frame = case.table("memcgs")
    newest = max(truth.serial for truth in case.oracle.memcgs.values())
    next_serial = int(case.prog["css_serial_nr_next"])
    assert newest < next_serial
    expected = Counter(
        (
            *(truth.path, truth.state, truth.id if truth.has_id else -1),
            next_serial - 1 - truth.serial,
            *(truth.items[kind] for kind in ("dentry", "inode", "other")),
            *(truth.slots, truth.list_bytes, truth.shrinker_map_bytes),
            truth.list_bytes + truth.shrinker_map_bytes,
            address,
        )
        for address, truth in case.oracle.memcgs.items()
    )
    assert Counter(frame[frame["memcg"] != NO_MEMCG].itertuples(index=False, name=None)) == expected
    rest = frame[frame["memcg"] == NO_MEMCG].iloc[0]
    assert rest["slots"] == case.oracle.total("dead_slots")
    assert rest["list_bytes"] == case.oracle.total("dead_bytes")
    no_memcg = sum(truth.items for truth in case.oracle.lrus.values() if not truth.memcg_aware)
    assert rest[["dentries", "inodes", "other_items"]].tolist() == [0, 0, no_memcg]
    assert len({truth.path for truth in case.oracle.memcgs.values() if truth.items}) > 60


def test_guest_counted_the_same(case: Case) -> None:
    """The guest's /proc/sys/fs/dentry-state and inode-nr, read last thing before the dump."""
    dentries = int(case.dump.truth["dentry-state"].split()[1])
    inodes = int(case.dump.truth["inode-nr"].split()[1])
    frame = case.table("super_blocks")
    assert frame["dentries"].sum() == dentries > 3000
    assert frame["inodes"].sum() == inodes == 500
    stat = pairs(case.dump.truth["cgroup.stat"])
    assert case.figure("memcgs_online") == stat["nr_descendants"] + 1
    assert case.figure("memcgs_offline") == stat["nr_dying_descendants"]


def test_kernels_own_counters(case: Case) -> None:
    checks = {check.name: check for check in case.result.checks}
    growth = checks.pop("growth of kmalloc-32", None)
    assert {check.status for check in checks.values()} == {CheckStatus.AGREE}
    assert checks["dentry lists"].counter == int(case.dump.truth["dentry-state"].split()[1])
    assert checks["inode lists"].counter == int(case.dump.truth["inode-nr"].split()[1])
    assert case.result.gaps == []
    if case.dump.like != "5.10":
        assert growth is None
        return
    # What the guest's slabinfo shows before and after is what the lists are, but for free slots.
    assert growth is not None
    assert growth.status is CheckStatus.EXPLAINED
    assert growth.counter == slots(case.dump, "4") - slots(case.dump, "boot")
    assert growth.ours is not None
    assert growth.ours >= case.oracle.total("slots") > 0.96 * growth.counter


def test_arrays_shrink_no_more(case: Case) -> None:
    """On 5.10 all slots are there; since 5.18 only those that were used."""
    if case.dump.like != "5.10":
        assert case.figure("nr_cache_ids") is None
        assert 0 < case.figure("slots") < 500
        assert case.figure("dead_slots") == 0
        return
    # 20 + 60 + 8 + 8 + 600 cgroups at the same time, each with an id.
    assert case.figure("nr_cache_ids") == 766
    assert case.figure("slots") == case.figure("memcg_aware") * 766
    assert case.figure("dead_slots") > 0.8 * case.figure("slots")
    assert case.figure("formula_bytes") == case.figure("slots") * 32
    finding = case.result.findings[0]
    assert finding.patch == "list-lru-xarray"
    # Unused ids are not all of cgroups that are gone: half of them were never allocated.
    assert "at least 383 memory cgroups have had an id at the same time, 116 have an id now" in (
        finding.evidence
    )
    assert finding.holds is not None
    assert finding.holds > 0.9 * case.figure("structural_bytes")


def test_model_gives_what_was_measured(case: Case) -> None:
    """The stage that this kernel is at, by arithmetic alone."""
    figures = Figures(Kernel(case.prog))
    measured = figures.measured
    model = figures.models[measured.stage]
    total = case.oracle.total
    assert model.lists == total("list_bytes")
    assert model.pointers == total("pointer_bytes") + total("xa_node_bytes")
    assert model.node_arrays == total("node_array_bytes")
    assert model.pointers > 0
    assert measured == replace(model, maps=measured.maps)
    # Since 6.7 they are several allocations, and a lower bound.
    is_late = case.dump.like in ("6.12", "7.3")
    assert model.maps == pytest.approx(measured.maps, rel=0.35 if is_late else 0.01)
    arrays = case.dump.like == "5.10"
    assert measured.stage is (Stage.ARRAYS if arrays else Stage.XARRAY)
    projected = {
        stage: case.figure(f"projected_{name}_bytes")
        for stage, name in zip(Stage, ("arrays", "patch7", "ondemand", "xarray"), strict=True)
    }
    assert projected[measured.stage] + measured.maps == case.figure("structural_bytes")
    assert projected[Stage.ARRAYS] >= projected[Stage.PER_MEMCG] > projected[Stage.ON_DEMAND]
    assert projected[Stage.ON_DEMAND] > projected[Stage.XARRAY]


def test_lists_on_demand(case: Case) -> None:
    """What 5.18 would keep: lists for cgroups that have something there, and for those above."""
    if case.dump.like != "5.10":
        lists = case.oracle.total("slots")
    else:
        holders = {
            (row, "/".join(path.split("/")[:depth]))
            for row, truth in enumerate(case.oracle.lrus.values())
            for path in truth.holders
            for depth in range(2, path.count("/") + 2)
        }
        lists = len(holders)
        assert lists >= sum(len(truth.holders) for truth in case.oracle.lrus.values()) > 90
    size = 64 if case.figure("nodes") == 2 else 32
    size = kmalloc_slot(slabinfo(case.dump.truth["slabinfo.4"]), size)
    frame = case.table("projection").set_index("stage")
    assert frame.loc["on demand", "list_bytes"] == lists * size
    assert frame.loc["on demand", "pointer_bytes"] == case.figure("memcg_aware") * max(
        case.oracle.total("pointer_bytes") // case.figure("memcg_aware"),
        2048 if case.dump.like != "5.10" else 0,
    )


def test_nodes_of_xarrays_follow_from_ids(case: Case) -> None:
    """What the projection of older kernels counts on."""
    lrus = list(case.oracle.lrus.values())
    lane = [row for row, truth in enumerate(lrus) for _ in truth.ids]
    index = [id_ for truth in lrus for id_ in truth.ids]
    expected = case.oracle.total("xa_nodes")
    if case.dump.like == "5.10":
        # Each would have 766 ids: twelve nodes, and one above them.
        expected = case.oracle.total("memcg_aware") * 13
    assert xa_nodes(np.array(lane), np.array(index, np.uint64)) == expected > 200


def test_where_the_bytes_are(case: Case) -> None:
    frame = case.table("structures")
    active = dict(rows(analyzed(case.target, "slab"), "caches", "cache", "objects_active"))
    assert frame["active"].tolist() == [active[place] for place in frame["place"]]
    assert frame["bytes"].sum() == case.figure("structural_bytes")
    lists = frame[frame["kind"] == "lists"]
    assert lists["objects"].sum() == case.figure("slots")
    assert (frame["share"] <= 1).all()
    if case.dump.like == "5.10":
        assert lists["place"].tolist() == ["kmalloc-32"]
        assert lists["share"].item() > 0.97


def test_arrays_beyond_the_slab_caches() -> None:
    """Three thousand pointers do not fit into the largest of them."""
    target = opened(build("5.10", "list-lru-large"))
    result = analyzed(target, "list-lru")
    prog, frame = target.prog, result.tables["lrus"].frame
    pages = 0
    for address in frame["address"].tolist():
        array = drgn.Object(prog, "struct list_lru", address=address).node[0].memcg_lrus
        assert not find_containing_slab_cache(prog, array)
        pages += int(compound_nr(virt_to_page(array)))
    assert frame["pointer_bytes"].sum() == pages * 4096 == len(frame) * 8 * 4096
    structures = result.tables["structures"].frame.set_index("kind")
    assert structures.loc["pointer arrays", "place"] == "pages"
    assert {check.status for check in result.checks} == {CheckStatus.AGREE}
    assert result.amount("nr_cache_ids") == 3070
    assert result.amount("slots") == len(frame) * 3070 > 2_000_000
    assert result.amount("formula_bytes") == len(frame) * 3070 * 32
    # 100 of 1560 cgroups are left, and have the lowest numbers.
    assert result.amount("nr_cache_ids_needed") == 100


def test_a_bit_of_everything(mixed_target: Target, mixed_dump: Dump) -> None:
    result = analyzed(mixed_target, "list-lru")
    assert {check.status for check in result.checks} == {CheckStatus.AGREE}
    assert result.gaps == []
    frame = result.tables["super_blocks"].frame
    assert frame["dentries"].sum() == int(mixed_dump.truth["dentry-state"].split()[1])


def test_unmounting_returns_what_is_claimed() -> None:
    """Fifty mounts, each with its lists for every id; the super blocks go as well."""
    dump = build("5.10", "list-lru-unmount")
    claimed = remedy(analyzed(opened(dump), "list-lru"), "list-lru-arrays", "Unmount").returns
    assert claimed is not None
    before, now = (slabinfo(dump.truth[name]) for name in ("slabinfo.4", "slabinfo@unmount"))
    # Arrays of pointers, of 766 ids, are in kmalloc-8k.
    returned = sum(
        (before[name].active - now[name].active) * before[name].slot_size
        for name in ("kmalloc-32", "kmalloc-8k")
    )
    assert returned == pytest.approx(50 * claimed, rel=0.1)
