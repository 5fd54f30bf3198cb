# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare types from BTF with those from DWARF, through all members and pointers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import drgn
from drgn import TypeKind

FLAT = "BTF has an array of arrays as a single array"
NO_LENGTH = "BTF does not tell x[] from x[0]"
COMPOUND = (TypeKind.STRUCT, TypeKind.UNION)
_MAX_EXAMPLES = 5


class Comparison:
    """What differs between two programs, by reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)
        self.compared: set[str] = set()
        """Names of structs, unions and enums."""
        self._pending: list[tuple[drgn.Type, drgn.Type, str]] = []

    def compare(self, pairs: Iterable[tuple[drgn.Type, drgn.Type]]) -> None:
        """Compare pairs of types (of DWARF, of BTF) and all that they refer to."""
        self._pending += [(dwarf, btf, dwarf.type_name()) for dwarf, btf in pairs]
        while self._pending:
            self._compare(*self._pending.pop())

    def _note(self, reason: str, place: str) -> None:
        self.counts[reason] += 1
        if len(self.examples[reason]) < _MAX_EXAMPLES:
            self.examples[reason].append(place)

    def _compare(self, dwarf: drgn.Type, btf: drgn.Type, place: str) -> None:
        if (dwarf.kind, dwarf.qualifiers) != (btf.kind, btf.qualifiers):
            self._note("kinds or qualifiers differ", f"{place}: {dwarf}, {btf}")
            return
        match dwarf.kind:
            case TypeKind.STRUCT | TypeKind.UNION | TypeKind.ENUM:
                self._compare_tagged(dwarf, btf, place)
            case TypeKind.POINTER:
                self._pending.append((dwarf.type, btf.type, place))
            case TypeKind.TYPEDEF:
                self._equal("name of a typedef", dwarf.name, btf.name, place)
                self._pending.append((dwarf.type, btf.type, place))
            case TypeKind.ARRAY:
                self._compare_arrays(dwarf, btf, place)
            case TypeKind.FUNCTION:
                self._compare_functions(dwarf, btf, place)
            case TypeKind.INT | TypeKind.BOOL | TypeKind.FLOAT:
                fields = ("name", "size", "byteorder", "is_signed")
                numbers = [
                    [getattr(type_, name, None) for name in fields] for type_ in (dwarf, btf)
                ]
                self._equal("number", numbers[0], numbers[1], place)

    def _equal(self, what: str, dwarf: object, btf: object, place: str) -> bool:
        if dwarf != btf:
            self._note(f"{what} differs", f"{place}: {dwarf}, {btf}")
        return dwarf == btf

    def _compare_tagged(self, dwarf: drgn.Type, btf: drgn.Type, place: str) -> None:
        if not self._equal("tag", dwarf.tag, btf.tag, place):
            return
        name = dwarf.type_name()
        if dwarf.tag is not None and dwarf.is_complete() and btf.is_complete():
            if name in self.compared:
                return
            self.compared.add(name)
        if not self._equal("completeness", dwarf.is_complete(), btf.is_complete(), place):
            return
        if not dwarf.is_complete():
            return
        if dwarf.kind == TypeKind.ENUM:
            values = [[*map(tuple, type_.enumerators)] for type_ in (dwarf, btf)]
            self._equal("enumerators", values[0], values[1], place)
            self._pending.append((dwarf.type, btf.type, f"{place}, integer"))
            return
        members = [
            [(member.name, member.bit_offset, member.bit_field_size) for member in type_.members]
            for type_ in (dwarf, btf)
        ]
        if self._equal("size", dwarf.size, btf.size, place) and self._equal(
            "members", members[0], members[1], place
        ):
            for one, other in zip(dwarf.members, btf.members, strict=True):
                self._pending.append((one.type, other.type, f"{name}.{one.name}"))

    def _compare_arrays(self, dwarf: drgn.Type, btf: drgn.Type, place: str) -> None:
        if dwarf.type.kind == TypeKind.ARRAY and btf.type.kind != TypeKind.ARRAY:
            self._note(FLAT, place)
            length, element = dwarf.length, dwarf
            while element.type.kind == TypeKind.ARRAY:
                element = element.type
                length *= element.length
            self._equal("number of elements", length, btf.length, place)
            dwarf = element
        elif not dwarf.length and not btf.length:
            if dwarf.length != btf.length:
                self._note(NO_LENGTH, place)
        else:
            self._equal("length", dwarf.length, btf.length, place)
        self._pending.append((dwarf.type, btf.type, f"{place}[]"))

    def _compare_functions(self, dwarf: drgn.Type, btf: drgn.Type, place: str) -> None:
        shapes = [(len(type_.parameters), type_.is_variadic) for type_ in (dwarf, btf)]
        if self._equal("parameters", shapes[0], shapes[1], place):
            self._pending.append((dwarf.type, btf.type, f"{place}()"))
            for nth, pair in enumerate(zip(dwarf.parameters, btf.parameters, strict=True)):
                self._pending.append((pair[0].type, pair[1].type, f"{place}, parameter {nth}"))
