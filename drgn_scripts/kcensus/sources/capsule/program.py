# SPDX-License-Identifier: LGPL-2.1-or-later
"""A drgn program whose memory, types, objects and symbols come from callbacks.

The program that records a capsule and the one that replays it are assembled in the same way, so
that drgn's own lookups are the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import drgn
from drgn import FindObjectFlags, TypeKind

from kcensus.sources.capsule.lookups import Lookups, ObjectData
from kcensus.sources.capsule.types import Ref, build
from kcensus.sources.custom import add_direct_map, program_of


class Source(Protocol):
    """Answers what is looked up for the first time. Each method may raise
    :class:`~kcensus.sources.capsule.types.NotRecorded`."""

    def find_type(self, kind: str, name: str, filename: str | None) -> Ref | None: ...

    def find_object(self, name: str, flags: int, filename: str | None) -> ObjectData | None: ...

    def find_symbols(
        self, name: str | None, address: int | None, one: bool
    ) -> list[drgn.Symbol]: ...

    def read(self, address: int, count: int) -> bytes:
        """Return physical memory; raises :class:`drgn.FaultError`."""
        ...


@dataclass(frozen=True)
class Machine:
    """What a program needs before any lookup."""

    arch: str
    """Name of the :class:`drgn.Architecture`."""
    vmcoreinfo: bytes
    page_size: int
    memory_bytes: int
    """End of physical memory."""
    direct_map: int
    """Virtual address of physical address 0."""


_ASSEMBLED = "kcensus: a capsule, or recorded for one"
"""Key of :attr:`drgn.Program.cache`."""


def is_assembled(prog: drgn.Program) -> bool:
    """Return whether a program reads from a capsule, or all that is read of it goes into one."""
    return _ASSEMBLED in prog.cache


def assemble(machine: Machine, lookups: Lookups, source: Source) -> drgn.Program:
    """Return a program for a Linux kernel that reads from ``source``.

    :param lookups: the known answers; those of ``source`` are added
    """
    arch, memory_bytes = drgn.Architecture[machine.arch], machine.memory_bytes
    prog = program_of(arch, machine.vmcoreinfo, source.read, memory_bytes=memory_bytes)
    prog.cache[_ASSEMBLED] = True
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
