# SPDX-License-Identifier: LGPL-2.1-or-later
"""A table of types in a capsule: JSON arrays that refer to each other by their index.

Each row is ``[kind, ...]``; FORMAT.md lists them. A use of a type is its index, or
``[index, qualifiers]``. Only members may refer to later rows, so no other type can contain itself.
A member whose type was not recorded has no use.
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
_MAX_NESTED = 64
"""Levels of pointers, arrays, aliases and structs; real types have fewer than ten."""
_MAX_MEMBERS = 1 << 16
"""Members of a struct including nested ones, over which drgn loops; ``struct task_struct`` has a
thousand."""
_MAX_BYTES = _MAX_VALUES = 1 << 22
"""Size of a type, and numbers and structs in a value of it, which may all become Python
objects."""


class BadTypes(ValueError):
    """Data from a capsule is invalid; the message says how, without naming the capsule."""


def complete(roots: Sequence[Node]) -> None:
    """Resolve all members of the structs of which one member was used, and the types nested in
    them, but not the types that pointers lead to."""
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
    """Collects the rows of types, each once."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._index: dict[int, int] = {}
        self._nodes: list[Node] = []  # keeps nodes alive, so that their id() stays unique

    def use(self, ref: Ref) -> Any:
        """Return how a row refers to ``ref``; adds the row of a new type."""
        index = self._add(ref.node)
        return [index, ref.qualifiers] if ref.qualifiers else index

    def finish(self) -> list[list[Any]]:
        """Return all rows; fills in the members of structs."""
        position = 0
        while position < len(self._nodes):  # resolving members adds nodes
            node = self._nodes[position]
            if node.kind in COMPOUND and node.size is not None:
                row = self.rows[position]
                row.append([self._member(member) for member in node.members])
            position += 1
        return self.rows

    def _member(self, member: Member) -> list[Any]:
        row: list[Any] = [member.name, member.bit_offset]
        if member.resolved is not None:
            ref, bits = member.resolved
            row += [self.use(ref)] if bits is None else [self.use(ref), bits]
        return row

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
    """Makes nodes from untrusted rows.

    :param rows: the type table
    :param lacking: returns the error for the type of a member that was not recorded
    :raises BadTypes: the table is invalid
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
                raise BadTypes("a type has an unknown kind")
            depth, node = self._read(kind, row)
            if depth > _MAX_NESTED:
                raise BadTypes("types are nested too deeply")
            self._nodes.append(node)
            self._depth.append(depth)
            if kind in COMPOUND and node.size is not None:
                members.append((node, as_list(as_list(row, 4)[3])))
        # Last, because members may have types of later rows.
        for node, member_rows in members:
            node.members = [self._member(node, as_list(member, 2)) for member in member_rows]
        extents: dict[int, Extent] = {}
        for node in self._nodes:
            _measure(node, extents)
        self._extents = extents

    def ref(self, use: Any) -> Ref:
        """Return the type that ``use`` refers to, among the rows read so far.

        :raises BadTypes: there is no such row
        """
        index, qualifiers = as_list(use, 2)[:2] if isinstance(use, list) else (use, 0)
        return Ref(
            self._nodes[as_integer(index, len(self._nodes) - 1)],
            as_integer(qualifiers, _QUALIFIERS),
        )

    def size_of(self, ref: Ref) -> int | None:
        """Return the bytes of a value; None if it has no size."""
        return self._extents[id(ref.node)].size

    def _earlier(self, use: Any) -> tuple[int, Ref]:
        """Return the nesting depth of a type that refers to ``use``, and the type of ``use``."""
        ref = self.ref(use)
        index = use[0] if isinstance(use, list) else use
        return self._depth[index] + 1, ref

    def _read(self, kind: TypeKind, row: list[Any]) -> tuple[int, Node]:
        """Return the nesting depth and the type of a row, a struct without its members."""
        if kind in (TypeKind.VOID, TypeKind.FUNCTION):
            return 0, Node(kind)
        if kind in COMPOUND:
            _, tag, size = as_list(row, 3)[:3]
            size = None if size is None else as_integer(size, _MAX_BYTES)
            return 0, Node(kind, _optional(tag), size)
        if kind in SCALARS:
            _, name, size, order, *signed = as_list(row, 4)
            if as_integer(size, 16) not in _SCALAR_SIZES:
                raise BadTypes("a scalar has an invalid size")
            return 0, Node(kind, as_text(name), size, bool(signed and signed[0]), _order(order))
        if kind == TypeKind.ENUM:
            return self._enum(row)
        depth, ref = self._earlier(as_list(row, 3)[1])
        if kind == TypeKind.POINTER:
            _, _, size, order = as_list(row, 4)[:4]
            if as_integer(size, 8) != _POINTER_SIZE:
                raise BadTypes("a pointer has an invalid size")
            return depth, Node(kind, size=size, byteorder=_order(order), ref=ref)
        if kind == TypeKind.ARRAY:
            length = None if row[2] is None else as_integer(row[2], _MAX_BYTES)
            return depth, Node(kind, ref=ref, length=length)
        return depth, Node(kind, as_text(row[2]), ref=ref)

    def _enum(self, row: list[Any]) -> tuple[int, Node]:
        tag = _optional(as_list(row, 2)[1])
        if len(row) < 4:
            return 0, Node(TypeKind.ENUM, tag)
        depth, ref = self._earlier(row[2])
        compatible = ref.node
        if compatible.kind != TypeKind.INT or ref.qualifiers or compatible.size is None:
            raise BadTypes("the type of an enum is not an integer")
        if compatible.size > 8:
            raise BadTypes("an enum has an invalid size")
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
        resolved = None if len(row) < 3 else MemberType(self.ref(row[2]), bits)
        if resolved is not None:
            node = _unaliased(resolved.ref.node)
            if name is None and (node.kind not in COMPOUND or bits is not None):
                raise BadTypes("an unnamed member is not a struct or union")
            if bits is None and offset % 8:
                raise BadTypes("a member does not begin at a byte")
            if bits is not None and (
                node.kind not in _BIT_FIELDS
                or bits > 8 * (node.size or 0)
                or offset + bits > 8 * (owner.size or 0)
            ):
                raise BadTypes("a bit field exceeds its type")

        def resolve() -> MemberType:
            label = f"the type of {owner.name or '(anonymous)'}.{name or '(anonymous)'}"
            raise self._lacking(label)

        return Member(name, offset, resolve, resolved)


_POINTER_SIZE = 8
_SCALAR_SIZES = (1, 2, 4, 8, 16)
_BIT_FIELDS = (TypeKind.INT, TypeKind.BOOL, TypeKind.ENUM)


def _unaliased(node: Node) -> Node:
    while node.kind == TypeKind.TYPEDEF and node.ref:
        node = node.ref.node
    return node


class Extent(NamedTuple):
    """The extent of a type and its values."""

    depth: int
    """Levels of nested types."""
    members: int
    """Members including nested ones; an array counts as one element."""
    values: int
    """Numbers and structs in a value."""
    size: int | None
    """Bytes; None if the type has no size."""


def _measure(node: Node, known: dict[int, Extent], level: int = 0) -> Extent:
    """Return the extent of ``node``; stores those of nested types in ``known``, too.

    :raises BadTypes: the type contains itself, exceeds a limit, or has an invalid member
    """
    if level > _MAX_NESTED:
        raise BadTypes("a type contains itself, or types are nested too deeply")
    if id(node) in known:
        return known[id(node)]
    extent = Extent(1, 0, 1, node.size)
    if node.kind in (TypeKind.TYPEDEF, TypeKind.ARRAY) and node.ref:
        depth, members, values, size = _measure(node.ref.node, known, level + 1)
        if node.kind == TypeKind.ARRAY:
            if size is None or size * (node.length or 0) > _MAX_BYTES:
                raise BadTypes("an array has an invalid size")
            size = None if node.length is None else size * node.length
            values *= node.length or 0
        extent = Extent(depth + 1, members, values, size)
    elif node.members:
        extents = [_measure_member(node, member, known, level) for member in node.members]
        extent = Extent(
            1 + max(extent.depth for extent in extents),
            len(extents) + sum(extent.members for extent in extents),
            1 + sum(extent.values for extent in extents),
            node.size,
        )
    if extent.depth > _MAX_NESTED:
        raise BadTypes("types are nested too deeply")
    if extent.members > _MAX_MEMBERS or extent.values > _MAX_VALUES:
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
        # Only an array without a length, as at the end of a struct, has no size.
        if _unaliased(ref.node).kind != TypeKind.ARRAY:
            raise BadTypes("a member has no size")
        size = 0
    if bits is None and member.bit_offset + 8 * size > 8 * (owner.size or 0):
        raise BadTypes("a member ends beyond its type")
    return extent


def as_list(value: Any, least: int = 0) -> list[Any]:
    """Return ``value`` if it is a list of at least ``least`` items; raises :class:`BadTypes`."""
    if not isinstance(value, list) or len(value) < least:
        raise BadTypes("a list is missing or too short")
    return value


def as_integer(value: Any, most: int, least: int = 0) -> int:
    """Return ``value`` if it is an integer within bounds; raises :class:`BadTypes`."""
    if type(value) is not int or not least <= value <= most:
        raise BadTypes("a number is missing or out of range")
    return value


def as_text(value: Any) -> str:
    """Return ``value`` if it is a printable string; raises :class:`BadTypes`."""
    if not isinstance(value, str) or "\0" in value or not value.isprintable():
        raise BadTypes("a name is missing or unprintable")
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else as_text(value)


def _order(value: Any) -> str | None:
    if value not in (None, "little", "big"):
        raise BadTypes("a byte order is not 'little' or 'big'")
    return str(value) if value else None
