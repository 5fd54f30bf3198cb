# SPDX-License-Identifier: LGPL-2.1-or-later
"""Member paths become columns: *synthetic* structs, held against what drgn itself reads."""

from __future__ import annotations

import drgn
import numpy as np
import pytest
from drgn import Architecture, Object, Platform, PlatformFlags, Program, TypeMember
from hypothesis import given, settings
from hypothesis import strategies as st

from kcensus.engine.layout import Layout, LayoutError, layout
from tests.unit.fakekernel import add_types

LITTLE = Platform(Architecture.X86_64, PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN)
BIG = Platform(Architecture.S390X, PlatformFlags.IS_64_BIT)
PLATFORMS = pytest.mark.parametrize("platform", [LITTLE, BIG], ids=["little", "big"])

TYPES = {
    "struct thing": (
        96,
        """0 unsigned char small
        2 short negative
        4 number_t number
        8 struct thing * next
        16 union choice -
        24 struct inner [3] inner
        48 char [12] name
        60 _Bool flag
        64 double real
        72 void * later
        80 int [2] pair
        95 signed char last""",
    ),
    "union choice": (8, "0 long left\n0 struct couple -"),
    "struct couple": (8, "0 unsigned int low\n4 unsigned int high"),
    "struct inner": (8, "0 unsigned int a\n4 struct deep deep"),
    "struct deep": (4, "0 short x\n2 short y"),
    "typedef number_t": (0, "other_number_t"),
    "typedef other_number_t": (0, "int"),
    "typedef thing_t": (0, "struct thing"),
}


def program(platform: Platform) -> Program:
    prog = Program(platform)
    add_types(prog, TYPES)
    return prog


@pytest.fixture
def prog() -> Program:
    return program(LITTLE)


def read_all(found: Layout, data: bytes) -> dict[str, object]:
    """The only row of a struct's bytes, by column."""
    records = np.frombuffer(data, np.uint8).view(found.dtype(len(data)))
    return {name: found.decode(name, records[name])[0].item() for name in found.fields}


DATA = bytes(range(48)) + b"a name\0rest!" + bytes([1, 0, 0, 0]) + bytes(range(64, 96))


@PLATFORMS
def test_every_kind_of_member_reads_as_drgn_reads_it(platform: Platform) -> None:
    prog = program(platform)
    paths = ["small", "negative", "number", "next", "left", "low", "high", "inner[0].a"]
    paths += ["inner[2].deep.y", "flag", "real", "later", "pair[1]", "last"]
    row = read_all(layout(prog, "struct thing", paths), DATA)
    thing = Object.from_bytes_(prog, "struct thing", DATA)

    def truth(path: str) -> object:
        member = thing
        for step in path.replace("[", ".[").split("."):
            member = member[int(step[1:-1])] if step[0] == "[" else member.member_(step)
        return member.value_()

    assert row == {path: truth(path) for path in paths}
    assert row["negative"] == (0x0302 if platform is LITTLE else 0x0203)


def test_dtypes_say_sign_and_width(prog: Program) -> None:
    found = layout(prog, "struct thing", ["small", "negative", "number", "next", "flag", "real"])
    kinds = {name: field.dtype.str for name, field in found.fields.items()}
    assert kinds == {
        "small": "|u1",
        "negative": "<i2",
        "number": "<i4",
        "next": "<u8",
        "flag": "|u1",
        "real": "<f8",
    }
    assert layout(program(BIG), "struct thing", ["next"]).fields["next"].dtype.str == ">u8"


def test_character_arrays_are_bytes_up_to_their_padding(prog: Program) -> None:
    assert read_all(layout(prog, "struct thing", ["name"]), DATA) == {"name": b"a name\0rest!"}
    padded = DATA[:48] + b"short\0\0\0\0\0\0\0" + DATA[60:]
    assert read_all(layout(prog, "struct thing", ["name"]), padded) == {"name": b"short"}


def test_names_alternatives_and_optional_members(prog: Program) -> None:
    found = layout(
        prog,
        "struct thing",
        {"count": ("d_count", "number"), "first": ("small", "negative")},
        {"absent": ("gone", "inner[0].gone"), "there": ("gone", "flag"), "high": "high"},
    )
    paths = {name: field.path for name, field in found.fields.items()}
    assert paths == {"count": "number", "first": "small", "there": "flag", "high": "high"}
    assert "absent" not in found
    assert "there" in found


def test_an_array_element_beyond_a_scalar_is_absent_not_an_error(prog: Program) -> None:
    assert not layout(prog, "struct thing", {}, {"x": "number[0]", "y": "number.x"}).fields


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
def test_errors_say_what_to_write_instead(prog: Program, path: str, words: str) -> None:
    with pytest.raises(LayoutError) as error:
        layout(prog, "struct thing", [path])
    assert words in str(error.value)


def test_an_error_names_all_alternatives(prog: Program) -> None:
    with pytest.raises(LayoutError, match="has no member this or that"):
        layout(prog, "struct thing", {"x": ("this", "that")})


def test_an_unknown_type_is_a_lookup_error(prog: Program) -> None:
    with pytest.raises(LookupError, match="struct nothing"):
        layout(prog, "struct nothing", ["x"])


def test_a_type_that_is_only_declared_has_no_members(prog: Program) -> None:
    with pytest.raises(LayoutError, match="struct later has no member x"):
        layout(prog, prog.struct_type("later"), ["x"])


def test_an_array_element_out_of_bounds_is_no_member(prog: Program) -> None:
    with pytest.raises(LayoutError):
        layout(prog, "struct thing", ["pair[2]"])


def test_a_stride_beyond_the_struct(prog: Program) -> None:
    found = layout(prog, "struct thing", ["last"])
    records = np.arange(256, dtype=np.uint8).view(found.dtype(128))
    assert found.decode("last", records["last"]).tolist() == [95, 95 - 128]


# Bit fields


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


@PLATFORMS
def test_the_counters_of_a_slab(platform: Platform) -> None:
    prog = program(platform)
    type_ = bit_fields(prog, [(0, 16), (16, 15), (31, 1)], 4)
    data = bytes([0x34, 0x92, 0xCD, 0xAB])
    row = read_all(layout(prog, type_, ["at0", "at16", "at31"]), data)
    assert row == (
        {"at0": 0x9234, "at16": 0x2BCD, "at31": 1}
        if platform is LITTLE
        else {"at0": 0x3492, "at16": 0xCDAB >> 1, "at31": 1}
    )


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
@settings(max_examples=60, deadline=None)
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


def test_a_bit_field_of_three_bytes_stays_inside_its_struct(prog: Program) -> None:
    found = layout(prog, bit_fields(prog, [(0, 15), (15, 17)], 4), ["at15"])
    field = found.fields["at15"]
    assert field.offset + field.dtype.itemsize <= found.size
    assert read_all(found, b"\x00\x80\x34\x92") == {"at15": 0x9234 << 1 | 1}


def test_signed_bit_fields_have_a_sign(prog: Program) -> None:
    type_ = bit_fields(prog, [(0, 3), (3, 13)], 4, signed=True)
    row = read_all(layout(prog, type_, ["at0", "at3"]), b"\xff\x7f\x00\x00")
    assert row == {"at0": -1, "at3": 0xFFF}


def test_bit_fields_of_many_rows_decode_at_once(prog: Program) -> None:
    found = layout(prog, bit_fields(prog, [(0, 16), (16, 15), (31, 1)], 4), ["at16"])
    words = np.array([7 << 16 | 1, 1 << 31 | 32767 << 16, 0], "<u4")
    column = found.decode("at16", words.view(np.uint8).view(found.dtype())["at16"])
    assert column.tolist() == [7, 32767, 0]
    assert found.decode("at16", words.view("<u2")[1::2]).tolist() == [7, 32767, 0]
