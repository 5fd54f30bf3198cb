# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of functions and variables by any address in them, and names of their modules."""

from __future__ import annotations

import bisect
import contextlib
from typing import NamedTuple

import drgn
from drgn import Object, Program, sizeof
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import address_to_module

from kcensus.arch import KERNEL, architecture_of
from kcensus.engine.memory import direct_map_start
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.names import MISSING, decode

_UNKNOWN = (*MISSING, AttributeError, ValueError)
_MAX_SYMBOLS = 1 << 20
_MAX_MODULES = 1 << 31
"""Largest distance of modules below the kernel."""
_LABEL = "_after_hwframe"
"""End of the names of labels in entry functions: without sizes, kallsyms makes them functions."""


def image_range(prog: Program) -> range:
    """Return the addresses at which the kernel, its modules and their variables can be.

    Addresses of other memory may be among them.
    """
    architecture = architecture_of(prog.platform)
    image = architecture.image if architecture is not None else KERNEL
    with contextlib.suppress(*_UNKNOWN):
        # Until Linux kernel commit 14c127c957c1 ("arm64: mm: Flip kernel VA space") (in v5.4),
        # arm64 had the image in the lower half of the kernel's addresses.
        text = int(prog.symbol("_text").address)
        if text < image:
            return range(max(text - _MAX_MODULES, 0), image)
        # With addresses of fewer bits, such as 39 or 42, the direct map begins there, too.
        end = direct_map_start(prog) + (int(prog["max_pfn"]) << int(prog["PAGE_SHIFT"]))
        if image < end <= text:
            return range(end, 1 << 64)
    return range(image, 1 << 64)


class Place(NamedTuple):
    """The symbol at an address."""

    name: str
    """Name of the symbol, or empty. Not safe to print, like the module's."""
    distance: int
    """Bytes from the start of the symbol."""
    module: str
    """Empty for the kernel itself."""


class Symbols:
    """Names of functions and variables, also of modules without debug info."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self._places: dict[int, Place] = {}
        self._tables: dict[int, list[tuple[int, int, str]]] = {}
        """Start, size and name of the symbols of each module, by its address."""
        self.damaged: set[str] = set()
        """Modules whose symbols contradict their number; not safe to print."""

    def __call__(self, address: int) -> tuple[str, str]:
        """Return name and module of a function, or its address without a symbol."""
        place = self.place(address)
        return place.name or (f"0x{address:x}" if address else "?"), place.module

    def described(self, address: int) -> str:
        """Return a function as the kernel prints it: ``name [module]``."""
        return described(*self(address))

    def variable(self, address: int) -> str:
        """Return a variable, such as ``name+0x20 [module]``; empty without a symbol."""
        name, distance, module = self.place(address)
        return described(f"{name}+0x{distance:x}" if distance else name, module) if name else ""

    def place(self, address: int) -> Place:
        """Return the symbol at an address, its distance and its module."""
        if address not in self._places:
            self._places[address] = self._find(address)
        return self._places[address]

    def _find(self, address: int) -> Place:
        module, module_name = None, ""
        with contextlib.suppress(*_UNKNOWN):
            module = address_to_module(self.prog, address)
            module_name = decode(module.name.string_()) if module else ""
        with contextlib.suppress(*MISSING):
            symbol = self.prog.symbol(address)
            if symbol.name.endswith(_LABEL):
                symbol = self.prog.symbol(symbol.name.removesuffix(_LABEL))
            return Place(str(symbol.name), address - int(symbol.address), module_name)
        if module_name and module is not None:
            # The kernel has the symbols of modules without debug info.
            table = self._table(module)
            row = bisect.bisect_right(table, address, key=lambda symbol: symbol[0])
            start, size, name = table[row - 1] if row else (0, 0, "")
            # Symbols of assembly have no size.
            if row and (address < start + size or not size):
                return Place(name, address - start, module_name)
        return Place("", 0, module_name)

    def _table(self, module: Object) -> list[tuple[int, int, str]]:
        base = int(module.value_())
        if base not in self._tables:
            self._tables[base] = []
            self._tables[base] = sorted(module_symbols(module))
            names = [name for _, _, name in self._tables[base]]
            # The kernel keeps no symbol without a name, but the first one, which is null.
            is_nameless = names.count("") > 1 and not _is_livepatch(module)
            if is_nameless or (not names and _has_symbols(module)):
                self.damaged.add(decode(module.name.string_()))
        return self._tables[base]


def module_symbols(module: Object) -> list[tuple[int, int, str]]:
    """Return address, size and name of the symbols of a module; nothing where they are damaged."""
    with contextlib.suppress(*_UNKNOWN, drgn.OutOfBoundsError, MemoryError):
        return _symbols(module)
    return []


def _is_livepatch(module: Object) -> bool:
    """Return whether the kernel keeps all symbols of a module, those of sections included.

    Since Linux kernel commit 1ce15ef4f605 ("module: preserve Elf information for livepatch
    modules") (in v4.7).
    """
    with contextlib.suppress(*_UNKNOWN):
        return bool(module.klp)
    return False


def _has_symbols(module: Object) -> bool:
    """Return whether the kernel has symbols of a module, in memory that is readable."""
    with contextlib.suppress(*_UNKNOWN):
        home = module.kallsyms
        size = int(home.num_symtab) * sizeof(home.symtab[0])
        return size > 0 and bool(module.prog_.read(int(home.symtab), min(size, _MAX_SYMBOLS)))
    return False


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
