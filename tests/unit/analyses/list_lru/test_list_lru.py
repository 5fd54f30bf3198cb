# SPDX-License-Identifier: LGPL-2.1-or-later
"""List_lrus of *synthetic* kernels: layouts that no test machine has, and damage."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import replace

import numpy as np
import pytest
from drgn import Object

from kcensus.analyses import AnalysisError, ParamError
from kcensus.analyses.list_lru import findings as findings_module
from kcensus.analyses.list_lru.checks import checks, gaps, parse_before
from kcensus.analyses.list_lru.figures import Figures
from kcensus.analyses.list_lru.model import Population, Stage, cost
from kcensus.analyses.list_lru.run import summary
from kcensus.analyses.list_lru.slots import EMPTY, UNUSED
from kcensus.analyses.list_lru.tables import MEMCGS, NO_MEMCG, PROJECTION
from kcensus.engine.gather import IMPOSSIBLE_COUNT
from kcensus.engine.memory import Faults, Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.mm.footprint import PAGES, UNKNOWN, VMALLOC, Allocator, Footprint, Tally
from kcensus.kernel.vfs.list_lru import KINDS
from kcensus.results import Bound, Check, CheckStatus, severity
from tests.running import on, runner
from tests.unit.fakekernel import DIRECT_MAP, LRU_ERAS, PAGE, FakeKernel, table
from tests.unit.fakekernel.files import FakeFiles
from tests.unit.fakekernel.list_lrus import FakeListLrus, FakeLru
from tests.unit.fakekernel.types import add_types

pytestmark = pytest.mark.ends

run = runner("list-lru")

LONG_MIN = -(1 << 63)
LONG_MAX = (1 << 63) - 1
ARRAYS = [name for name, era in LRU_ERAS.items() if not era.xarray]
XARRAYS = [name for name, era in LRU_ERAS.items() if era.xarray]


def census(fake: FakeListLrus, chunk_bytes: int = 1 << 20) -> Figures:
    fake.settle()
    return Figures(Kernel(fake.kernel.prog, chunk_bytes=chunk_bytes))


def check_of(found: Figures, name: str) -> Check:
    return next(check for check in checks(found, {}) if check.name == name)


def lost(found: Figures) -> list[tuple[str, int]]:
    return [(gap.what, gap.count) for gap in gaps(found)]


def busy(era: str) -> tuple[FakeListLrus, dict[str, FakeLru]]:
    """Two mounts and some variables, four cgroups, and something on several lists."""
    fake = FakeListLrus(era)
    dentries, inodes = fake.mount("xfs", "sda1")
    made = {"sda1 dentry": dentries, "sda1 inode": inodes}
    made["tmp dentry"], made["tmp inode"] = fake.mount("tmpfs", "tmpfs")
    made["shadow"] = fake.variable("shadow_nodes")
    made["files"] = fake.variable("nfsd_file_lru", aware=False)
    outer = fake.memcg("outer", 2)
    fake.memcg("inner", 5, outer)
    fake.memcg("other", 3)
    # Its number was its parent's when it went, or (5.18) is that of another one by now.
    fake.memcg("gone", 2 if not fake.era.xarray else 3, outer, online=False)
    fake.put(dentries, {(None, 0): 7, (None, 1): 1, (2, 0): 3, (5, 1): 4})
    fake.put(inodes, {(2, 1): 2, (3, 0): 0})
    fake.put(made["shadow"], {(None, 1): 5, (5, 0): 6, (5, 1): 1})
    fake.put(made["files"], {(None, 0): 9})
    return fake, made


@pytest.mark.parametrize("era", LRU_ERAS)
def test_items_by_list_and_by_cgroup(era: str) -> None:
    fake, made = busy(era)
    found = census(fake)
    lrus = found.lrus
    rows = {address: row for row, address in enumerate(lrus.address.tolist())}
    items = {name: int(found.items[rows[lru.object.address_]]) for name, lru in made.items()}
    assert items == dict(zip(made, (15, 2, 0, 0, 12, 9), strict=True))
    assert lrus.items.sum() == sum(items.values())
    assert {
        (lrus.owner[row], KINDS[lrus.kind[row]], bool(lrus.aware[row])) for row in rows.values()
    } == {
        *((type_, kind, True) for type_ in ("xfs", "tmpfs") for kind in ("dentry", "inode")),
        *(("shadow_nodes", "other", True), ("nfsd_file_lru", "other", False)),
    }
    result = run(on(fake.kernel.prog))
    table = result.tables["memcgs"].frame.set_index("memcg")
    counts = table[["dentries", "inodes", "other_items"]].itertuples(name=None)
    assert {path: (d, i, o) for path, d, i, o in counts if d + i + o} == {
        "/": (8, 0, 5),
        "/outer": (3, 2, 0),
        "/outer/inner": (4, 0, 7),
        # On a list that knows no memory cgroups.
        NO_MEMCG: (0, 0, 9),
    }
    assert [table.loc["/outer/gone", name] for name in ("state", "id")] == ["offline", -1]
    # Without css_serial_nr_next, how many were created since is unknown.
    assert table["newer"].tolist() == [0] * 6
    assert result.summary["memcgs_newer_than_offline"].value == 0
    assert result.gaps == []


@pytest.mark.parametrize("era", ARRAYS)
@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
def test_slots_of_arrays(era: str, chunk_bytes: int) -> None:
    fake, _ = busy(era)
    found = census(fake, chunk_bytes)
    slots = found.slots
    # Five list_lrus, two nodes, ten ids, three of them in use.
    assert slots.slots.sum() == 5 * 2 * 10
    assert slots.slots[:, UNUSED].sum() == 5 * 2 * 7
    assert slots.slots[:, EMPTY].sum() == 5 * 2 * 3 - 5
    assert slots.bytes.sum() == 100 * 32
    assert slots.bytes[:, UNUSED].sum() == 70 * 32
    # Ten pointers, and before them the rcu_head or (4.15) nothing.
    assert found.pointer_bytes.sum() == 10 * 96
    assert found.node_bytes.sum() == 6 * 128
    assert found.ids.cache_ids == 10
    assert found.ids.highest == 5
    assert found.formula == 2 * 10 * 32 * 5
    assert found.structural_bytes == sum(size * count for size, count in fake.used.items())
    summary = run(on(fake.kernel.prog)).summary
    assert summary["nr_cache_ids_needed"].value == 6
    # Six pointers and an rcu_head; for each of five list_lrus and two nodes.
    assert summary["bytes_if_shrunk"].value == 10 * (64 + 6 * 32)


def test_how_long_cgroups_have_been_dying() -> None:
    """Kernels keep no times: what was created since is all that is known."""
    fake, _ = busy("6.13")
    fake.memcg("late", 7)
    fake.memcg("later", 8)
    fake.kernel.variable("css_serial_nr_next", "unsigned long", 20)
    fake.settle()
    result = run(on(fake.kernel.prog))
    newer = result.tables["memcgs"].frame.set_index("memcg")["newer"]
    assert newer["/outer/gone"] == 20 - 1 - 5
    assert newer["/later"] == 20 - 1 - 7
    assert result.summary["memcgs_newer_than_offline"].value == 2


def test_the_waste_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(severity, "MIN_BYTES", 0)
    fake, made = busy("5.10")
    found = census(fake)
    total = found.measured.total
    waste = found.measured.total - found.costs[Stage.XARRAY].total
    for expected, share in severity.SHARES.items():
        found.kernel.ram_bytes = int(waste / share)
        (finding,) = findings_module.findings(found)
        assert finding.severity is expected
    # Per-memcg lists, arrays of pointers, arrays of nodes.
    assert finding.memory == {
        "slab:kmalloc-32": 100 * 32,
        "slab:kmalloc-96": 10 * 96,
        "slab:kmalloc-128": 6 * 128,
    }
    figures = {name: figure.value for name, figure in finding.figures.items()}
    assert finding.holds == figures["bytes"] == total
    assert figures["lists"] == 100
    assert figures["lists_in_use"] == 5
    assert (figures["memcgs_at_once"], figures["ids_in_use"]) == (5, 3)
    unmount, reboot = finding.remedies
    assert unmount.returns == total // 5 * 2
    # Six ids, as many as the highest needs.
    assert reboot.returns == 100 * 32 + 10 * 96 - 10 * (64 + 6 * 32)
    assert reboot.is_upper_bound
    # A list that cannot be read does not count as non-empty.
    fake.kernel.drop(made["shadow"].entries[5])
    found = Figures(Kernel(fake.kernel.prog))
    found.kernel.ram_bytes = waste
    assert found.slots.unreadable == 100
    (finding,) = findings_module.findings(found)
    assert finding.figures["lists_in_use"].value == 0


@pytest.mark.parametrize("era", XARRAYS)
def test_empty_lists_are_a_finding(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(severity, "MIN_BYTES", 0)
    found = census(busy(era)[0])
    found.kernel.ram_bytes = found.empty_bytes * 100
    (finding,) = findings_module.findings(found)
    assert finding.id == "list-lru-empty"
    assert finding.holds == found.empty_bytes == sum(finding.memory.values())
    assert finding.figures["lists_empty"].value == 1
    assert finding.no_remedy


@pytest.mark.parametrize("count", [0, 100_000, 3_000_000, 0xFFFFFFFF])
def test_a_number_of_nodes_that_cannot_be(count: int) -> None:
    """It sizes arrays of every list_lru: that of the online nodes holds then."""
    fake, _ = busy("5.10")
    before = census(fake)
    fake.kernel.constant("nr_node_ids", count)
    after = Figures(Kernel(fake.kernel.prog))
    assert after.lrus.items.shape == before.lrus.items.shape
    assert after.structural_bytes == before.structural_bytes


@pytest.mark.parametrize("era", XARRAYS)
def test_slots_of_xarrays(era: str) -> None:
    fake, _ = busy(era)
    found = census(fake)
    slots = found.slots
    assert slots.slots.sum() == 5
    assert slots.slots[:, UNUSED].sum() == 0
    assert slots.slots[:, EMPTY].sum() == 1
    size = 96 if fake.era.locks else 64
    assert slots.bytes.sum() == 5 * size
    assert slots.bytes[:, EMPTY].sum() == size
    assert slots.xa_nodes.sum() == 3
    assert slots.xa_node_bytes.sum() == 3 * 584
    assert found.ids.cache_ids is None
    assert found.population.xa_nodes == 3
    # Highest id 5, and the root has 1: these would have been 0 to 3.
    assert found.nr_cache_ids == 4


def test_rhel_8_and_4_19_tell_awareness_by_arrays() -> None:
    """Up to 5.1 no member says whether a list_lru knows memory cgroups."""
    fake, made = busy("4.19")
    lrus = census(fake).lrus
    assert not fake.kernel.prog.type("struct list_lru").has_member("memcg_aware")
    aware = dict(zip(lrus.address.tolist(), lrus.aware.tolist(), strict=True))
    assert [aware[lru.object.address_] for lru in made.values()] == [True] * 5 + [False]
    # Then the kernel's own list has all, aware or not.
    assert (lrus.total_listed, lrus.owned, lrus.list_name) == (6, 6, "list_lrus")


def test_the_registry_knows_whose_a_reused_number_is() -> None:
    """Since 5.18 an offline cgroup keeps its number, which another one may have by now."""
    fake, _ = busy("5.18")
    found = census(fake)
    ids = dict(zip(found.groups.path, found.groups.kmemcg_id.tolist(), strict=True))
    assert ids["/outer/gone"] == ids["/other"] == 3
    assert found.groups.path[found.ids.row[3]] == "/other"
    # The root has a number, but its list is not in the XArray.
    assert found.ids.row[1] == -1
    assert (found.ids.ours, found.ids.registered) == (4, 4)
    # What an offline cgroup has swapped out keeps its number.
    fake, _ = busy("5.18")
    gone = next(group for group in fake.kernel.memcgs if group.path == "/outer/gone")
    fake.registered[9] = gone.object.address_
    found = census(fake)
    assert (found.ids.ours, found.ids.registered, found.ids.offline) == (4, 5, 1)
    assert check_of(found, "ids of memory cgroups").status is CheckStatus.EXPLAINED


def test_tombstones_of_6_13() -> None:
    """A list that a dying cgroup has given up has LONG_MIN items: it has none."""
    fake, made = busy("6.13")
    lru = made["tmp dentry"]
    fake.put(lru, {(2, 0): LONG_MIN, (2, 1): LONG_MIN, (5, 0): LONG_MIN, (5, 1): 0})
    found = census(fake)
    row = found.lrus.address.tolist().index(lru.object.address_)
    assert found.items[row] == 0
    assert found.slots.slots[row, EMPTY] == 2
    assert gaps(found) == []


@pytest.mark.parametrize(
    ("id_", "count"), [(3, -2), *((id_, n) for id_ in (None, 3) for n in (1 << 46, LONG_MAX))]
)
@pytest.mark.parametrize("era", LRU_ERAS)
def test_a_count_that_cannot_be_is_none(era: str, id_: int | None, count: int) -> None:
    """It is below zero while items go to the parent's list; a huge one may be of a freed list."""
    fake, made = busy(era)
    fake.put(made["tmp inode"], {(id_, 0): 0})
    usual = census(fake)
    fake.put(made["tmp inode"], {(id_, 0): count})
    found = census(fake)
    assert found.items.tolist() == usual.items.tolist()
    assert {gap.reason for gap in gaps(found)} == ({IMPOSSIBLE_COUNT} if count > 0 else set())


@pytest.mark.parametrize("era", ["4.19", "6.13"])
def test_a_list_with_more_items_than_all_lists_is_a_gap(era: str) -> None:
    fake, made = busy(era)
    fake.put(made["tmp inode"], {(3, 0): 0})
    usual = census(fake)
    fake.kernel.set(fake.one(made["tmp inode"], 3, 0).nr_items, 35_835)
    found = census(fake)
    assert found.items.tolist() == usual.items.tolist()
    assert [gap.what for gap in gaps(found)] == ["lists of memory cgroups"]


@pytest.mark.parametrize("era", ["4.19", "6.13"])
def test_items_of_unused_ids_are_a_gap(era: str) -> None:
    fake, made = busy(era)
    fake.put(made["tmp dentry"], {(7, 0): 4})
    found = census(fake)
    row = found.lrus.address.tolist().index(made["tmp dentry"].object.address_)
    assert found.items[row] == 4
    assert found.slots.stray_items == 4
    assert found.slots.slots[row, UNUSED] == (14 if era == "4.19" else 1)
    assert lost(found) == [("items", 4)]


def test_what_is_needed_above_those_that_hold_something() -> None:
    """Lists on demand come for the whole line of a cgroup."""
    fake, _ = busy("5.10")
    population = census(fake).population
    # inner is below outer: three list_lrus have something of one of them, shadow only of inner.
    assert population.pairs == 2 + 1 + 2
    assert population.xa_nodes == 3


@pytest.mark.parametrize("era", LRU_ERAS)
def test_unknown_owners_are_named_as_such(era: str) -> None:
    fake, _ = busy(era)
    fake.lru(fake.kernel.alloc("struct list_lru"))
    found = census(fake)
    assert found.lrus.owner.count("(unknown)") == 1
    assert [gap.what for gap in gaps(found)] == ["list_lrus"]
    check = check_of(found, "list_lrus with an owner")
    assert check.difference == 1
    # There is an XFS here without its types: the list_lru may be one of its buffers or quotas.
    assert check.status is CheckStatus.EXPLAINED
    found.lrus = dataclasses.replace(found.lrus, max_undescribed=0)
    assert check_of(found, "list_lrus with an owner").status is CheckStatus.DIFFER


def test_ids_in_the_kernels_ida() -> None:
    fake, _ = busy("5.10")
    ida = fake.kernel.variable("memcg_cache_ida", "struct ida")
    assert census(fake).ids.registered == 0
    # A few ids are bits of a value: 2, 3 and 5.
    fake.kernel.set(ida.xa.xa_head, 0b101100 << 1 | 1)
    found = census(fake)
    assert (found.ids.ours, found.ids.registered) == (3, 3)
    bitmap = fake.kernel.alloc("char", 128)
    fake.kernel.write_words(bitmap.address_, 0b101100, *[0] * 14, 1 << 63)
    fake.kernel.set(ida.xa.xa_head, bitmap.address_)
    assert census(fake).ids.registered == 4


def test_ids_in_a_radix_tree() -> None:
    """Up to 4.19, where the tags of entries mean the opposite of an XArray's."""
    fake, _ = busy("4.15")
    k = fake.kernel
    ida = k.variable("memcg_cache_ida", "struct ida")
    # Bits 2, 3 and 5 of a value.
    k.set(ida.ida_rt.rnode, 0b101100 << 2 | 2)
    assert (census(fake).ids.ours, census(fake).ids.registered) == (3, 3)
    node, bitmap = k.alloc("struct radix_tree_node"), k.alloc("char", 128)
    k.write_words(bitmap.address_, 0b101100, *[0] * 14, 1 << 63)
    k.set(node.slots[1], bitmap.address_)
    k.set(node.slots[0], 0b11 << 2 | 2)
    k.set(ida.ida_rt.rnode, node.address_ | 1)
    assert census(fake).ids.registered == 6
    # No kernel has that many ids.
    k.set(node.shift, 6)
    assert census(fake).ids.registered is None


# In UEK7 what is behind the pointer is on the same page, and so lost as a whole.
@pytest.mark.parametrize("era", [era for era in LRU_ERAS if era != "UEK7"])
def test_lists_on_a_page_that_is_missing(era: str) -> None:
    fake, made = busy(era)
    before = census(fake)
    fake.kernel.drop(made["shadow"].entries[5])
    after = Figures(Kernel(fake.kernel.prog))
    assert after.slots.unreadable > 0
    assert after.slots.slots.sum() == before.slots.slots.sum()
    assert after.slots.bytes.sum() == before.slots.bytes.sum()
    assert after.slots.slots[:, EMPTY].sum() <= before.slots.slots[:, EMPTY].sum()
    gap = {gap.what: gap for gap in gaps(after)}["lists of memory cgroups"]
    assert (gap.count, gap.reason) == (after.slots.unreadable, "filtered out of the dump")


def test_an_array_on_a_page_that_is_missing() -> None:
    fake, made = busy("5.10")
    fake.settle()
    fake.kernel.drop(int(fake.node(made["tmp inode"], 1).memcg_lrus))
    found = Figures(Kernel(fake.kernel.prog))
    assert found.slots.arrays_unreadable > 0
    assert ("arrays of pointers", found.slots.arrays_unreadable) in lost(found)


@pytest.mark.parametrize(
    ("said", "count"), [(-5 & 0xFFFFFFFF, 0), (1 << 30, 65_535), (None, 0)], ids=str
)
def test_a_number_of_ids_that_cannot_be(said: int | None, count: int) -> None:
    fake, _ = busy("5.10")
    fake.settle()
    place = fake.kernel.prog["memcg_nr_cache_ids"].address_
    if said is None:
        fake.kernel.drop(place)
    else:
        fake.kernel.write_words(place, said)
    result = run(on(fake.kernel.prog))
    assert result.summary["nr_cache_ids"].value == count
    assert ("registry of ids", 1) in {(gap.what, gap.count) for gap in result.gaps}


def test_no_slab_caches() -> None:
    """The head of their list is damaged: allocations then have the size asked for."""
    fake, _ = busy("6.10")
    fake.settle()
    head = fake.kernel.prog["slab_caches"].address_
    fake.kernel.write_words(head, head, head)
    result = run(on(fake.kernel.prog))
    assert set(result.tables["structures"].frame["active"]) == {0}


def test_sums_of_damaged_values_are_exact() -> None:
    fake, _ = busy("6.10")
    found = census(fake)
    found.slots.bytes_by_id[:] = (1 << 53) + 1
    lists = MEMCGS.of(found).frame
    assert {*lists["list_bytes"]} >= {(1 << 53) + 1}


def test_a_number_of_shrinkers_that_cannot_be() -> None:
    fake, _ = busy("5.10")
    fake.kernel.variable("shrinker_nr_max", "int", -1 & 0xFFFFFFFF)
    assert census(fake).shrinker_maps.shrinkers is None
    fake.kernel.drop(fake.kernel.prog["shrinker_nr_max"].address_)
    found = census(fake)
    assert found.shrinker_maps.shrinkers is None
    assert found.footprint.faults.total() == 1


def test_a_torn_node_of_an_xarray() -> None:
    fake, made = busy("5.18")
    fake.settle()
    head = int(made["shadow"].object.xa.xa_head) - 2
    fake.kernel.set(Object(fake.kernel.prog, "struct xa_node", address=head).parent, head)
    found = Figures(Kernel(fake.kernel.prog))
    assert (found.slots.torn, found.slots.slots.sum()) == (1, 4)
    assert lost(found) == [("nodes of XArrays", 1)]


def test_the_kernels_list_runs_into_nowhere() -> None:
    fake, made = busy("5.10")
    fake.kernel.write_words(made["sda1 inode"].object.list.address_, 0x10)
    found = census(fake)
    # All have an owner that was found otherwise.
    assert (found.lrus.damaged, len(found.lrus)) == (1, 6)
    assert lost(found) == [("lists of super blocks, mounts, list_lrus or memory cgroups", 1)]


@pytest.mark.parametrize("seed", range(24))
def test_no_damage_is_an_exception(seed: int) -> None:
    """Words of list_lrus, arrays, nodes and lists that say anything: figures, or a sentence."""
    chance = random.Random(seed)
    fake, _ = busy(chance.choice(list(LRU_ERAS)))
    fake.settle()
    used = [
        address
        for cache in fake.caches.values()
        for slab in cache.slabs
        for address in range(slab.address, slab.address + PAGE, 8)
        if fake.kernel.word(address)
    ]
    for address in chance.sample(used, 5):
        wild = DIRECT_MAP + chance.randrange(0, 4096 * PAGE, 8)
        words = [0, 1, 2, 0x10, (1 << 64) - 1, wild, wild | 2, chance.getrandbits(64)]
        fake.kernel.write_words(address, chance.choice(words))
    result = run(on(fake.kernel.prog))
    assert result.summary["slots"].value is not None


def test_plain_lists_of_rhel_7() -> None:
    fake = FakeListLrus("4.15")
    types = table(fake.era)
    size, members = types["struct super_block"]
    members = members.replace("struct list_lru s_", "struct list_head s_")
    counts = "128 long s_nr_dentry_unused\n192 long s_nr_inodes_unused\n"
    types["struct super_block"] = (size, f"{members}\n{counts}")
    add_types(fake.kernel.prog, types, "plain")
    for dentries, inodes in ((5, 2), (7, 0)):
        block = fake.files.super_block("xfs", b"sda1")
        fake.kernel.write_words(block.address_ + 128, dentries)
        fake.kernel.write_words(block.address_ + 192, inodes)
    result = run(on(fake.kernel.prog))
    summary = {key: figure.value for key, figure in result.summary.items()}
    assert (summary["list_lrus"], summary["items"], summary["slots"]) == (4, 14, 0)
    assert summary["structural_bytes"] == 0
    owners = result.tables["owners"].frame
    assert dict(zip(owners["kind"], owners["items"], strict=True)) == {"dentry": 12, "inode": 2}


def test_no_list_lrus_or_those_of_a_kernel_from_the_middle_of_the_series() -> None:
    with pytest.raises(AnalysisError, match="no struct list_lru"):
        run(on(FakeFiles(FakeKernel("RHEL 7.4")).machine.prog))
    fake = FakeListLrus("5.18")
    add_types(fake.kernel.prog, {"struct list_lru": (64, "40 void * mlrus")}, "middle")
    with pytest.raises(AnalysisError, match="in no release"):
        run(on(fake.kernel.prog))


def test_a_kernel_without_memory_cgroups() -> None:
    fake = FakeListLrus("5.18")
    dentries, _ = fake.mount("xfs", "sda1")
    fake.put(dentries, {(None, 0): 4})
    del fake.kernel.symbols["root_mem_cgroup"]
    found = census(fake)
    assert found.items.sum() == 4
    assert found.slots.slots.sum() == 0
    result = run(on(fake.kernel.prog))
    assert result.summary["memcgs_online"].value == 0


def test_memory_cgroups_of_a_kernel_that_lacks_them_have_no_ids() -> None:
    prog = FakeKernel("4.18").prog
    add_types(prog, {"struct mem_cgroup": (512, "128 struct cgroup_subsys_state css")}, "plain")
    groups = memcgs(Kernel(prog))
    assert (groups.kmemcg_id[0], groups.serial[0], groups.has_id.tolist()) == (-1, 0, [True])


def test_places_and_sizes_of_allocations() -> None:
    fake = FakeListLrus("5.10")
    k = fake.kernel
    slot, large = fake.slot(100), DIRECT_MAP + k.pages(2) * PAGE
    footprint, tally = Footprint(SlabMap(Memory(k.prog)), Faults()), Tally()
    for address, asked, size in (
        (slot, 100, 128),
        # kmalloc() takes a power of two of pages, vmalloc() whole pages.
        (large, 3 * PAGE + 1, 4 * PAGE),
        (0xFFFF_C900_0000_1000, 2 * PAGE + 1, 3 * PAGE),
        # What can only come from a slab counts as large as was asked for.
        (large, 40, 40),
    ):
        sizes = footprint.sizes(np.array([address], np.uint64), asked, "kind", tally)
        assert sizes.tolist() == [size]
    places = {footprint.place(place) for _, place in tally.objects}
    assert places == {"kmalloc-128", "pages", "vmalloc", "unknown"}
    assert tally.bytes["kind", PAGES] == 4 * PAGE
    assert (tally.objects["kind", VMALLOC], tally.bytes["kind", UNKNOWN]) == (1, 40)
    assert footprint.allocator().slots == (32, 64, 96, 128, 192, 256, 512, 1024)
    # Many small ones of two sizes.
    addresses, tally = [fake.slot(size) for size in (24, 50, 24, 24, 50)], Tally()
    footprint = Footprint(SlabMap(Memory(k.prog)), Faults())
    sizes = footprint.sizes(np.array(addresses, np.uint64), 24, "kind", tally)
    assert sizes.tolist() == [32, 64, 32, 32, 64]
    assert (tally.objects.total(), tally.bytes.total()) == (5, 3 * 32 + 2 * 64)


def test_growth_of_a_cache() -> None:
    fake, _ = busy("5.10")
    fake.kernel.slab(fake.caches[32], free=range(10))
    found = census(fake)
    slots = sum(slab.objects for slab in fake.caches[32].slabs)
    for grown, status in (
        (100, CheckStatus.AGREE),
        (99, CheckStatus.DIFFER),
        (101, CheckStatus.EXPLAINED),
        (110, CheckStatus.EXPLAINED),
        (111, CheckStatus.DIFFER),
    ):
        before = {"kmalloc-32": slots - grown, "no such cache": 1}
        growth = [check for check in checks(found, before) if check.name.startswith("growth")]
        assert [(check.ours, check.counter, check.status) for check in growth] == [
            (100, grown, status)
        ]


def test_descriptions_of_earlier_slots() -> None:
    assert parse_before(None) == {}
    assert parse_before("kmalloc-32=2816, kmalloc-64 = 7") == {"kmalloc-32": 2816, "kmalloc-64": 7}
    for wrong in ("kmalloc-32", "=7", "kmalloc-32=x", "a=1,,b=2"):
        with pytest.raises(ParamError, match="CACHE=SLOTS"):
            parse_before(wrong)
    for name, wrong in {"before": "x", "what_if": "nodes=2"}.items():
        with pytest.raises(ParamError, match=f"--{name.replace('_', '-')}"):
            run(on(FakeKernel().prog), **{name: wrong})


def test_what_shrinker_maps_cost() -> None:
    """A bitmap, and since 5.13 a counter of each shrinker as well."""
    of = Population(nodes=2, ids=4, lrus=1, memcgs=3, shrinkers=65)
    costs = {stage: cost(stage, of, Allocator()).maps for stage in Stage}
    assert costs[Stage.ARRAYS] == 3 * 2 * 32
    assert costs[Stage.XARRAY] == 3 * 2 * 2048
    assert cost(Stage.XARRAY, Population(2, 4, 1, memcgs=3), Allocator()).maps == 0
    without = replace(of, shrinkers=0)
    for stage in Stage:
        assert cost(stage, of, Allocator()).total == cost(stage, without, Allocator()).total


@pytest.mark.parametrize("is_old", [True, False])
def test_shrinker_maps_are_in_no_figure_of_the_series(is_old: bool) -> None:
    fake, _ = busy("5.10" if is_old else "6.12")
    found = census(fake)
    measured = found.structural_bytes
    found.map_bytes = 5 << 20
    found.structural_bytes += found.map_bytes
    made = summary(found)
    arrays, xarray = (made[f"projected_{stage}_bytes"] for stage in ("arrays", "xarray"))
    assert (arrays if is_old else xarray).value == measured
    bounds = (Bound.EXACT, Bound.AT_LEAST) if is_old else (Bound.AT_LEAST, Bound.EXACT)
    assert (arrays.bound, xarray.bound) == bounds
    rows = PROJECTION.of(found.projection).frame
    parts = ["node_array_bytes", "pointer_bytes", "list_bytes"]
    assert (rows[parts].sum(axis=1) == rows["bytes"]).all()
    assert rows["bytes"].iloc[0] == measured
    assert (measured - rows["bytes"] == rows["saved_bytes"]).all()
    assert rows["shrinker_map_bytes"].iloc[0] == 5 << 20
