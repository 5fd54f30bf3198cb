# SPDX-License-Identifier: LGPL-2.1-or-later
"""as_object(), rows() and follow(), on *synthetic* kernels."""

from __future__ import annotations

import re
from typing import Literal

import drgn
import numpy as np
import pandas as pd
import pytest

from kcensus.analyses import analyses
from kcensus.api.frames import Frame
from kcensus.api.objects import IncompleteWarning, objects
from kcensus.api.rows import as_object, follow, paths, rows
from kcensus.results import Unit
from tests.pages import RECIPES_PAGE
from tests.unit.engine.test_slab_scan import fake, one
from tests.unit.fakekernel import FakeKernel, add_types


@pytest.fixture(scope="module")
def things() -> FakeKernel:
    return one("6.10", [3, 5], [])[0]


@pytest.fixture(scope="module")
def frame(things: FakeKernel) -> pd.DataFrame:
    return objects(things.prog, "struct thing", ["id", "self"])


def test_a_row_knows_its_type(things: FakeKernel, frame: pd.DataFrame) -> None:
    for each in (frame.iloc[4], next(frame.iterrows())[1], frame[frame["id"] > 2].iloc[-1]):
        thing = as_object(things.prog, each)
        assert thing.type_.type_name() == "struct thing *"
        assert (thing.value_(), thing.id.value_()) == (each.name, each["id"])
        assert thing.self.value_() == thing[0].address_
        assert as_object(things.prog, thing, "struct thing") == thing
        for given in (thing, thing[0]):
            assert as_object(things.prog, given).type_.type_name() == "struct thing *"
            assert as_object(things.prog, given) == thing
        # A type that is passed goes first.
        assert as_object(things.prog, each, "unsigned char").type_.type_name() == "unsigned char *"
    table = frame.reset_index().assign(name="x")
    assert as_object(things.prog, table.iloc[2]).value_() == frame.index[2]


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
    with pytest.raises(TypeError, match="'/a' is a text, not an address"):
        rows(frame, pd.Series(["/a"]))
    # Rows need addresses, and objects, too.
    with pytest.raises(ValueError, match="no addresses"):
        rows(frame.reset_index(drop=True), int(frame.index[0]))
    value = as_object(things.prog, frame.iloc[0])[0].read_()
    with pytest.raises(ValueError, match="value without an address"):
        rows(frame, value)


def test_objects_lead_back_to_their_rows(things: FakeKernel, frame: pd.DataFrame) -> None:
    first, last = (as_object(things.prog, frame.iloc[row]) for row in (0, -1))
    both = frame.index[[0, -1]].tolist()
    for places in ([last, first], [last[0], both[0]], np.array(both, np.uint64)):
        assert rows(frame, places).index.tolist() == both
    for place in (first, first[0], both[0], frame.index[0]):
        assert rows(frame, place).index.tolist() == both[:1]
    assert rows(frame.reset_index(), last)["address"].tolist() == both[1:]
    assert rows(frame, []).empty
    assert as_object(things.prog, rows(frame, last).iloc[0]).value_() == both[1]
    # An object that is a number is an address.
    prog = drgn.Program(drgn.host_platform)
    word = drgn.Object(prog, prog.int_type("unsigned long", 8, False), value=int(frame.index[1]))
    assert rows(frame, word).index.tolist() == [frame.index[1]]


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


def test_addresses_that_became_floats_are_refused(things: FakeKernel, frame: pd.DataFrame) -> None:
    left = frame[["id"]].join(frame[["self"]].head(3))
    assert left["self"].dtype == float
    for pointers in (left["self"], left["self"].head(3), [*left["self"]], left["self"].astype("O")):
        with pytest.raises(ValueError, match=r"join\(how='inner'\)"):
            follow(things.prog, pointers, "id", "struct thing")
        with pytest.raises(ValueError, match=r"join\(how='inner'\)"):
            rows(frame, pointers)
        with pytest.raises(ValueError, match=r"join\(how='inner'\)"):
            paths(things.prog, pointers)
    with pytest.raises(ValueError, match="floats"):
        rows(left.rename(columns={"self": "address"}), int(frame.index[0]))
    with pytest.raises(ValueError, match="floats"):
        as_object(things.prog, float(frame.index[0]), "struct thing")


def test_any_integers_are_addresses(things: FakeKernel, frame: pd.DataFrame) -> None:
    numbers = frame["self"].head(3)
    expected = frame["id"].head(3).tolist()
    mixed = [numbers.iloc[0], *map(int, numbers.iloc[1:])]
    nullable = pd.Series([None, *mixed], dtype="UInt64")
    for pointers in (numbers.astype("O"), nullable, mixed, pd.Index(numbers), iter(mixed)):
        followed = follow(things.prog, pointers, "id", "struct thing")
        assert followed["id"].tolist() == expected
    assert follow(things.prog, pd.Index(numbers), "id", "struct thing").index.tolist() == mixed
    assert follow(things.prog, [], "id", "struct thing").empty
    with pytest.raises(ValueError, match="pass its type"):
        follow(things.prog, frame.index, "id")


def test_rows_of_a_join_know_their_types(things: FakeKernel, frame: pd.DataFrame) -> None:
    followed = follow(things.prog, frame["self"].head(3), ["tag"], "struct thing")
    followed.attrs["types"] = {"tag": "struct tag"}
    row = frame.join(followed, how="inner").iloc[1]
    assert as_object(things.prog, row).value_() == frame.index[1]
    assert row.attrs["types"] == frame.attrs["types"] | {"tag": "struct tag"}


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_rows_of_a_join_of_others_do_not_get_their_type(
    how: Literal["inner", "left", "right", "outer"],
) -> None:
    things = Frame({"id": [1, 2]}, pd.Index([0xFFFF << 48, 0xFFFF << 48 | 64], name="address"))
    things.attrs["types"] = {"address": "struct thing"}
    users = Frame({"thing": things.index}, pd.Index([0xFFFE << 48, 0xFFFD << 48], name="address"))
    for joined in (
        things.merge(users, left_index=True, right_on="thing", how=how),
        users.merge(things, right_index=True, left_on="thing", how=how),
        pd.concat([users, things]),
    ):
        assert "address" not in joined.attrs["types"]
    for same in (pd.concat([things, things]), things.join(things.add_prefix("other_"), how=how)):
        assert same.attrs["types"] == {"address": "struct thing"}


def test_a_direct_map_below_that_of_four_levels(things: FakeKernel) -> None:
    """With 5-level page tables, x86_64 has it at 0xff11000000000000."""
    frame = Frame({"id": [1]}, pd.Index([0xFF11_0000_0000_1000], dtype=np.uint64, name="address"))
    assert as_object(things.prog, frame.iloc[0], "struct thing").value_() == frame.index[0]
    assert "0xff11000000001000" in repr(frame)


def test_an_unknown_type_has_to_be_passed(things: FakeKernel, frame: pd.DataFrame) -> None:
    # Rows that were followed are not those objects.
    followed = follow(things.prog, frame["self"], ["id"], "struct thing")
    with pytest.raises(ValueError, match="unknown"):
        as_object(things.prog, followed.iloc[0])
    with pytest.raises(ValueError, match=r"'id' is unknown; pass its type"):
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
    # Columns of a join that differ in type have none.
    index = pd.Index([0xFFFF << 48], name="address")
    first, second = Frame({"next": [0], "owner": [0]}, index), Frame({"next": [0]}, index)
    first.attrs["types"] = {"next": "struct a", "owner": "struct owner"}
    second.attrs["types"] = {"next": "struct b"}
    joined = first.merge(second, left_index=True, right_index=True, suffixes=("", "_2"))
    assert joined.attrs["types"] == {"owner": "struct owner"}


@pytest.mark.parametrize("name", analyses())
def test_every_address_has_a_type(name: str) -> None:
    for spec in analyses()[name].tables():
        for key, column in spec.columns.items():
            is_address = column.unit is Unit.ADDRESS
            # What a row is about may differ in type by row: then, a column has its name.
            is_typed = column.type.startswith("struct ") or f"{key}_type" in spec.columns
            assert is_typed is is_address, f"{spec.name}.{key}"


def test_the_page_has_the_types_of_tables() -> None:
    listed = re.findall(r"^\| ([\w, -]+) \| (`[`\w, ]+`) \| `(struct \w+)` \|$", RECIPES_PAGE, re.M)
    assert len(listed) > 10
    for names, tables, type_ in listed:
        for name in names.split(", "):
            specs = {spec.name: spec for spec in analyses()[name].tables()}
            for table in re.findall(r"\w+", tables):
                assert specs[table].columns["address"].type == type_, (name, table)
