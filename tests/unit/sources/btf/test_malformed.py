# SPDX-License-Identifier: LGPL-2.1-or-later
"""Malformed BTF is refused as a whole, in one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from drgn import TypeKind

from kcensus.sources.debuginfo.btf.format import BadBtf, Kind
from kcensus.sources.debuginfo.btf.types import Btf
from tests.unit.sources.btf.making import Section, every_kind


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("magic", 0x9FEB), ("magic", 0), ("version", 2), ("header", 20), ("header", 1 << 31)),
        *(("types", 2), ("types_size", 6), ("types_size", 1 << 30), ("types_size", 8)),
        *(("strings", 1 << 20), ("strings_size", 1 << 20), ("strings_size", 0)),
        ("strings", 1),
    ],
)
def test_headers(field: str, value: int) -> None:
    with pytest.raises(BadBtf):
        Btf(every_kind().data(**{field: value}))


@pytest.mark.parametrize("length", [0, 1, 23, 24, 100])
def test_truncated(length: int) -> None:
    with pytest.raises(BadBtf):
        Btf(every_kind().data()[:length])


def test_a_longer_header_is_read() -> None:
    data = every_kind().data()
    assert len(Btf(data[:4] + (32).to_bytes(4, "little") + data[8:24] + bytes(8) + data[24:]))


def _circle_of_aliases(section: Section) -> None:
    section.add(Kind.TYPEDEF, "a", 2)
    section.add(Kind.CONST, "", 1)


def _circle_of_pointers(section: Section) -> None:
    section.pointer(1)


def _circle_through_a_prototype(section: Section) -> None:
    section.pointer(2)
    section.add(Kind.FUNC_PROTO, "", 1)


def _circle_through_a_parameter(section: Section) -> None:
    section.pointer(2)
    section.function("", 0, ("x", 1))


def _array_of_void(section: Section) -> None:
    section.array(0, 1)


def _function_of_a_function(section: Section) -> None:
    section.function("", 0, ("x", section.function("", 0)))


def _struct_in_itself(section: Section) -> None:
    section.struct("a", 8, ("", 2, 0))
    section.struct("b", 8, ("", 1, 0))


def _array_of_itself(section: Section) -> None:
    section.array(1, 1)


def _deep_pointers(section: Section) -> None:
    for target in range(100):
        section.pointer(target)


def _many_members(section: Section) -> None:
    section.struct("empty", 0)
    for inner in range(1, 40):
        section.struct("", 0, ("", inner, 0), ("", inner, 0))


def _many_values(section: Section) -> None:
    section.struct("empty", 0)
    for inner in range(1, 6):
        section.array(inner, 1 << 10)


def _struct(
    *members: tuple[str, int, int] | tuple[str, int, int, int],
) -> Callable[[Section], None]:
    def make(section: Section) -> None:
        section.integer("int", coding=1)
        section.add(Kind.FWD, "hidden", 0)
        section.function("", 0)
        section.struct("s", 8, *members)

    return make


def _record(*words: int, kind: int, count: int = 0, value: int = 4) -> Callable[[Section], None]:
    def make(section: Section) -> None:
        section.integer("int", coding=1)
        section.add(kind, "x", value, *words, count=count)

    return make


@pytest.mark.parametrize(
    "make",
    [
        _circle_of_aliases, _circle_of_pointers, _circle_through_a_prototype, _struct_in_itself,
        _circle_through_a_parameter, _array_of_void, _function_of_a_function,
        _array_of_itself, _deep_pointers, _many_members, _many_values, _struct(("beyond", 1, 48)),
        _struct(("inside", 1, 4)), _struct(("wide", 1, 0, 33)), _struct(("", 1, 0)),
        _struct(("void", 0, 0)), _struct(("hidden", 2, 0)), _struct(("code", 3, 0)),
        _struct(("missing", 99, 0)), _struct(("last", 1, 60, 5)), _record(kind=20),
        _record(kind=31), _record(kind=0), _record(kind=Kind.PTR, value=99),
        _record(kind=Kind.FUNC, value=1), _record(kind=Kind.INT),
        _record(0, kind=Kind.INT, value=3), _record(kind=Kind.ENUM, value=16),
        _record(kind=Kind.FLOAT, value=0), _record(kind=Kind.STRUCT, value=1 << 31),
        _record(1, 1, 1 << 31, kind=Kind.ARRAY), _record(1, 1, 1, kind=Kind.STRUCT, count=2),
        _record(1 << 20, 0, kind=Kind.ENUM, count=1),
        _record(1 << 20, 1, kind=Kind.FUNC_PROTO, value=0, count=1),
        _record(0, 99, kind=Kind.FUNC_PROTO, value=0, count=1),
        _record(99, 0, 4, kind=Kind.DATASEC, count=1),
        _record(1, 99, 0, kind=Kind.STRUCT, count=1),
    ],
)  # fmt: skip
def test_types(make: Callable[[Section], None]) -> None:
    section = Section()
    make(section)
    with pytest.raises(BadBtf):
        Btf(section.data())


@pytest.mark.parametrize("name", ["two\nlines", "long" * 300])
def test_names(name: str) -> None:
    section = Section()
    section.struct(name, 8)
    with pytest.raises(BadBtf):
        Btf(section.data())


def test_a_name_of_a_type_beyond_the_strings() -> None:
    section = Section()
    section.struct("s", 8)
    section.strings[:] = b"\0"
    with pytest.raises(BadBtf):
        Btf(section.data())


def test_a_module_cannot_make_a_circle_with_the_kernel() -> None:
    """Types of the kernel cannot refer to those of a module."""
    kernel = Section()
    kernel.pointer(2)
    with pytest.raises(BadBtf):
        Btf(kernel.data())


def test_a_struct_of_variable_length_loses_its_members() -> None:
    """As in Amazon Linux 2 (4.14), whose other types are right."""
    section = Section()
    section.integer("int")
    section.struct("", 0, ("op", 1, 0), ("mask", 1, 32))
    section.pointer(2)
    section.struct("outer", 8, ("args", 3, 0))
    section.struct("empty", 0)
    outer = Btf(section.data()).find(TypeKind.STRUCT, "outer")
    assert outer is not None
    assert outer.node.members is not None
    pointer = outer.node.members[0].type().ref.node
    assert pointer.type is not None
    assert pointer.type.node.members == ()
    section.struct("named", 0, ("op", 1, 0))
    with pytest.raises(BadBtf, match="ends beyond"):
        Btf(section.data())
