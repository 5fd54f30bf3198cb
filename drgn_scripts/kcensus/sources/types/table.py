# SPDX-License-Identifier: LGPL-2.1-or-later
"""A table of types: JSON arrays that refer to each other by their index.

Each row is ``[kind, ...]``; FORMAT.md lists them. A use of a type is its index, or ``[index,
qualifiers]``. Only members may refer to later rows, so no other type can contain itself. A member
with an unrecorded type has no use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from drgn import Qualifiers, TypeKind

from kcensus.sources.types.nodes import COMPOUND, FIELDS, Member, MemberType, Node, Ref

_KINDS = {kind.name.lower(): kind for kind in TypeKind}
_QUALIFIERS = sum(qualifier.value for qualifier in Qualifiers)
_BIT_FIELDS = (TypeKind.INT, TypeKind.BOOL, TypeKind.ENUM)
_SCALAR_SIZES = (1, 2, 4, 8, 16)
_MAX_NESTED = 64
"""Levels of pointers, arrays, aliases and structs; real types have fewer than ten."""
_MAX_MEMBERS = 1 << 16
"""Most members of a struct including nested ones, over which drgn loops; ``struct task_struct`` has
a thousand."""
_MAX_BYTES = _MAX_VALUES = 1 << 22
"""Most bytes of a type, and most numbers and structs in a value of it, which may all become Python
objects."""


class BadTypes(ValueError):
    """A table from a file is invalid; the message tells how, without naming the file."""


def complete(roots: Sequence[Node]) -> None:
    """Resolve all members of used structs and of types nested in them, not of pointers' targets."""
    pending, seen = list(roots), set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.type is not None:
            target = node.type.node
            used = any(member.resolved for member in target.members or ())
            if node.kind != TypeKind.POINTER or used or target.kind not in COMPOUND:
                pending.append(target)
        pending += [member.type().ref.node for member in node.members or ()]


class Writer:
    """Collects the rows of types, each once."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._rows: list[list[Any]] = []
        self._index: dict[Node, int] = {}

    def use(self, ref: Ref) -> Any:
        """Return the use of ``ref`` in a row; adds the row of a new type."""
        if ref.node not in self._index:
            row = self._row(ref.node)  # first, because it adds the rows that it refers to
            self._index[ref.node] = len(self._rows)
            self._nodes.append(ref.node)
            self._rows.append(row)
        index = self._index[ref.node]
        return [index, ref.qualifiers] if ref.qualifiers else index

    def finish(self) -> list[list[Any]]:
        """Return all rows; fills in the members of structs."""
        for position, node in enumerate(self._nodes):  # grows, because members add nodes
            if node.members is not None:
                self._rows[position].append([self._member(member) for member in node.members])
        return self._rows

    def _member(self, member: Member) -> list[Any]:
        row: list[Any] = [member.name, member.bit_offset]
        if member.resolved is not None:
            ref, bits = member.resolved
            row += [self.use(ref)] if bits is None else [self.use(ref), bits]
        return row

    def _row(self, node: Node) -> list[Any]:
        row: list[Any] = [node.kind.name.lower()]
        if node.kind in COMPOUND:
            return [*row, node.tag, node.size]
        if node.kind == TypeKind.ENUM and node.type is None:
            return [*row, node.tag]
        for name in FIELDS[node.kind]:
            value = getattr(node, name)
            row.append(self.use(value) if name == "type" else value)
        return row


class Reader:
    """Makes nodes from untrusted rows, or raises :class:`BadTypes`.

    :param lacking: returns the error for the type of a member that was not recorded
    :param elsewhere: returns the type of such a member from another source, or None
    """

    def __init__(
        self,
        rows: Any,
        lacking: Callable[[str], Exception],
        elsewhere: Callable[[Node, Member], MemberType | None] | None = None,
    ) -> None:
        self._lacking, self._elsewhere = lacking, elsewhere
        self._nodes: list[Node] = []
        depths: dict[Node, int] = {}
        for row in as_list(rows):
            node = self._read(as_list(row, 1))
            depths[node] = depths[node.type.node] + 1 if node.type else 0
            if depths[node] > _MAX_NESTED:
                raise BadTypes("types are nested too deeply")
            self._nodes.append(node)
        # Last, because members may have types of later rows.
        for node, row in zip(self._nodes, rows, strict=True):
            if node.kind in COMPOUND and node.size is not None:
                members = as_list(as_list(row, 4)[3])
                node.members = tuple(self._member(node, as_list(member, 2)) for member in members)
        self._extents: dict[Node, Extent] = {}
        for node in self._nodes:
            _measure(node, self._extents)

    @property
    def nodes(self) -> Sequence[Node]:
        """The types of all rows."""
        return self._nodes

    def ref(self, use: Any) -> Ref:
        """Return the type of a use, among the rows read so far.

        :raises BadTypes: there is no such row
        """
        index, qualifiers = as_list(use, 2)[:2] if isinstance(use, list) else (use, 0)
        node = self._nodes[as_integer(index, len(self._nodes) - 1)]
        return Ref(node, as_integer(qualifiers, _QUALIFIERS))

    def size_of(self, ref: Ref) -> int | None:
        """Return the bytes of a value; None if it has no size."""
        return self._extents[ref.node].size

    def _read(self, row: list[Any]) -> Node:
        kind = _KINDS.get(row[0]) if isinstance(row[0], str) else None
        if kind is None:
            raise BadTypes("a type has an unknown kind")
        names = FIELDS[kind]
        if kind in COMPOUND:
            names = ("tag", "size")
        elif kind == TypeKind.ENUM and len(row) < 4:
            names = ("tag",)
        values = as_list(row, 1 + len(names))[1:]
        node = Node(kind)
        for name, value in zip(names, values, strict=False):
            setattr(node, name, self._field(kind, name, value))
        if kind == TypeKind.ENUM and node.type is not None:
            integer = node.type.node
            if integer.kind != TypeKind.INT or node.type.qualifiers or integer.size is None:
                raise BadTypes("the type of an enum is not an integer")
            if integer.size > 8:
                raise BadTypes("an enum has an invalid size")
            bits = integer.size * 8 - integer.is_signed
            for _, value in node.enumerators or ():
                as_integer(value, (1 << bits) - 1, -(1 << bits) if integer.is_signed else 0)
        return node

    def _field(self, kind: TypeKind, name: str, value: Any) -> Any:
        match name:
            case "type":
                return self.ref(value)
            case "name":
                return as_text(value)
            case "tag":
                return as_optional_text(value)
            case "is_signed":
                return bool(value)
            case "byteorder":
                if value not in (None, "little", "big"):
                    raise BadTypes("a byte order is not 'little' or 'big'")
                return value
            case "enumerators":
                pairs = (as_list(pair, 2) for pair in as_list(value))
                return tuple((as_text(pair[0]), pair[1]) for pair in pairs)
            case "size" if kind not in COMPOUND:
                sizes = (8,) if kind == TypeKind.POINTER else _SCALAR_SIZES
                if as_integer(value, max(_SCALAR_SIZES)) not in sizes:
                    raise BadTypes("a scalar or pointer has an invalid size")
                return value
        return None if value is None else as_integer(value, _MAX_BYTES)

    def _member(self, owner: Node, row: list[Any]) -> Member:
        name = as_optional_text(row[0])
        offset = as_integer(row[1], 8 * (owner.size or 0))
        bits = None if len(row) < 4 else as_integer(row[3], 64, 1)
        resolved = None if len(row) < 3 else MemberType(self.ref(row[2]), bits)

        def resolve() -> MemberType:
            label = f"the type of {owner.tag or '(anonymous)'}.{name or '(anonymous)'}"
            if self._elsewhere is not None and (found := self._elsewhere(owner, member)):
                return found
            raise self._lacking(label)

        member = Member(name, offset, resolve, resolved)
        return member


class Extent(NamedTuple):
    """The extent of a type: levels of nested types, members including nested ones (an array counts
    as one element), numbers and structs in a value, and bytes, None if the type has no size."""

    depth: int
    members: int
    values: int
    size: int | None


def _measure(node: Node, known: dict[Node, Extent], level: int = 0) -> Extent:
    """Return the extent of ``node``; stores the extents of nested types in ``known``, too."""
    if level > _MAX_NESTED:
        raise BadTypes("a type contains itself, or types are nested too deeply")
    if node in known:
        return known[node]
    extent = Extent(1, 0, 1, node.size)
    if node.kind in (TypeKind.TYPEDEF, TypeKind.ARRAY, TypeKind.ENUM) and node.type:
        depth, members, values, size = _measure(node.type.node, known, level + 1)
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
    known[node] = extent
    return extent


def _measure_member(owner: Node, member: Member, known: dict[Node, Extent], level: int) -> Extent:
    if member.resolved is None:
        return Extent(0, 0, 1, None)
    ref, bits = member.resolved
    extent = _measure(ref.node, known, level + 1)
    node = ref.node
    while node.kind == TypeKind.TYPEDEF and node.type:
        node = node.type.node
    kind = node.kind
    end = 8 * (owner.size or 0)
    if member.name is None and (kind not in COMPOUND or bits is not None):
        raise BadTypes("an unnamed member is not a struct or union")
    # Only an array without a length, as at the end of a struct, has no size.
    if extent.size is None and kind != TypeKind.ARRAY:
        raise BadTypes("a member has no size")
    size = 8 * (extent.size or 0)
    if bits is not None:
        if kind not in _BIT_FIELDS or bits > size or member.bit_offset + bits > end:
            raise BadTypes("a bit field exceeds its type")
    elif member.bit_offset % 8:
        raise BadTypes("a member does not begin at a byte")
    elif member.bit_offset + size > end:
        raise BadTypes("a member ends beyond its type")
    return extent


def as_list(value: Any, least: int = 0) -> list[Any]:
    """Return ``value`` if it is a list of at least ``least`` items; raises :class:`BadTypes`."""
    if not isinstance(value, list) or len(value) < least:
        raise BadTypes("a list is missing or too short")
    return value


def as_object(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object; raises :class:`BadTypes`."""
    if not isinstance(value, dict):
        raise BadTypes("an object is missing")
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


def as_optional_text(value: Any) -> str | None:
    """Return ``value`` if it is None or a printable string; raises :class:`BadTypes`."""
    return None if value is None else as_text(value)
