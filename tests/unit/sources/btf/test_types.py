# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types of each kind of BTF."""

from __future__ import annotations

import struct

import drgn
import pytest
from drgn import Qualifiers, TypeKind

from kcensus.sources.debuginfo.btf.finders import Types
from kcensus.sources.debuginfo.btf.format import BadBtf, Kind
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.types.nodes import Ref, build
from tests.unit.sources.btf.making import Section, every_kind

PLATFORM = drgn.Platform(drgn.Architecture.X86_64)


def made(section: Section, kind: TypeKind, name: str, base: Btf | None = None) -> drgn.Type:
    ref = Btf(section.data(), base).find(kind, name)
    assert ref is not None
    return build(drgn.Program(PLATFORM), ref)


def built(ref: Ref | None) -> drgn.Type:
    assert ref is not None
    return build(drgn.Program(PLATFORM), ref)


def value(types: Btf | Types, enumerator: str) -> int:
    pair = types.enumerator(enumerator)
    assert pair is not None
    return pair[1]


def member(type_: drgn.Type, name: str) -> drgn.Type:
    return type_.member(name).type


@pytest.mark.parametrize(
    ("kind", "name", "size"),
    [
        (TypeKind.INT, "unsigned int", 4),
        (TypeKind.INT, "unsigned", 4),
        (TypeKind.INT, "unsigned long", 8),
        (TypeKind.INT, "long unsigned int", 8),
        (TypeKind.BOOL, "_Bool", 1),
        (TypeKind.FLOAT, "double", 8),
        (TypeKind.STRUCT, "node", 16),
        (TypeKind.UNION, "choice", 8),
        (TypeKind.ENUM, "state", 4),
        (TypeKind.ENUM, "wide", 8),
        (TypeKind.TYPEDEF, "u32", 4),
    ],
)
def test_types_are_found_by_kind_and_name(kind: TypeKind, name: str, size: int) -> None:
    type_ = made(every_kind(), kind, name)
    assert (type_.kind, drgn.sizeof(type_)) == (kind, size)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TypeKind.STRUCT, "choice"),
        (TypeKind.STRUCT, "nod"),
        (TypeKind.STRUCT, "node "),
        (TypeKind.STRUCT, ""),
        (TypeKind.STRUCT, "n\udcff"),
        (TypeKind.INT, "_Bool"),
        (TypeKind.FUNCTION, "run"),
        (TypeKind.CLASS, "node"),
        # As in debug info, declarations are not found.
        (TypeKind.STRUCT, "hidden"),
        (TypeKind.ENUM, "undefined"),
    ],
)
def test_others_are_not_found(kind: TypeKind, name: str) -> None:
    assert Btf(every_kind().data()).find(kind, name) is None


def test_members_have_offsets_widths_and_types() -> None:
    type_ = made(every_kind(), TypeKind.STRUCT, "all")
    assert [(each.name, each.bit_offset, each.bit_field_size) for each in type_.members] == [
        ("first", 0, 3), ("second", 3, 29), ("state", 32, 8), ("is_set", 40, None),
        ("name", 64, None), (None, 128, None), ("words", 192, None), ("hidden", 320, None),
        ("wide", 384, None), ("rest", 512, None),
    ]  # fmt: skip
    assert member(type_, "first").is_signed
    assert member(type_, "name").type.qualifiers == Qualifiers.CONST | Qualifiers.VOLATILE
    assert member(type_, "a").member("number").type.type_name() == "u32"
    assert member(type_, "words").length == 2
    assert member(type_, "rest").length is None
    assert not member(type_, "hidden").type.is_complete()
    node = member(type_, "a").member("pointer").type.type
    assert member(node, "next").type.tag == "node"


def test_values_of_an_object() -> None:
    prog = drgn.Program(PLATFORM)
    ref = Btf(every_kind().data()).find(TypeKind.STRUCT, "all")
    assert ref is not None
    type_ = build(prog, ref)
    data = bytearray(64)
    data[:8] = (0b11110 | 1000 << 3).to_bytes(4, "little") + b"\5\1\0\0"
    data[16:24] = (7).to_bytes(8, "little")
    value = drgn.Object.from_bytes_(prog, type_, bytes(data))
    assert (int(value.first), int(value.second)) == (-2, 1003)
    assert int(value.state) == 5
    assert bool(value.is_set)
    assert int(value.a.number) == 7


def test_enumerators() -> None:
    btf = Btf(every_kind().data())
    found = {name: btf.enumerator(name) for name in ("BUSY", "HIGH", "MINUS")}
    values = {name: pair[1] for name, pair in found.items() if pair}
    assert values == {"BUSY": 5, "HIGH": 1 << 40, "MINUS": -1}
    tags = {name: pair[0].node.tag for name, pair in found.items() if pair}
    assert tags == {"BUSY": "state", "HIGH": "wide", "MINUS": "sign"}
    assert btf.enumerator("node") is None
    wide, sign = built(btf.find(TypeKind.ENUM, "wide")), built(btf.find(TypeKind.ENUM, "sign"))
    assert (wide.type.type_name(), sign.type.type_name()) == ("unsigned long", "int")


def test_an_enum_with_a_negative_value_is_signed_without_the_flag() -> None:
    section = Section()
    section.enum("old", [("MINUS", -2), ("PLUS", 2)])
    section.enum64("new", [("TOP", 1 << 63)])
    btf = Btf(section.data())
    assert [value(btf, name) for name in ("MINUS", "TOP")] == [-2, 1 << 63]


def test_an_enumerator_that_does_not_fit_its_enum_is_left_out() -> None:
    section = Section()
    section.enum("tiny", [("BIG", 300), ("SMALL", 3)], size=1)
    btf = Btf(section.data())
    assert (btf.enumerator("BIG"), value(btf, "SMALL")) == (None, 3)
    tiny = btf.find(TypeKind.ENUM, "tiny")
    assert tiny is not None
    assert tiny.node.enumerators == (("SMALL", 3),)


def test_functions_have_parameters() -> None:
    btf = Btf(every_kind().data())
    assert (
        built(btf.function("run")).type_name()
        == "int (struct node * restrict next, u32 count, ...)"
    )
    assert btf.function("node") is None


def test_variables() -> None:
    btf = Btf(every_kind().data())
    assert {name: built(ref).type_name() for name, ref in btf.variables().items()} == {
        "rows": "union choice"
    }


def test_a_variable_with_two_types_is_left_out() -> None:
    section = Section()
    number, char = section.integer("int", coding=1), section.integer("char", 1)
    for name, type_ in (("one", number), ("two", number), ("two", char), ("one", number)):
        section.variable(name, type_)
    assert [*Btf(section.data()).variables()] == ["one"]


def test_a_bit_field_before_kind_flag() -> None:
    """The type of such a member has fewer bits than bytes, and may have an offset."""
    section = Section()
    narrow = section.integer("unsigned int", bits=3, at=2)
    alias = section.add(Kind.TYPEDEF, "small", narrow)
    section.struct("old", 4, ("a", narrow, 0), ("b", alias, 8))
    type_ = made(section, TypeKind.STRUCT, "old")
    assert [(each.bit_offset, each.bit_field_size) for each in type_.members] == [(2, 3), (10, 3)]


@pytest.mark.parametrize("has_signed_char", [True, False])
def test_characters_of_a_section_that_does_not_tell_their_sign(has_signed_char: bool) -> None:
    section = Section()
    section.integer("char", 1)
    section.integer("signed char", 1)
    section.integer("unsigned char", 1)
    btf = Btf(section.data(), has_signed_char=has_signed_char)
    names = ("char", "signed char", "unsigned char")
    signs = [built(btf.find(TypeKind.INT, name)).is_signed for name in names]
    assert signs == [has_signed_char, True, False]


def test_characters_of_a_section_that_tells_their_sign() -> None:
    section = Section()
    section.integer("char", 1)
    section.integer("signed char", 1, coding=1)
    assert not made(section, TypeKind.INT, "char").is_signed


def test_the_first_of_several_definitions_is_found() -> None:
    section = Section()
    section.add(Kind.FWD, "twice", 0)
    section.struct("twice", 8)
    section.struct("twice", 16)
    btf = Btf(section.data())
    assert built(btf.find(TypeKind.STRUCT, "twice")).size == 8
    assert btf.only(TypeKind.STRUCT, "twice") is None


def test_a_declaration_means_the_only_definition() -> None:
    section = Section()
    pointer = section.pointer(section.add(Kind.FWD, "late", 0))
    section.struct("user", 8, ("late", pointer, 0))
    section.struct("late", 24)
    assert member(made(section, TypeKind.STRUCT, "user"), "late").type.size == 24


def test_a_module_continues_ids_and_strings() -> None:
    kernel = every_kind()
    module = Section(kernel)
    own = module.struct("own", 24, ("next", 10, 0), ("node", 9, 64))
    module.variable("rows", own)
    module.variable("others", own)
    btf = Btf(module.data(), Btf(kernel.data()))
    type_ = built(btf.find(TypeKind.STRUCT, "own"))
    assert member(type_, "next").type_name() == "struct node *"
    assert built(btf.find(TypeKind.TYPEDEF, "u32")).name == "u32"
    assert value(btf, "BUSY") == 5
    assert btf.function("run") is not None
    assert [*btf.variables()] == ["rows", "others"]


def test_a_module_without_own_types_or_strings() -> None:
    kernel = every_kind()
    assert len(Btf(Section(kernel).data(), Btf(kernel.data()))) == 0


def test_names_that_end_alike_can_share_a_string() -> None:
    section = Section()
    place = section.name("dm_target")
    section.records.append(
        b"".join(n.to_bytes(4, "little") for n in (place + 3, Kind.STRUCT << 24, 4))
    )
    assert made(section, TypeKind.STRUCT, "target").size == 4


def test_names_longer_than_two_words_differ_in_the_middle() -> None:
    section = Section()
    names = [f"beginning_{letter}_the_end_" for letter in "abc"]
    for size, name in enumerate(names):
        section.struct(name, size)
    assert [made(section, TypeKind.STRUCT, name).size for name in names] == [0, 1, 2]


def with_layout(data: bytes, lengths: bytes) -> bytes:
    """Return a section with a longer header and the lengths of kinds at the end."""
    size = len(data) - 24
    return (
        data[:4]
        + (32).to_bytes(4, "little")
        + data[8:24]
        + struct.pack("<II", size, len(lengths))
        + data[24:]
        + lengths
    )


def test_records_of_unknown_kinds_are_skipped_if_their_length_is_known() -> None:
    section = Section()
    section.add(50, "future", 0, 1, 2, 3, 4, 5, count=2)
    section.struct("after", 8)
    lengths = bytes(4 * 50) + struct.pack("<BBH", 4, 8, 0)
    btf = Btf(with_layout(section.data(), lengths))
    assert built(btf.find(TypeKind.STRUCT, "after")).size == 8
    assert [*btf.variables()] == []
    for unusable in (lengths[:200], bytes(4 * 50) + struct.pack("<BBH", 4, 7, 0)):
        with pytest.raises(BadBtf):
            Btf(with_layout(section.data(), unusable))


def test_nothing_refers_to_records_that_are_not_types() -> None:
    section = Section()
    section.pointer(section.add(Kind.LOC_PROTO, "", 0, 0, count=1) + 1)
    section.add(Kind.LOC_PARAM, "", 4, 0, 7, count=1)
    with pytest.raises(BadBtf):
        Btf(section.data())


def test_locations_of_parameters_are_skipped() -> None:
    section = Section()
    section.add(Kind.LOC_PARAM, "", 4, 8, 7, 9, count=2)
    section.add(Kind.LOC_PROTO, "", 0, 1, 1, 0, count=3)
    section.add(Kind.LOCSEC, ".text", 0, 1, 2, 3, count=1)
    section.struct("after", 8)
    assert made(section, TypeKind.STRUCT, "after").size == 8


def test_an_enum_of_more_than_65535_values() -> None:
    section = Section()
    values = [(f"v{number}", number) for number in range(70_000)]
    section.enum("many", values)
    assert value(Btf(section.data()), "v69999") == 69_999
