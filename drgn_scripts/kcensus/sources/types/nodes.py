# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types as data: taken from a program with debug info, rebuilt in a program without.

Pointers lead from any type to nearly all others, so the types of members are resolved only when
they are used. A capsule lacks unused types, and raises :class:`NotRecorded` for them. It has the
names of all members, so the *absence* of a member is always known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import drgn
from drgn import Qualifiers, TypeKind

COMPOUND = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS)
_SCALAR = ("name", "size", "byteorder")
_COMPOUND = ("tag", "size", "members")

FIELDS = {
    TypeKind.VOID: (),
    TypeKind.INT: (*_SCALAR, "is_signed"),
    TypeKind.BOOL: _SCALAR,
    TypeKind.FLOAT: _SCALAR,
    TypeKind.STRUCT: _COMPOUND,
    TypeKind.UNION: _COMPOUND,
    TypeKind.CLASS: _COMPOUND,
    TypeKind.ENUM: ("tag", "type", "enumerators"),
    TypeKind.TYPEDEF: ("type", "name"),
    TypeKind.POINTER: ("type", "size", "byteorder"),
    TypeKind.ARRAY: ("type", "length"),
    # In tables without parameters, because they are not in memory.
    TypeKind.FUNCTION: (),
}
"""Descriptions of each kind of type: attributes of :class:`drgn.Type` and :class:`Node`, arguments
of ``drgn.Program.*_type()``, and in this order the columns of a row in the type table."""


class NotRecorded(Exception):
    """A capsule lacks a type, object or symbol; the message names it."""


class Ref(NamedTuple):
    """A use of a type."""

    node: Node
    qualifiers: int = 0
    """As in :class:`drgn.Qualifiers`."""


class Parameter(NamedTuple):
    """A parameter of a function; its type is resolved on use."""

    name: str | None
    resolve: Callable[[], Ref]


class MemberType(NamedTuple):
    """The type of a member, and its width if it is a bit field."""

    ref: Ref
    bits: int | None = None


@dataclass(eq=False)
class Member:
    """One member of a struct, union or class; ``resolve`` may raise :class:`NotRecorded`."""

    name: str | None
    bit_offset: int
    resolve: Callable[[], MemberType]
    resolved: MemberType | None = None

    def type(self) -> MemberType:
        """Return the type, resolved once."""
        if self.resolved is None:
            self.resolved = self.resolve()
        return self.resolved


@dataclass(eq=False)
class Node:
    """One type, without qualifiers; described by the fields in :data:`FIELDS`."""

    kind: TypeKind
    name: str | None = None
    tag: str | None = None
    size: int | None = None
    """Bytes; None if the type is incomplete."""
    byteorder: str | None = None
    is_signed: bool = False
    type: Ref | None = None
    """The aliased, element, referenced, returned or underlying integer type; None for incomplete
    enums."""
    length: int | None = None
    members: tuple[Member, ...] | None = None
    enumerators: tuple[tuple[str, int], ...] | None = None
    parameters: tuple[Parameter, ...] | None = None
    """None if the parameters of a function are unknown, and so the type it returns."""
    is_variadic: bool = False


class Interner:
    """Maker of one node for each distinct type of a program with debug info.

    drgn cannot tell whether two types are the same, so their content decides, for a struct with the
    names and offsets of its members. Untagged structs are always distinct.
    """

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}

    def ref(self, type_: drgn.Type) -> Ref:
        """Return ``type_`` with its qualifiers."""
        return Ref(self._node(type_), type_.qualifiers.value)

    def _node(self, type_: drgn.Type) -> Node:
        fields = {name: getattr(type_, name) for name in FIELDS[type_.kind]}
        if fields.get("type") is not None:
            fields["type"] = self.ref(type_.type)
        if fields.get("enumerators") is not None:
            fields["enumerators"] = tuple((name, value) for name, value in type_.enumerators)
        if fields.get("members") is not None:
            fields["members"] = tuple((member.name, member.bit_offset) for member in type_.members)
        key = (type_.kind, *fields.values())
        is_untagged = fields.get("members") is not None and type_.tag is None
        if is_untagged or key not in self._nodes:
            node = self._nodes[key] = Node(type_.kind, **fields)
            if node.members is not None:
                node.members = tuple(
                    Member(member.name, member.bit_offset, self._resolver(member))
                    for member in type_.members
                )
        return self._nodes[key]

    def _resolver(self, member: drgn.TypeMember) -> Callable[[], MemberType]:
        return lambda: MemberType(self.ref(member.type), member.bit_field_size)


_BUILT = "kcensus: types built from data"
"""Key of :attr:`drgn.Program.cache`: types of the program by :class:`Node`."""


def build(prog: drgn.Program, ref: Ref) -> drgn.Type:
    """Return the type of ``ref`` in ``prog``; members are resolved on use.

    Recursion ends at structs. The maker of nodes from untrusted data must rule out other cycles.
    """
    built: dict[Node, drgn.Type] = prog.cache.setdefault(_BUILT, {})
    if ref.node not in built:
        built[ref.node] = _build(prog, ref.node)
    type_ = built[ref.node]
    return type_.qualified(Qualifiers(ref.qualifiers)) if ref.qualifiers else type_


def forget(prog: drgn.Program, node: Node) -> None:
    """Build a type again when it is used next, because its node changed."""
    built: dict[Node, drgn.Type] = prog.cache.get(_BUILT, {})
    built.pop(node, None)


def _build(prog: drgn.Program, node: Node) -> drgn.Type:
    if node.kind == TypeKind.FUNCTION:
        returned = prog.void_type() if node.type is None else build(prog, node.type)
        parameters = [
            drgn.TypeParameter(functools.partial(_parameter_type, prog, parameter), parameter.name)
            for parameter in node.parameters or ()
        ]
        return prog.function_type(returned, parameters, node.is_variadic)
    fields = {name: getattr(node, name) for name in FIELDS[node.kind]}
    if node.type is not None:
        fields["type"] = build(prog, node.type)
    if node.enumerators is not None:
        fields["enumerators"] = [drgn.TypeEnumerator(*pair) for pair in node.enumerators]
    if node.members is not None:
        fields["members"] = [
            drgn.TypeMember(_member_type(prog, member), member.name, member.bit_offset)
            for member in node.members
        ]
    make: Callable[..., drgn.Type] = getattr(prog, f"{node.kind.name.lower()}_type")
    return make(**fields)


def _parameter_type(prog: drgn.Program, parameter: Parameter) -> drgn.Type:
    return build(prog, parameter.resolve())


def _member_type(prog: drgn.Program, member: Member) -> Callable[[], drgn.Type | drgn.Object]:
    def resolve() -> drgn.Type | drgn.Object:
        ref, bits = member.type()
        type_ = build(prog, ref)
        return type_ if bits is None else drgn.Object(prog, type_, bit_field_size=bits)

    return resolve
