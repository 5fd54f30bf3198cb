# SPDX-License-Identifier: LGPL-2.1-or-later
"""Starts and ends of functions of the kernel and its modules, from their symbols in memory."""

from __future__ import annotations

import bisect
from contextlib import suppress
from functools import cached_property

import drgn
import numpy as np
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import address_to_module, module_address_regions

from kcensus.engine.layout import number_dtype
from kcensus.kernel.code.flow import Extent
from kcensus.kernel.names import ABSENT, MISSING

_MAX_CODE = 1 << 16
"""Bytes of one function."""
_MAX_LAST = 1 << 12
"""Bytes of the last function of a module, which has no known end."""
_MAX_SYMBOLS = 1 << 22
_MAPPING = "$"
"""First character of the symbols that mark code and data on Arm; ``kallsyms`` of the kernel itself
lacks them."""


class Functions:
    """The functions of a kernel."""

    def __init__(self, prog: drgn.Program) -> None:
        self.prog = prog
        self._modules: dict[int, tuple[list[int], list[str]]] = {}
        self._in_modules: dict[int, Extent | None] = {}
        self._named: set[int] = set()

    def addresses(self, name: str) -> list[int]:
        """Return the addresses of the functions with a name; none without symbols."""
        found = self.places(name)
        self._named.update(found)
        return found

    @property
    def misplaced(self) -> int:
        """Number of functions found by name, where :attr:`starts`, if read, have no symbol."""
        starts = self.__dict__.get("starts") or [0]
        return sum(
            starts[bisect.bisect_left(starts, address)] != address
            for address in self._named
            if starts[0] < address < starts[-1]
        )

    def places(self, name: str) -> list[int]:
        """Return the addresses of the symbols with a name; none without symbols."""
        try:
            return [int(symbol.address) for symbol in self.prog.symbols(name)]
        except MISSING:
            # A capsule of an earlier version lacks the names of attempts.
            return []

    @cached_property
    def starts(self) -> list[int]:
        """Starts of the kernel's symbols from kallsyms in memory, ascending.

        In ELF symbols, a look-up takes 2 ms, and a capsule would need all of them.
        """
        try:
            place, count = self.places("kallsyms_offsets")[0], self._count()
            number = number_dtype(self.prog, "i4")
            offsets = np.frombuffer(self.prog.read(place, 4 * count), number).astype(np.int64)
            base = self.places("kallsyms_relative_base")
            if not base:
                # Since v7.0 or so (commit not verified), each is relative to its own place.
                every = np.uint64(place) + (offsets + 4 * np.arange(count)).astype(np.uint64)
                return sorted(every.tolist())
            start = np.uint64(self.prog.read_u64(base[0]))
        except (LookupError, IndexError, drgn.FaultError):
            return sorted({int(each.address) for each in self.prog.symbols()})
        # With CONFIG_KALLSYMS_ABSOLUTE_PERCPU (up to v6.14, commit not verified), numbers below 0
        # are relative to the base, the others are addresses of per-CPU variables.
        below = offsets[offsets < 0]
        distance = -1 - below if len(below) else offsets & 0xFFFFFFFF
        return sorted((start + distance.astype(np.uint64)).tolist())

    def _count(self) -> int:
        """Return ``kallsyms_num_syms``, an unsigned int or, before v4.20, an unsigned long.

        Such a long in big-endian order seems to be 0.
        """
        count = int(self.prog.read_u32(self.places("kallsyms_num_syms")[0]))
        if not 0 < count <= _MAX_SYMBOLS:
            raise LookupError("kallsyms_num_syms is impossible")
        return count

    def extent(self, address: int) -> Extent | None:
        """Return the start and the end of the function at an address."""
        starts = self.starts
        after = bisect.bisect_right(starts, address)
        # Modules are behind all of the kernel, or before it.
        if 0 < after < len(starts) and address < starts[after - 1] + _MAX_CODE:
            return starts[after - 1], min(starts[after], starts[after - 1] + _MAX_CODE)
        if address not in self._in_modules:
            self._in_modules[address] = self._extent_in_module(address)
        return self._in_modules[address]

    def _extent_in_module(self, address: int) -> Extent | None:
        try:
            symbol = self.prog.symbol(address)
            return int(symbol.address), int(symbol.address + min(symbol.size, _MAX_CODE))
        except MISSING:
            pass
        starts, _ = self.module_symbols(address)
        row = bisect.bisect_right(starts, address)
        if not row > 0:
            return None
        start = starts[row - 1]
        end = starts[row] if row < len(starts) else start + _MAX_LAST
        # The symbol after the last function may be data, far behind.
        return start, min(end, start + _MAX_CODE, self._end_of_region(address))

    def _end_of_region(self, address: int) -> int:
        with suppress(*ABSENT, AttributeError, ValueError):
            module = address_to_module(self.prog, address)
            for low, size in module_address_regions(module) if module else ():
                if low <= address < low + size:
                    return int(low + size)
        return 1 << 64

    def module_symbols(self, address: int) -> tuple[list[int], list[str]]:
        """Return starts, ascending, and names of the symbols of the module at an address."""
        try:
            module = address_to_module(self.prog, address)
            base = int(module) if module else 0
            if base and base not in self._modules:
                every = {
                    int(each.address): each.name
                    for each in module_kallsyms(module)
                    if not each.name.startswith(_MAPPING)
                }
                self._modules[base] = sorted(every), [every[start] for start in sorted(every)]
        except (
            *(*MISSING, AttributeError, ValueError),
            # The number of symbols of a damaged module.
            *(drgn.OutOfBoundsError, MemoryError, OverflowError),
        ):
            return [], []
        return self._modules.get(base, ([], []))
