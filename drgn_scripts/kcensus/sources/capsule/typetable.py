# SPDX-License-Identifier: LGPL-2.1-or-later
"""A table of types in a capsule: JSON arrays that refer to each other by their index.

Each row is ``[kind, ...]``; FORMAT.md lists them. A use of a type is its index, or
``[index, qualifiers]``. All but members refer to rows that stand before them, so that no type can
contain itself; a member whose type was not recorded has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from drgn import Qualifiers, TypeKind

from kcensus.sources.capsule.types import (
    COMPOUND,
    REFERRING,
    SCALARS,
    Member,
    MemberType,
    Node,
    Ref,
)

_KINDS = {kind.name.lower(): kind for kind in TypeKind}
_QUALIFIERS = sum(qualifier.value for qualifier in Qualifiers)
_MOST_NESTED = 64
"""Pointers to pointers, arrays of arrays, aliases of aliases: real ones have less than ten."""
_MOST_INSIDE = 1 << 16
"""Members of a struct with all that lies inside of them, which drgn goes through one by one; a
real ``struct task_struct`` has a thousand."""
_MOST_BYTES = _MOST_VALUES = 1 << 22
"""Size of a type, and numbers and structs in a value of it, which Python may have to hold all."""


class BadTypes(ValueError):
    """The rows describe no types."""


def complete(roots: Sequence[Node]) -> None:
    """Resolve what belongs to a type that somebody asked for.

    Those are all members of a struct of which one was used, and all that lies inside of it, but
    not what its pointers lead to.
    """
    pending, seen = list(roots), set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.ref is not None:
            target = node.ref.node
            if node.kind != TypeKind.POINTER or target.touched or target.kind not in COMPOUND:
                pending.append(target)
        pending += [member.type().ref.node for member in node.members]


class Writer:
    """Collects types and writes each once."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._index: dict[int, int] = {}
        self._nodes: list[Node] = []  # keeps the id() of what is indexed unique

    def use(self, ref: Ref) -> Any:
        """How a row refers to ``ref``, whose row is added if it is new."""
        index = self._add(ref.node)
        return [index, ref.qualifiers] if ref.qualifiers else index

    def finish(self) -> list[list[Any]]:
        """All rows, with the members of structs, which are filled in last."""
        position = 0
        while position < len(self._nodes):  # resolving members adds nodes
            node = self._nodes[position]
            if node.kind in COMPOUND and node.size is not None:
                row = self.rows[position]
                row.append([self._member(member) for member in node.members])
            position += 1
        return self.rows

    def _member(self, member: Member) -> list[Any]:
        found: list[Any] = [member.name, member.bit_offset]
        if member.resolved is not None:
            ref, bits = member.resolved
            found.append(self.use(ref))
            if bits is not None:
                found.append(bits)
        return found

    def _add(self, node: Node) -> int:
        if id(node) in self._index:
            return self._index[id(node)]
        kind = node.kind.name.lower()
        row: list[Any] = [kind]
        if node.kind in SCALARS:
            row += [node.name, node.size, node.byteorder]
            row += [node.signed] if node.kind == TypeKind.INT else []
        elif node.kind in COMPOUND:
            row += [node.name, node.size]
        elif node.kind == TypeKind.ENUM:
            row.append(node.name)
            if node.ref is not None:
                row += [self.use(node.ref), [list(pair) for pair in node.enumerators]]
        elif node.kind in REFERRING and node.ref is not None:
            row.append(self.use(node.ref))
            if node.kind == TypeKind.POINTER:
                row += [node.size, node.byteorder]
            else:
                row.append(node.length if node.kind == TypeKind.ARRAY else node.name)
        self._index[id(node)] = len(self.rows)
        self.rows.append(row)
        self._nodes.append(node)
        return len(self.rows) - 1


class Reader:
    """Makes nodes of untrusted rows.

    :param rows: the table
    :param lacking: makes the error for the type of a member that was not recorded
    :raises BadTypes: it is none
    """

    def __init__(self, rows: Any, lacking: Callable[[str], Exception]) -> None:
        self._lacking = lacking
        self._nodes: list[Node] = []
        self._depth: list[int] = []
        members: list[tuple[Node, list[Any]]] = []
        for row in as_list(rows):
            word = as_list(row, 1)[0]
            kind = _KINDS.get(word) if isinstance(word, str) else None
            if kind is None:
                raise BadTypes("a type is of an unknown kind")
            depth, node = self._read(kind, row)
            if depth > _MOST_NESTED:
                raise BadTypes("types are nested too deeply")
            self._nodes.append(node)
            self._depth.append(depth)
            if kind in COMPOUND and node.size is not None:
                members.append((node, as_list(as_list(row, 4)[3])))
        # Members may be of types that stand further down.
        for node, found in members:
            node.members = [self._member(node, as_list(member, 2)) for member in found]
        extents: dict[int, Extent] = {}
        for node in self._nodes:
            _measure(node, extents)
        self._extents = extents

    def ref(self, use: Any) -> Ref:
        """The type that ``use`` refers to, among the rows read so far.

        :raises BadTypes: there is none
        """
        index, qualifiers = as_list(use, 2)[:2] if isinstance(use, list) else (use, 0)
        return Ref(
            self._nodes[as_integer(index, len(self._nodes) - 1)],
            as_integer(qualifiers, _QUALIFIERS),
        )

    def size_of(self, ref: Ref) -> int | None:
        """Bytes of a value; None if it has no size."""
        return self._extents[id(ref.node)].size

    def _earlier(self, use: Any) -> tuple[int, Ref]:
        """How deeply what refers to ``use`` nests, and the type."""
        ref = self.ref(use)
        index = use[0] if isinstance(use, list) else use
        return self._depth[index] + 1, ref

    def _read(self, kind: TypeKind, row: list[Any]) -> tuple[int, Node]:
        """How deeply the type of a row nests, and the type, a struct without its members."""
        if kind in (TypeKind.VOID, TypeKind.FUNCTION):
            return 0, Node(kind)
        if kind in COMPOUND:
            _, tag, size = as_list(row, 3)[:3]
            size = None if size is None else as_integer(size, _MOST_BYTES)
            return 0, Node(kind, _optional(tag), size)
        if kind in SCALARS:
            _, name, size, order, *signed = as_list(row, 4)
            if as_integer(size, 16) not in _SCALAR_SIZES:
                raise BadTypes("a number has an impossible size")
            return 0, Node(kind, as_text(name), size, bool(signed and signed[0]), _order(order))
        if kind == TypeKind.ENUM:
            return self._enum(row)
        depth, ref = self._earlier(as_list(row, 3)[1])
        if kind == TypeKind.POINTER:
            _, _, size, order = as_list(row, 4)[:4]
            if as_integer(size, 8) != _POINTER_SIZE:
                raise BadTypes("a pointer has an impossible size")
            return depth, Node(kind, size=size, byteorder=_order(order), ref=ref)
        if kind == TypeKind.ARRAY:
            length = None if row[2] is None else as_integer(row[2], _MOST_BYTES)
            return depth, Node(kind, ref=ref, length=length)
        return depth, Node(kind, as_text(row[2]), ref=ref)

    def _enum(self, row: list[Any]) -> tuple[int, Node]:
        tag = _optional(as_list(row, 2)[1])
        if len(row) < 4:
            return 0, Node(TypeKind.ENUM, tag)
        depth, ref = self._earlier(row[2])
        compatible = ref.node
        if compatible.kind != TypeKind.INT or ref.qualifiers or compatible.size is None:
            raise BadTypes("an enum is no integer")
        if compatible.size > 8:
            raise BadTypes("an enum has an impossible size")
        bits = compatible.size * 8 - compatible.signed
        least = -(1 << bits) if compatible.signed else 0
        enumerators = []
        for pair in as_list(row[3]):
            name, value = as_list(pair, 2)[:2]
            enumerators.append((as_text(name), as_integer(value, (1 << bits) - 1, least)))
        return depth, Node(TypeKind.ENUM, tag, compatible.size, ref=ref, enumerators=enumerators)

    def _member(self, owner: Node, row: list[Any]) -> Member:
        name = _optional(row[0])
        offset = as_integer(row[1], 8 * (owner.size or 0))
        bits = None if len(row) < 4 else as_integer(row[3], 64, 1)
        found = None if len(row) < 3 else MemberType(self.ref(row[2]), bits)
        if found is not None:
            node = _unaliased(found.ref.node)
            if name is None and (node.kind not in COMPOUND or bits is not None):
                raise BadTypes("a member without a name has no members either")
            if bits is None and offset % 8:
                raise BadTypes("a member begins inside a byte")
            if bits is not None and (
                node.kind not in _BIT_FIELDS
                or bits > 8 * (node.size or 0)
                or offset + bits > 8 * (owner.size or 0)
            ):
                raise BadTypes("a bit field is wider than its type")

        def resolve() -> MemberType:
            label = f"the type of {owner.name or '(anonymous)'}.{name or '(anonymous)'}"
            raise self._lacking(label)

        return Member(name, offset, resolve, found)


_POINTER_SIZE = 8
_SCALAR_SIZES = (1, 2, 4, 8, 16)
_BIT_FIELDS = (TypeKind.INT, TypeKind.BOOL, TypeKind.ENUM)


def _unaliased(node: Node) -> Node:
    while node.kind == TypeKind.TYPEDEF and node.ref:
        node = node.ref.node
    return node


class Extent(NamedTuple):
    """What a value of a type comes to."""

    depth: int
    """How many types lie within each other."""
    inside: int
    """Members, with those of what lies inside of them; an array counts as one of its elements."""
    values: int
    """Numbers and structs in a value."""
    size: int | None
    """Bytes; None for what has no size."""


def _measure(node: Node, known: dict[int, Extent], level: int = 0) -> Extent:
    """The extent of ``node``, and of all that lies inside of it.

    :raises BadTypes: it contains itself, is larger than anything real, or holds what it cannot
    """
    if level > _MOST_NESTED:
        raise BadTypes("a type contains itself, or types are nested too deeply")
    if id(node) in known:
        return known[id(node)]
    extent = Extent(1, 0, 1, node.size)
    if node.kind in (TypeKind.TYPEDEF, TypeKind.ARRAY) and node.ref:
        depth, inside, values, size = _measure(node.ref.node, known, level + 1)
        if node.kind == TypeKind.ARRAY:
            if size is None or size * (node.length or 0) > _MOST_BYTES:
                raise BadTypes("an array has an impossible size")
            size = None if node.length is None else size * node.length
            values *= node.length or 0
        extent = Extent(depth + 1, inside, values, size)
    elif node.members:
        parts = [_measure_member(node, member, known, level) for member in node.members]
        extent = Extent(
            1 + max(part.depth for part in parts),
            len(parts) + sum(part.inside for part in parts),
            1 + sum(part.values for part in parts),
            node.size,
        )
    if extent.depth > _MOST_NESTED:
        raise BadTypes("types are nested too deeply")
    if extent.inside > _MOST_INSIDE or extent.values > _MOST_VALUES:
        raise BadTypes("a type has too many members")
    known[id(node)] = extent
    return extent


def _measure_member(owner: Node, member: Member, known: dict[int, Extent], level: int) -> Extent:
    if member.resolved is None:
        return Extent(0, 0, 1, None)
    ref, bits = member.resolved
    extent = _measure(ref.node, known, level + 1)
    size = extent.size
    if size is None:
        # The last member may be an array without a length.
        if _unaliased(ref.node).kind != TypeKind.ARRAY:
            raise BadTypes("a member has no size")
        size = 0
    if bits is None and member.bit_offset + 8 * size > 8 * (owner.size or 0):
        raise BadTypes("a member reaches beyond its type")
    return extent


def as_list(value: Any, least: int = 0) -> list[Any]:
    """``value``, if it is a list of at least so many; raises :class:`BadTypes`."""
    if not isinstance(value, list) or len(value) < least:
        raise BadTypes("a list is missing or too short")
    return value


def as_integer(value: Any, most: int, least: int = 0) -> int:
    """``value``, if it is an integer within bounds; raises :class:`BadTypes`."""
    if type(value) is not int or not least <= value <= most:
        raise BadTypes("a number is missing or out of range")
    return value


def as_text(value: Any) -> str:
    """``value``, if it is a string that can be a name; raises :class:`BadTypes`."""
    if not isinstance(value, str) or "\0" in value or not value.isprintable():
        raise BadTypes("a name is missing or unprintable")
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else as_text(value)


def _order(value: Any) -> str | None:
    if value not in (None, "little", "big"):
        raise BadTypes("a byte order is neither little nor big")
    return str(value) if value else None
