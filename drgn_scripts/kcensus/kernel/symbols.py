# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of functions and variables by any address in them, and of the modules that they are in."""

from __future__ import annotations

import bisect
import contextlib
from typing import NamedTuple

import drgn
from drgn import Object, Program
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import address_to_module

from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import ABSENT, decode
from kcensus.sources.capsule import NotRecorded

_UNKNOWN = (*ABSENT, NotRecorded, AttributeError, ValueError)
_MAX_SYMBOLS = 1 << 20
"""Of a module: more are damage."""


class Place(NamedTuple):
    """What is at an address."""

    name: str
    """Of the symbol; empty where there is none. Not safe to print, like the module's."""
    distance: int
    """Bytes from the start of what has that name."""
    module: str
    """Empty for the kernel itself."""


class _Table(NamedTuple):
    """The symbols of a module as the kernel has them, by address."""

    starts: list[int]
    sizes: list[int]
    """0 where a symbol has none, such as one of assembly."""
    names: list[str]


class Symbols:
    """Names of functions and variables, also of modules without debug info."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self._places: dict[int, Place] = {}
        self._tables: dict[int, _Table] = {}
        """Of each module, by its address."""

    def __call__(self, address: int) -> tuple[str, str]:
        """Return name and module of a function; its address where it has no symbol."""
        place = self.place(address)
        return place.name or (f"0x{address:x}" if address else "?"), place.module

    def described(self, address: int) -> str:
        """Return a function as the kernel prints it: ``name [module]``."""
        return described(*self(address))

    def variable(self, address: int) -> str:
        """Return a variable, such as ``name+0x20 [module]``; empty where it has no symbol."""
        name, distance, module = self.place(address)
        return described(f"{name}+0x{distance:x}" if distance else name, module) if name else ""

    def place(self, address: int) -> Place:
        """Return what is at an address."""
        if address not in self._places:
            self._places[address] = self._find(address)
        return self._places[address]

    def _find(self, address: int) -> Place:
        module, module_name = None, ""
        with contextlib.suppress(*_UNKNOWN):
            module = address_to_module(self.prog, address)
            module_name = decode(module.name.string_()) if module else ""
        with contextlib.suppress(LookupError, NotRecorded):
            symbol = self.prog.symbol(address)
            return Place(str(symbol.name), address - int(symbol.address), module_name)
        if module_name and module is not None:
            # The kernel has the symbols of modules without debug info.
            starts, sizes, names = self._table(module)
            row = bisect.bisect_right(starts, address) - 1
            distance = address - starts[row] if row >= 0 else 0
            if row >= 0 and (distance < sizes[row] or not sizes[row]):
                return Place(names[row], distance, module_name)
        return Place("", 0, module_name)

    def _table(self, module: Object) -> _Table:
        base = int(module.value_())
        if base not in self._tables:
            self._tables[base] = _Table([], [], [])
            with contextlib.suppress(*_UNKNOWN, drgn.OutOfBoundsError, MemoryError):
                symbols = sorted(_symbols(module))
                self._tables[base] = _Table(
                    [start for start, _, _ in symbols],
                    [size for _, size, _ in symbols],
                    [name for _, _, name in symbols],
                )
        return self._tables[base]


def _symbols(module: Object) -> list[tuple[int, int, str]]:
    # Since Linux kernel commit 8244062ef1e5 ("modules: fix longstanding /proc/kallsyms vs module
    # insertion race.") (in v4.5), the symbols are in a struct of their own.
    home = module.kallsyms if module.prog_.type("struct module").has_member("kallsyms") else module
    if not 0 < int(home.num_symtab) <= _MAX_SYMBOLS:
        return []
    return [(symbol.address, symbol.size, str(symbol.name)) for symbol in module_kallsyms(module)]


@once
def symbols_of(kernel: Kernel) -> Symbols:
    """Return the names of a kernel's functions and variables."""
    return Symbols(kernel.prog)


def described(name: str, module: str) -> str:
    """Return a name as the kernel prints it: ``name [module]``."""
    return f"{name} [{module}]" if module else name
