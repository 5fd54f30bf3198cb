# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols of type packs are found as drgn finds those of an ELF file."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kcensus.sources.debuginfo.packs.symbols import Columns, SymbolTable, kernel_table, module_table
from kcensus.sources.types.table import BadTypes
from tests.unit.sources.packs.synthetic import FUNC, GLOBAL, HIGH, LOCAL, LOW, WEAK, table

OFFSET = 0x1000000


def kernel(*rows: tuple[str, int, int, int, int]) -> SymbolTable:
    return kernel_table(table(*rows), (LOW, HIGH), OFFSET)


def names(symbols: SymbolTable, address: int) -> list[str]:
    return [symbol.name for symbol in symbols.at(address + OFFSET)]


def test_the_closest_then_shortest_then_strongest_symbol_comes_first() -> None:
    symbols = kernel(
        ("outer", LOW, 0x100, 0, GLOBAL),
        ("local", LOW + 0x10, 0x20, 0, LOCAL),
        ("weak", LOW + 0x10, 0x20, 0, WEAK),
        ("long", LOW + 0x10, 0x40, 0, GLOBAL),
        ("again", LOW + 0x10, 0x20, 0, WEAK),
    )
    assert names(symbols, LOW + 0x18) == ["weak", "again", "local", "long", "outer"]
    assert names(symbols, LOW + 0x38) == ["long", "outer"]
    assert names(symbols, LOW + 0x80) == ["outer"]
    assert names(symbols, LOW + 0x100) == names(symbols, LOW - 1) == []


def test_a_symbol_without_size_ends_with_its_section_or_at_the_next_symbol() -> None:
    symbols = kernel(
        ("before", LOW, 0x10, 0, GLOBAL),
        ("assembly", LOW + 0x20, 0, 0, GLOBAL),
        ("after", LOW + 0x800, 0x10, 0, GLOBAL),
        ("end", LOW + 0x900, 0, 0, GLOBAL),
    )
    assert names(symbols, LOW + 0x10) == []
    assert names(symbols, LOW + 0x7FF) == ["assembly"]
    assert names(symbols, LOW + 0x810) == []
    assert names(symbols, LOW + 0xFFF) == ["end"]
    assert names(symbols, LOW + 0x1000) == []


def test_symbols_outside_of_the_image_do_not_move() -> None:
    symbols = kernel(("per_cpu", 0x40, 8, 1, GLOBAL), ("variable", LOW + 0x1000, 8, 1, GLOBAL))
    (per_cpu,), (variable,) = symbols.named("per_cpu"), symbols.named("variable")
    assert (per_cpu.address, variable.address) == (0x40, LOW + 0x1000 + OFFSET)


def test_among_symbols_of_one_name_drgn_takes_the_strongest_then_the_first() -> None:
    symbols = kernel(
        ("twice", LOW + 0x40, 8, 0, LOCAL),
        ("twice", LOW, 8, 0, LOCAL),
        ("thrice", LOW + 0x80, 8, 0, LOCAL),
        ("thrice", LOW + 0x90, 8, 0, GLOBAL),
        ("thrice", LOW + 0xA0, 8, 0, WEAK),
    )
    assert symbols.named("twice")[0].address == LOW + 0x40 + OFFSET
    assert symbols.named("thrice")[0].address == LOW + 0x90 + OFFSET
    assert [len(symbols.named(name)) for name in ("twice", "thrice", "wice", "")] == [2, 3, 0, 0]
    assert len(symbols.all()) == 5


def test_symbols_of_a_module_lie_in_its_sections() -> None:
    columns = table(("function", 0x10, 8, 0, FUNC), ("init", 0x10, 8, 1, FUNC))
    (symbol,) = module_table(columns, [0xFFFFFFFFC0000000, None]).all()
    assert (symbol.name, symbol.address) == ("function", 0xFFFFFFFFC0000010)


def test_columns_survive_and_contradictions_are_refused() -> None:
    columns = table(("one", LOW, 8, 0, FUNC), ("two", 1, 8, 1, FUNC), ("three", 0, 0, 1, LOCAL))
    data = columns.to_bytes()
    again = Columns.from_bytes(data)
    for old, new in zip(columns, again, strict=True):
        assert (
            old == new
            if isinstance(old, bytes)
            else np.asarray(old).tolist() == np.asarray(new).tolist()
        )
    counts = struct.unpack_from("<III", data)
    for bad in (
        *(b"", data[:-1], data + b"\0", data[:-1] + b"x"),
        *(data.replace(b"\0two\0", b"\0t\0o\0"), struct.pack("<III", 1 << 30, *counts[1:])),
        data.replace(b"\1\0" * 2, b"\7\0" * 2),
    ):
        with pytest.raises(BadTypes):
            Columns.from_bytes(bad)
