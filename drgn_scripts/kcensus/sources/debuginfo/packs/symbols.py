# SPDX-License-Identifier: LGPL-2.1-or-later
"""A symbol table as columns, with the answers of drgn's finder of ELF symbols."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.sources.debuginfo.packs.elf_symbols import UNKNOWN, ElfFile
from kcensus.sources.types.table import BadTypes

_COUNTS = struct.Struct("<III")
_MAX_SYMBOLS = 1 << 21
_MAX_SECTIONS = 1 << 16
_FIRST = 1
"""Flag of the symbol that a lookup of its name returns, among several of that name."""
_FUNC, _SECTION, _FILE, _TLS = 2, 3, 4, 6
_LOCAL, _GLOBAL, _WEAK, _UNIQUE = 0, 1, 2, 10
_MAX_NEAR = 64
Words = npt.NDArray[np.uint64]


def _precedence(binding: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return drgn's precedence of bindings: global, then weak, then local."""
    table = np.ones(16, np.uint8)
    table[[_GLOBAL, _UNIQUE]], table[_WEAK] = 3, 2
    ranks: npt.NDArray[np.uint8] = table[binding]
    return ranks


class Columns(NamedTuple):
    """Symbols by section, address and preference; and the sections' addresses and sizes."""

    address: Words
    """As linked; of a module, the offset in its section."""
    size: npt.NDArray[np.uint32]
    section: npt.NDArray[np.uint16]
    info: npt.NDArray[np.uint8]
    """``st_info``: binding and kind."""
    flags: npt.NDArray[np.uint8]
    names: bytes
    """Each between two NUL."""
    starts: Words
    sizes: Words

    def to_bytes(self) -> bytes:
        """Return the columns, for a pack."""
        steps = np.diff(self.address, prepend=np.uint64(0))  # compress better, and wrap around
        columns = (self.starts, self.sizes, steps, self.size, self.section, self.info, self.flags)
        counts = _COUNTS.pack(len(self.address), len(self.starts), len(self.names))
        return b"".join((counts, *(column.tobytes() for column in columns), self.names))

    def address_of(self, name: str) -> int | None:
        """Return the linked address of a symbol."""
        at = self.names.find(b"\0" + name.encode() + b"\0")
        return int(self.address[self.names.count(b"\0", 0, at)]) if at >= 0 else None

    @staticmethod
    def from_bytes(data: bytes) -> Columns:
        """Return the columns of untrusted data.

        :raises BadTypes: they contradict each other
        """
        if len(data) < _COUNTS.size:
            raise BadTypes("a symbol table is too short")
        count, sections, names = _COUNTS.unpack_from(data)
        if len(data) != _COUNTS.size + 16 * sections + 16 * count + names:
            raise BadTypes("a symbol table has the wrong length")
        if count > _MAX_SYMBOLS or sections > _MAX_SECTIONS:
            raise BadTypes("a symbol table is too long")
        place, columns = _COUNTS.size, []
        for length, dtype in (
            *((sections, "<u8"), (sections, "<u8"), (count, "<u8")),
            *((count, "<u4"), (count, "<u2"), (count, "u1"), (count, "u1")),
        ):
            columns.append(np.frombuffer(data, dtype, length, place))
            place += columns[-1].nbytes
        starts, sizes, steps, size, section, info, flags = columns
        text = data[place:]
        if text.count(b"\0") != count + 1 or text[:1] != b"\0" or text[-1:] != b"\0":
            raise BadTypes("the names of a symbol table do not match it")
        if ((section >= sections) & (section != UNKNOWN)).any():
            raise BadTypes("a symbol is in an unknown section")
        return Columns(
            np.cumsum(steps, dtype="<u8"), size, section, info, flags, text, starts, sizes
        )


def columns_of(file: ElfFile) -> Columns:
    """Return the symbols of an ELF file that a lookup can return."""
    kinds = file.symbols["info"] & 15
    rows = np.flatnonzero((kinds != _SECTION) & (kinds != _FILE) & (kinds != _TLS))
    rows = rows[[bool(file.symbol_names[row]) for row in rows.tolist()]]
    symbols = file.symbols[rows]
    rank = _precedence(symbols["info"] >> 4)
    best: dict[bytes, int] = {}
    several = set()
    for row, place in enumerate(rows.tolist()):
        name = file.symbol_names[place]
        known = best.setdefault(name, row)
        if known != row:
            several.add(name)
            if rank[row] > rank[known]:
                best[name] = row
    flags = np.zeros(len(rows), np.uint8)
    flags[[best[name] for name in several]] = _FIRST
    size = np.minimum(symbols["size"], 0xFFFFFFFF).astype("<u4")
    # The last one at an address is the one that drgn prefers: it ends first, its binding is the
    # strongest, and it comes first in the file.
    keys = (-np.arange(len(rows)), rank, -size.astype(np.int64), symbols["value"])
    order = np.lexsort((*keys, symbols["section"]) if file.extent == (0, 0) else keys)
    names = b"\0".join((b"", *(file.symbol_names[rows[row]] for row in order.tolist()), b""))
    return Columns(
        symbols["value"][order],
        size[order],
        symbols["section"][order],
        symbols["info"][order],
        flags[order],
        names,
        file.start,
        file.size,
    )


class SymbolTable:
    """The symbols of the kernel or of a module, where they are in memory.

    :param address: of each symbol
    :param sections: start of each section
    :param is_known: which symbols have an address
    """

    def __init__(
        self, columns: Columns, address: Words, sections: Words, is_known: npt.NDArray[np.bool_]
    ) -> None:
        self._columns, self._address, self._is_known = columns, address, is_known
        self._sections = sections
        self._nul = np.flatnonzero(np.frombuffer(columns.names, np.uint8) == 0)
        rows = np.flatnonzero(is_known)
        self._order = rows[np.argsort(address[rows], kind="stable")]
        self._start = address[self._order]
        size = columns.size[self._order].astype(np.uint64)
        self._end = self._start + np.minimum(size, ~self._start)
        self._ends = np.maximum.accumulate(self._end)
        self._has_size = size > 0

    def _name(self, row: int) -> str:
        start, end = self._nul[row : row + 2].tolist()
        return self._columns.names[start + 1 : end].decode(errors="backslashreplace")

    def _symbol(self, row: int) -> drgn.Symbol:
        info = int(self._columns.info[row])
        binding, kind = info >> 4, info & 15
        is_binding = binding <= _WEAK or binding == _UNIQUE
        return drgn.Symbol(
            self._name(row),
            int(self._address[row]),
            int(self._columns.size[row]),
            drgn.SymbolBinding(binding + 1) if is_binding else drgn.SymbolBinding.UNKNOWN,
            drgn.SymbolKind(kind) if kind <= _TLS or kind == 10 else drgn.SymbolKind.UNKNOWN,
        )

    def named(self, name: str) -> list[drgn.Symbol]:
        """Return the symbols of a name, the preferred one first."""
        wanted, names, at = b"\0" + name.encode() + b"\0", self._columns.names, -1
        rows = []
        while (at := names.find(wanted, at + 1)) >= 0:
            rows.append(int(np.searchsorted(self._nul, at)))
        rows = [row for row in rows if self._is_known[row]]
        rows.sort(key=lambda row: not self._columns.flags[row] & _FIRST)
        return [self._symbol(row) for row in rows]

    def addresses(self, name: str) -> list[int]:
        """Return the addresses of all symbols of a name, ascending."""
        return sorted(symbol.address for symbol in self.named(name))

    def address(self, name: str) -> int | None:
        """Return the address of a symbol, or None if there is none or no single one.

        Of several with the name, it is the global one.
        """
        symbols = self.named(name)
        if len({symbol.address for symbol in symbols}) > 1:
            symbols = [each for each in symbols if each.binding == drgn.SymbolBinding.GLOBAL]
        places = {symbol.address for symbol in symbols}
        return places.pop() if len(places) == 1 else None

    def all(self) -> list[drgn.Symbol]:
        """Return all symbols, by address."""
        return [self._symbol(row) for row in self._order.tolist()]

    def at(self, address: int) -> list[drgn.Symbol]:
        """Return the symbols that contain an address, the preferred one first.

        Without any, a symbol without a size in the same section, if no symbol ends after it.
        """
        wanted = np.uint64(address)
        end = int(np.searchsorted(self._start, wanted, side="right"))
        if not end:
            return []
        # No symbol before the first one with a later running maximum reaches the address.
        first = int(np.searchsorted(self._ends[:end], wanted, side="right"))
        places = first + np.flatnonzero((self._end[first:end] > wanted) & self._has_size[first:end])
        if len(places):
            return [self._symbol(row) for row in self._order[places[::-1]].tolist()]
        sizeless = np.flatnonzero(~self._has_size[max(end - _MAX_NEAR, 0) : end])
        if not len(sizeless):
            return []
        place = max(end - _MAX_NEAR, 0) + int(sizeless[-1])
        row, section = int(self._order[place]), int(self._columns.section[self._order[place]])
        if section == UNKNOWN or self._start[place] < self._ends[end - 1]:
            return []
        into = address - int(self._sections[section])
        return [self._symbol(row)] if 0 <= into < int(self._columns.sizes[section]) else []


def kernel_table(columns: Columns, extent: tuple[int, int], offset: int) -> SymbolTable:
    """Return the table of a kernel that is ``offset`` bytes behind its linked addresses."""
    low, high = np.array(extent, np.uint64)
    is_moved = (columns.address >= low) & (columns.address < high)
    address = np.where(is_moved, columns.address + np.uint64(offset), columns.address)
    everything = np.ones(len(address), np.bool_)
    return SymbolTable(columns, address, columns.starts + np.uint64(offset), everything)


def module_table(columns: Columns, places: list[int | None]) -> SymbolTable:
    """Return the table of a module by the addresses of its sections.

    :param places: address of each section, None where it is not in memory
    """
    starts = np.array([place or 0 for place in places] + [0], np.uint64)
    has_place = np.array([place is not None for place in places] + [False])
    section = np.minimum(columns.section, len(places)).astype(np.int64)
    return SymbolTable(columns, columns.address + starts[section], starts, has_place[section])
