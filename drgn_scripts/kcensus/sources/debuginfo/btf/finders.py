# SPDX-License-Identifier: LGPL-2.1-or-later
"""Let drgn find types, enumerators, functions and variables in BTF.

The finders have the names proposed for drgn itself: ``btf`` for types, ``btf_symbol`` for objects.
A drgn with such finders keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import drgn
from drgn import FindObjectFlags, TypeKind

from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.types.nodes import COMPOUND, Ref, build

TYPES, OBJECTS = "btf", "btf_symbol"
Address = Callable[[str], int | None]
"""Returns the address of a symbol, or None."""
_TAGGED = (*COMPOUND, TypeKind.ENUM)
_Found = TypeVar("_Found")


class Types:
    """The types of a kernel and its modules.

    A declaration in one of them means the only definition in all, as in debug info that drgn reads.
    """

    def __init__(self, kernel: Btf) -> None:
        self._all = {"": kernel}
        self._found: dict[tuple[TypeKind, str], Ref | None] = {}
        self.is_used = False
        """Whether a struct, an enum or an object was found here."""
        kernel.complete = self.only

    def add(self, module: str, btf: Btf) -> None:
        """Add the types of a module; before a type is used that a module may complete."""
        btf.complete = self.only
        self._all[module] = btf
        self._found.clear()

    def only(self, kind: TypeKind, name: str) -> Ref | None:
        """Return the only definition of a struct or union in all; None without a single one."""
        refs = [ref for each in self._all.values() if (ref := each.only(kind, name))]
        return refs[0] if len(refs) == 1 else None

    def find(self, kind: TypeKind, name: str) -> Ref | None:
        """Return a type of the kernel, else of the first module that has it, or None."""
        key = kind, name
        if key not in self._found:
            refs = (each.find(kind, name, own=True) for each in self._all.values())
            self._found[key] = next(filter(None, refs), None)
        ref = self._found[key]
        # drgn asks for integers that it has itself, too.
        self.is_used |= ref is not None and kind in _TAGGED
        return ref

    def enumerator(self, name: str) -> tuple[Ref, int] | None:
        """Return an enum and a value as :meth:`find` does a type."""
        pairs = (each.enumerator(name, own=True) for each in self._all.values())
        return self._used(next(filter(None, pairs), None))

    def function(self, name: str) -> Ref | None:
        """Return the type of a function as :meth:`find` does a type."""
        refs = (each.function(name, own=True) for each in self._all.values())
        return self._used(next(filter(None, refs), None))

    def variable(self, name: str) -> Ref | None:
        """Return the type of a variable as :meth:`find` does a type."""
        refs = (each.variable(name) for each in self._all.values())
        return self._used(next(filter(None, refs), None))

    def _used(self, found: _Found) -> _Found:
        self.is_used |= found is not None
        return found


def register(prog: drgn.Program, types: Types, address: Address | None = None) -> None:
    """Let a program find types and objects, after other finders.

    :param address: by default, the program's own symbols
    """

    def symbol(name: str) -> int | None:
        try:
            return int(prog.symbol(name).address)
        except LookupError:
            return None

    def find_type(
        prog: drgn.Program, kinds: drgn.TypeKindSet, name: str, filename: str | None
    ) -> drgn.Type | None:
        for kind in TypeKind:
            # BTF does not tell in which file a type is defined: of several, none is taken.
            find = types.find if filename is None else types.only
            if kind in kinds and (ref := find(kind, name)):
                return build(prog, ref)
        return None

    def find_object(
        prog: drgn.Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> drgn.Object | None:
        if filename is not None:
            return None
        if flags & FindObjectFlags.CONSTANT and (pair := types.enumerator(name)):
            return drgn.Object(prog, build(prog, pair[0]), pair[1])
        ref = types.variable(name) if flags & FindObjectFlags.VARIABLE else None
        if ref is None and flags & FindObjectFlags.FUNCTION:
            ref = types.function(name)
        if ref is None or (place := (address or symbol)(name)) is None:
            return None
        return drgn.Object(prog, build(prog, ref), address=place)

    if TYPES not in prog.registered_type_finders():
        prog.register_type_finder(TYPES, find_type, enable_index=-1)
    if OBJECTS not in prog.registered_object_finders():
        prog.register_object_finder(OBJECTS, find_object, enable_index=-1)
