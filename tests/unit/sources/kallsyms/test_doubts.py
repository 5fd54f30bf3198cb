# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols that a flipped bit puts in doubt, and tables that are refused for it."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kcensus.sources.debuginfo import kallsyms
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols, decode, exports
from kcensus.sources.debuginfo.kallsyms.symbol_names import of_text
from tests.unit.sources.kallsyms.tables import TABLES, many, program, write

_EXPORTS = TABLES + 0x8_0000
_COUNT = 40
_FORMS = {"relative": 8, "relative with namespaces": 12, "absolute": 16}


class Kernel:
    """Tables of a kernel that exports some of its symbols."""

    def __init__(self, form: str = "relative with namespaces", era: str = "6.4") -> None:
        self.symbols = many(1500)
        self.exported = self.symbols[100 : 100 + _COUNT]
        stop = _EXPORTS + _FORMS[form] * _COUNT
        # The first tables say where the order of names will be.
        self.symbols += [("R", "kallsyms_seqs_of_names", TABLES)]
        self.symbols += [("R", "__start___ksymtab", _EXPORTS), ("R", "__stop___ksymtab", stop)]
        order = write(self.symbols, era).places.get("kallsyms_seqs_of_names", TABLES)
        self.symbols[-3] = ("R", "kallsyms_seqs_of_names", order)
        self.written = write(self.symbols, era)
        self.data = self.written.data
        self.data.extend(bytes(_EXPORTS - TABLES - len(self.data)))
        self.data.extend(self._entries(form, stop))

    def _entries(self, form: str, strings: int) -> bytes:
        entries, text = b"", b""
        for nth, (_, name, address) in enumerate(self.exported):
            values = [address, strings + len(text)]
            text += name.encode() + b"\0"
            if form == "absolute":
                entries += struct.pack("<QQ", *values)
                continue
            place = _EXPORTS + _FORMS[form] * nth
            words = [value - place - 4 * word for word, value in enumerate(values)]
            entries += struct.pack("<ii", *words) + bytes(_FORMS[form] - 8)
        # Memory goes on behind the names.
        return entries + text + bytes(1024)

    def load(self) -> Symbols:
        return kallsyms.load(program(self.written.vmcoreinfo(self.symbols), self.data))

    def row(self, name: str) -> int:
        return [each for _, each, _ in self.symbols].index(name)

    def flip(self, part: str, offset: int, bit: int = 0) -> None:
        self.data[self.written.places["kallsyms_" + part] - TABLES + offset] ^= 1 << bit


@pytest.mark.parametrize("form", _FORMS)
def test_exported_symbols_are_compared(form: str) -> None:
    kernel = Kernel(form)
    table = kernel.load()
    assert table.doubts == {}
    (_, name, address), (_, other, _) = kernel.exported[:2]
    assert table.address(name) == address
    kernel.flip("offsets", 4 * kernel.row(name), 2)
    table = kernel.load()
    assert [*table.doubts] == [name]
    assert table.address(name) is None
    assert table.addresses(name) == []
    assert table.address(other) is not None


def test_many_differences_are_refused() -> None:
    kernel = Kernel()
    for _, name, _ in kernel.exported[:20]:
        kernel.flip("offsets", 4 * kernel.row(name), 2)
    with pytest.raises(BadKallsyms, match="20 exported symbols"):
        kernel.load()


def test_lost_exports_are_not_compared() -> None:
    kernel = Kernel()
    del kernel.data[_EXPORTS - TABLES :]
    assert kernel.load().doubts == {}
    kernel = Kernel()
    kernel.data[_EXPORTS - TABLES :] = bytes(len(kernel.data) - _EXPORTS + TABLES)
    kernel.load()


def test_names_of_two_tables_are_never_far_apart() -> None:
    tables = {
        1 << 20: struct.pack("<QQ", 1 << 32, 1 << 33) * _COUNT,
        2 << 20: struct.pack("<QQ", 1 << 32, 1 << 60) * _COUNT,
    }
    ends = [at for start in tables for at in (start, start + 16 * _COUNT)]
    names = [f"__{way}___ksymtab{kind}" for kind in ("", "_gpl") for way in ("start", "stop")]
    text = "".join(f"\nR{name}" for name in names).encode()
    table = Symbols(of_text(text), np.array(ends, np.uint64))

    def read(address: int, size: int) -> bytes:
        assert size == 16 * _COUNT
        return tables[address]

    assert not len(exports.compare(read, table).rows)


@pytest.mark.parametrize("era", ["5.10", "6.4"])
def test_a_name_with_a_flipped_bit_is_in_doubt(era: str) -> None:
    kernel = Kernel(era=era)
    table = kernel.load()
    place = int(table.name_column._first[kernel.row("init_uts_ns")])
    assert table.address("nothing") is None
    assert table.doubts == {}
    # Behind the length and the type, i_: another pair.
    kernel.flip("names", place + 3, 0)
    table = kernel.load()
    assert table.address("init_uts_ns") is None
    assert [*table.doubts] == ["init_uts_ns"]


def test_the_order_proves_a_name() -> None:
    kernel = Kernel()
    # function_2 to function_3 is one bit, and function_20 to function_29 are between them.
    kernel.symbols[kernel.row("function_2")] = ("t", "function_x", kernel.symbols[4][2])
    missing = ("function_2", "function_x")
    kernel.written = write(kernel.symbols, "6.4")
    kernel.data[: len(kernel.written.data)] = kernel.written.data
    table = kernel.load()
    assert table.address(missing[1]) is not None
    assert table.address(missing[0]) is None
    assert table.doubts == {}


def test_tokens_are_pairs_of_others() -> None:
    written = write(many(1100), "6.4")
    start, index = (
        written.places[f"kallsyms_token_{part}"] - TABLES for part in ("table", "index")
    )
    table, offsets = written.data[start:index], bytes(written.data[index : index + 512])
    assert len(decode.tokens(bytes(table), offsets)) == 256
    for place in (table.index(b"a\0"), table.index(b"_e\0")):
        copy = bytearray(table)
        copy[place] ^= 1 << 6
        with pytest.raises(BadKallsyms):
            decode.tokens(bytes(copy), offsets)
