# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lookups of a recorded program (types, objects, symbols, modules) and their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import drgn

from kcensus.sources.capsule.types import Ref
from kcensus.sources.capsule.typetable import (
    BadTypes,
    Reader,
    Writer,
    as_integer,
    as_list,
    as_optional_text,
    as_text,
    complete,
)

_MAX_ADDRESS = (1 << 64) - 1


class ObjectData(NamedTuple):
    """An object: an address, a value, or neither if the compiler optimized it out."""

    ref: Ref
    address: int | None = None
    value: bytes | None = None


@dataclass
class Lookups:
    """All lookups with their answers, including lookups that matched nothing."""

    types: dict[tuple[str, str, str | None], Ref | None] = field(default_factory=dict)
    """By kind, name and file name."""
    objects: dict[tuple[str, int, str | None], ObjectData | None] = field(default_factory=dict)
    """By name, flags and file name."""
    symbols: dict[tuple[str | None, int | None, bool], list[drgn.Symbol]] = field(
        default_factory=dict
    )
    """By name, address, and whether only the best match is wanted."""
    modules: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Sentences about missing debug info, by requested modules."""

    def to_json(self) -> dict[str, Any]:
        """Return the lookups as JSON; resolves the members of used types."""
        refs = [ref for ref in self.types.values() if ref]
        refs += [data.ref for data in self.objects.values() if data]
        complete([ref.node for ref in refs])
        table = Writer()
        return {
            "type_lookups": [[*key, ref and table.use(ref)] for key, ref in self.types.items()],
            "object_lookups": [
                [*key, data and [table.use(data.ref), data.address, _hexadecimal(data.value)]]
                for key, data in self.objects.items()
            ],
            "symbol_lookups": [
                [*key, [[s.name, s.address, s.size, s.binding.name, s.kind.name] for s in symbols]]
                for key, symbols in self.symbols.items()
            ],
            "modules": [*self.modules.items()],
            "types": table.finish(),
        }

    @staticmethod
    def from_json(document: dict[str, Any], lacking: Callable[[str], Exception]) -> Lookups:
        """Return the lookups of an untrusted capsule.

        :param lacking: returns the error for a type that was not recorded
        :raises BadTypes: they are invalid
        """
        table = Reader(document.get("types"), lacking)
        lookups = Lookups()
        for row in as_list(document.get("type_lookups")):
            kind, name, filename, use = _exactly(row, 4)
            ref = None if use is None else table.ref(use)
            if ref and (ref.node.kind.name.lower() != kind or ref.qualifiers):
                raise BadTypes("a type has another kind than its lookup")
            lookups.types[as_text(kind), as_text(name), as_optional_text(filename)] = ref
        for row in as_list(document.get("object_lookups")):
            name, flags, filename, data = _exactly(row, 4)
            key = as_text(name), as_integer(flags, 255), as_optional_text(filename)
            lookups.objects[key] = None if data is None else _object(data, table)
        for row in as_list(document.get("symbol_lookups")):
            name, address, one, symbols = _exactly(row, 4)
            address = None if address is None else as_integer(address, _MAX_ADDRESS)
            matches = [_symbol(symbol) for symbol in as_list(symbols)]
            lookups.symbols[as_optional_text(name), address, bool(one)] = matches
        for row in as_list(document.get("modules")):
            names, sentences = (tuple(map(as_text, as_list(texts))) for texts in _exactly(row, 2))
            lookups.modules[names] = list(sentences)
        return lookups


def _hexadecimal(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _exactly(row: Any, length: int) -> list[Any]:
    if len(as_list(row)) != length:
        raise BadTypes("a lookup has the wrong number of fields")
    return list(row)


def _object(row: Any, table: Reader) -> ObjectData:
    use, address, value = _exactly(row, 3)
    ref = table.ref(use)
    if address is not None:
        return ObjectData(ref, as_integer(address, _MAX_ADDRESS))
    if value is None:
        return ObjectData(ref)
    try:
        data = bytes.fromhex(as_text(value))
    except ValueError as error:
        raise BadTypes("a value is not hexadecimal") from error
    if table.size_of(ref) != len(data):
        raise BadTypes("a value and its type differ in size")
    return ObjectData(ref, value=data)


def _symbol(row: Any) -> drgn.Symbol:
    name, address, size, binding, kind = _exactly(row, 5)
    try:
        return drgn.Symbol(
            as_text(name),
            as_integer(address, _MAX_ADDRESS),
            as_integer(size, _MAX_ADDRESS),
            drgn.SymbolBinding[as_text(binding)],
            drgn.SymbolKind[as_text(kind)],
        )
    except KeyError as error:
        raise BadTypes("a symbol has an unknown binding or kind") from error
