# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types of a *synthetic* program, from a table or from a bundled capsule."""

from __future__ import annotations

from collections.abc import Mapping

import drgn
from drgn import Object, Program, Type, TypeKind, TypeMember

from kcensus.sources.capsule.types import Interner, build
from tests.unit.fakekernel.real import real_types

Table = Mapping[str, tuple[int, str]]
"""``struct tag``, ``union tag`` → size and members, one a line: offset, type, name.

The offset is in bytes, ``4.3`` is bit 3 from byte 4 on; ``name:5`` is a bit field of five bits;
``-`` instead of a name is an anonymous member. ``typedef name`` → 0 and the type. ``@NAME`` instead
of members is the real type that the bundled capsule NAME recorded.
"""

_KINDS = {TypeKind.STRUCT: "struct", TypeKind.UNION: "union", TypeKind.TYPEDEF: "typedef"}


def add_types(prog: Program, table: Table, name: str = "synthetic") -> None:
    """Add types to a program; they take precedence over those that were added earlier."""
    made: dict[str, Type] = {}
    interner = Interner()

    def find(prog: Program, kinds: drgn.TypeKindSet, tag: str, file: str | None) -> Type | None:
        for kind, keyword in _KINDS.items():
            full = f"{keyword} {tag}"
            if kind in kinds and full in table:
                if full not in made:
                    size, text = table[full]
                    if text.startswith("@"):
                        made[full] = build(prog, interner.ref(real_types(text[1:])[full]))
                    else:
                        made[full] = _make(prog, kind, tag, size, text)
                return made[full]
        return None

    prog.register_type_finder(name, find, enable_index=0)


def _make(prog: Program, kind: TypeKind, tag: str, size: int, text: str) -> Type:
    if kind == TypeKind.TYPEDEF:
        return prog.typedef_type(tag, prog.type(text))
    lines = [line for line in text.splitlines() if line.strip()]
    members = [_member(prog, line) for line in lines]
    make = prog.struct_type if kind == TypeKind.STRUCT else prog.union_type
    return make(tag, size, members)


def _member(prog: Program, line: str) -> TypeMember:
    offset, rest = line.split(None, 1)
    byte, _, bit = offset.partition(".")
    type_name, _, name = rest.strip().rpartition(" ")
    name, _, bits = name.partition(":")

    def member() -> Object | Type:
        type_ = prog.type(type_name)
        return Object(prog, type_, bit_field_size=int(bits)) if bits else type_

    return TypeMember(member, None if name == "-" else name, int(byte) * 8 + int(bit or 0))
