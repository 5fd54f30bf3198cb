# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program whose memory and types come from somewhere else.

The program that records a capsule and the one that replays it are put together here in the same
way, so that whatever drgn looks up for itself in the one, it also looks up in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import drgn
from drgn import FindObjectFlags, TypeKind

from kcensus.sources.capsule.types import Ref, build


class TypeKey(NamedTuple):
    """A lookup of a type."""

    kind: str
    """Name of the :class:`drgn.TypeKind`, in lower case."""
    name: str
    filename: str | None


class ObjectKey(NamedTuple):
    """A lookup of a variable, constant or function."""

    name: str
    flags: int
    """As in :class:`drgn.FindObjectFlags`."""
    filename: str | None


class SymbolKey(NamedTuple):
    """A lookup of symbols."""

    name: str | None
    address: int | None
    one: bool
    """Whether the best match is wanted, or all."""


class ObjectData(NamedTuple):
    """What was found: an address, a value, or neither, if the compiler left nothing."""

    ref: Ref
    address: int | None = None
    value: bytes | None = None


class Source(Protocol):
    """Where a program gets what it is asked for. Each method may raise
    :class:`~kcensus.sources.capsule.types.NotRecorded`."""

    def find_type(self, key: TypeKey) -> Ref | None: ...

    def find_object(self, key: ObjectKey) -> ObjectData | None: ...

    def find_symbols(self, key: SymbolKey) -> list[drgn.Symbol]: ...

    def read(self, address: int, count: int) -> bytes:
        """Physical memory; raises :class:`drgn.FaultError`."""
        ...


@dataclass(frozen=True)
class Machine:
    """What a program has to know before anything can be looked up."""

    arch: str
    """Name of the :class:`drgn.Architecture`."""
    vmcoreinfo: bytes
    memory_bytes: int
    """Where physical memory ends."""
    direct_map: int
    """Virtual address of physical address 0."""


def assemble(machine: Machine, source: Source) -> drgn.Program:
    """A program of a Linux kernel that gets everything from ``source``."""
    prog = drgn.Program(
        drgn.Platform(drgn.Architecture[machine.arch]), vmcoreinfo=machine.vmcoreinfo
    )
    prog.set_linux_kernel_custom(machine.vmcoreinfo, is_live=False)

    def read_physical(address: int, count: int, offset: int, physical: bool) -> bytes:
        return source.read(offset, count)

    # Virtual addresses are translated through the kernel's page tables, which drgn reads from
    # here. The direct map is spared the detour, and so needs no page tables.
    prog.add_memory_segment(0, machine.memory_bytes, read_physical, physical=True)
    prog.add_memory_segment(machine.direct_map, machine.memory_bytes, read_physical)

    def find_type(
        prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> drgn.Type | None:
        for kind in TypeKind:
            if kind in kinds:
                ref = source.find_type(TypeKey(kind.name.lower(), name, filename))
                if ref is not None:
                    return build(prog, ref)
        return None

    def find_object(
        prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        found = source.find_object(ObjectKey(name, flags.value, filename))
        if found is None:
            return None
        type_ = build(prog, found.ref)
        if found.value is not None:
            return drgn.Object.from_bytes_(prog, type_, found.value)
        return drgn.Object(prog, type_, address=found.address)

    def find_symbols(
        prog: drgn.Program, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]:
        return source.find_symbols(SymbolKey(name, address, one))

    prog.register_type_finder("kcensus", find_type, enable_index=-1)
    prog.register_object_finder("kcensus", find_object, enable_index=-1)
    prog.register_symbol_finder("kcensus", find_symbols, enable_index=-1)
    return prog
