# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols of a kernel without debug info: names and addresses as columns, found by either."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
from drgn import Program, Symbol, SymbolBinding, SymbolKind

from kcensus.arch import KERNEL, KNOWN
from kcensus.sources.debuginfo.kallsyms.symbol_names import SymbolNames

FINDER = "kcensus kallsyms"
"""Name of the symbol finder."""

# Prefixes of system calls of 32 bit.
_SECOND = tuple(prefix for each in KNOWN for prefix in each.syscalls[1:])
# Bounds of sections, such as __sched_text_start: debug info has them without a kind.
_BOUNDARY = re.compile(r"_\w*(?:text|_start|_begin|_end)")
_WEAK = "vVwW"
# Not A: scripts/kallsyms.c makes that of static per-CPU variables, too.
_GLOBAL = "BCDGRSTVW"
# nm(1) has a letter of its own for weak objects. Absolute symbols are per-CPU variables.
_FUNCTIONS = "tTwW"
_OBJECTS = "aAbBcCdDgGrRsSvV"


class Symbols:
    """A symbol table, in ascending order of addresses.

    :param names: types and names
    :param address: uint64, as many, ascending
    """

    def __init__(self, names: SymbolNames, address: npt.NDArray[np.uint64]) -> None:
        if len(names) != len(address):
            raise ValueError("there must be as many addresses as names")
        self.name_column, self._types = names, names.types
        self.address_column = address
        """Addresses of all symbols, shape (n,), ascending. Not to be changed."""
        self.doubts: dict[str, str] = {}
        """By name of a symbol in doubt, the reason as a clause; such symbols count as missing."""
        self._doubt: Callable[[str], str | None] = lambda name: None
        self._rows: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._types)

    def suspect(self, doubts: dict[str, str], doubt: Callable[[str], str | None]) -> None:
        """Let some symbols be in doubt.

        :param doubts: reasons by name
        :param doubt: returns why a name that is not in the table is in doubt, or None
        """
        self.doubts.update(doubts)
        self._doubt = doubt
        self._rows.clear()

    def _named(self, name: str) -> list[int]:
        """Return the rows of a name, ascending; none if it is in doubt."""
        if name in self.doubts:
            return []
        if name not in self._rows:
            rows = self._rows[name] = self.name_column.named(name)
            if not rows and (reason := self._doubt(name)):
                self.doubts[name] = reason
        return self._rows[name]

    @functools.cached_property
    def _ends(self) -> npt.NDArray[np.uint64]:
        """The next higher address after each symbol; its own if there is none of its kind."""
        column = self.address_column
        after = np.searchsorted(column, column, side="right")
        ends = column[np.minimum(after, len(column) - 1)]
        return np.where((column < KERNEL) & (ends >= KERNEL), column, ends)

    @functools.cached_property
    def _data(self) -> range:
        """The addresses of data, which may have the types of functions."""
        start, end = self.address("_sdata"), self.address("_edata")
        return range(start or 0, end or 0)

    def names(self) -> list[str]:
        """Return all names, in ascending order of addresses."""
        return self.name_column.all()

    def types(self) -> list[str]:
        """Return the types of all symbols, as of nm(1): ``T`` a global function, ``d`` static data.

        Where the section of data can be executed, as in 7.3, data has the types of functions;
        :meth:`symbol` knows better.
        """
        return list(self._types)

    def addresses(self, name: str) -> list[int]:
        """Return the addresses of all symbols of this name, ascending."""
        return [int(self.address_column[row]) for row in self._named(name)]

    def address(self, name: str) -> int | None:
        """Return the address of the symbol, or None if there is none or no single one.

        Static functions and variables of several files may have the same name. Then it is the
        global symbol, of which a kernel has one; without a global one any choice would be a guess.
        """
        rows = self._named(name)
        places = {int(self.address_column[row]) for row in rows}
        if len(places) > 1:
            globals_ = (row for row in rows if self._types[row] in _GLOBAL)
            places = {int(self.address_column[row]) for row in globals_}
        return places.pop() if len(places) == 1 else None

    def size(self, name: str) -> int | None:
        """Return the bytes from :meth:`address` to the next higher address of a symbol.

        This is an upper bound of the size: there may be padding, and symbols without a name here.
        None without an address, or for the last symbol.
        """
        if (address := self.address(name)) is None:
            return None
        row = int(np.searchsorted(self.address_column, np.uint64(address)))
        return int(self._ends[row]) - address or None

    def containing(self, address: int) -> Sequence[int]:
        """Return the rows of the symbols at the highest address that is not above ``address``."""
        column = self.address_column
        if not KERNEL <= address < 1 << 64:
            return ()
        stop = int(np.searchsorted(column, np.uint64(address), side="right"))
        if not stop or address >= self._ends[stop - 1]:
            return ()
        return range(int(np.searchsorted(column, column[stop - 1])), stop)

    def symbol(self, row: int) -> Symbol:
        """Return a row as a symbol of drgn, whose size is an upper bound."""
        kind, name = self._types[row], self.name_column[row]
        address = int(self.address_column[row])
        if kind in _WEAK:
            binding = SymbolBinding.WEAK
        elif kind in _GLOBAL:
            binding = SymbolBinding.GLOBAL
        else:
            binding = SymbolBinding.LOCAL if kind.islower() else SymbolBinding.UNKNOWN
        symbol_kind = SymbolKind.UNKNOWN
        if kind in _FUNCTIONS and address not in self._data:
            symbol_kind = SymbolKind.FUNC
        elif kind in _FUNCTIONS or kind in _OBJECTS:
            symbol_kind = SymbolKind.OBJECT
        return Symbol(name, address, int(self._ends[row]) - address, binding, symbol_kind)

    def find(self, prog: Program, name: str | None, address: int | None, one: bool) -> list[Symbol]:
        """Find symbols, as ``drgn.Program.register_symbol_finder()`` demands."""
        rows: Iterable[int] = range(len(self))
        if address is not None:
            rows = self.containing(address)
        if name is not None:
            named = self._named(name)
            rows = named if address is None else sorted({*named}.intersection(rows))
        # The order of preference of drgn among symbols of an ELF file: global, weak, local.
        if one:
            rows = sorted(rows, key=self._preference)[:1]
        return [self.symbol(row) for row in rows]

    def _preference(self, row: int) -> tuple[bool, bool, int]:
        kind, name = self._types[row], self.name_column[row]
        binding = 1 if kind in _WEAK else 0 if kind in _GLOBAL else 2
        # A system call without arguments is one function with a name for 32 bit, too.
        return bool(_BOUNDARY.fullmatch(name)), name.startswith(_SECOND), binding

    def register(self, prog: Program, enable_index: int | None = -1) -> None:
        """Let ``prog.symbol()`` find these symbols, by default after those of debug info."""
        prog.register_symbol_finder(FINDER, self.find, enable_index=enable_index)
