# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types of one BTF section as data, made when they are used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from drgn import Qualifiers, TypeKind

from kcensus.sources.debuginfo.btf.checks import ENUMS, QUALIFIERS, VOID, Extents, check
from kcensus.sources.debuginfo.btf.format import Array, Columns, Kind, among, read_columns
from kcensus.sources.debuginfo.names import Names, Text, key_of
from kcensus.sources.types.nodes import Member, MemberType, Node, Parameter, Ref

_BITS = {
    Kind.CONST: Qualifiers.CONST.value,
    Kind.VOLATILE: Qualifiers.VOLATILE.value,
    Kind.RESTRICT: Qualifiers.RESTRICT.value,
}
_SIGNED, _BOOL = 1, 4
"""``BTF_INT_SIGNED`` and ``BTF_INT_BOOL``."""
_ENUM_TYPES = {
    (1, False): "unsigned char", (1, True): "signed char", (2, False): "unsigned short",
    (2, True): "short", (4, False): "unsigned int", (4, True): "int",
    (8, False): "unsigned long", (8, True): "long",
}  # fmt: skip
_KINDS = {
    TypeKind.STRUCT: (Kind.STRUCT,),
    TypeKind.UNION: (Kind.UNION,),
    TypeKind.ENUM: ENUMS,
    TypeKind.TYPEDEF: (Kind.TYPEDEF,),
    TypeKind.INT: (Kind.INT,),
    TypeKind.BOOL: (Kind.INT,),
    TypeKind.FLOAT: (Kind.FLOAT,),
}
"""Kinds in BTF of a kind in drgn."""
_DECLARATIONS = frozenset({Kind.FUNC, Kind.VAR})
_SPELLINGS = {
    "short": "short int", "unsigned short": "short unsigned int", "unsigned": "unsigned int",
    "long": "long int", "unsigned long": "long unsigned int", "long long": "long long int",
    "unsigned long long": "long long unsigned int",
}  # fmt: skip
"""Names of integers in C, and in BTF, where they are those of gcc."""


class Btf:
    """The types of a kernel, or of one module.

    Any lookup after the constructor is safe, because it has checked all types.

    :param data: the section ``.BTF``
    :param base: the types of the kernel, if these are of a module
    :param has_signed_char: whether ``char`` is signed on the machine, where BTF does not tell
    :raises BadBtf: the section is malformed
    """

    def __init__(
        self, data: bytes, base: Btf | None = None, *, has_signed_char: bool = True
    ) -> None:
        self._has_signed_char = has_signed_char
        self.base = base
        self.complete: Callable[[TypeKind, str], Ref | None] = self.only
        """Returns the type that is meant by a declaration of a struct or union."""
        self._columns: Columns = read_columns(data, base is not None)
        before: Extents = base._extents if base else VOID
        self._first = before.end
        self._first_text = base._end_text if base else 0
        self._end_text: int = self._first_text + len(self._columns.text)
        self._extents: Extents = check(self._columns, before, self._end_text)
        self._nodes: dict[int, Node] = {}

    @property
    def data(self) -> bytes:
        """The section as it was read."""
        return self._columns.data

    def __len__(self) -> int:
        """Return the number of own types."""
        return len(self._columns.kind)

    # Lookups by name

    def find(self, kind: TypeKind, name: str, *, own: bool = False) -> Ref | None:
        """Return the first type of a name, or None.

        :param kind: of struct, union, enum, typedef, int, bool or float
        :param name: the tag, or the name as C spells it; types that are only declared are not
            found, as in debug info that drgn reads
        :param own: whether to leave out the types of the base
        """
        names = [name]
        if kind == TypeKind.INT and name in _SPELLINGS:
            names.append(_SPELLINGS[name])
        for spelling in names:
            for row in self._rows(kind, spelling):
                return self._ref(self._first + row)
        return None if own or self.base is None else self.base.find(kind, name)

    def only(self, kind: TypeKind, name: str) -> Ref | None:
        """Return the only own definition of a struct or union; None if there is none or several."""
        rows = self._rows(kind, name)
        row = next(rows, None)
        if row is None or next(rows, None) is not None:
            return None
        return self._ref(self._first + row)

    def function(self, name: str, *, own: bool = False) -> Ref | None:
        """Return the type of a function, or None; ``own`` as for :meth:`find`."""
        for row in self._named(name, (Kind.FUNC,)):
            return self._ref(self._value(row))
        return None if own or self.base is None else self.base.function(name)

    def enumerator(self, name: str, *, own: bool = False) -> tuple[Ref, int] | None:
        """Return the enum of an enumerator, and its value, or None; ``own`` as for :meth:`find`."""
        rows, _ = self._enumerators
        for nth in self._enumerator_names.candidates(key_of(name)):
            ref = self._ref(self._first + int(rows[nth]))
            for label, value in ref.node.enumerators or ():
                if label == name:
                    return ref, value
        return None if own or self.base is None else self.base.enumerator(name)

    def variable(self, name: str) -> Ref | None:
        """Return the type of an own variable, or None, also if several types are named so."""
        refs = {self._ref(self._value(row)) for row in self._named(name, (Kind.VAR,))}
        return refs.pop() if len(refs) == 1 else None

    def variables(self) -> dict[str, Ref]:
        """Return the types of all own variables, as :meth:`variable` does.

        pahole writes per-CPU variables, and other ones only if it is told to.
        """
        rows = np.flatnonzero(self._columns.kind == Kind.VAR)
        names = dict.fromkeys(self._text(offset) for offset in self._columns.name[rows].tolist())
        return {name: ref for name in names if (ref := self.variable(name))}

    def _rows(self, kind: TypeKind, name: str) -> Iterator[int]:
        """Yield the rows of all definitions of a name."""
        for row in self._named(name, _KINDS.get(kind, ())):
            if self._kind_of(row) == kind and not self._is_incomplete(row):
                yield row

    def _named(self, name: str, kinds: tuple[Kind, ...]) -> Iterator[int]:
        # Most names are those of functions, which are seldom asked for.
        names = self._declarations if _DECLARATIONS.issuperset(kinds) else self._names
        for row in names.candidates(key_of(name)) if name else ():
            is_meant = self._columns.kind[row] in kinds
            if is_meant and self._text(int(self._columns.name[row])) == name:
                yield row

    @functools.cached_property
    def _names(self) -> Names:
        return self._index(~among(self._columns.kind, _DECLARATIONS))

    @functools.cached_property
    def _declarations(self) -> Names:
        return self._index(among(self._columns.kind, _DECLARATIONS))

    def _index(self, is_meant: Array) -> Names:
        rows = np.flatnonzero(is_meant & (self._columns.name > 0))
        return Names(self._keys(self._columns.name[rows].astype(np.int64)), rows)

    @functools.cached_property
    def _enumerators(self) -> tuple[Array, Array]:
        return self._columns.elements(ENUMS)

    @functools.cached_property
    def _enumerator_names(self) -> Names:
        return Names(self._keys(self._columns.words[self._enumerators[1]].astype(np.int64)))

    @functools.cached_property
    def _strings(self) -> Text:
        return Text(self._columns.text, self._columns.ends)

    def _keys(self, offsets: Array) -> Array:
        """Return the key of the string at each offset."""
        own = offsets >= self._first_text
        result = np.zeros(len(offsets), np.uint64)
        result[own] = self._strings.keys(offsets[own] - self._first_text)
        if self.base and not own.all():
            result[~own] = self.base._keys(offsets[~own])
        return result

    def _text(self, offset: int) -> str:
        if self.base and offset < self._first_text:
            return self.base._text(offset)
        start = self._columns.text_start + offset - self._first_text
        data = self._columns.data
        return data[start : data.index(0, start)].decode()

    @functools.cached_property
    def _signed_chars(self) -> tuple[str, ...]:
        """Names of types that are signed although BTF of old pahole says that no ``char`` is.

        There, ``signed char`` lacks the flag. Before Linux kernel commit 3bc753c06dd0 ("kbuild:
        treat char as always unsigned") (in v6.2), ``char`` was signed on x86.
        """
        for row in self._named("signed char", (Kind.INT,)):
            if not self._encoding(row) & _SIGNED:
                return ("signed char", "char") if self._has_signed_char else ("signed char",)
        return ()

    # Types by ID

    def _value(self, row: int) -> int:
        return int(self._columns.value[row])

    def _kind_of(self, row: int) -> TypeKind:
        kind = Kind(int(self._columns.kind[row]))
        if kind == Kind.INT:
            return TypeKind.BOOL if self._encoding(row) & _BOOL else TypeKind.INT
        return next(key for key, kinds in _KINDS.items() if kind in kinds)

    def _is_incomplete(self, row: int) -> bool:
        """Return whether a row only declares an enum; structs have a kind for that."""
        return self._columns.kind[row] in ENUMS and self._columns.count[row] == 0

    def _ref(self, id_: int) -> Ref:
        qualifiers = 0
        while True:
            if id_ < self._first:
                ref = self.base._ref(id_) if self.base else Ref(_VOID)
                return Ref(ref.node, ref.qualifiers | qualifiers)
            row = id_ - self._first
            kind = Kind(int(self._columns.kind[row]))
            if kind not in QUALIFIERS:
                node = self._nodes.get(id_)
                if node is None:
                    node = self._nodes[id_] = self._node(row, kind)
                return Ref(node, qualifiers)
            qualifiers |= _BITS.get(kind, 0)
            id_ = self._value(row)

    def _node(self, row: int, kind: Kind) -> Node:
        name, value = self._text(int(self._columns.name[row])), self._value(row)
        match kind:
            case Kind.INT:
                is_signed = bool(self._encoding(row) & _SIGNED) or (
                    name in self._signed_chars and value == 1
                )
                return Node(self._kind_of(row), name, None, value, "little", is_signed)
            case Kind.FLOAT:
                return Node(TypeKind.FLOAT, name, None, value, "little")
            case Kind.PTR:
                return Node(TypeKind.POINTER, size=8, byteorder="little", type=self._ref(value))
            case Kind.ARRAY:
                element, _, length = self._words(row, 3)
                return Node(TypeKind.ARRAY, type=self._ref(element), length=length)
            case Kind.TYPEDEF:
                return Node(TypeKind.TYPEDEF, name, type=self._ref(value))
            case Kind.STRUCT | Kind.UNION:
                members = tuple(self._members(row))
                if kind == Kind.STRUCT and members:
                    last = self._words(row, 3 * len(members))[-2]
                    if self._extents.at("size", np.array([last]))[0] == 0:
                        members[-1].resolve = functools.partial(self._last_member_type, last)
                return Node(
                    _compound(kind == Kind.UNION), tag=name or None, size=value, members=members
                )
            case Kind.FWD:
                return self._declared(_compound(self._flag(row)), name)
            case Kind.ENUM | Kind.ENUM64:
                return self._enum(row, name or None)
            case Kind.FUNC_PROTO:
                return self._prototype(row)
            case _:
                # A function or variable: the checks let nothing refer to one.
                return self._ref(value).node

    def _declared(self, kind: TypeKind, tag: str) -> Node:
        ref = self.complete(kind, tag)
        return ref.node if ref else Node(kind, tag=tag or None)

    def _words(self, row: int, count: int) -> list[int]:
        """Return words behind the common part of a record."""
        start = int(self._columns.start[row]) + 3
        words: list[int] = self._columns.words[start : start + count].tolist()
        return words

    def _flag(self, row: int) -> bool:
        return bool(self._columns.flag[row])

    def _encoding(self, row: int) -> int:
        return self._words(row, 1)[0] >> 24 & 0xF

    def _members(self, row: int) -> Iterator[Member]:
        words = self._words(row, 3 * int(self._columns.count[row]))
        flag = self._flag(row)
        alias = self._extents.at("alias", np.array(words[1::3], np.int64))
        old_bits = self._extents.at("old_bits", alias).tolist()
        for name, id_, offset, old in zip(
            words[::3], words[1::3], words[2::3], old_bits, strict=True
        ):
            bits = offset >> 24 if flag else 0
            offset = offset & 0xFFFFFF if flag else offset
            if not flag and old:
                offset, bits = offset + (old >> 8), old & 0xFF
            resolve = functools.partial(self._member_type, id_, bits or None)
            yield Member(self._text(name) or None, offset, resolve)

    def _last_member_type(self, id_: int) -> MemberType:
        """Return the type of the last member of a struct: an array of no elements has no length.

        BTF does not tell ``x[]`` from ``x[0]``, and kernels have replaced nearly all of the latter.
        """
        node, qualifiers = self._ref(id_)
        if node.kind == TypeKind.ARRAY and node.length == 0:
            node = Node(TypeKind.ARRAY, type=node.type)
        return MemberType(Ref(node, qualifiers))

    def _member_type(self, id_: int, bits: int | None) -> MemberType:
        return MemberType(self._ref(id_), bits)

    def _enum(self, row: int, tag: str | None) -> Node:
        count, size = int(self._columns.count[row]), self._value(row)
        if not count:
            return Node(TypeKind.ENUM, tag=tag)
        if self._columns.kind[row] == Kind.ENUM64:
            words = self._words(row, 3 * count)
            ids, raw = (
                words[::3],
                [low | high << 32 for low, high in zip(words[1::3], words[2::3], strict=True)],
            )
            width = 64
        else:
            words = self._words(row, 2 * count)
            ids, raw, width = words[::2], words[1::2], 32
        # Since Linux kernel commit 6089fb325cf7 ("bpf: Add btf enum64 support") (in v6.0), the flag
        # has the sign. Before, an enum with a negative value has it.
        is_signed = self._flag(row) or (width == 32 and any(value >> 31 for value in raw))
        sign = 1 << (width - 1)
        values = [(value ^ sign) - sign if is_signed else value for value in raw]
        bits = size * 8
        low, high = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
        pairs = tuple(
            (self._text(id_), value)
            for id_, value in zip(ids, values, strict=True)
            if low <= value < high
        )
        name = _ENUM_TYPES[size, is_signed]
        integer = Node(TypeKind.INT, name, None, size, "little", is_signed)
        return Node(TypeKind.ENUM, tag=tag, type=Ref(integer), enumerators=pairs)

    def _prototype(self, row: int) -> Node:
        words = self._words(row, 2 * int(self._columns.count[row]))
        pairs = [*zip(words[::2], words[1::2], strict=True)]
        is_variadic = bool(pairs) and pairs[-1] == (0, 0)
        parameters = tuple(
            Parameter(self._text(name) or None, functools.partial(self._ref, id_))
            for name, id_ in (pairs[:-1] if is_variadic else pairs)
        )
        return Node(
            TypeKind.FUNCTION,
            type=self._ref(self._value(row)),
            parameters=parameters,
            is_variadic=is_variadic,
        )


_VOID = Node(TypeKind.VOID)


def _compound(is_union: bool) -> TypeKind:
    return TypeKind.UNION if is_union else TypeKind.STRUCT
