# SPDX-License-Identifier: LGPL-2.1-or-later
"""Single flipped bits in the tables of kallsyms, which have no checksum.

``--fuzz-cases 10000`` flips 1,000 bits of each part, the same ones in each run. These are found:

- all in markers, the number of symbols, the index of tokens and the base of addresses;
- in tokens, all but a few of a hundred, which are in names that compilers make up;
- in the name of a symbol that kcensus looks up, all: the symbol is in doubt, or the table refused;
- in the address of an exported symbol, all.

Not found are some bits of the addresses of other symbols: there is no second source for them. An
address has to be between its neighbours, and one of a variable has to be aligned and has to leave
room for its type.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import drgn
import pytest

from kcensus.sources import Target
from kcensus.sources.debuginfo.globals import declarations
from kcensus.sources.debuginfo.in_memory import misfit
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols, exports, loading
from kcensus.sources.debuginfo.kallsyms.decode import Read
from kcensus.sources.debuginfo.lookups import lookups
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo
from tests.lab import Dump

SEED = 28
_PARTS = ("num_syms", "names", "markers", "token_table", "token_index", "offsets", "relative_base")


class Tables:
    """The tables of a dump, and what kcensus looks up in them."""

    def __init__(self, dump: Dump, target: Target) -> None:
        prog = drgn.Program()
        prog.set_core_dump(dump.core)
        self._info = Vmcoreinfo(prog["VMCOREINFO"].string_())
        self._read = loading.reader(prog)
        self._known: dict[tuple[int, int], bytes | BadKallsyms] = {}
        self.table = loading.load_from(self._read, self._info)
        found = lookups()
        names = {name.split()[0] for kind in ("variables", "functions", "objects", "symbols")
                 for name in found.names(kind)}  # fmt: skip
        self.names = sorted(names.union(*declarations().values()))
        self.known = {name: self.table.addresses(name) for name in self.names}
        self.rows = [row for name in self.names for row in self.table._named(name)]
        self.types = {
            name: target.prog[name].type_
            for name, places in self.known.items()
            if len(places) == 1 and name in declarations() and name in target.prog
        }
        self.spans = self._spans(target.prog)

    def _spans(self, prog: drgn.Program) -> dict[str, range]:
        """Return the addresses of all bytes of each table, without the padding behind them."""
        count, names = len(self.table), self.table.name_column
        tokens = sum(len(token) + 1 for token in names._tokens)
        sizes = dict(
            zip(_PARTS, (4, names._end, count // 256 * 4, tokens, 512, 4 * count, 8), strict=True)
        )
        places = {part: prog.symbols(f"kallsyms_{part}") for part in _PARTS}
        return {
            part: range(found[0].address, found[0].address + sizes[part])
            for part, found in places.items()
            if found
        }

    def load(self, place: int, bit: int) -> Symbols | None:
        """Return the symbols with a flipped bit of memory, or None if the table is refused."""

        def read(address: int, size: int) -> bytes:
            data = self._memory(address, size)
            if not address <= place < address + size:
                return data
            copy = bytearray(data)
            copy[place - address] ^= 1 << bit
            return bytes(copy)

        flipped: Read = read
        try:
            return loading.load_from(flipped, self._info)
        except BadKallsyms:
            return None

    def _memory(self, address: int, size: int) -> bytes:
        key = address, size
        if key not in self._known:
            try:
                self._known[key] = self._read(address, size)
            except BadKallsyms as error:
                self._known[key] = error
        data = self._known[key]
        if isinstance(data, BadKallsyms):
            raise data
        return data

    def wrong(self, table: Symbols | None) -> list[str]:
        """Return the names that kcensus looks up and gets other addresses for, without a doubt."""
        if table is None:
            return []
        changed = [name for name in self.names if table.addresses(name) != self.known[name]]
        return [name for name in changed if not (name in table.doubts or self._misfit(table, name))]

    def _misfit(self, table: Symbols, name: str) -> str:
        address = table.address(name)
        if address is None or name not in self.types:
            return ""
        return misfit(address, table.size(name) or 0, self.types[name])


@pytest.fixture(scope="module")
def tables(mixed_dump: Dump, mixed_target: Target) -> Tables:
    return Tables(mixed_dump, mixed_target)


@pytest.fixture(scope="module")
def cases(pytestconfig: pytest.Config) -> int:
    # A case takes longer than those of other tests.
    return max(int(pytestconfig.getoption("--fuzz-cases")) // 10, 20)


def test_an_intact_table_has_no_doubts(tables: Tables) -> None:
    assert len(tables.rows) > 100
    assert tables.table.doubts == {}
    assert len(exports.compare(tables._read, tables.table).rows) > 5000


@pytest.mark.slow
def test_small_tables_are_refused(tables: Tables, cases: int) -> None:
    chance = random.Random(SEED)
    for part in ("num_syms", "markers", "token_index", "relative_base"):
        for _ in range(cases // 4 if part in tables.spans else 0):
            place, bit = chance.choice(tables.spans[part]), chance.randrange(8)
            assert tables.load(place, bit) is None, f"{part}, 0x{place:x}, bit {bit}"


@pytest.mark.slow
def test_tokens_are_refused(tables: Tables, cases: int) -> None:
    chance, unnoticed = random.Random(SEED), 0
    for _ in range(cases):
        place, bit = chance.choice(tables.spans["token_table"]), chance.randrange(8)
        table = tables.load(place, bit)
        unnoticed += table is not None and not table.doubts
        assert tables.wrong(table) == [], f"0x{place:x}, bit {bit}"
    assert unnoticed <= max(cases // 20, 2)


@pytest.mark.slow
def test_a_bit_anywhere_changes_nothing_that_is_looked_up(tables: Tables, cases: int) -> None:
    chance = random.Random(SEED)
    spans = [tables.spans[part] for part in ("names", "offsets")]
    for _ in range(cases):
        (span,) = chance.choices(spans, [len(span) for span in spans])
        place, bit = chance.choice(span), chance.randrange(8)
        assert tables.wrong(tables.load(place, bit)) == [], f"0x{place:x}, bit {bit}"


@pytest.mark.slow
def test_a_name_that_is_looked_up_is_in_doubt(tables: Tables, cases: int) -> None:
    names = tables.table.name_column
    start = tables.spans["names"].start

    def place(chance: random.Random) -> tuple[int, int]:
        row = chance.choice(tables.rows)
        # With its length, before the codes.
        first = start + int(names._first[row])
        return chance.randrange(first, first + 1 + len(names._codes(row))), chance.randrange(8)

    assert _wrong(tables, cases, place) == Counter()


@pytest.mark.slow
@pytest.mark.parametrize("is_exported", [True, False])
def test_the_address_of_a_symbol_that_is_looked_up(
    tables: Tables, cases: int, is_exported: bool
) -> None:
    exported = {*exports.compare(tables._read, tables.table).rows.tolist()}
    rows = [row for row in tables.rows if (row in exported) is is_exported]

    def place(chance: random.Random) -> tuple[int, int]:
        row = chance.choice(rows)
        return tables.spans["offsets"].start + 4 * row + chance.randrange(4), chance.randrange(8)

    wrong = _wrong(tables, cases, place)
    assert sum(wrong.values()) <= (0 if is_exported else max(cases * 3 // 10, 10))


def _wrong(
    tables: Tables, cases: int, place: Callable[[random.Random], tuple[int, int]]
) -> Counter[str]:
    """Return how often each name was wrong."""
    chance, wrong = random.Random(SEED), Counter[str]()
    for _ in range(cases):
        wrong.update(tables.wrong(tables.load(*place(chance))))
    return wrong
