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

pytestmark = pytest.mark.ends

ONLINE, DYING = 2, 16


def walk(kernel: FakeKernel) -> Memcgs:
    return memcgs(Kernel(kernel.prog))


@pytest.fixture
def k() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def made(k: FakeKernel) -> dict[str, Memcg]:
    """Three levels, and siblings in an order that is neither that of names nor of addresses."""
    made = {"": k.root}
    for path in ("b", "a", "b/y", "b/x", "a/z", "c", "b/x/deep"):
        above, _, name = path.rpartition("/")
        made[path] = k.memcg(name, made[above])
    return made


def test_the_tree_with_parents_before_children(k: FakeKernel, made: dict[str, Memcg]) -> None:
    found = walk(k)
    assert found.path == ["/", "/b", "/a", "/c", "/b/y", "/b/x", "/a/z", "/b/x/deep"]
    by_path = {group.path: group.object.address_ for group in made.values()}
    assert found.address.tolist() == [by_path[path] for path in found.path]
    assert found.parent.tolist() == [-1, 0, 0, 0, 1, 1, 2, 5]
    assert found.online.all()
    assert (found.damaged, found.faults, len(found)) == (0, {}, 8)


def test_random_trees() -> None:
    chance = random.Random(3)
    k = FakeKernel()
    groups = [k.root]
    assert (walk(k).path, walk(k).parent.tolist()) == (["/"], [-1])
    for at in range(60):
        groups.append(k.memcg(f"g{at}", chance.choice(groups)))
    found = walk(k)
    truth = {group.object.address_: group.path for group in groups}
    assert dict(zip(found.address.tolist(), found.path, strict=True)) == truth
    for row, parent in enumerate(found.parent.tolist()):
        assert parent < row
        above = found.path[parent].rstrip("/") if row else ""
        assert found.path[row].rpartition("/")[0] == above


def test_online_means_not_dying(k: FakeKernel) -> None:
    for name, flags in (("on", ONLINE), ("off", 0), ("rmdir", ONLINE | DYING), ("gone", DYING)):
        k.memcg(name, k.root, flags=flags | 8)
    found = walk(k)
    online = dict(zip(found.path, found.online.tolist(), strict=True))
    assert online == {"/": True, "/on": True, "/off": False, "/rmdir": False, "/gone": False}
    # An rmdir that is still running has not taken the id yet.
    assert found.has_id.tolist() == [True, True, False, True, False]


def test_a_root_without_css_online_is_damaged(k: FakeKernel) -> None:
    k.memcg("child", k.root)
    k.set(k.root.object.css.flags, 0)
    found = walk(k)
    assert (found.online.tolist(), found.damaged) == ([True, True], 1)


def test_before_4_12_nothing_says_dying() -> None:
    k = FakeKernel("4.18")
    k.memcg("on", k.root, flags=ONLINE | DYING)
    k.memcg("off", k.root, flags=0)
    del k.symbols["CSS_DYING"]
    assert walk(k).online.tolist() == [True, True, False]


@pytest.mark.parametrize("has_symbol", [True, False])
def test_a_kernel_without_memory_cgroups(k: FakeKernel, has_symbol: bool) -> None:
    k.set(k.symbols["root_mem_cgroup"], 0)
    if not has_symbol:
        del k.symbols["root_mem_cgroup"]
    found = walk(k)
    assert (len(found), found.path) == (0, [])
    assert found.rows(np.array([0, 1 << 63], np.uint64)).tolist() == [-1, -1]


def test_rows(k: FakeKernel, made: dict[str, Memcg]) -> None:
    found = walk(k)
    a, root, c, deep = (made[path].object.address_ for path in ("a", "", "c", "b/x/deep"))
    asked = [a, 0, root, c + 8, c, (1 << 64) - 1, deep, a]
    assert found.rows(np.array(asked, np.uint64)).tolist() == [2, -1, 0, -1, 3, -1, 7, 2]
    assert found.rows(np.array([], np.uint64)).tolist() == []


def test_names_of_all_sorts(k: FakeKernel) -> None:
    group = k.memcg("x", k.root)
    k.set(group.object.css.cgroup.kn.name, b"caf\xe9")
    k.memcg("user@1000.service", k.root)
    k.memcg("n" * 200, k.root)
    gone = k.memcg("gone", k.root)
    k.set(gone.object.css.cgroup.kn.name, 0)
    assert walk(k).path[1:] == ["/caf\\xe9", "/user@1000.service", "/" + "n" * 200, "/?"]


def test_a_group_on_an_unreadable_page_is_counted(k: FakeKernel, made: dict[str, Memcg]) -> None:
    k.drop(made["b"].object.address_)
    found = walk(k)
    # Its siblings come after it in the list, and its children are below it.
    assert found.path[0] == "/"
    assert "/b/x" not in found.path
    assert found.damaged + found.faults.total() > 0


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("bound", "value"), [("_MAX_DEPTH", 3), ("_MAX_MEMCGS", 6)])
def test_what_is_beyond_all_bounds_is_counted(
    k: FakeKernel, bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memcg_module, bound, value)
    found = walk(k)
    assert found.path == ["/", "/b", "/a", "/c", "/b/y", "/b/x", "/a/z"]
    assert found.damaged == 1


@pytest.mark.parametrize("back", range(7))
def test_no_group_counts_twice(k: FakeKernel, back: int) -> None:
    siblings = [k.memcg(f"g{at}", k.root).object.css.sibling.address_ for at in range(7)]
    # The last one's sibling is one before it: the list goes round without meeting its head.
    k.write_words(siblings[-1], siblings[back])
    found = walk(k)
    assert found.damaged == 1
    assert found.address.tolist() == [group.object.address_ for group in k.memcgs]


def test_a_group_that_is_its_own_descendant(
    k: FakeKernel, made: dict[str, Memcg], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    [
        *(("b", "c"), ("b", "b/x"), ("b/y", "a/z"), ("a", "b/y"), ("c", "b/x/deep"), ("b/x", "a")),
        ("b/y", "nowhere"),
    ],
)
def test_a_bent_pointer_hides_no_group_and_is_betrayed(
    k: FakeKernel, made: dict[str, Memcg], way: str, bent: str, to: str
) -> None:
    link = made[bent].object.css.sibling
    k.set(link.member_(way), made[to].object.css.sibling if to in made else 0x10)
    found = walk(k)
    assert {*found.path} == {group.path for group in made.values()}
    assert found.damaged == 1 if to == "nowhere" else found.damaged > 0


@pytest.mark.parametrize("to", [0x10, 0x107C000, 1 << 62, 0xFFFF_8FFF_0000_0000])
def test_a_root_that_leads_nowhere(k: FakeKernel, made: dict[str, Memcg], to: int) -> None:
    k.set(k.symbols["root_mem_cgroup"], to)
    found = walk(k)
    assert len(found) == 0 < found.damaged
    assert made


@pytest.mark.parametrize("to", ["a", "b/x/deep"])
def test_a_root_that_is_not_the_root(k: FakeKernel, made: dict[str, Memcg], to: str) -> None:
    k.set(k.symbols["root_mem_cgroup"], made[to].object)
    found = walk(k)
    assert len(found) == 0 < found.damaged


def test_the_node_of_a_group_that_is_gone_may_be_that_of_a_file(
    k: FakeKernel, made: dict[str, Memcg]
) -> None:
    k.set(made["c"].object.css.cgroup.kn.flags, 2)  # KERNFS_FILE
    found = walk(k)
    assert ("/?" in found.path, "/c" in found.path) == (True, False)
    assert found.faults == {"in use for something else": 1}


def test_children_that_are_online_are_counted(k: FakeKernel, made: dict[str, Memcg]) -> None:
    k.memcg("gone", made["b"], flags=DYING)
    found = walk(k)
    counts = dict(zip(found.path, found.online_children.tolist(), strict=True))
    assert (counts["/"], counts["/b"], counts["/b/gone"]) == (3, 2, 0)


def test_newer_than_the_oldest_offline_one(k: FakeKernel) -> None:
    for at, (name, flags) in enumerate((("a", 2), ("gone", DYING), ("b", 2), ("c", 2)), 1):
        k.set(k.memcg(name, k.root, flags=flags).object.css.serial_nr, at)
    assert walk(k).newer == 2
