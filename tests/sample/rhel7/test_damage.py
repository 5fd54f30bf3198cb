# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups of RHEL 7.9 that were removed, and damage that must not look like removal."""

from __future__ import annotations

from collections.abc import Iterator

import drgn
import pytest
from drgn.helpers.linux.list import list_for_each_entry

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from kcensus.results import CheckStatus
from kcensus.sources import open_target
from tests.sample.block.poked import Poked
from tests.sample.rhel7.conftest import DATA


@pytest.fixture
def poked() -> Poked:
    return Poked(open_target(DATA / "mixed.capsule").prog)


def children(poked: Poked) -> Iterator[drgn.Object]:
    root = poked.prog["root_mem_cgroup"].css.cgroup
    return list_for_each_entry("struct cgroup", root.children.address_of_(), "sibling")


def walk(poked: Poked) -> Memcgs:
    return memcgs(Kernel(poked.prog))


def remove(poked: Poked, name: bytes) -> int:
    """Take a memory cgroup off the lists, as rmdir does; return the address of its structure."""
    number = int(poked.prog["mem_cgroup_subsys"].subsys_id)
    cgroup = next(each for each in children(poked) if each.name.name.string_() == name)
    before, after = int(cgroup.sibling.prev), int(cgroup.sibling.next)
    state = cgroup.subsys[number]
    poked.word(before, after)
    poked.word(after + 8, before)
    poked.word(state.flags.address_of_().value_(), 0)
    count = poked.prog["root_mem_cgroup"].css.cgroup.root.number_of_cgroups
    poked.write(count.address_of_().value_(), (int(count) - 1).to_bytes(4, "little"))
    css = drgn.offsetof(poked.prog.type("struct mem_cgroup"), "css")
    return int(state) - int(css)


def child_caches(poked: Poked, memcg: int) -> Iterator[drgn.Object]:
    caches = poked.prog["slab_caches"].address_of_()
    for cache in list_for_each_entry("struct kmem_cache", caches, "list"):
        params = cache.memcg_params
        if params and not params.is_root_cache and int(params.memcg) == memcg:
            yield cache


def forget(poked: Poked, memcg: int) -> None:
    """Clear the slot of a memory cgroup in the registry of ids."""
    layer = poked.prog["mem_cgroup_idr"].top
    slot = next(slot for slot in layer.ary if int(slot) == memcg)
    poked.word(slot.address_, 0)


def offline(found: Memcgs) -> list[tuple[str, int]]:
    rows = [row for row, state in enumerate(found.states) if state == "offline"]
    return [(found.path[row], int(found.address[row])) for row in rows]


def test_a_removed_one_is_found_by_its_caches(poked: Poked) -> None:
    memcg = remove(poked, b"c5")
    forget(poked, memcg)
    found = walk(poked)
    assert (offline(found), found.damaged) == ([("/c5", memcg)], 0)


def test_a_removed_one_without_caches_is_found_by_its_id(poked: Poked) -> None:
    memcg = remove(poked, b"c5")
    other = int(next(children(poked)).subsys[int(poked.prog["mem_cgroup_subsys"].subsys_id)])
    caches = [*child_caches(poked, memcg)]
    assert len(caches) == 4
    for cache in caches:
        poked.word(cache.memcg_params.memcg.address_of_().value_(), other)
    found = walk(poked)
    assert (offline(found), found.damaged) == ([("/?", memcg)], 0)


def test_a_removed_one_is_in_the_analysis() -> None:
    target = open_target(DATA / "mixed.capsule")
    remove(Poked(target.prog), b"c5")
    result = Context.of(target).run(analyses()["memcgs"])
    counts = [result.summary[f"memcgs_{state}"].value for state in ("online", "offline")]
    assert counts == [30, 1]
    assert all(check.status is not CheckStatus.DIFFER for check in result.checks)
    # Owners of pages and references are not read.
    assert {gap.what for gap in result.gaps} == {"owners of pages", "reference counts"}
    structures = result.tables["structures"].frame
    assert dict(zip(structures["kind"], structures["objects"], strict=True)) == {
        "struct mem_cgroup": 1,
        "struct mem_cgroup_per_node": 1,
        "per-CPU areas": 1,
    }
    assert result.summary["structure_bytes"].value == 1024 + 4096
    per_cpu = drgn.sizeof(target.prog["root_mem_cgroup"].stat[0].type_)
    assert result.summary["per_cpu_bytes"].value == per_cpu == 104


def test_a_lost_registry_is_a_gap_of_its_own() -> None:
    target = open_target(DATA / "mixed.capsule")
    poked = Poked(target.prog)
    poked.word(poked.prog["mem_cgroup_idr"].top.address_of_().value_(), 0)
    found = walk(poked)
    assert (len(found), offline(found), found.damaged, found.ids_lost) == (31, [], 0, 31)
    gaps = {gap.what: gap.count for gap in Context.of(target).run(analyses()["memcgs"]).gaps}
    assert gaps["registry of memory cgroups"] == 31
    assert "lists of memory cgroups" not in gaps


def test_a_torn_registry_keeps_the_entries_before(poked: Poked) -> None:
    """The upper of two layers has the real one, and one that is not in the dump."""
    registry, place = poked.prog["mem_cgroup_idr"], 0xFFFFC90000000000
    start = drgn.offsetof(registry.top.type_.type, "ary")
    layers = (int(registry.top), place + (1 << 20))
    upper = b"".join(each.to_bytes(8, "little") for each in layers)
    page = bytes(start) + upper + bytes(4096 - start - len(upper))
    poked.prog.add_memory_segment(
        place, len(page), lambda _at, count, offset, _: page[offset : offset + count]
    )
    memcg = remove(poked, b"c5")
    other = int(next(children(poked)).subsys[int(poked.prog["mem_cgroup_subsys"].subsys_id)])
    for cache in child_caches(poked, memcg):
        poked.word(cache.memcg_params.memcg.address_of_().value_(), other)
    poked.word(registry.top.address_of_().value_(), place)
    poked.write(registry.layers.address_of_().value_(), b"\2\0\0\0")
    found = walk(poked)
    assert (offline(found), found.damaged, found.ids_lost) == ([("/?", memcg)], 0, 1)


def test_a_torn_list_is_damage(poked: Poked) -> None:
    head = poked.prog["root_mem_cgroup"].css.cgroup.children.address_of_().value_()
    poked.word(head, head)
    poked.word(head + 8, head)
    found = walk(poked)
    assert (found.path, found.states) == (["/"], ["online"])
    assert found.damaged >= 30


def test_a_child_cache_without_an_owner_is_damage(poked: Poked) -> None:
    cache = next(
        each
        for each in list_for_each_entry(
            "struct kmem_cache", poked.prog["slab_caches"].address_of_(), "list"
        )
        if each.memcg_params and not each.memcg_params.is_root_cache
    )
    poked.word(cache.memcg_params.memcg.address_of_().value_(), 0)
    assert walk(poked).damaged == 1
