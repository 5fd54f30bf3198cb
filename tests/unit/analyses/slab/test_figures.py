# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus slab`` on *synthetic* kernels whose every figure was computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drgn import FaultError, Object

from kcensus.analyses.slab import figures as slab_figures
from kcensus.analyses.slab.census import FILL, SlabCensus, _fill_bin
from kcensus.analyses.slab.figures import NO_MEMCG, NOT_ATTRIBUTED, UNKNOWN_MEMCG, VECTORS
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.slab.kmalloc_users import Objects
from kcensus.results import CheckStatus, Result
from tests.running import rows
from tests.unit.analyses.slab.making import (
    OBJCG_ERAS,
    UNLISTED,
    World,
    analyse,
    charged_world,
    child_era,
    every_objcg_era,
    families,
    gaps,
    values,
    world,
)
from tests.unit.fakekernel import ERAS, PAGE


@pytest.fixture(scope="module", params=OBJCG_ERAS)
def result(request: pytest.FixtureRequest) -> Result:
    return analyse(charged_world(request.param).k)


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


@pytest.mark.ends
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
        **UNLISTED,
    }


def test_structures_of_memory_cgroups_are_users(made: World) -> None:
    k, slab = made.k, made.slabs["k0"]
    for at, name in enumerate(("a", "b")):
        k.set(made.groups[name].object.css.cgroup, slab.object(at))
        k.write_words(slab.object(at) + 32, int(k.root.object.css.cgroup.kn))
    assert rows(analyse(k), "kmalloc", "user", "objects") == [("cgroup", 2)]
