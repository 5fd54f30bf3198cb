# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus slab`` on *synthetic* kernels whose every figure was computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drgn import FaultError, Object

from kcensus.analyses import AnalysisError
from kcensus.analyses.slab import checks as slab_checks
from kcensus.analyses.slab import figures as slab_figures
from kcensus.analyses.slab.census import FILL, SlabCensus, _fill_bin
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, VECTORS
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.slab.kmalloc_users import Objects
from kcensus.results import Check, CheckStatus, Finding, Result, Severity, severity
from tests.running import on, rows, runner
from tests.unit import fakekernel
from tests.unit.fakekernel import ERAS, PAGE, FakeKernel, Memcg, Slab

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


@pytest.fixture
def made() -> World:
    return world()


@pytest.fixture
def charged() -> World:
    return charged_world("6.10")


@pytest.fixture(scope="module", params=OBJCG_ERAS)
def result(request: pytest.FixtureRequest) -> Result:
    return analyse(charged_world(request.param).k)


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


def test_the_summary(result: Result) -> None:
    assert values(result) == {
        "slab_bytes": 11 * PAGE,
        "active_bytes": 34 * 192 + 28 * 232 + 24 * 700 + 2 * 256,
        "utilization": 30336 / 45056,
        "share_of_ram": 11 / 3072,
        "reclaimable_bytes": 3 * PAGE,
        "unreclaimable_bytes": 8 * PAGE,
        "free_slot_bytes": 29 * 192 + 4 * 256 + 4 * 704 + 14 * 256,
        "padding_bytes": 28 * 24 + 24 * 4,
        "tail_bytes": 3 * 64 + 192 + 576,
        "empty_slab_bytes": PAGE,
        "objects_active": 34 + 28 + 24 + 2,
        "objects_total": 63 + 32 + 28 + 16,
        "slabs": 8,
        "caches": 4,
        "memcgs_online": 3,
        "memcgs_offline": 1,
        "controller": "per object",
        "objects_charged": 22,
        "obj_cgroup_vector_bytes": 2 * 256 + 2 * 16 * 8 + 23 * 8,
        "idle_vector_bytes": 0,
        "kmalloc_bytes": 2 * 256,
        "kmalloc_attributed_bytes": 2 * 256,
        "child_cache_bytes": 0,
        "child_cache_unused_bytes": 0,
        # dentry: a 1, b 1, uncharged 1; filp: a 1, unknown 1, uncharged 2; big: b 4, uncharged 4;
        # kmalloc-256: uncharged 1.
        "old_controller_bytes": 16 * PAGE,
        "old_controller_utilization": 30336 / 65536,
        "old_controller_extra_bytes": 3 * PAGE,
        # 34 / 21 → 2, 28 / 16 → 2, 24 / 23 → 2 of four pages, 1.
        "packed_bytes": 13 * PAGE,
        "packed_utilization": 30336 / 53248,
    }


def test_the_caches(result: Result) -> None:
    frame = result.tables["caches"].frame
    assert rows(result, "caches", "cache", "slabs", "objects_total", "objects_active") == [
        ("big", 2, 28, 24),
        ("dentry", 3, 63, 34),
        ("filp", 2, 32, 28),
        ("kmalloc-256", 1, 16, 2),
    ]
    parts = ("bytes", "active_bytes", "free_bytes", "padding_bytes", "tail_bytes")
    assert rows(result, "caches", *parts) == [
        (20480, 16800, 2816, 96, 768),
        (12288, 6528, 5568, 0, 192),
        (8192, 6496, 1024, 672, 0),
        (4096, 512, 3584, 0, 0),
    ]
    assert (frame["bytes"] == frame[list(parts[1:])].sum(axis=1)).all()
    assert frame["utilization"].tolist() == (frame["active_bytes"] / frame["bytes"]).tolist()
    shape = ("object_size", "slot_size", "objects_per_slab", "order", "reclaimable")
    assert rows(result, "caches", *shape) == [
        (700, 704, 23, 2, False),
        (192, 192, 21, 0, True),
        (232, 256, 16, 0, False),
        (256, 256, 16, 0, False),
    ]
    assert frame["vector_bytes"].tolist() == [23 * 8, 2 * 256, 2 * 16 * 8, 0]
    assert rows(result, "caches", *(f"fill_{at}" for at in range(6))) == [
        (0, 0, 0, 0, 2, 0),
        (1, 0, 0, 1, 1, 0),
        (0, 0, 0, 0, 1, 1),
        (0, 1, 0, 0, 0, 0),
    ]


def test_the_memory_cgroups(result: Result) -> None:
    assert rows(result, "memcgs", "memcg", "state", "objects", "bytes") == [
        (NO_MEMCG, "none", 66, 20 * 192 + 25 * 256 + 19 * 704 + 2 * 256),
        ("/b", "online", 16, 11 * 192 + 5 * 704),
        ("/a", "online", 5, 3 * 192 + 2 * 256),
        (UNKNOWN_MEMCG, "unknown", 1, 256),
        ("/", "online", 0, 0),
        ("/b/dead", "offline", 0, 0),
    ]
    assert rows(result, "memcg_caches", "memcg", "cache", "objects", "bytes") == [
        ("/b", "big", 5, 3520),
        ("/b", "dentry", 11, 2112),
        ("/a", "dentry", 3, 576),
        ("/a", "filp", 2, 512),
        (UNKNOWN_MEMCG, "filp", 1, 256),
    ]
    frame = result.tables["memcgs"].frame
    slots, by_cache = result.tables["caches"].frame, result.tables["memcg_caches"].frame
    addresses = frame.set_index("memcg")["address"]
    assert by_cache["memcg_address"].tolist() == addresses[by_cache["memcg"]].tolist()
    assert frame["objects"].sum() == slots["objects_active"].sum()
    assert frame["bytes"].sum() == (slots["objects_active"] * slots["slot_size"]).sum()


def test_nodes_fill_and_waste(result: Result) -> None:
    assert rows(result, "nodes", "node", "slabs", "objects_total", "objects_active") == [
        (0, 5, 97, 53),
        (1, 3, 42, 35),
    ]
    assert rows(result, "nodes", "bytes", "active_bytes", "utilization") == [
        (8 * PAGE, 20944, 20944 / (8 * PAGE)),
        (3 * PAGE, 9392, 9392 / (3 * PAGE)),
    ]
    assert rows(result, "cache_nodes", "cache", "node", "slabs", "objects_active", "bytes") == [
        ("big", 0, 1, 20, 4 * PAGE),
        ("big", 1, 1, 4, PAGE),
        ("dentry", 0, 2, 19, 2 * PAGE),
        ("dentry", 1, 1, 15, PAGE),
        ("filp", 0, 1, 12, PAGE),
        ("filp", 1, 1, 16, PAGE),
        ("kmalloc-256", 0, 1, 2, PAGE),
    ]
    shares = [slabs / 8 for slabs in (1, 1, 0, 1, 4, 1)]
    assert rows(result, "fill", "fill", "slabs", "share") == [
        (name, share * 8, share) for name, share in zip(FILL, shares, strict=True)
    ]
    assert rows(result, "waste", "cache", "waste_bytes") == [
        ("dentry", 5760),
        ("big", 3680),
        ("kmalloc-256", 3584),
        ("filp", 1696),
    ]
    assert result.tables["waste"].frame["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("used", "objects", "fill"),
    [
        (0, 1, 0), (1, 1, 5), (1, 100, 1), (24, 100, 1), (25, 100, 2), (49, 100, 2),
        (50, 100, 3), (74, 100, 3), (75, 100, 4), (99, 100, 4), (100, 100, 5), (1, 2, 3),
        (32766, 32767, 4),
    ],
)  # fmt: skip
def test_bins_of_fill(used: int, objects: int, fill: int) -> None:
    bins = _fill_bin(np.array([used], np.int64), np.array([objects], np.uint16))
    assert bins.tolist() == [fill]


@pytest.mark.parametrize("era", ["4.18", "5.9", "6.18", "7.3"])
@pytest.mark.parametrize(("chunk_bytes", "jobs"), [(PAGE, 1), (PAGE, 2)])
def test_neither_chunks_nor_processes_change_a_figure(
    era: str, chunk_bytes: int, jobs: int
) -> None:
    made = (charged_world if ERAS[era].vector else world)(era)
    whole, cut = analyse(made.k), analyse(made.k, chunk_bytes=chunk_bytes, jobs=jobs)
    assert cut.summary == whole.summary
    assert whole.summary["slabs"].value == 8
    assert cut.checks == whole.checks
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(cut.tables[name].frame, table.frame)


@pytest.mark.parametrize("era", ["7.0", "7.3"])
def test_vectors_inside_their_slabs_cost_what_their_words_take(era: str) -> None:
    made = world(era)
    k, slabs, a = made.k, made.slabs, made.groups["a"]
    # In what a slab leaves over, and in the padding of its own objects.
    k.charge(slabs["b1"], {0: a}, at=slabs["b1"].address + 5 * 704)
    k.charge(slabs["f0"], {3: a}, in_object=240)
    result = analyse(k)
    assert values(result)["obj_cgroup_vector_bytes"] == 5 * 8 + 16 * 8
    assert values(result)["objects_charged"] == 2
    census = SlabCensus(Kernel(k.prog)).take()
    assert census.vector_bytes.tolist() == [0, 0, 0, 0]
    assert census.vector_bytes_inside.tolist() == [0, 16 * 8, 5 * 8, 0]


@pytest.mark.parametrize("era", ["7.0", "7.3"])
def test_a_vector_with_tags_takes_two_words_an_element(era: str) -> None:
    made = world(replace(ERAS[era], codetag=True))
    k, slabs, a = made.k, made.slabs, made.groups["a"]
    k.charge(slabs["b1"], {0: a}, at=slabs["b1"].address + 5 * 704)
    k.charge(slabs["b0"], {3: a})
    assert values(analyse(k))["obj_cgroup_vector_bytes"] == 5 * 16 + 23 * 16


def test_other_names_of_merged_caches(made: World) -> None:
    for number, name in ((1, "names_cache"), (1, "avc_node"), (1, ":0000256"), (3, "eventpoll")):
        made.k.alias(made.k.caches[number], name)
    assert rows(analyse(made.k), "caches", "cache", "aliases") == [
        ("big", ""),
        ("dentry", ""),
        ("filp", "avc_node, names_cache"),
        ("kmalloc-256", "eventpoll"),
    ]


def test_names_that_are_not_utf8_can_be_encoded(made: World) -> None:
    made.k.alias(made.k.caches[1], "bad")
    name = made.k.symbols["slab_kset"].kobj.sd.dir.children.rb_node.value_() - 24
    link = Object(made.k.prog, "struct kernfs_node", address=name)
    made.k.set(link.name, made.k.string(b"\xff\xfe"))
    made.k.set(made.k.caches[1].object.name, made.k.string(b"\xed\xa0\x80"))
    ((cache, alias),) = [
        row for row in rows(analyse(made.k), "caches", "cache", "aliases") if row[1]
    ]
    assert (cache, alias) == ("\\xed\\xa0\\x80", "\\xff\\xfe")


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


@pytest.mark.parametrize("era", ERAS)
def test_all_checks_agree(era: str) -> None:
    result = analyse(world(era).k)
    checks = [
        each
        for each in result.checks
        # No cgroup has been charged, whether or not the era has statistics.
        if each.status is not CheckStatus.ABSENT and each.name != "charged slab objects"
    ]
    assert [(each.name, each.ours, each.counter) for each in checks] == [
        ("nr_slabs, all caches", 8, 8),
        ("total_objects, all caches", 139, 139),
        ("SReclaimable (meminfo, vmstat)", 3, 3),
        ("SUnreclaim (meminfo, vmstat)", 8, 8),
    ]
    assert all_agree(result)
    assert not result.gaps


def test_a_wrong_counter_shows_with_its_cache() -> None:
    k = world().k
    k.set(k.node(k.caches[1], 0).nr_slabs.counter, 3)
    k.set(k.node(k.caches[2], 1).total_objects.counter, 4)
    result = analyse(k)
    wrong = {each.name: each.difference for each in result.checks if each.difference}
    assert wrong == {
        "nr_slabs, all caches": 2,
        "nr_slabs, filp": 2,
        "total_objects, all caches": -1,
        "total_objects, big": -1,
    }
    assert check(result, "nr_slabs, filp").status is CheckStatus.DIFFER


def test_many_wrong_counters_are_summed_up() -> None:
    k = FakeKernel()
    for at in range(14):
        k.slab(k.cache(f"c{at:02}", 64))
    k.settle()
    for at, cache in enumerate(k.caches[:13]):
        k.set(k.node(cache, 0).nr_slabs.counter, 101 + at)
    names = [each.name for each in analyse(k).checks if each.name.startswith("nr_slabs")]
    # The worst first.
    assert names == [
        "nr_slabs, all caches",
        *(f"nr_slabs, c{at:02}" for at in range(12, 2, -1)),
        "nr_slabs, 3 more caches that differ",
    ]
    assert check(analyse(k), "nr_slabs, 3 more caches that differ").difference == 100 + 101 + 102


def test_wrong_page_counters_differ(made: World) -> None:
    for item, pages in ((1, 100), (2, 1)):
        counter = made.k.symbols["node_data"][0].vm_stat[item].counter
        made.k.set(counter, int(counter) + pages)
    result = analyse(made.k)
    for name, pages in (("SReclaimable", 100), ("SUnreclaim", 1)):
        found = check(result, f"{name} (meminfo, vmstat)")
        assert (found.difference, found.status) == (pages, CheckStatus.DIFFER)


@pytest.mark.parametrize(("counted", "status"), [(12, "EXPLAINED"), (11, "DIFFER")])
def test_large_kmallocs_explain_what_they_explain(counted: int, status: str) -> None:
    k = world().k
    for order in (2, 3):
        k.large_kmalloc(order)
    counter = k.symbols["node_data"][1].vm_stat[2].counter
    k.set(counter, int(counter) + counted)
    found = check(analyse(k), "SUnreclaim (meminfo, vmstat)")
    assert found.status is CheckStatus[status]
    assert found.explained == 12


@pytest.mark.parametrize("era", ["4.18", "5.17"])
@pytest.mark.parametrize(
    ("counted", "status"),
    [(0, "AGREE"), (12, "EXPLAINED"), (268, "EXPLAINED"), (269, "DIFFER"), (-1, "DIFFER")],
)
def test_where_large_kmallocs_have_no_mark_their_pages_are_bounded(
    era: str, counted: int, status: str
) -> None:
    k = world(era).k
    for order in (2, 3):
        k.large_kmalloc(order)
    # On an LRU list, reserved, mapped: not of kmalloc().
    for bit in (5, 12):
        page = k.page(k.pages(1))
        k.set(page.flags, int(page.flags) | 1 << bit)
    k.set(k.page(k.pages(1)).mapping, fakekernel.DIRECT_MAP)
    counter = k.symbols["node_data"][0].vm_stat[2].counter
    k.set(counter, int(counter) + counted)
    found = check(analyse(k), "SUnreclaim (meminfo, vmstat)")
    assert found.status is CheckStatus[status]
    # Eight compound pages of order 5 lie between the slabs.
    assert found.at_most == (12 + 8 * 32 if counted > 0 else None)


def test_vectors_on_a_zeroed_page_differ_from_what_is_charged(
    charged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = check(analyse(charged.k), "charged slab objects").ours
    assert ours == 14 * 200 + 3 * 264 + 5 * 712
    monkeypatch.setattr(slab_checks, "charged_bytes", lambda _kernel: ours)
    assert check(analyse(charged.k), "charged slab objects").status is CheckStatus.AGREE
    charged.k.write(charged.slabs["k0"].object(1), bytes(21 * 16))
    found = check(analyse(charged.k), "charged slab objects")
    assert found.difference == 10 * 200
    assert found.status is CheckStatus.DIFFER


def test_counters_that_cannot_be_read_are_not_zero() -> None:
    k = world().k
    node = k.alloc("struct kmem_cache_node", alone=True)
    k.set(k.caches[0].object.node[0], node)
    k.drop(node.address_)
    result = analyse(k)
    # The cache is left out of what is compared, and that is said.
    assert all_agree(result)
    assert gaps(result) == {"counters of slab caches": 1}
    assert [(each.ours, each.counter) for each in result.checks[:2]] == [(5, 5), (76, 76)]


def gaps(result: Result) -> dict[str, int]:
    return {gap.what: gap.count for gap in result.gaps}


def test_a_hole_in_the_page_array(charged: World) -> None:
    filp = charged.k.caches[1]
    for _ in range(200):
        charged.k.slab(filp)
    charged.k.settle()
    # A page of the array describes 64 pages.
    first = filp.slabs[100].pfn // 64 * 64
    charged.k.drop(fakekernel.VMEMMAP + first * 64)
    result = analyse(charged.k)
    assert gaps(result) == {"struct page array: pages": 1}
    assert result.gaps[0].reason == "filtered out of the dump"
    assert check(result, "nr_slabs, filp").difference == 64
    assert check(result, "total_objects, filp").difference == 64 * 16


def test_an_unreadable_vector(charged: World) -> None:
    place = charged.k.charge(charged.slabs["f1"], {0: charged.groups["a"]})
    charged.k.drop(place)
    result = analyse(charged.k)
    assert gaps(result) == {"obj_cgroup vectors": 1}
    assert result.gaps[0].reason == "filtered out of the dump"
    assert NO_MEMCG in result.gaps[0].effect
    assert values(result)["objects_charged"] == 21


def test_a_cache_whose_structure_is_damaged(made: World) -> None:
    made.k.set(made.k.caches[3].object.size, 0)
    result = analyse(made.k)
    assert gaps(result) == {"slab caches": 1, "slabs": 1}
    (reason,) = (gap.reason for gap in result.gaps if gap.what == "slabs")
    assert "slab_caches" in reason


def test_an_unreadable_objcg(charged: World) -> None:
    k = charged.k
    lost = Memcg(k.root.object, k.alloc("struct obj_cgroup", alone=True), "")
    k.set(lost.objcg.memcg, k.root.object)
    k.charge(charged.slabs["b1"], {0: lost, 3: lost})
    before = dict(rows(analyse(k), "memcgs", "memcg", "objects"))
    k.drop(lost.objcg.address_)
    result = analyse(k)
    after = dict(rows(result, "memcgs", "memcg", "objects"))
    assert after[UNKNOWN_MEMCG] == before[UNKNOWN_MEMCG] + 2 == 3
    # The row alone would not tell that it is the dump that lacks something.
    assert sum(gaps(result).values()) == 1


def test_more_charged_than_allocated(charged: World) -> None:
    # A vector that still names the owners of objects that were all freed.
    charged.k.charge(charged.slabs["d2"], dict.fromkeys(range(21), charged.groups["a"]))
    result = analyse(charged.k)
    states = dict(rows(result, "memcgs", "memcg", "objects"))
    assert states["/a"] == 3 + 2 + 21
    assert states[NO_MEMCG] == 25 + 19 + 2
    # 14 and 21 dentries are charged, of 34.
    assert gaps(result) == {"objects": 1}


def test_a_torn_list_of_a_cpu() -> None:
    made = world("6.10")
    made.k.link(made.k.caches[0], made.slabs["d0"].object(1), made.slabs["d0"].object(0))
    result = analyse(made.k)
    assert gaps(result) == {"freelists of CPUs, or sheaves": 1}
    # It goes round between the two: nothing is lost but the certainty.
    assert values(result)["objects_active"] == 88


@pytest.mark.parametrize("era", ["6.10", "7.0"])
def test_parked_objects_whose_slab_is_gone(era: str) -> None:
    made = world(era)
    for _ in range(100):
        made.k.slab(made.k.caches[1])
    late = made.k.caches[1].slabs[-1]
    if made.k.era.cpu_slab:
        made.k.cpu_slab(late, 0, [3, 4, 5])
    else:
        made.k.cpu_sheaf(late.cache, 0, "main", made.k.sheaf([(late, 3), (late, 4), (late, 5)]))
    made.k.set(made.k.page(late.pfn)._mapcount.counter, -1)
    result = analyse(made.k)
    assert gaps(result) == {"free objects of CPUs or sheaves": 3}


def test_torn_memory_cgroups(charged: World) -> None:
    charged.k.write_words(charged.groups["a"].object.css.sibling.address_, 0x10)
    result = analyse(charged.k)
    assert gaps(result)["lists or pages of memory cgroups"] >= 1
    states = dict(rows(result, "memcgs", "memcg", "objects"))
    assert states["/a"] == 5
    # b is behind the tear, and found from the other end of the list.
    assert states["/b"] == 16
    assert states[UNKNOWN_MEMCG] == 1


@pytest.mark.parametrize(
    ("objects", "inuse"),
    [(21, 0xFFFF), (21, 100), (1, 21), (0, 0), (0, 5), (0x7FFF, 21), (0x7FFF, 0xFFFF)],
)
def test_torn_counters_of_one_slab_cost_no_other_cache(objects: int, inuse: int) -> None:
    made = world()
    torn = made.slabs["d1"]
    made.k.set(torn.struct.objects, objects)
    made.k.set(torn.struct.inuse, inuse)
    result = analyse(made.k)
    found = dict(rows(result, "caches", "cache", "objects_active"))
    assert {name: found[name] for name in ("filp", "big", "kmalloc-256")} == {
        "filp": 28, "big": 24, "kmalloc-256": 2
    }  # fmt: skip
    assert values(result)["slab_bytes"] == 10 * PAGE
    assert gaps(result) == {"slabs": 1}


def test_more_parked_objects_than_a_slab_has_in_use() -> None:
    made = world("7.0")
    slab = made.slabs["f0"]
    made.k.cpu_sheaf(slab.cache, 0, "main", made.k.sheaf([(slab, at) for at in range(12)]))
    made.k.set(slab.struct.inuse, 0)
    result = analyse(made.k)
    found = dict(rows(result, "caches", "cache", "objects_active"))
    assert found == {"big": 24, "dentry": 34, "filp": 16, "kmalloc-256": 2}
    assert gaps(result) == {"slabs": 1}


def test_a_parked_pointer_into_another_caches_slab_frees_nothing_there() -> None:
    made = world("7.0")
    slab = made.slabs["f1"]
    made.k.cpu_sheaf(made.k.caches[0], 0, "main", made.k.sheaf([(slab, 3)]))
    # 768 bytes into the slab, where either cache has the start of a slot.
    result = analyse(made.k)
    assert values(result)["objects_active"] == 88
    assert gaps(result) == {"free objects of CPUs or sheaves": 1}


def test_a_torn_list_of_caches(made: World) -> None:
    for at in (1, 2):
        made.k.drop(made.k.caches[at].address)
    result = analyse(made.k)
    assert gaps(result)["slab_caches list"] > 0
    assert gaps(result)["slabs"] == 4
    found = dict(rows(result, "caches", "cache", "objects_active"))
    assert found == {"dentry": 34, "kmalloc-256": 2}


@pytest.mark.parametrize("online", [1, 0, 0x83])
def test_damage_to_the_mask_of_online_nodes_is_betrayed(online: int) -> None:
    made = world()
    mask = made.k.symbols["node_states"][int(made.k.prog["N_ONLINE"])]
    made.k.set(mask.bits[0], online)
    result = analyse(made.k)
    pages = [each for each in result.checks if "meminfo" in each.name]
    assert gaps(result) or any(each.status is not CheckStatus.AGREE for each in pages)
    assert values(result)["slabs"] in (5, 8)


def test_a_page_of_a_node_that_is_not_there(made: World) -> None:
    page = made.k.page(made.slabs["f1"].pfn)
    made.k.set(page.flags, 5 << 61)
    result = analyse(made.k)
    assert values(result)["objects_active"] in (88, 88 - 16)


@pytest.mark.parametrize("era", ["5.17", "6.10", "6.18", "7.0", "7.3"])
def test_pages_of_kfence_are_no_slabs(era: str) -> None:
    # 0ce20dd84089 (5.12): a pool whose every other page passes for a slab of one object, so that
    # kfree() takes it. SLUB knows nothing of them; inuse and freelist are never set.
    made = world(era)
    k = made.k
    pool = k.pages(0)
    for _ in range(7):
        k.pages(0)
    k.variable("__kfence_pool", "char *", fakekernel.DIRECT_MAP + pool * PAGE)
    # Not used yet, in use, and free again: the last two look the same.
    for number, cache in ((2, None), (4, k.caches[0]), (6, k.caches[1])):
        slab = k.mark_slab(pool + number)
        metadata = k.alloc("struct obj_cgroup")
        k.set(slab.member_(k.era.vector), metadata.address_ | 1)
        if cache is not None:
            k.set(slab.slab_cache, cache.object)
            k.set(slab.objects, 1)
    result = analyse(k)
    assert gaps(result) == {}
    assert values(result)["slabs"] == 8
    assert values(result)["objects_total"] == 139
    assert all_agree(result)


def test_a_kernel_whose_memory_model_is_unknown() -> None:
    k = world().k
    for name in ("mem_section", "vmemmap"):
        del k.symbols[name]
    with pytest.raises(AnalysisError, match="memory model"):
        analyse(k)


def test_an_allocator_that_is_not_slub() -> None:
    k = FakeKernel()
    k.cache("some", 64)
    members = {"struct kmem_cache": (256, "24 unsigned int size\n64 struct list_head list")}
    fakekernel.add_types(k.prog, members, "slab allocator")
    with pytest.raises(AnalysisError, match="only the SLUB allocator"):
        analyse(k)


def test_a_kernel_without_memory_cgroups(made: World) -> None:
    del made.k.symbols["root_mem_cgroup"]
    result = analyse(made.k)
    assert rows(result, "memcgs", "memcg", "objects") == [(NO_MEMCG, 88)]
    assert values(result)["memcgs_online"] == 0


def test_a_kernel_without_a_single_slab() -> None:
    k = FakeKernel()
    k.cache("some", 64)
    k.settle()
    result = analyse(k)
    assert values(result)["slab_bytes"] == 0
    assert values(result)["utilization"] == 0.0
    assert rows(result, "caches", "cache", "utilization") == [("some", 0.0)]
    assert rows(result, "fill", "share") == [(0.0,)] * 6
    assert not result.findings


@pytest.fixture
def no_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings from a byte on: synthetic kernels are small."""
    monkeypatch.setattr(severity, "MIN_BYTES", 1)


def finding(result: Result, id_: str) -> Finding:
    return next(each for each in result.findings if each.id == id_)


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


@every_objcg_era
@pytest.mark.usefixtures("no_minimum")
def test_vectors_without_a_charged_object(era: str) -> None:
    made = charged_world(era)
    k, slabs = made.k, made.slabs
    assert not [each for each in analyse(k).findings if each.id == "slab-vectors"]
    k.charge(slabs["f0"], {}, at=slabs["k0"].object(0))
    k.charge(slabs["d0"], {}, at=slabs["k0"].object(1))
    k.charge(slabs["d1"], dict.fromkeys(range(10), made.groups["b"]))
    k.set_ram(100)
    vectors = finding(analyse(k), "slab-vectors")
    assert vectors.memory == {"slab:kmalloc-256": 2 * 256}
    figures = {name: figure.value for name, figure in vectors.figures.items()}
    assert figures == {
        "idle_vector_bytes": 512, "vectors": 5, "vectors_idle": 2, "objects_charged": 16
    }  # fmt: skip
    assert (vectors.patch == "") == (era >= "7")
    assert "cgroup.memory=nokmem" in vectors.remedies[0].command
    assert vectors.returns is None


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
