# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols by VMCOREINFO, from tables of each era."""

from __future__ import annotations

import drgn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcensus.sources.debuginfo import kallsyms
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols
from tests.unit.sources.kallsyms.tables import BASE, ERAS, TABLES, many, program, write

CASES = [*((era, False) for era in ERAS), *((era, True) for era in ("4.6", "5.10", "6.4"))]


def columns(table: Symbols) -> list[tuple[str, str, int]]:
    rows = zip(table.types(), table.names(), table.address_column.tolist(), strict=True)
    return list(rows)


@pytest.mark.parametrize(("era", "percpu"), CASES)
@pytest.mark.parametrize("count", [1024, 1999])
def test_all_symbols_are_found(era: str, percpu: bool, count: int) -> None:
    symbols = many(count, percpu=percpu)
    written = write(symbols, era, percpu=percpu)
    table = kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    assert columns(table) == symbols


def test_a_long_name() -> None:
    symbols = many(1100)
    symbols[9] = ("t", "_RNv" + "Xy" * 200, symbols[9][2])
    written = write(symbols, "6.1")
    table = kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    assert columns(table) == symbols


def test_a_symbol_in_a_section_of_an_unknown_kind() -> None:
    symbols = many(1100)
    symbols[9] = ("?", *symbols[9][1:])
    written = write(symbols, "6.4")
    table = kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    assert columns(table) == symbols


@pytest.fixture
def table() -> Symbols:
    symbols = many(1100, percpu=True)
    symbols[10] = ("T", symbols[9][1], symbols[10][2])
    symbols[11] = ("W", "alias", symbols[12][2])
    symbols[13] = ("T", "__sched_text_start", symbols[14][2])
    written = write(symbols, "6.1", percpu=True)
    return kallsyms.load(program(written.vmcoreinfo(symbols), written.data))


def test_addresses_and_sizes(table: Symbols) -> None:
    assert table.address("_stext") == BASE
    assert table.address("nothing") is None
    assert table.size("nothing") is None
    assert table.size("_stext") == 16
    assert table.size("init_uts_ns") == 64
    assert table.size("__per_cpu_start") == 64
    assert table.size("current_task") is None
    # The last one, and of two the global one.
    last = int(table.address_column[-1])
    assert table.addresses("twice") == [last - 128, last]
    assert table.address("twice") is None
    assert table.address("function_5") == BASE + 16 + 6 * 48
    assert table.size("function_5") == 96


def test_a_percpu_variable_may_be_static() -> None:
    symbols = many(1100, percpu=True)
    symbols[1] = ("A", symbols[9][1], 64)
    written = write(symbols, "6.1", percpu=True)
    table = kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    assert table.address(symbols[9][1]) is None
    assert table.symbol(1).binding == drgn.SymbolBinding.UNKNOWN


def test_the_finder(table: Symbols) -> None:
    prog = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
    table.register(prog)
    symbol = prog.symbol(BASE + 20)
    assert (symbol.name, symbol.address, symbol.size) == ("function_0", BASE + 16, 48)
    assert symbol.kind == drgn.SymbolKind.FUNC
    assert symbol.binding == drgn.SymbolBinding.LOCAL
    assert prog.symbol("init_uts_ns").kind == drgn.SymbolKind.OBJECT
    assert [each.address for each in prog.symbols("twice")] == table.addresses("twice")
    # A weak symbol before a local one.
    address = table.address("alias")
    assert address is not None
    assert prog.symbol(address).name == "alias"
    assert {each.name for each in prog.symbols(address)} == {"alias", "function_8"}
    # A function before the start of its section.
    assert prog.symbol(table.addresses("__sched_text_start")[0]).name == "function_10"
    assert len(prog.symbols()) == len(table)
    # Places in a CPU's area are no addresses.
    for outside in (0, 64, BASE - 1, int(table.address_column[-1]) + 1, (1 << 64) - 1):
        assert prog.symbols(outside) == []


def test_data_in_an_executable_section() -> None:
    symbols = many(1100)
    place = symbols[-3][2]
    symbols[-3:] = [
        *(("T", "last_function", place - 8), ("D", "_sdata", place), ("T", "init_uts_ns", place)),
        *(("t", "variable", place + 8), ("D", "_edata", place + 64), ("t", "other", place + 64)),
    ]
    written = write(symbols, "7.0")
    table = kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    kinds = {name: table.symbol(row).kind for row, name in enumerate(table.names())}
    for name in ("init_uts_ns", "variable", "_edata"):
        assert kinds[name] == drgn.SymbolKind.OBJECT
    for name in ("last_function", "other", "_stext"):
        assert kinds[name] == drgn.SymbolKind.FUNC


@pytest.mark.parametrize("part", ["names", "token_table", "token_index", "offsets", "num_syms"])
def test_a_lost_page_is_refused(part: str) -> None:
    symbols = many(5000)
    written = write(symbols, "6.4")
    at = written.places["kallsyms_" + part] - TABLES
    end = min((at | 0xFFF) + 1, len(written.data))
    if part in ("names", "offsets"):
        at, end = (at | 0xFFF) + 1, (at | 0xFFF) + 4097
    assert end < len(written.data)
    written.data[at:end] = bytes(end - at)
    with pytest.raises(BadKallsyms):
        kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    with pytest.raises(BadKallsyms, match="is not in the dump"):
        kallsyms.load(program(written.vmcoreinfo(symbols), written.data[:at]))


@pytest.mark.parametrize("length", [b"\0", b"\x80\0"])
@pytest.mark.parametrize("row", [7, -1])
def test_a_lost_length_is_refused(row: int, length: bytes) -> None:
    symbols = many(1100)
    written = write(symbols, "6.4")
    first = kallsyms.load(program(written.vmcoreinfo(symbols), written.data)).name_column._first
    place = written.places["kallsyms_names"] - TABLES + int(first[row])
    written.data[place : place + len(length)] = length
    with pytest.raises(BadKallsyms):
        kallsyms.load(program(written.vmcoreinfo(symbols), written.data))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_wrong_places_are_refused(data: st.DataObject) -> None:
    symbols = many(1100)
    written = write(symbols, data.draw(st.sampled_from(["6.1", "6.4", "7.0"])))
    name = data.draw(st.sampled_from(sorted(written.places)))
    others = st.sampled_from([-4096, -8, -4, -1, 1, 2, 4, 8, 512, 4096])
    near = others.map(lambda shift: written.places[name] + shift)
    right = written.places[name]
    written.places[name] = data.draw(st.one_of(near, st.integers(0, (1 << 64) - 1)))
    try:
        table = kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
    except BadKallsyms:
        pass
    else:
        # Markers and the order of names are not named in VMCOREINFO.
        assert written.places[name] == right or name.endswith(("markers", "seqs_of_names"))
        assert columns(table) == symbols


def test_another_kernel_is_refused() -> None:
    symbols = many(1100)
    written = write(symbols, "7.0")
    symbols[-3] = ("D", "init_uts_ns", symbols[-3][2] + 8)
    with pytest.raises(BadKallsyms, match="init_uts_ns"):
        kallsyms.load(program(written.vmcoreinfo(symbols), written.data))
