# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus list-lru`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import drgn
import numpy as np
import pandas as pd
import pytest
from drgn.helpers.linux.mm import compound_nr, virt_to_page
from drgn.helpers.linux.slab import find_containing_slab_cache

from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import Stage, xa_nodes
from kcensus.analyses.list_lru.tables import NO_MEMCG
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.results import CheckStatus, Result
from kcensus.sources import Target, open_target
from tests.lab import Dump, build
from tests.running import on, runner
from tests.vm.oracles.list_lru import LruTruth, Oracle

run = runner("list-lru")
run_slab = runner("slab")

DYING = 580 + 40
"""Cgroups that the scenario removes."""


class Case(NamedTuple):
    """A dump, what we say of it, and what the slow walk says."""

    dump: Dump
    prog: drgn.Program
    result: Result
    oracle: Oracle

    def figure(self, name: str) -> Any:
        return self.result.summary[name].value

    def table(self, name: str) -> Any:  # pandas-stubs: a cell may be any scalar
        return self.result.tables[name].frame

    def total(self, member: str) -> int:
        return sum(int(getattr(truth, member)) for truth in self.oracle.lrus.values())


def boot_slots(dump: Dump, cache: str) -> int:
    """What /proc/slabinfo said right after boot: all slots of a cache."""
    lines = dump.truth["slabinfo.boot"].splitlines()
    return next(int(line.split()[2]) for line in lines if line.split()[0] == cache)


@pytest.fixture(scope="module")
def case(kernel: str) -> Case:
    dump = build(kernel, "list-lru")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    before = f"kmalloc-32={boot_slots(dump, 'kmalloc-32')}" if kernel == "5.10" else None
    result = run(Context.of(target, jobs=1), before=before)
    return Case(dump, target.prog, result, Oracle(target.prog))


def test_every_list_lru_equals_the_slow_walk(case: Case) -> None:
    columns = {
        "owner": "owner",
        "kind": "kind",
        "memcg_aware": "aware",
        "items": "items",
        "root_items": "root_items",
        "memcg_items": "memcg_items",
        "slots": "slots",
        "dead_slots": "dead",
        "empty_slots": "empty",
        "node_array_bytes": "node_bytes",
        "pointer_bytes": "pointer_bytes",
        "list_bytes": "list_bytes",
        "xa_nodes": "xa_nodes",
        "xa_node_bytes": "xa_node_bytes",
        "bytes": "bytes",
        "dead_bytes": "dead_bytes",
        "empty_bytes": "empty_bytes",
    }
    frame = case.table("lrus").set_index("address")
    found = {
        address: dict(zip(columns, row, strict=True))
        for address, row in zip(
            frame.index, frame[[*columns]].itertuples(index=False, name=None), strict=True
        )
    }
    expected = {
        address: {name: getattr(truth, member) for name, member in columns.items()}
        for address, truth in case.oracle.lrus.items()
    }
    assert found == expected
    assert len(found) > 240
    assert case.total("memcg_items") > 1000, "the workload has something on per-memcg lists"


def test_summary_equals_the_slow_walk(case: Case) -> None:
    maps = sum(truth.shrinker_map_bytes for truth in case.oracle.memcgs.values())
    for name, expected in (
        ("list_lrus", len(case.oracle.lrus)),
        ("memcg_aware", case.total("aware")),
        ("items", case.total("items")),
        ("slots", case.total("slots")),
        ("dead_slots", case.total("dead")),
        ("empty_slots", case.total("empty")),
        ("dead_slot_bytes", case.total("dead_bytes")),
        ("empty_bytes", case.total("empty_bytes")),
        ("shrinker_map_bytes", maps),
        ("structural_bytes", case.total("bytes") + maps),
        ("highest_id", max(case.oracle.by_id)),
        ("ids_in_use", len(case.oracle.by_id)),
        (
            "nr_cache_ids_needed",
            max(case.oracle.by_id) + 1 if case.dump.kernel == "5.10" else None,
        ),
    ):
        assert case.figure(name) == expected, name
    assert maps > 0
    blocks = {truth.super_block for truth in case.oracle.lrus.values()} - {0}
    assert case.figure("super_blocks") == len(blocks)


def test_super_blocks_and_owners_add_up(case: Case) -> None:
    blocks: dict[int, list[LruTruth]] = {}
    owners: dict[tuple[str, str], list[LruTruth]] = {}
    for truth in case.oracle.lrus.values():
        if truth.super_block:
            blocks.setdefault(truth.super_block, []).append(truth)
        owners.setdefault((truth.owner, truth.kind), []).append(truth)
    frame = case.table("super_blocks")
    assert set(frame["address"]) == set(blocks)
    for row in frame.itertuples():
        truths = blocks[row.address]
        by_kind = {truth.kind: truth.items for truth in truths}
        assert (row.dentries, row.inodes) == (by_kind["dentry"], by_kind["inode"])
        assert row.bytes == sum(truth.bytes for truth in truths)
        assert row.dead_bytes == sum(truth.dead_bytes for truth in truths)
        assert row.empty_bytes == sum(truth.empty_bytes for truth in truths)
        assert row.slots == sum(truth.slots for truth in truths)
    found = {
        (row.owner, row.kind): (row.lrus, row.items, row.slots, row.bytes)
        for row in case.table("owners").itertuples()
    }
    assert found == {
        key: (
            len(truths),
            sum(truth.items for truth in truths),
            sum(truth.slots for truth in truths),
            sum(truth.bytes for truth in truths),
        )
        for key, truths in owners.items()
    }


def test_mount_points(case: Case) -> None:
    listed = {line.split()[1] for line in case.dump.truth["mounts"].splitlines()}
    frame = case.table("super_blocks")
    tmpfs = set(frame.loc[frame["type"] == "tmpfs", "mount"])
    assert {f"/run/user/{number}" for number in range(100)} <= tmpfs <= listed | {""}
    xfs = frame[frame["type"] == "xfs"]
    assert (xfs["mount"].tolist(), xfs["id"].tolist()) == (["/srv"], ["ram0"])


def test_memory_cgroups_equal_the_slow_walk(case: Case) -> None:
    frame = case.table("memcgs")
    newest = max(truth.serial for truth in case.oracle.memcgs.values())
    next_serial = int(case.prog["css_serial_nr_next"])
    assert newest < next_serial
    expected = Counter(
        (
            truth.path,
            truth.state,
            truth.id if truth.has_id else -1,
            next_serial - 1 - truth.serial,
            truth.items["dentry"],
            truth.items["inode"],
            truth.items["other"],
            truth.slots,
            truth.list_bytes,
            truth.shrinker_map_bytes,
            truth.list_bytes + truth.shrinker_map_bytes,
            address,
        )
        for address, truth in case.oracle.memcgs.items()
    )
    rows = frame[frame["memcg"] != NO_MEMCG].itertuples(index=False, name=None)
    assert Counter(rows) == expected
    rest = frame[frame["memcg"] == NO_MEMCG].iloc[0]
    assert (rest["slots"], rest["list_bytes"]) == (case.total("dead"), case.total("dead_bytes"))
    no_memcg = sum(truth.items for truth in case.oracle.lrus.values() if not truth.aware)
    assert rest[["dentries", "inodes", "other_items"]].tolist() == [0, 0, no_memcg]
    assert len({truth.path for truth in case.oracle.memcgs.values() if truth.items}) > 60


def test_guest_counted_the_same(case: Case) -> None:
    """The guest's /proc/sys/fs/dentry-state and inode-nr, read last thing before the dump."""
    dentries = int(case.dump.truth["dentry-state"].split()[1])
    inodes = int(case.dump.truth["inode-nr"].split()[1])
    frame = case.table("super_blocks")
    assert frame["dentries"].sum() == dentries > 3000
    assert frame["inodes"].sum() == inodes == 500
    stat = dict(line.split() for line in case.dump.truth["cgroup.stat"].splitlines())
    assert case.figure("memcgs_online") == int(stat["nr_descendants"]) + 1
    assert case.figure("memcgs_offline") == int(stat["nr_dying_descendants"])


def test_kernels_own_counters(case: Case) -> None:
    checks = {check.name: check for check in case.result.checks}
    growth = checks.pop("growth of kmalloc-32", None)
    assert {check.status for check in checks.values()} == {CheckStatus.AGREE}
    assert checks["dentry lists"].counter == int(case.dump.truth["dentry-state"].split()[1])
    assert checks["inode lists"].counter == int(case.dump.truth["inode-nr"].split()[1])
    assert case.result.gaps == []
    if case.dump.kernel != "5.10":
        assert growth is None
        return
    # What the guest's slabinfo shows before and after is what the lists are, but for free slots.
    assert growth is not None
    assert growth.status is CheckStatus.EXPLAINED
    lines = case.dump.truth["slabinfo.4"].splitlines()
    now = next(int(line.split()[2]) for line in lines if line.split()[0] == "kmalloc-32")
    assert growth.counter == now - boot_slots(case.dump, "kmalloc-32")
    assert growth.ours is not None
    assert growth.ours >= case.total("slots") > 0.96 * growth.counter


def test_arrays_shrink_no_more(case: Case) -> None:
    """On 5.10 all slots are there; since 5.18 only those that were used."""
    if case.dump.kernel != "5.10":
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
    assert "at least 383 memory cgroups have had an id at the same time, 116 have one now" in (
        finding.evidence
    )
    assert finding.holds is not None
    assert finding.holds > 0.9 * case.figure("structural_bytes")


def kernel_is_late(case: Case) -> bool:
    return case.dump.kernel in ("6.12", "7.3")


def test_model_gives_what_was_measured(case: Case) -> None:
    """The stage that this kernel is at, by arithmetic alone."""
    figures = Figures(Kernel(case.prog))
    measured = figures.measured
    model = figures.models[measured.stage]
    assert model.lists == case.total("list_bytes")
    assert model.pointers == case.total("pointer_bytes") + case.total("xa_node_bytes")
    assert model.node_arrays == case.total("node_bytes")
    assert model.pointers > 0
    assert measured == replace(model, maps=measured.maps)
    # Since 6.7 they are several allocations, and a lower bound.
    assert model.maps == pytest.approx(measured.maps, rel=0.35 if kernel_is_late(case) else 0.01)
    arrays = case.dump.kernel == "5.10"
    assert measured.stage is (Stage.ARRAYS if arrays else Stage.XARRAY)
    maps = {stage: cost.maps for stage, cost in figures.costs.items()}
    projected = {
        stage: case.figure(f"projected_{name}_bytes") - maps[stage]
        for stage, name in zip(Stage, ("arrays", "patch7", "ondemand", "xarray"), strict=True)
    }
    assert projected[measured.stage] + measured.maps == case.figure("structural_bytes")
    assert projected[Stage.ARRAYS] >= projected[Stage.PER_MEMCG] > projected[Stage.ON_DEMAND]
    assert projected[Stage.ON_DEMAND] > projected[Stage.XARRAY]


def test_lists_on_demand(case: Case) -> None:
    """What 5.18 would keep: lists for cgroups that have something there, and for those above."""
    if case.dump.kernel != "5.10":
        pairs = case.total("slots")
    else:
        holders = {
            (row, "/".join(path.split("/")[:depth]))
            for row, truth in enumerate(case.oracle.lrus.values())
            for path in truth.holders
            for depth in range(2, path.count("/") + 2)
        }
        pairs = len(holders)
        assert pairs >= sum(len(truth.holders) for truth in case.oracle.lrus.values()) > 90
    size = 64 if case.figure("nodes") == 2 else 32
    frame = case.table("projection").set_index("stage")
    assert frame.loc["on demand", "list_bytes"] == pairs * size
    assert frame.loc["on demand", "pointer_bytes"] == case.figure("memcg_aware") * max(
        case.total("pointer_bytes") // case.figure("memcg_aware"),
        2048 if case.dump.kernel != "5.10" else 0,
    )


def test_nodes_of_xarrays_follow_from_ids(case: Case) -> None:
    """What the projection of older kernels counts on."""
    lrus = list(case.oracle.lrus.values())
    lane = [row for row, truth in enumerate(lrus) for _ in truth.ids]
    index = [id_ for truth in lrus for id_ in truth.ids]
    expected = case.total("xa_nodes")
    if case.dump.kernel == "5.10":
        # Each would have 766 ids: twelve nodes, and one above them.
        expected = case.total("aware") * 13
    assert xa_nodes(np.array(lane), np.array(index, np.uint64)) == expected > 200


def test_where_the_bytes_are(case: Case) -> None:
    frame = case.table("structures")
    slab = run_slab(on(case.prog))
    active = slab.tables["caches"].frame.set_index("cache")["objects_active"]
    assert frame["active"].tolist() == active[frame["place"]].tolist()
    assert frame["bytes"].sum() == case.figure("structural_bytes")
    lists = frame[frame["kind"] == "lists"]
    assert lists["objects"].sum() == case.figure("slots")
    assert (frame["share"] <= 1).all()
    if case.dump.kernel == "5.10":
        assert lists["place"].tolist() == ["kmalloc-32"]
        assert lists["share"].item() > 0.97


def test_small_chunks_and_two_processes_give_the_same(case: Case) -> None:
    before = f"kmalloc-32={boot_slots(case.dump, 'kmalloc-32')}"
    before_ = before if case.dump.kernel == "5.10" else None
    for options in ({"chunk_bytes": 64 << 10}, {"jobs": 2}):
        context = on(case.prog, **options)
        again = run(context, before=before_)
        assert again.summary == case.result.summary
        assert again.checks == case.result.checks
        assert again.findings == case.result.findings
        for name, table in again.tables.items():
            pd.testing.assert_frame_equal(table.frame, case.result.tables[name].frame)


def test_arrays_beyond_the_slab_caches() -> None:
    """Three thousand pointers do not fit into the largest of them."""
    dump = build("5.10", "list-lru-large")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    result = run(Context.of(target, jobs=1))
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
    summary = result.summary
    assert summary["nr_cache_ids"].value == 3070
    assert summary["slots"].value == len(frame) * 3070 > 2_000_000
    assert summary["formula_bytes"].value == len(frame) * 3070 * 32
    # 100 of 1560 cgroups are left, and have the lowest numbers.
    assert summary["nr_cache_ids_needed"].value == 100


def test_a_bit_of_everything(mixed_target: Target, mixed_dump: Dump) -> None:
    result = run(Context.of(mixed_target, jobs=1))
    assert {check.status for check in result.checks} == {CheckStatus.AGREE}
    assert result.gaps == []
    frame = result.tables["super_blocks"].frame
    assert frame["dentries"].sum() == int(mixed_dump.truth["dentry-state"].split()[1])


def test_unmounting_returns_what_is_claimed() -> None:
    """Fifty mounts, each with its lists for every id; the super blocks go as well."""
    dump = build("5.10", "list-lru-unmount")
    result = run(Context.of(open_target(str(dump.formats["elf"]), dump.debug), jobs=1))
    (finding,) = (each for each in result.findings if each.id == "list-lru-arrays")
    claimed = next(each.returns for each in finding.remedies if "Unmount" in each.effect)
    assert claimed is not None
    before, now = (
        {line.split()[0]: int(line.split()[1]) for line in dump.truth[name].splitlines()[2:]}
        for name in ("slabinfo.4", "slabinfo@unmount")
    )
    returned = (before["kmalloc-32"] - now["kmalloc-32"]) * 32
    # Arrays of pointers, of 766 ids, are in kmalloc-8k.
    returned += (before["kmalloc-8k"] - now["kmalloc-8k"]) * 8192
    assert returned == pytest.approx(50 * claimed, rel=0.1)
