# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs with memory and lookups (types, objects, symbols, modules) from callbacks.

The program that records a capsule and the one that replays it are assembled in the same way, so
that drgn's own lookups are the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import drgn
from drgn import FindObjectFlags, TypeKind

from kcensus.sources.custom import add_direct_map, program_of
from kcensus.sources.types.nodes import Ref, build
from kcensus.sources.types.table import (
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
    """All lookups by their arguments, with their answers, including failed ones."""

    types: dict[tuple[str, str, str | None], Ref | None] = field(default_factory=dict)
    objects: dict[tuple[str, int, str | None], ObjectData | None] = field(default_factory=dict)
    symbols: dict[tuple[str | None, int | None, bool], list[drgn.Symbol]] = field(
        default_factory=dict
    )
    modules: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the lookups as JSON; resolves the members of used types."""
        refs = [ref for ref in self.types.values() if ref]
        refs += [data.ref for data in self.objects.values() if data]
        complete([ref.node for ref in refs])
        table = Writer()
        return {
            "type_lookups": [[*key, ref and table.use(ref)] for key, ref in self.types.items()],
            "object_lookups": [
                [*key, data and [table.use(data.ref), data.address, value]]
                for key, data in self.objects.items()
                for value in [data.value.hex() if data and data.value is not None else None]
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
        """Return the lookups of an untrusted capsule, or raise :class:`BadTypes`.

        :param lacking: returns the error for a type that was not recorded
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


class Source(Protocol):
    """Answers lookups that have no known answer, or raises
    :class:`~kcensus.sources.types.nodes.NotRecorded`; :meth:`read` returns physical memory."""

    def find_type(self, kind: str, name: str, filename: str | None) -> Ref | None: ...

    def find_object(self, name: str, flags: int, filename: str | None) -> ObjectData | None: ...

    def find_symbols(
        self, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]: ...

    def read(self, address: int, count: int) -> bytes: ...


@dataclass(frozen=True)
class Machine:
    """Facts that a program needs before any lookup."""

    arch: str
    """Name of the :class:`drgn.Architecture`."""
    vmcoreinfo: bytes
    page_size: int
    memory_bytes: int
    """End of physical memory."""
    direct_map: int
    """Virtual address of physical address 0."""


_ASSEMBLED = "kcensus: a capsule, or recorded for one"
"""Key of :attr:`drgn.Program.cache`, with the lookups."""


def is_assembled(prog: drgn.Program) -> bool:
    """Return whether a program reads from a capsule, or is recorded for one."""
    return _ASSEMBLED in prog.cache


def recorded_types(prog: drgn.Program) -> list[str]:
    """Return the names of the types in a capsule, such as ``struct dentry``; none elsewhere."""
    lookups: Lookups = prog.cache.get(_ASSEMBLED, Lookups())
    return [f"{kind} {name}" for (kind, name, _), ref in lookups.types.items() if ref and name]


def assemble(machine: Machine, lookups: Lookups, source: Source) -> drgn.Program:
    """Return a program that reads from ``source``, and adds its answers to ``lookups``."""
    arch, memory_bytes = drgn.Architecture[machine.arch], machine.memory_bytes
    prog = program_of(arch, machine.vmcoreinfo, source.read, memory_bytes=memory_bytes)
    prog.cache[_ASSEMBLED] = lookups
    add_direct_map(prog, machine.direct_map, memory_bytes, source.read)

    def find_type(
        prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> drgn.Type | None:
        for kind in TypeKind:
            if kind in kinds:
                key = kind.name.lower(), name, filename
                if key not in lookups.types:
                    lookups.types[key] = source.find_type(*key)
                ref = lookups.types[key]
                if ref is not None:
                    return build(prog, ref)
        return None

    def find_object(
        prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        key = name, flags.value, filename
        if key not in lookups.objects:
            lookups.objects[key] = source.find_object(*key)
        data = lookups.objects[key]
        if data is None:
            return None
        type_ = build(prog, data.ref)
        if data.value is not None:
            return drgn.Object.from_bytes_(prog, type_, data.value)
        return drgn.Object(prog, type_, address=data.address)

    def find_symbols(
        prog: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        key = name, address, one
        if key not in lookups.symbols:
            lookups.symbols[key] = source.find_symbols(*key)
        return lookups.symbols[key]

    prog.register_type_finder("kcensus", find_type, enable_index=-1)
    prog.register_object_finder("kcensus", find_object, enable_index=-1)
    prog.register_symbol_finder("kcensus", find_symbols, enable_index=-1)
    return prog
