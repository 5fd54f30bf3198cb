# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a recorded program was asked for besides memory, and what the answers were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import drgn

from kcensus.sources.capsule.program import ObjectData, ObjectKey, SymbolKey, TypeKey
from kcensus.sources.capsule.types import Ref
from kcensus.sources.capsule.typetable import (
    BadTypes,
    Reader,
    Writer,
    as_integer,
    as_list,
    as_text,
    complete,
)


@dataclass
class Lookups:
    """All lookups with their answers. That something was *not* found is an answer, too."""

    types: dict[TypeKey, Ref | None] = field(default_factory=dict)
    objects: dict[ObjectKey, ObjectData | None] = field(default_factory=dict)
    symbols: dict[SymbolKey, list[drgn.Symbol]] = field(default_factory=dict)
    modules: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Sentences about missing debug info, by the modules that were asked for."""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON; resolves the members of types that were used."""
        refs = [ref for ref in self.types.values() if ref]
        refs += [found.ref for found in self.objects.values() if found]
        complete([ref.node for ref in refs])
        table = Writer()
        document: dict[str, Any] = {
            "type_lookups": [
                [*key, None if ref is None else table.use(ref)] for key, ref in self.types.items()
            ],
            "object_lookups": [
                [*key, None if found is None else _object_json(found, table)]
                for key, found in self.objects.items()
            ],
            "symbol_lookups": [
                [*key, [_symbol_json(symbol) for symbol in found]]
                for key, found in self.symbols.items()
            ],
            "modules": [[list(names), said] for names, said in self.modules.items()],
        }
        return {**document, "types": table.finish()}

    @staticmethod
    def from_json(document: dict[str, Any], lacking: Callable[[str], Exception]) -> Lookups:
        """The lookups of an untrusted capsule.

        :param lacking: makes the error for a type that was not recorded
        :raises BadTypes: they are of the wrong form
        """
        table = Reader(document.get("types"), lacking)
        lookups = Lookups()
        for row in as_list(document.get("type_lookups")):
            kind, name, filename, use = _exactly(row, 4)
            key = TypeKey(as_text(kind), as_text(name), _optional_text(filename))
            lookups.types[key] = None if use is None else _found_type(key, table.ref(use))
        for row in as_list(document.get("object_lookups")):
            name, flags, filename, found = _exactly(row, 4)
            where = ObjectKey(as_text(name), as_integer(flags, 255), _optional_text(filename))
            lookups.objects[where] = None if found is None else _object(found, table)
        for row in as_list(document.get("symbol_lookups")):
            name, address, one, symbols = _exactly(row, 4)
            address = None if address is None else as_integer(address, _HIGHEST)
            asked = SymbolKey(_optional_text(name), address, bool(one))
            lookups.symbols[asked] = [_symbol(symbol) for symbol in as_list(symbols)]
        for row in as_list(document.get("modules")):
            names, said = _exactly(row, 2)
            modules = tuple(as_text(name) for name in as_list(names))
            lookups.modules[modules] = [as_text(sentence) for sentence in as_list(said)]
        return lookups


_HIGHEST = (1 << 64) - 1


def _found_type(key: TypeKey, ref: Ref) -> Ref:
    if ref.node.kind.name.lower() != key.kind or ref.qualifiers:
        raise BadTypes("a type is not of the kind that was looked up")
    return ref


def _exactly(row: Any, length: int) -> list[Any]:
    if len(as_list(row)) != length:
        raise BadTypes("a lookup is of the wrong form")
    return list(row)


def _optional_text(value: Any) -> str | None:
    return None if value is None else as_text(value)


def _object_json(found: ObjectData, table: Writer) -> list[Any]:
    value = None if found.value is None else found.value.hex()
    return [table.use(found.ref), found.address, value]


def _object(found: Any, table: Reader) -> ObjectData:
    use, address, value = _exactly(found, 3)
    if address is not None:
        return ObjectData(table.ref(use), as_integer(address, _HIGHEST))
    if value is None:
        return ObjectData(table.ref(use))
    ref = table.ref(use)
    try:
        data = bytes.fromhex(as_text(value))
    except ValueError as error:
        raise BadTypes("a value is not hexadecimal") from error
    if table.size_of(ref) != len(data):
        raise BadTypes("a value is not as long as its type")
    return ObjectData(ref, value=data)


def _symbol_json(symbol: drgn.Symbol) -> list[Any]:
    return [symbol.name, symbol.address, symbol.size, symbol.binding.name, symbol.kind.name]


def _symbol(row: Any) -> drgn.Symbol:
    name, address, size, binding, kind = _exactly(row, 5)
    try:
        return drgn.Symbol(
            as_text(name),
            as_integer(address, _HIGHEST),
            as_integer(size, _HIGHEST),
            drgn.SymbolBinding[as_text(binding)],
            drgn.SymbolKind[as_text(kind)],
        )
    except KeyError as error:
        raise BadTypes("a symbol is of an unknown kind") from error
