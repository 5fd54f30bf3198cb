# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types as data: taken from a program with debug info, rebuilt in a program without.

A :class:`Node` describes one type. Pointers lead from any type to nearly all others, so the types
of members are resolved only when they are used: from the debug info while a capsule is recorded,
from the capsule later. A capsule lacks unused types, and raises :class:`NotRecorded` for them. It
has the names of all members, so the *absence* of a member is always known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import drgn
from drgn import Qualifiers, TypeKind

KEYWORDS = {
    TypeKind.STRUCT: "struct",
    TypeKind.UNION: "union",
    TypeKind.CLASS: "class",
    TypeKind.ENUM: "enum",
}
"""The keyword before a tag in C."""
COMPOUND = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS)
SCALARS = (TypeKind.INT, TypeKind.BOOL, TypeKind.FLOAT)
REFERRING = (TypeKind.POINTER, TypeKind.TYPEDEF, TypeKind.ARRAY)


class NotRecorded(Exception):
    """A capsule lacks a type, object or symbol; the message names it."""


class Ref(NamedTuple):
    """A use of a type."""

    node: Node
    qualifiers: int = 0
    """As in :class:`drgn.Qualifiers`."""


class MemberType(NamedTuple):
    """The type of a member."""

    ref: Ref
    bits: int | None = None
    """Width, if it is a bit field."""


@dataclass(eq=False)
class Member:
    """One member of a struct, union or class."""

    name: str | None
    bit_offset: int
    resolve: Callable[[], MemberType]
    """Returns the type; raises :class:`NotRecorded`."""
    resolved: MemberType | None = None

    def type(self) -> MemberType:
        """Return the type, resolved once."""
        if self.resolved is None:
            self.resolved = self.resolve()
        return self.resolved


@dataclass(eq=False)
class Node:
    """One type, without qualifiers."""

    kind: TypeKind
    name: str | None = None
    """Name or tag."""
    size: int | None = None
    """Bytes; None if the type is incomplete or its kind has no size."""
    signed: bool = False
    byteorder: str | None = None
    """``little`` or ``big``, for scalars and pointers."""
    ref: Ref | None = None
    """The aliased, element, referenced or underlying integer type."""
    length: int | None = None
    """Elements of an array."""
    members: list[Member] = field(default_factory=list)
    enumerators: list[tuple[str, int]] = field(default_factory=list)
    built: drgn.Type | None = field(default=None, repr=False)

    @property
    def touched(self) -> bool:
        """Whether the type of a member was used."""
        return any(member.resolved is not None for member in self.members)


class Interner:
    """Makes one node for each distinct type of a program with debug info.

    drgn cannot tell whether two types are the same, so their content decides: for a struct its
    tag, its size, and the names and offsets of its members. Untagged structs are always distinct.
    """

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}

    def ref(self, type_: drgn.Type) -> Ref:
        """Return ``type_`` with its qualifiers."""
        return Ref(self._node(type_), type_.qualifiers.value)

    def _node(self, type_: drgn.Type) -> Node:
        kind = type_.kind
        if kind in KEYWORDS and not type_.is_complete():
            return self._nodes.setdefault((kind, type_.tag), Node(kind, type_.tag))
        if kind in COMPOUND:
            return self._compound(type_)
        node = Node(kind)
        if kind in SCALARS:
            node.name, node.size, node.byteorder = type_.name, type_.size, type_.byteorder
            node.signed = kind == TypeKind.INT and type_.is_signed
        elif kind == TypeKind.ENUM:
            node.name = type_.tag
            node.enumerators = [(name, value) for name, value in type_.enumerators]
            node.ref = self.ref(type_.type)
            node.size = node.ref.node.size
        elif kind == TypeKind.POINTER:
            node.size, node.byteorder = type_.size, type_.byteorder
        elif kind == TypeKind.TYPEDEF:
            node.name = type_.name
        elif kind == TypeKind.ARRAY:
            node.length = type_.length
        # Parameters of functions are left out, because they are not in memory.
        if kind in REFERRING:
            node.ref = self.ref(type_.type)
        key = (
            *(kind, node.name, node.size, node.signed, node.byteorder, node.length),
            *(node.ref and (id(node.ref.node), node.ref.qualifiers), *node.enumerators),
        )
        return self._nodes.setdefault(key, node)

    def _compound(self, type_: drgn.Type) -> Node:
        members = type_.members
        key = (
            *(type_.kind, type_.tag, type_.size),
            *((member.name, member.bit_offset) for member in members),
        )
        if type_.tag is not None and key in self._nodes:
            return self._nodes[key]
        node = Node(type_.kind, type_.tag, type_.size)
        node.members = [
            Member(member.name, member.bit_offset, self._resolver(member)) for member in members
        ]
        if type_.tag is not None:
            self._nodes[key] = node
        return node

    def _resolver(self, member: drgn.TypeMember) -> Callable[[], MemberType]:
        return lambda: MemberType(self.ref(member.type), member.bit_field_size)


def build(prog: drgn.Program, ref: Ref) -> drgn.Type:
    """Return the type in ``prog`` that ``ref`` describes; members are resolved on use.

    Recursion ends at structs. The maker of nodes from untrusted data must rule out other cycles.
    """
    node = ref.node
    if node.built is None:
        node.built = _build(prog, node)
    return node.built.qualified(Qualifiers(ref.qualifiers)) if ref.qualifiers else node.built


def _build(prog: drgn.Program, node: Node) -> drgn.Type:
    kind = node.kind
    if kind in COMPOUND:
        make = getattr(prog, f"{KEYWORDS[kind]}_type")
        if node.size is None:
            return make(node.name)
        members = [
            drgn.TypeMember(_member_type(prog, member), member.name, member.bit_offset)
            for member in node.members
        ]
        return make(node.name, node.size, members)
    if kind == TypeKind.ENUM:
        if node.ref is None:
            return prog.enum_type(node.name)
        enumerators = [drgn.TypeEnumerator(name, value) for name, value in node.enumerators]
        return prog.enum_type(node.name, build(prog, node.ref), enumerators)
    name = node.name or ""
    if kind == TypeKind.INT:
        return prog.int_type(name, node.size or 0, node.signed, node.byteorder)
    if kind == TypeKind.BOOL:
        return prog.bool_type(name, node.size or 0, node.byteorder)
    if kind == TypeKind.FLOAT:
        return prog.float_type(name, node.size or 0, node.byteorder)
    if kind == TypeKind.FUNCTION:
        return prog.function_type(prog.void_type(), ())
    if node.ref is None:
        return prog.void_type()
    target = build(prog, node.ref)
    if kind == TypeKind.POINTER:
        return prog.pointer_type(target, node.size, node.byteorder)
    if kind == TypeKind.ARRAY:
        return prog.array_type(target, node.length)
    return prog.typedef_type(name, target)


def _member_type(prog: drgn.Program, member: Member) -> Callable[[], drgn.Type | drgn.Object]:
    def resolve() -> drgn.Type | drgn.Object:
        ref, bits = member.type()
        type_ = build(prog, ref)
        return type_ if bits is None else drgn.Object(prog, type_, bit_field_size=bits)

    return resolve
