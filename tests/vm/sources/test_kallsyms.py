# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols without debug info are those of the vmlinux, symbol by symbol."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import drgn
import pytest

from kcensus.sources import Target
from kcensus.sources.debuginfo import kallsyms
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, Symbols, loading, search
from kcensus.sources.debuginfo.loading import loaded_modules
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo
from tests.lab import Dump
from tests.unit.sources.kallsyms.tables import program
from tests.unit.sources.kallsyms.test_search import damaged
from tests.vm.cases import opened

SEED = 28
_KERNEL_HALF = 1 << 63
_MAX_IMAGE_BYTES = 64 << 20
_PAGE = 4096
Pairs = Counter[tuple[str, int]]


@pytest.fixture(scope="module")
def bare(mixed_dump: Dump) -> drgn.Program:
    """A dump without debug info."""
    prog = drgn.Program()
    prog.set_core_dump(mixed_dump.core)
    return prog


@pytest.fixture(scope="module")
def info(bare: drgn.Program) -> Vmcoreinfo:
    return Vmcoreinfo(bare["VMCOREINFO"].string_())


@pytest.fixture(scope="module")
def searched(bare: drgn.Program, info: Vmcoreinfo) -> Symbols:
    return search.find(loading.reader(bare), info.own_symbols())


def pairs(table: Symbols) -> Pairs:
    return Counter(zip(table.names(), table.address_column.tolist(), strict=True))


def columns(table: Symbols) -> tuple[list[str], list[str], list[int]]:
    return table.types(), table.names(), table.address_column.tolist()


def linked(prog: drgn.Program) -> Pairs:
    return Counter((symbol.name, symbol.address) for symbol in prog.symbols())


def test_search_and_vmcoreinfo_give_the_symbols_of_the_vmlinux(
    bare: drgn.Program, info: Vmcoreinfo, searched: Symbols, mixed_target: Target
) -> None:
    assert len(searched) > 50_000
    if "kallsyms_names" in info.symbols:
        named = loading.by_vmcoreinfo(loading.reader(bare), info)
        assert pairs(named) == pairs(searched)
        assert named.types() == searched.types()
    # The end of the image is not in drgn's range of it.
    only = pairs(searched) - linked(mixed_target.prog)
    assert {name for name, _ in only} <= {"__init_scratch_end", "_end", "__brk_limit"}


def test_a_symbol_is_found_by_address(searched: Symbols, mixed_target: Target) -> None:
    prog: drgn.Program = mixed_target.prog
    # Without the modules that other tests have loaded.
    end = int(searched.address_column[-1])
    sized = [each for each in prog.symbols() if each.size and _KERNEL_HALF <= each.address < end]
    other = 0
    for symbol in random.Random(SEED).sample(sized, 5000):
        (found,) = searched.find(prog, None, symbol.address + symbol.size // 2, True)
        # An alias, or an object inside of another one.
        other += found.name != symbol.name
        assert found.address >= symbol.address
    assert other < 100


def test_a_system_map_is_the_same(
    bare: drgn.Program, info: Vmcoreinfo, searched: Symbols, tmp_path: Path
) -> None:
    path = tmp_path / "System.map"
    with path.open("w") as file:
        for type_, name, place in zip(
            searched.types(), searched.names(), searched.address_column.tolist(), strict=True
        ):
            at = place - info.kernel_offset if place >= _KERNEL_HALF else place
            file.write(f"{at:016x} {type_} {name}\n")
    assert pairs(kallsyms.from_file(path, bare)) == pairs(searched)


def test_modules_have_the_symbols_of_their_files(mixed_dump: Dump) -> None:
    prog = opened(mixed_dump, "dm_mod", "dm_snapshot").prog
    expected = linked(prog)
    modules, _ = loaded_modules(prog, {"dm_mod", "dm_snapshot"})
    indexes = [kallsyms.module_symbols(module.object) for module in modules]
    symbols = [symbol for index in indexes for symbol in index(prog, None, None, False)]
    places = [
        span
        for module in prog.modules()
        if module.name in ("dm_mod", "dm_snapshot")
        for span in module.address_ranges
    ]
    inside = [each for each in symbols if any(a <= each.address < b for a, b in places)]
    assert {"dm_table_create", "kcopyd_put_pages"} & {each.name for each in inside}
    assert [each for each in inside if (each.name, each.address) not in expected] == []


@pytest.fixture(scope="module")
def image(bare: drgn.Program, info: Vmcoreinfo) -> tuple[bytes, range]:
    """The image of the kernel from _stext on, and the pages that have the tables."""
    lost: list[int] = []
    start = info.symbols["_stext"]
    read = loading.reader(bare)
    data = bytearray(_MAX_IMAGE_BYTES)
    for address, chunk in search._chunks(read, start, lost):
        if address - start + len(chunk) > len(data):
            break
        data[address - start : address - start + len(chunk)] = chunk
    first = next(search._digits(read, start, lost)) - start
    end = first + (8 << 20)
    return bytes(data[:end]), range((first - (2 << 20)) // _PAGE, (first + (2 << 20)) // _PAGE)


@pytest.mark.slow
def test_damaged_images_give_no_wrong_table(
    image: tuple[bytes, range], info: Vmcoreinfo, searched: Symbols, pytestconfig: pytest.Config
) -> None:
    """``--fuzz-cases 10000`` damages a page of the tables in 1,000 images, a second for five."""
    data, pages = image
    start, refused, expected = info.symbols["_stext"], 0, columns(searched)
    cases = max(pytestconfig.getoption("--fuzz-cases") // 10, 25)
    texts = _texts(info)
    for case in range(cases):
        copy = bytearray(data)
        damaged(copy, random.Random(f"{SEED} {case}"), pages)
        try:
            table = kallsyms.load(program(next(texts), copy, start=start))
        except BadKallsyms:
            refused += 1
        else:
            assert columns(table) == expected, f"case {case}"
    assert refused > cases // 5


def _texts(info: Vmcoreinfo) -> Iterator[bytes]:
    """VMCOREINFO in turns with and without the places of the tables."""
    while True:
        yield info.text
        yield b"".join(
            line for line in info.text.splitlines(keepends=True) if b"(kallsyms_" not in line
        )
