# SPDX-License-Identifier: LGPL-2.1-or-later
"""Member paths become columns: *synthetic* structs, held against what drgn itself reads."""

from __future__ import annotations

import re

import drgn
import numpy as np
import pytest
from drgn import Architecture, Object, Platform, PlatformFlags, Program, TypeMember
from hypothesis import given
from hypothesis import strategies as st

from kcensus.engine.layout import Layout, LayoutError, layout
from tests.unit.fakekernel import add_types

LITTLE = Platform(Architecture.X86_64, PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN)
BIG = Platform(Architecture.S390X, PlatformFlags.IS_64_BIT)
PLATFORMS = pytest.mark.parametrize("platform", [LITTLE, BIG], ids=["little", "big"])

TYPES = """
struct thing 96
    0 unsigned char small; 2 short negative; 4 number_t number; 8 struct thing * next
    16 union choice -; 24 struct inner [3] inner; 48 char [12] name; 60 _Bool flag
    64 double real; 72 void * later; 80 int [2] pair; 95 signed char last
union choice 8 : 0 long left; 0 struct couple -
struct couple 8 : 0 unsigned int low; 4 unsigned int high
struct inner 8 : 0 unsigned int a; 4 struct deep deep
struct deep 4 : 0 short x; 2 short y
typedef number_t other_number_t
typedef other_number_t int
typedef thing_t struct thing
"""


def program(platform: Platform) -> Program:
    prog = Program(platform)
    add_types(prog, TYPES)
    return prog


@pytest.fixture
def prog() -> Program:
    return program(LITTLE)


def read_all(found: Layout, data: bytes) -> dict[str, object]:
    records = np.frombuffer(data, np.uint8).view(found.dtype(len(data)))
    return {name: found.decode(name, records[name])[0].item() for name in found.fields}


DATA = bytes(range(48)) + b"a name\0rest!" + bytes([1, 0, 0, 0]) + bytes(range(64, 96))


@PLATFORMS
def test_every_kind_of_member_reads_as_drgn_reads_it(platform: Platform) -> None:
    prog = program(platform)
    paths = ["small", "negative", "number", "next", "left", "low", "high", "inner[0].a"]
    paths += ["inner[2].deep.y", "flag", "real", "later", "pair[1]", "last"]
    found = layout(prog, "struct thing", paths)
    signed = {name for name, field in found.fields.items() if field.dtype.kind == "i"}
    assert signed == {"negative", "number", "left", "inner[2].deep.y", "pair[1]", "last"}
    row = read_all(found, DATA)
    thing = Object.from_bytes_(prog, "struct thing", DATA)

    def truth(path: str) -> object:
        member = thing
        for step in path.replace("[", ".[").split("."):
            member = member[int(step[1:-1])] if step[0] == "[" else member.member_(step)
        return member.value_()

    assert row == {path: truth(path) for path in paths}
    assert row["negative"] == (0x0302 if platform is LITTLE else 0x0203)


def test_character_arrays_are_bytes_up_to_their_padding(prog: Program) -> None:
    assert read_all(layout(prog, "struct thing", ["name"]), DATA) == {"name": b"a name\0rest!"}
    padded = DATA[:48] + b"short\0\0\0\0\0\0\0" + DATA[60:]
    assert read_all(layout(prog, "struct thing", ["name"]), padded) == {"name": b"short"}


def test_names_alternatives_and_optional_members(prog: Program) -> None:
    found = layout(
        prog,
        "struct thing",
        {"count": ("d_count", "number"), "first": ("small", "negative")},
        {
            "absent": ("gone", "inner[0].gone"),
            "there": ("gone", "flag"),
            "high": "high",
            "element of a scalar": "number[0]",
            "member of a scalar": "number.x",
        },
    )
    paths = {name: field.path for name, field in found.fields.items()}
    assert paths == {"count": "number", "first": "small", "there": "flag", "high": "high"}
    assert ["absent" in found, "there" in found] == [False, True]


def test_the_type_may_be_a_typedef_or_a_type_object(prog: Program) -> None:
    by_name = layout(prog, "struct thing", ["number"])
    assert layout(prog, "thing_t", ["number"]) == by_name
    assert layout(prog, prog.type("thing_t"), ["number"]) == by_name
    assert by_name.size == 96
    assert by_name.type_name == "struct thing"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone", "struct thing has no member gone"),
        (("this", "that"), "has no member this or that"),
        ("pair[2]", "has no member pair[2]"),
        ("inner[0].gone", "has no member inner[0].gone"),
        ("next.number", "has no member next.number"),
        ("inner", "inner is an array: name one element, as in inner[0]"),
        ("pair", "name one element, as in pair[0]"),
        ("inner[1]", "is a struct inner: name a member of it, as in inner[1].a"),
        ("inner[1].deep", "as in inner[1].deep.x"),
        ("number->x", "'number->x' is not a member path"),
        ("pair[x]", "is not a member path"),
        ("pair[-1]", "is not a member path"),
    ],
)
def test_errors_say_what_to_write_instead(
    prog: Program, path: str | tuple[str, ...], words: str
) -> None:
    with pytest.raises(LayoutError, match=re.escape(words)):
        layout(prog, "struct thing", {"x": path})


def test_types_without_members(prog: Program) -> None:
    with pytest.raises(LayoutError, match="struct later has no member x"):
        layout(prog, prog.struct_type("later"), ["x"])
    with pytest.raises(LookupError, match="struct nothing"):
        layout(prog, "struct nothing", ["x"])


def bit_fields(
    prog: Program, widths: list[tuple[int, int]], unit: int, signed: bool = False
) -> drgn.Type:
    """A struct of one word of ``unit`` bytes with bit fields at (offset, width)."""
    name = {1: "char", 2: "short", 4: "int", 8: "long"}[unit]
    type_ = prog.int_type(name, unit, signed)
    members = [
        TypeMember(Object(prog, type_, bit_field_size=width), f"at{offset}", offset)
        for offset, width in widths
    ]
    return prog.struct_type("bits", unit, members)


@st.composite
def _fields(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    unit = draw(st.sampled_from([1, 2, 4, 8]))
    fields, at = [], 0
    while at < unit * 8:
        width = draw(st.integers(1, unit * 8 - at))
        fields.append((at, width))
        at += width
    return unit, fields


@PLATFORMS
@given(_fields(), st.binary(min_size=8, max_size=8))
def test_bit_fields_read_as_drgn_reads_them(
    platform: Platform, fields: tuple[int, list[tuple[int, int]]], data: bytes
) -> None:
    unit, widths = fields
    prog = program(platform)
    type_ = bit_fields(prog, widths, unit)
    truth = Object.from_bytes_(prog, type_, data[:unit])
    names = [member.name for member in type_.members]
    found = layout(prog, type_, names)
    # One struct alone: nothing beyond its end may be needed.
    assert read_all(found, data[:unit]) == {name: truth.member_(name).value_() for name in names}


def test_signed_bit_fields_have_a_sign(prog: Program) -> None:
    type_ = bit_fields(prog, [(0, 3), (3, 13)], 4, signed=True)
    row = read_all(layout(prog, type_, ["at0", "at3"]), b"\xff\x7f\x00\x00")
    assert row == {"at0": -1, "at3": 0xFFF}
