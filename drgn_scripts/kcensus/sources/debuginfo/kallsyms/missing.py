# SPDX-License-Identifier: LGPL-2.1-or-later
"""Doubt that a symbol is missing: its name may be in the table with a flipped bit.

Names differ in a single bit of a code or token by chance, too. No doubt is raised by a name that is
proven to be right by the exported symbols, by the order of names, or by its use in kcensus.
"""

from __future__ import annotations

import functools

import numpy as np

from kcensus.sources.debuginfo.kallsyms.decode import Read
from kcensus.sources.debuginfo.kallsyms.symbol_names import Array, BadKallsyms
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols
from kcensus.sources.debuginfo.lookups import lookups

_ORDER = "kallsyms_seqs_of_names"
# Made by the build of another symbol: of an exported one, and before a function.
_MADE = ("__ksymtab_", "__kstrtab_", "__kstrtabns_", "__kcrctab_", "__pfx_", "__cfi_", "__SC")
# Symbols beside d_hash_mask, which newer kernels lack.
_REAL = ("dq_hash_mask", "i_hash_mask")


class Missing:
    """Decides whether a name that is not in a table is missing.

    :param exported: the rows of exported symbols, ascending
    """

    def __init__(self, read: Read, table: Symbols, exported: Array) -> None:
        self._read, self._table, self._exported = read, table, exported

    @functools.cached_property
    def _order(self) -> Array | None:
        return _read_order(self._read, self._table)

    def __call__(self, name: str) -> str | None:
        """Return why a missing name is in doubt, as a clause, or None."""
        names = self._table.name_column
        for row in names.altered(name):
            if not self._is_right(row, names[row], name):
                return f"kallsyms has {names[row]}, which differs in a single bit of a code"
        for row in names.misspelled(name, self._sound):
            if names[row] not in _REAL and names[row] not in _known():
                return f"kallsyms has {names[row]}, which differs in a single bit of a token"
        return None

    @functools.cached_property
    def _sound(self) -> frozenset[int]:
        """The tokens in names of exported symbols, whose names are known to be right."""
        return self._table.name_column.tokens_of(self._exported)

    def _is_right(self, row: int, name: str, missing: str) -> bool:
        """Return whether the name of a row is right."""
        place = int(np.searchsorted(self._exported, row))
        if place < len(self._exported) and self._exported[place] == row:
            return True
        if name.startswith(_MADE) or name in _REAL or name in _known():
            return True
        return self._is_in_order(row, name, missing)

    def _is_in_order(self, row: int, name: str, missing: str) -> bool:
        """Return whether a row is where its name belongs, and not where ``missing`` would be."""
        order = self._order
        if order is None:
            return False
        first = self._place(name)
        last = first
        while last < len(order) and self._name(last) == name:
            if order[last] == row:
                # A symbol between both names proves which of them is at this place.
                return self._place(missing) not in (first, last + 1)
            last += 1
        return False

    def _name(self, place: int) -> str:
        assert self._order is not None
        return self._table.name_column[int(self._order[place])]

    def _place(self, name: str) -> int:
        """Return the place of the first name in the order that is not before ``name``."""
        assert self._order is not None
        low, high = 0, len(self._order)
        while low < high:
            middle = (low + high) // 2
            if self._name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low


@functools.cache
def _known() -> frozenset[str]:
    found = lookups()
    kinds = (found.variables, found.functions, found.objects, found.symbols)
    return frozenset[str]().union(*kinds)


def _read_order(read: Read, table: Symbols) -> Array | None:
    """Return the rows of all symbols in the order of their names, or None.

    Since Linux kernel commit 60443c88f3a8 ("kallsyms: Improve the performance of
    kallsyms_lookup_name()") (in v6.2), a table has them in numbers of 3 bytes. Kernels from about
    v6.10 on (commit not verified) have a symbol for it.
    """
    place = table.address(_ORDER)
    if place is None:
        return None
    try:
        data = np.frombuffer(read(place, 3 * len(table)), np.uint8).reshape(-1, 3)
    except BadKallsyms:
        return None
    order: Array = data[:, 0].astype(np.int32) << 16
    order |= data[:, 1].astype(np.int32) << 8
    order |= data[:, 2]
    return order if bool((order < len(table)).all()) else None
