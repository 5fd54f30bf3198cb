# SPDX-License-Identifier: LGPL-2.1-or-later
"""objects(), as_object() and the context of a program, on *synthetic* kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import drgn
import numpy as np
import pandas as pd
import pytest

from kcensus.api.objects import (
    IncompleteWarning,
    MergedCacheWarning,
    objects,
)
from kcensus.api.rows import as_object
from kcensus.api.source import context_of
from kcensus.engine.layout import LayoutError
from kcensus.engine.memory import Memory
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.slabs import SlabMap
from kcensus.sources import TargetError
from tests.unit.engine.test_slab_scan import expected, fake, fill
from tests.unit.fakekernel import PAGE, add_types


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


def test_a_frame_of_no_objects() -> None:
    k = fake()
    k.cache("thing", 64)
    frame = objects(k.prog, "struct thing", ["id", "tag"])
    assert len(frame) == 0
    assert list(frame) == ["id", "tag"]


def test_a_frame_without_columns_still_has_the_addresses() -> None:
    k = fake()
    cache = k.cache("thing", 64)
    k.slab(cache, [7])
    frame = objects(k.prog, "struct thing", [])
    assert isinstance(frame, pd.DataFrame)
    assert sorted(frame.index.tolist()) == cache.allocated()


def test_the_cache_can_be_named() -> None:
    k = fake()
    k.cache("thing", 64)
    named = k.cache("kmalloc-96", 96)
    fill(k, k.slab(named, [3]))
    with pytest.warns(MergedCacheWarning, match="kmalloc-96 is shared"):
        frame = objects(k.prog, "struct thing", ["self"], cache="kmalloc-96")
    assert sorted(frame["self"].tolist()) == named.allocated()


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
    slab_map = SlabMap(Memory(k.prog))
    assert [cache.name for cache in find_caches(slab_map, "struct thing")] == [
        "thing",
        "thing(2:a)",
    ]


def test_two_caches_of_one_name_both_count() -> None:
    # Nothing forbade that before 6.12: one per mount, say.
    k = fake()
    first, second = k.cache("thing", 64), k.cache("thing", 64)
    for cache in (first, second):
        k.slab(cache, [1])
    frame = objects(k.prog, "struct thing", ["self"])
    assert sorted(frame.index.tolist()) == sorted(first.allocated() + second.allocated())


def test_a_merged_cache_is_found_by_any_name_and_warned_of() -> None:
    k = fake()
    cache = k.cache("kmalloc-64", 64, refcount=3)
    for name in ("something", "thing", ":0000064"):
        k.alias(cache, name)
    fill(k, k.slab(cache))
    with pytest.warns(MergedCacheWarning, match="kmalloc-64 is shared"):
        frame = objects(k.prog, "struct thing", ["self"])
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
    k = fake()
    cache = k.cache("thing", 64)
    gone, torn, _ = k.slab(cache), k.slab(cache, [5, 9]), k.slab(cache)
    k.drop(gone.address)
    k.link(cache, torn.object(5), 0x10)
    with pytest.warns(
        IncompleteWarning,
        match="64 slots could not be read, 1 freelists or obj_cgroup vectors are torn",
    ):
        frame = objects(k.prog, "struct thing", ["id"])
    assert len(frame) == 64 + 63
    assert frame.attrs["report"].objects_uncertain == 1


def test_a_warning_says_how_many_slabs_had_impossible_counters() -> None:
    k = fake()
    cache = k.cache("thing", 64)
    torn, _ = k.slab(cache), k.slab(cache)
    k.set(torn.struct.inuse, 0x7FFF)
    with pytest.warns(IncompleteWarning, match=r"\b1\b"):
        frame = objects(k.prog, "struct thing", ["id"])
    assert len(frame) == 64


@pytest.mark.parametrize("how", ["torn", "damaged"])
def test_caches_that_may_be_missing_are_warned_of(how: str) -> None:
    # A child cache may be among them.
    k = fake()
    cache, other = k.cache("thing", 64), k.cache("other", 64)
    k.slab(cache)
    if how == "torn":
        k.write_words(other.object.list.address_, 0x10)
    else:
        k.set(other.object.size, 0)
    with pytest.warns(IncompleteWarning, match="[1-9]"):
        frame = objects(k.prog, "struct thing", ["id"])
    assert len(frame) == 64


def test_what_is_torn_in_other_caches_is_not_warned_of() -> None:
    k = fake()
    cache, other = k.cache("thing", 64), k.cache("other", 64)
    k.slab(cache)
    k.set(k.slab(other).struct.inuse, 0x7FFF)
    with no_warnings():
        frame = objects(k.prog, "struct thing", ["id"])
    assert len(frame) == 64


def test_errors_name_what_is_missing() -> None:
    k = fake()
    k.cache("other", 64)
    with pytest.raises(LookupError, match="no slab cache 'thing' or 'thing_cache'"):
        objects(k.prog, "struct thing", ["id"])
    with pytest.raises(LookupError, match="no slab cache 'nowhere'"):
        objects(k.prog, "struct thing", ["id"], cache="nowhere")
    with pytest.raises(LayoutError, match="struct thing has no member gone"):
        objects(k.prog, "struct thing", ["gone"], cache="other")
    with pytest.raises(ValueError, match="pass several as a list"):
        objects(k.prog, "struct thing", "id, gone", cache="other")
    with pytest.raises(LookupError, match=r"struct unheard_of.* if a module defines it"):
        objects(k.prog, "struct unheard_of", ["id"])


def test_a_type_that_does_not_fit_in_the_cache_is_refused() -> None:
    k = fake()
    k.slab(k.cache("small", 64))
    with pytest.raises(ValueError, match=r"struct giant has 200 bytes.* small only 64"):
        objects(k.prog, "struct giant", ["last"], cache="small")


def test_a_type_that_fits_in_the_slot_but_not_in_the_object_is_refused() -> None:
    # Red zones and tracking make slots larger than objects.
    k = fake()
    k.slab(k.cache("padded", 64, 256, left_pad=128))
    with pytest.raises(ValueError, match="200 bytes"):
        objects(k.prog, "struct giant", ["last"], cache="padded")
    k.slab(k.cache("cut", 196, 208))
    with pytest.raises(ValueError, match="only 196"):
        objects(k.prog, "struct giant", ["first", "last"], cache="cut")


def test_members_that_lie_inside_the_object_can_be_read_of_a_larger_type() -> None:
    # x86 cuts the unused end off every task_struct: the type is larger than its objects.
    k = fake()
    cache = k.cache("giant", 64)
    fill(k, k.slab(cache))
    frame = objects(k.prog, "struct giant", ["first"])
    assert sorted(frame.index.tolist()) == cache.allocated()


def test_objects_that_are_larger_than_the_type_are_warned_of() -> None:
    """A struct inode is somewhere in each object of xfs_inode."""
    k = fake()
    k.slab(k.cache("thing", 192))
    k.slab(k.cache("other", 192))
    with pytest.warns(MergedCacheWarning, match="192 bytes, struct thing has"):
        objects(k.prog, "struct thing", ["id"], cache="other")
    with no_warnings():
        objects(k.prog, "struct thing", ["id"])
        objects(k.prog, "thing", ["id"])


def test_a_cache_that_is_not_called_like_its_type() -> None:
    k = fake()
    add_types(k.prog, {"struct file": (64, "0 unsigned long f_pos")}, "files")
    slab = k.slab(k.cache("filp", 64), [3])
    assert sorted(objects(k.prog, "struct file").index) == slab.cache.allocated()


def test_one_member_and_the_name_of_a_cache() -> None:
    k = fake()
    cache = k.cache("thing_cache", 64)
    fill(k, k.slab(cache, [3]))
    k.slab(k.cache("other", 64), [0])
    frame = objects(k.prog, "thing_cache", "self")
    assert sorted(frame["self"].tolist()) == cache.allocated()
    # Without a type there are addresses still.
    assert len(objects(k.prog, "other")) == 63
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
    k = fake()
    cache = k.cache("thing", 64)
    for _ in range(5):
        fill(k, k.slab(cache, [1, 2]))
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
    k = fake(era)
    group = k.memcg("a", k.root)
    cache = k.cache("thing", 64)
    slab = k.slab(cache, [5])
    fill(k, slab)
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


def test_from_a_row_to_the_object() -> None:
    k = fake()
    cache = k.cache("thing", 64)
    fill(k, k.slab(cache))
    frame = objects(k.prog, "struct thing", ["self"])
    thing = as_object(k.prog, frame.iloc[7], "struct thing")
    assert int(thing.self.value_()) == thing.address_ == frame.index[7]
    assert as_object(k.prog, int(frame.index[7]), "struct thing").address_ == frame.index[7]


def test_what_is_read_is_a_program_or_a_target() -> None:
    with pytest.raises(TargetError, match="not a Linux kernel"):
        context_of(drgn.Program())
    with pytest.raises(TypeError, match="'str' is neither"):
        context_of("vmcore")


@pytest.mark.parametrize(
    "where", ["low = 1", "low + 1", "not low", "import os", "gone == 1", "low =="]
)
def test_a_filter_that_is_not_one_boolean_per_row_is_refused(where: str) -> None:
    k = fake()
    fill(k, k.slab(k.cache("thing", 64)))
    with pytest.raises(ValueError, match="where"):
        objects(k.prog, "struct thing", ["low", "id"], where=where)


def test_an_owner_that_is_unknown_is_not_none() -> None:
    k = fake("6.10")
    group = k.memcg("a", k.root)
    slab = k.slab(k.cache("thing", 64), [5])
    fill(k, slab)
    k.charge(slab, {0: group, 3: group})
    k.set(group.objcg.memcg, 0x1000)
    frame = objects(k.prog, "struct thing", [], memcg=True)
    assert frame.index[frame["memcg"] == "?"].tolist() == [slab.object(0), slab.object(3)]


def test_a_cache_whose_name_is_not_an_identifier() -> None:
    k = fake()
    slab = k.slab(k.cache("some-cache", 64), [0])
    assert objects(k.prog, "some-cache").index.tolist() == slab.cache.allocated()
