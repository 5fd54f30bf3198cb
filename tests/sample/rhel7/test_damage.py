# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups of RHEL 7.9 that were removed, and damage that must not look like removal."""

from __future__ import annotations

from collections.abc import Iterator

import drgn
import pytest
from drgn.helpers.linux.list import list_for_each_entry

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
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


def test_a_removed_one_is_found_by_its_caches(poked: Poked) -> None:
    number = int(poked.prog["mem_cgroup_subsys"].subsys_id)
    cgroup = next(each for each in children(poked) if each.name.name.string_() == b"c5")
    before, after = int(cgroup.sibling.prev), int(cgroup.sibling.next)
    flags = cgroup.subsys[number].flags.address_of_().value_()
    state = int(cgroup.subsys[number])
    poked.word(before, after)
    poked.word(after + 8, before)
    poked.word(flags, 0)
    found = walk(poked)
    css = drgn.offsetof(poked.prog.type("struct mem_cgroup"), "css")
    row = found.states.index("offline")
    assert (found.path[row], int(found.address[row]) + css) == ("/c5", state)
    assert (found.states.count("offline"), found.damaged) == (1, 0)


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
