# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups of a *synthetic* kernel, dying ones included."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kcensus.engine.gather import Gathered, gather
from kcensus.engine.layout import Layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg import memcgs as memcg_module
from kcensus.kernel.memcg.memcgs import Memcgs, memcgs
from tests.unit.fakekernel import FakeKernel, Memcg

ONLINE, DYING = 2, 16


def walk(kernel: FakeKernel) -> Memcgs:
    return memcgs(Kernel(kernel.prog))


def tree(kernel: FakeKernel) -> dict[str, Memcg]:
    """Three levels, and siblings in an order that is neither that of names nor of addresses."""
    made = {"": kernel.root}
    for path in ("b", "a", "b/y", "b/x", "a/z", "c", "b/x/deep"):
        above, _, name = path.rpartition("/")
        made[path] = kernel.memcg(name, made[above])
    return made


def test_the_tree_with_parents_before_children() -> None:
    k = FakeKernel()
    made = tree(k)
    found = walk(k)
    assert found.path == ["/", "/b", "/a", "/c", "/b/y", "/b/x", "/a/z", "/b/x/deep"]
    by_path = {group.path: group.object.address_ for group in made.values()}
    assert found.address.tolist() == [by_path[path] for path in found.path]
    assert found.parent.tolist() == [-1, 0, 0, 0, 1, 1, 2, 5]
    assert found.online.all()
    assert found.damaged == 0
    assert not found.faults
    assert len(found) == 8


def test_a_root_alone() -> None:
    found = walk(FakeKernel())
    assert found.path == ["/"]
    assert found.parent.tolist() == [-1]


def test_random_trees() -> None:
    chance = random.Random(3)
    k = FakeKernel()
    groups = [k.root]
    for at in range(60):
        groups.append(k.memcg(f"g{at}", chance.choice(groups)))
    found = walk(k)
    truth = {group.object.address_: group.path for group in groups}
    assert dict(zip(found.address.tolist(), found.path, strict=True)) == truth
    for row, parent in enumerate(found.parent.tolist()):
        assert parent < row
        above = found.path[parent].rstrip("/") if row else ""
        assert found.path[row].rpartition("/")[0] == above


def test_online_means_not_dying() -> None:
    k = FakeKernel()
    for name, flags in (("on", ONLINE), ("off", 0), ("rmdir", ONLINE | DYING), ("gone", DYING)):
        k.memcg(name, k.root, flags=flags | 8)
    found = walk(k)
    assert dict(zip(found.path, found.online.tolist(), strict=True)) == {
        "/": True, "/on": True, "/off": False, "/rmdir": False, "/gone": False
    }  # fmt: skip
    # An rmdir that is still running has not taken the id yet.
    assert found.has_id.tolist() == [True, True, False, True, False]


def test_a_root_without_css_online_is_damaged() -> None:
    k = FakeKernel()
    k.memcg("child", k.root)
    k.set(k.root.object.css.flags, 0)
    found = walk(k)
    assert found.online.tolist() == [True, True]
    assert found.damaged == 1


def test_before_4_12_nothing_says_dying() -> None:
    k = FakeKernel("4.18")
    k.memcg("on", k.root, flags=ONLINE | DYING)
    k.memcg("off", k.root, flags=0)
    del k.symbols["CSS_DYING"]
    assert walk(k).online.tolist() == [True, True, False]


@pytest.mark.parametrize("how", ["no symbol", "no group"])
def test_a_kernel_without_memory_cgroups(how: str) -> None:
    k = FakeKernel()
    if how == "no symbol":
        del k.symbols["root_mem_cgroup"]
    else:
        k.set(k.symbols["root_mem_cgroup"], 0)
    found = walk(k)
    assert len(found) == 0
    assert found.path == []
    assert found.rows(np.array([0, 1 << 63], np.uint64)).tolist() == [-1, -1]


def test_rows() -> None:
    k = FakeKernel()
    made = tree(k)
    found = walk(k)
    asked = [made["a"].object.address_, 0, made[""].object.address_, made["c"].object.address_ + 8]
    asked += [
        made["c"].object.address_,
        (1 << 64) - 1,
        made["b/x/deep"].object.address_,
        made["a"].object.address_,
    ]
    assert found.rows(np.array(asked, np.uint64)).tolist() == [2, -1, 0, -1, 3, -1, 7, 2]
    assert found.rows(np.array([], np.uint64)).tolist() == []


def test_names_of_all_sorts() -> None:
    k = FakeKernel()
    group = k.memcg("x", k.root)
    k.set(group.object.css.cgroup.kn.name, k.string(b"caf\xe9"))
    k.memcg("user@1000.service", k.root)
    k.memcg("n" * 200, k.root)
    gone = k.memcg("gone", k.root)
    k.set(gone.object.css.cgroup.kn.name, 0)
    assert walk(k).path[1:] == ["/caf\\xe9", "/user@1000.service", "/" + "n" * 200, "/?"]


# Damage


def test_a_torn_list_of_children_is_counted_and_costs_no_other_list() -> None:
    k = FakeKernel()
    made = tree(k)
    # The list of b runs into nowhere behind y.
    k.write_words(made["b/y"].object.css.sibling.address_, 0x10)
    found = walk(k)
    assert {"/", "/a", "/b", "/c", "/b/y", "/a/z"} <= {*found.path}
    assert found.damaged == 1
    # The list in the other direction is complete.
    assert len(found) == 8


def test_a_group_on_an_unreadable_page_is_counted() -> None:
    k = FakeKernel()
    made = tree(k)
    k.drop(made["b"].object.address_)
    found = walk(k)
    # Its siblings come after it in the list, and its children are below it.
    assert found.path[0] == "/"
    assert "/b/x" not in found.path
    assert found.damaged + found.faults.total() > 0


@pytest.mark.parametrize(("bound", "value"), [("_MAX_DEPTH", 3), ("_MAX_MEMCGS", 6)])
def test_what_is_beyond_all_bounds_is_counted(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = FakeKernel()
    tree(k)
    monkeypatch.setattr(memcg_module, bound, value)
    found = walk(k)
    assert found.path == ["/", "/b", "/a", "/c", "/b/y", "/b/x", "/a/z"]
    assert found.damaged == 1


@pytest.mark.parametrize("back", range(7))
def test_no_group_counts_twice(back: int) -> None:
    k = FakeKernel()
    groups = [k.memcg(f"g{at}", k.root) for at in range(7)]
    # The last one's sibling is one before it: the list goes round without meeting its head.
    last, earlier = groups[-1].object.css, groups[back].object.css
    k.write_words(last.sibling.address_, earlier.sibling.address_)
    found = walk(k)
    assert found.damaged == 1
    assert found.address.tolist() == [group.object.address_ for group in k.memcgs]


def test_a_group_that_is_its_own_descendant(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel()
    made = tree(k)
    b, x = made["b"].object.css, made["b/x"].object.css
    # The children of x are those of the root: b is below itself, and each round doubles the tree.
    k.write_words(x.children.address_, b.sibling.address_)
    rows = 0

    def counted(memory: Memory, addresses: Words, found: Layout, faults: Faults) -> Gathered:
        nonlocal rows
        rows += len(addresses)
        assert rows < 1000, "walks in a circle"
        return gather(memory, addresses, found, faults)

    monkeypatch.setattr(memcg_module, "gather", counted)
    found = walk(k)
    assert len(np.unique(found.address)) == len(found)
    assert found.damaged > 0


@pytest.mark.parametrize("way", ["next", "prev"])
@pytest.mark.parametrize(
    ("bent", "to"),
    [("b", "c"), ("b", "b/x"), ("b/y", "a/z"), ("a", "b/y"), ("c", "b/x/deep"), ("b/x", "a")],
)
def test_a_bent_pointer_hides_no_group_and_is_betrayed(way: str, bent: str, to: str) -> None:
    """It leads to another memory cgroup, further on in its list or in another one."""
    k = FakeKernel()
    made = tree(k)
    link = made[bent].object.css.sibling
    k.set(link.member_(way), made[to].object.css.sibling.address_)
    found = walk(k)
    assert {*found.path} == {group.path for group in made.values()}
    assert found.damaged > 0


@pytest.mark.parametrize("to", ["a", "b/x/deep"])
def test_a_root_that_is_not_the_root(to: str) -> None:
    k = FakeKernel()
    k.set(k.symbols["root_mem_cgroup"], tree(k)[to].object)
    found = walk(k)
    assert len(found) == 0
    assert found.damaged > 0


def test_the_node_of_a_group_that_is_gone_may_be_that_of_a_file() -> None:
    k = FakeKernel()
    made = tree(k)
    k.set(made["c"].object.css.cgroup.kn.flags, 2)  # KERNFS_FILE
    found = walk(k)
    assert "/?" in found.path
    assert "/c" not in found.path
    assert found.faults == {"in use for something else": 1}


def test_children_that_are_online_are_counted() -> None:
    k = FakeKernel()
    made = tree(k)
    k.memcg("gone", made["b"], flags=DYING)
    found = walk(k)
    counts = dict(zip(found.path, found.online_children.tolist(), strict=True))
    assert counts["/"] == 3
    assert counts["/b"] == 2
    assert counts["/b/gone"] == 0


def test_newer_than_the_oldest_offline_one() -> None:
    k = FakeKernel()
    for at, (name, flags) in enumerate((("a", 2), ("gone", DYING), ("b", 2), ("c", 2)), 1):
        k.set(k.memcg(name, k.root, flags=flags).object.css.serial_nr, at)
    assert walk(k).newer == 2
