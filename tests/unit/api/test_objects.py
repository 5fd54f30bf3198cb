# SPDX-License-Identifier: LGPL-2.1-or-later
"""objects(), as_object() and the context of a program, on *synthetic* kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import drgn
import numpy as np
import pandas as pd
import pytest

from kcensus.api.objects import IncompleteWarning, MergedCacheWarning, objects
from kcensus.api.source import context_of
from kcensus.engine.layout import LayoutError
from kcensus.engine.memory import Memory
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.slabs import SlabMap
from kcensus.samples import capsule
from kcensus.sources import TargetError
from tests.unit.engine.test_slab_scan import expected, fake, fill, one
from tests.unit.fakekernel import PAGE, FakeKernel, Slab, add_types


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", ["thing", "thing_cache"])
def test_a_frame_of_objects(name: str) -> None:
    k = fake()
    k.cache("other", 64)
    cache = k.cache(name, 64)
    for free in ([], [1, 2], range(64)):
        fill(k, k.slab(cache, free))
    with no_warnings():
        frame = objects(k.prog, "struct thing", ["id", "low", "tag", "self"]).sort_index()
    assert frame.index.name == "address"
    assert frame.index.dtype == np.uint64
    assert frame.index.tolist() == cache.allocated()
    truth = expected(cache.allocated(), cache)
    assert {column: frame[column].tolist() for column in frame} == truth
    assert frame.attrs["report"].complete
    # Two caches of one name both count. Nothing forbade that before 6.12: one per mount, say.
    second = k.cache(name, 64)
    k.slab(second, [1])
    frame = objects(k.prog, "struct thing", ["self"])
    assert sorted(frame.index.tolist()) == sorted(cache.allocated() + second.allocated())


@pytest.mark.parametrize(("free", "columns"), [(range(64), ["id", "tag"]), ([7], [])])
def test_a_frame_without_rows_or_columns(free: Iterable[int], columns: list[str]) -> None:
    k, cache = one("6.10", [*free])
    frame = objects(k.prog, "struct thing", columns)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame) == columns
    assert sorted(frame.index.tolist()) == cache.allocated()


def test_child_caches_come_along() -> None:
    k = fake("4.19")
    root = k.cache("thing", 64)
    group = k.memcg("a", k.root)
    child = k.cache("thing(2:a)", 64, root=root, memcg=group)
    other = k.cache("other(2:a)", 64, root=k.cache("other", 64), memcg=group)
    for cache in (root, child, other):
        fill(k, k.slab(cache, [1]))
    frame = objects(k.prog, "struct thing", ["self"])
    assert sorted(frame["self"].tolist()) == sorted(root.allocated() + child.allocated())
    found = find_caches(SlabMap(Memory(k.prog)), "struct thing")
    assert [cache.name for cache in found] == ["thing", "thing(2:a)"]


@pytest.mark.parametrize(
    ("name", "aliases", "chosen"),
    [("merged", ["something", "thing", ":0000064"], None), ("kmalloc-64", [], "kmalloc-64")],
)
def test_a_shared_cache_is_found_by_any_name_and_warned_of(
    name: str, aliases: list[str], chosen: str | None
) -> None:
    k = fake()
    cache = k.cache(name, 64, refcount=1 + len(aliases))
    for alias in aliases:
        k.alias(cache, alias)
    fill(k, k.slab(cache, [3]))
    with pytest.warns(MergedCacheWarning, match=f"{name} is shared"):
        frame = objects(k.prog, "struct thing", ["self"], cache=chosen)
    assert sorted(frame["self"].tolist()) == cache.allocated()


def test_a_cache_of_its_own_goes_before_an_alias() -> None:
    k = fake()
    merged, own = k.cache("kmalloc-64", 64, refcount=2), k.cache("thing_cache", 64)
    k.alias(merged, "thing")
    fill(k, k.slab(own))
    with no_warnings():
        frame = objects(k.prog, "struct thing", ["self"])
    assert sorted(frame["self"].tolist()) == own.allocated()


def test_incomplete_columns_warn() -> None:
    k, cache = one("6.10", [], [5, 9], [])
    gone, torn, _ = cache.slabs
    k.drop(gone.address)
    k.link(cache, torn.object(5), 0x10)
    words = "64 slots could not be read, 1 freelists or obj_cgroup vectors are torn"
    with pytest.warns(IncompleteWarning, match=words):
        frame = objects(k.prog, "struct thing", ["id"])
    assert len(frame) == 64 + 63
    assert frame.attrs["report"].objects_uncertain == 1


@pytest.mark.parametrize(
    ("damage", "warning", "rows"),
    [
        (lambda k, torn, other: k.set(torn.struct.inuse, 0x7FFF), r"\b1\b", 64),
        # A child cache may be among the missing ones.
        (lambda k, torn, other: k.write_words(other.cache.object.list.address_, 16), "[1-9]", 128),
        (lambda k, torn, other: k.set(other.cache.object.size, 0), "[1-9]", 128),
        (lambda k, torn, other: k.set(other.struct.inuse, 0x7FFF), "", 128),
    ],
    ids=["counters", "list of caches", "another cache", "a slab of another cache"],
)
def test_damage_that_may_cost_objects_is_warned_of(
    damage: Callable[[FakeKernel, Slab, Slab], None], warning: str, rows: int
) -> None:
    k, cache = one("6.10", [], [])
    damage(k, cache.slabs[0], k.slab(k.cache("other", 64)))
    with pytest.warns(IncompleteWarning, match=warning) if warning else no_warnings():
        frame = objects(k.prog, "struct thing", ["id"])
    assert len(frame) == rows


def test_errors_name_what_is_missing() -> None:
    k = fake()
    k.cache("other", 64)
    for type_name, members, cache, error, words in (
        ("struct thing", ["id"], None, LookupError, "no slab cache 'thing' or 'thing_cache'"),
        ("struct thing", ["id"], "nowhere", LookupError, "no slab cache 'nowhere'"),
        ("struct thing", ["gone"], "other", LayoutError, "struct thing has no member gone"),
        ("struct thing", "id, gone", "other", ValueError, "pass several as a list"),
        ("struct none", ["id"], None, LookupError, "struct none.* if a module defines it"),
    ):
        with pytest.raises(error, match=words):
            objects(k.prog, type_name, members, cache=cache)


@pytest.mark.parametrize(
    ("object_size", "slot", "left_pad", "words"),
    [
        (64, 64, 0, r"struct giant has 200 bytes.* some only 64"),
        # Red zones and tracking make slots larger than objects.
        (64, 256, 128, "200 bytes"),
        (196, 208, 0, "only 196"),
    ],
)
def test_a_type_that_does_not_fit_in_the_object_is_refused(
    object_size: int, slot: int, left_pad: int, words: str
) -> None:
    k = fake()
    k.slab(k.cache("some", object_size, slot, left_pad=left_pad))
    with pytest.raises(ValueError, match=words):
        objects(k.prog, "struct giant", ["first", "last"], cache="some")


def test_objects_that_are_smaller_or_larger_than_the_type() -> None:
    # x86 cuts the unused end off every task_struct: members inside the object can be read.
    k = fake()
    cache = k.cache("giant", 64)
    fill(k, k.slab(cache))
    frame = objects(k.prog, "struct giant", ["first"])
    assert sorted(frame.index.tolist()) == cache.allocated()
    # A struct inode is somewhere in each object of xfs_inode.
    k = fake()
    k.slab(k.cache("thing", 192))
    k.slab(k.cache("other", 192))
    with pytest.warns(MergedCacheWarning, match="192 bytes, struct thing has"):
        objects(k.prog, "struct thing", ["id"], cache="other")
    with no_warnings():
        objects(k.prog, "struct thing", ["id"])
        objects(k.prog, "thing", ["id"])


def test_one_member_and_the_name_of_a_cache() -> None:
    k = fake()
    # This cache is not called like its type.
    add_types(k.prog, {"struct file": (64, "0 unsigned long f_pos")}, "files")
    slab = k.slab(k.cache("filp", 64), [3])
    assert sorted(objects(k.prog, "struct file").index) == slab.cache.allocated()
    cache = k.cache("thing_cache", 64)
    fill(k, k.slab(cache, [3]))
    k.slab(k.cache("other", 64), [0])
    frame = objects(k.prog, "thing_cache", "self")
    assert sorted(frame["self"].tolist()) == cache.allocated()
    # Without a type there are addresses still, whatever the name.
    assert len(objects(k.prog, "other")) == 63
    some = k.slab(k.cache("some-cache", 64), [0]).cache
    assert objects(k.prog, "some-cache").index.tolist() == some.allocated()
    with pytest.raises(LookupError, match="no type 'struct other'"):
        objects(k.prog, "other", "self")
    with pytest.raises(LookupError, match="no slab cache 'nowhere'"):
        objects(k.prog, "nowhere")


def test_an_array_becomes_a_column_for_each_element() -> None:
    k = fake()
    add_types(k.prog, {"struct grid": (64, "0 unsigned int [2] pair\n8 char [4] tag")}, "grid")
    cache = k.cache("grid", 64)
    slab = k.slab(cache)
    k.write(slab.object(0), (7).to_bytes(4, "little") + (9).to_bytes(4, "little") + b"abcd")
    frame = objects(k.prog, "struct grid", ["pair", "pair[1]", "tag"])
    assert list(frame) == ["pair[0]", "pair[1]", "tag"]
    assert list(frame.loc[slab.object(0)]) == [7, 9, b"abcd"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_filter_sees_every_chunk(jobs: int) -> None:
    k, _ = one("6.10", *[[1, 2]] * 5)
    everything = objects(k.prog, "struct thing", ["low", "self"])
    wanted = everything[everything["low"] == 5]
    assert len(wanted) > 5
    for where in ("low == 5", lambda frame: frame["low"] == 5):
        some = objects(
            k.prog, "struct thing", ["low", "self"], where=where, jobs=jobs, chunk_bytes=PAGE
        )
        pd.testing.assert_frame_equal(some.sort_index(), wanted.sort_index())
    assert objects(k.prog, "struct thing", ["low"], where="low > 99").empty


@pytest.mark.parametrize("era", ["4.19", "5.9", "6.10", "7.3"])
def test_the_memory_cgroup_that_is_charged(era: str) -> None:
    k, cache = one(era, [5])
    (slab,) = cache.slabs
    group = k.memcg("a", k.root)
    if era == "4.19":
        child = k.cache("thing(2:a)", 64, root=cache, memcg=group)
        k.slab(child)
        charged = child.allocated()
    else:
        k.charge(slab, {0: group, 3: group})
        charged = [slab.object(0), slab.object(3)]
    frame = objects(k.prog, "struct thing", [], memcg=True)
    assert frame["memcg"][frame["memcg"] != ""].index.tolist() == charged
    assert set(frame["memcg"]) == {"", "/a"}
    assert frame.index[frame["memcg_address"] == group.object.address_].tolist() == charged
    assert set(frame["memcg_address"]) == {0, group.object.address_}
    assert frame["memcg_address"].dtype == np.uint64
    assert frame.attrs["types"]["memcg_address"] == "struct mem_cgroup"
    if era == "6.10":  # an owner that is unknown is not none
        k.set(group.objcg.memcg, 0x1000)
        frame = objects(k.prog, "struct thing", [], memcg=True)
        assert frame.index[frame["memcg"] == "?"].tolist() == charged


def test_what_is_read_is_a_program_or_a_target() -> None:
    with pytest.raises(TargetError, match="not a Linux kernel"):
        context_of(drgn.Program())
    with pytest.raises(TargetError, match="no such file"):
        context_of("vmcore")
    for spelling in ("sample", Path(str(capsule("sample")))):
        target = context_of(spelling).target
        assert target is not None
        assert target.kind == "capsule"
    with pytest.raises(TypeError, match="'int' is not a source"):
        context_of(7)


def test_without_a_target_it_says_so() -> None:
    for words in (("struct dentry", ["d_flags"]), ("struct dentry", "d_flags")):
        with pytest.raises(TypeError, match=r"kcensus.objects\(prog, "):
            objects(*words)


def test_a_filter_tests_flags_and_addresses() -> None:
    k, _ = one("6.10", *[[1, 2]] * 5)
    everything = objects(k.prog, "struct thing", ["low"])
    odd = everything[everything["low"] & 1 != 0]
    assert 0 < len(odd) < len(everything)
    for where in ("low & 1", "(low & 1) != 0", "low & 1 == 1"):
        assert objects(k.prog, "struct thing", ["low"], where=where).index.equals(odd.index)
    first = everything.index[0]
    assert objects(k.prog, "struct thing", where=f"address == {first}").index.tolist() == [first]


@pytest.mark.parametrize(
    "where",
    ["low = 1", "low + 1", "not low", "import os", "low ==", "@pd.io.common.os.system('id') == 0"],
)
def test_a_filter_that_is_not_one_boolean_per_row_is_refused(where: str) -> None:
    k, _ = one("6.10", [])
    with pytest.raises(ValueError, match="where"):
        objects(k.prog, "struct thing", ["low", "id"], where=where)


@pytest.mark.parametrize("where", ["gone == 1", "low == 1 and memcg == 0"])
def test_a_filter_that_names_another_column_is_refused_in_a_sentence(where: str) -> None:
    k, _ = one("6.10", [])
    with pytest.raises(ValueError, match=r"\(choose from low, id, address\)$") as refused:
        objects(k.prog, "struct thing", ["low", "id"], where=where, memcg=True)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
