# SPDX-License-Identifier: LGPL-2.1-or-later
"""as_object(), rows() and follow(), on *synthetic* kernels."""

from __future__ import annotations

import re

import drgn
import numpy as np
import pandas as pd
import pytest

from kcensus.analyses import analyses
from kcensus.api.objects import IncompleteWarning, objects
from kcensus.api.rows import as_object, follow, rows
from kcensus.results import Unit
from tests.pages import RECIPES_PAGE
from tests.unit.engine.test_slab_scan import fake, fill
from tests.unit.fakekernel import FakeKernel, add_types


@pytest.fixture(scope="module")
def things() -> FakeKernel:
    k = fake()
    cache = k.cache("thing", 64)
    fill(k, k.slab(cache, [3, 5]))
    fill(k, k.slab(cache, []))
    return k


@pytest.fixture(scope="module")
def frame(things: FakeKernel) -> pd.DataFrame:
    return objects(things.prog, "struct thing", ["id", "self"])


def test_a_row_knows_its_type(things: FakeKernel, frame: pd.DataFrame) -> None:
    for each in (frame.iloc[4], next(frame.iterrows())[1], frame[frame["id"] > 2].iloc[-1]):
        thing = as_object(things.prog, each)
        assert thing.type_.type_name() == "struct thing"
        assert (thing.address_, thing.id.value_()) == (each.name, each["id"])


def test_a_row_of_a_table_has_its_address_in_a_column(
    things: FakeKernel, frame: pd.DataFrame
) -> None:
    table = frame.reset_index().assign(name="x")
    assert as_object(things.prog, table.iloc[2]).address_ == frame.index[2]


def test_a_type_that_is_passed_goes_first(things: FakeKernel, frame: pd.DataFrame) -> None:
    assert as_object(things.prog, frame.iloc[0], "unsigned char").type_.type_name() == (
        "unsigned char"
    )


def test_a_row_without_an_object_is_refused(things: FakeKernel, frame: pd.DataFrame) -> None:
    numbers = frame[["id"]].reset_index()
    for row, reason in (
        (frame.iloc[0].rename(7), "no address"),
        (numbers.assign(ratio=0.5).iloc[0], "floats"),
        (numbers.assign(address=np.uint64(0), name="x").iloc[0], "no address"),
        (int(frame.index[0]), "type of the object is unknown"),
    ):
        with pytest.raises(ValueError, match=reason):
            as_object(things.prog, row)


def test_objects_lead_back_to_their_rows(things: FakeKernel, frame: pd.DataFrame) -> None:
    first, last = (as_object(things.prog, frame.iloc[row]) for row in (0, -1))
    both = frame.index[[0, -1]].tolist()
    for places in ([last, first], [last.address_of_(), both[0]], np.array(both, np.uint64)):
        assert rows(frame, places).index.tolist() == both
    for place in (first, first.address_of_(), both[0], frame.index[0]):
        assert rows(frame, place).index.tolist() == both[:1]
    assert rows(frame.reset_index(), last)["address"].tolist() == both[1:]
    assert rows(frame, []).empty
    assert as_object(things.prog, rows(frame, last).iloc[0]).address_ == both[1]


def test_rows_need_addresses(things: FakeKernel, frame: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="no addresses"):
        rows(frame.reset_index(drop=True), int(frame.index[0]))
    value = as_object(things.prog, frame.iloc[0]).read_()
    with pytest.raises(ValueError, match="value without an address"):
        rows(frame, value)


def test_pointers_are_followed_by_their_type(things: FakeKernel, frame: pd.DataFrame) -> None:
    followed = follow(things.prog, frame["self"], ["id", "tag"])
    assert list(followed) == ["id", "tag"]
    assert followed.index.equals(frame.index)
    assert followed["id"].tolist() == frame["id"].tolist()
    of_index = follow(things.prog, frame.reset_index()["address"], "id")
    assert of_index["id"].tolist() == frame["id"].tolist()


def test_null_and_unreadable_pointers_are_left_out(things: FakeKernel, frame: pd.DataFrame) -> None:
    pointers = frame["self"].head(4).copy()
    pointers.iloc[0], pointers.iloc[2] = 0, np.uint64(0xFFFF << 48)
    with pytest.warns(IncompleteWarning, match="unreadable memory: 1"):
        followed = follow(things.prog, pointers, ["id"], "struct thing")
    assert followed.index.tolist() == frame.index[[1, 3]].tolist()
    assert followed["id"].tolist() == frame["id"].iloc[[1, 3]].tolist()


def test_rows_that_were_followed_are_not_those_objects(
    things: FakeKernel, frame: pd.DataFrame
) -> None:
    followed = follow(things.prog, frame["self"], ["id"], "struct thing")
    with pytest.raises(ValueError, match="unknown"):
        as_object(things.prog, followed.iloc[0])


def test_an_unknown_type_has_to_be_passed(things: FakeKernel, frame: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"'id' points to is unknown; pass its type"):
        follow(things.prog, frame["id"], ["id"])
    with pytest.raises(LookupError):
        follow(things.prog, frame["self"], ["no_such_member"], "struct thing")


def test_the_types_of_pointers_are_known() -> None:
    k = fake()
    members = "0 struct link * next\n8 void * private\n16 unsigned long id"
    add_types(k.prog, {"struct link": (24, members)}, "links")
    k.slab(k.cache("link", 24), [])
    found = objects(k.prog, "struct link", ["next", "private", "id"])
    assert found.attrs["types"] == {"address": "struct link", "next": "struct link"}


@pytest.mark.parametrize("name", analyses())
def test_every_address_has_a_type(name: str) -> None:
    for spec in analyses()[name].tables():
        for key, column in spec.columns.items():
            is_address = column.unit is Unit.ADDRESS
            assert column.type.startswith("struct ") is is_address, f"{spec.name}.{key}"


def test_the_page_has_the_types_of_tables() -> None:
    listed = re.findall(r"^\| ([\w, -]+) \| (`[`\w, ]+`) \| `(struct \w+)` \|$", RECIPES_PAGE, re.M)
    assert len(listed) > 8
    for names, tables, type_ in listed:
        for name in names.split(", "):
            specs = {spec.name: spec for spec in analyses()[name].tables()}
            for table in re.findall(r"\w+", tables):
                assert specs[table].columns["address"].type == type_, (name, table)


def test_an_object_that_is_a_number_is_an_address(frame: pd.DataFrame) -> None:
    prog = drgn.Program(drgn.host_platform)
    word = drgn.Object(prog, prog.int_type("unsigned long", 8, False), value=int(frame.index[1]))
    assert rows(frame, word).index.tolist() == [frame.index[1]]
