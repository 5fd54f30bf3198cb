# SPDX-License-Identifier: LGPL-2.1-or-later
"""The search for kallsyms, and its refusal of damaged tables, in images of each era.

``pytest --fuzz-cases 1000`` damages as many images.
"""

from __future__ import annotations

import random

import pytest

from kcensus.sources.debuginfo import kallsyms
from kcensus.sources.debuginfo.kallsyms import BadKallsyms, search
from tests.unit.sources.kallsyms.tables import BASE, ERAS, TABLES, Written, many, program, write
from tests.unit.sources.kallsyms.test_kallsyms import CASES, columns

SEED = 28
_PAGE = 4096


def image(written: Written) -> bytearray:
    """Memory from ``_stext`` on: code, and read-only data with a table of Unicode."""
    code = random.Random(SEED).randbytes(1 << 16)
    unicode = b"".join(number.to_bytes(2, "little") for number in range(256))
    front = code + bytes(TABLES - BASE - len(code) - len(unicode)) + unicode
    return bytearray(front + written.data + code)


@pytest.mark.parametrize(("era", "percpu"), CASES)
@pytest.mark.parametrize("count", [1024, 1999, 3000])
def test_all_symbols_are_found(era: str, percpu: bool, count: int) -> None:
    symbols = many(count, percpu=percpu)
    written = write(symbols, era, percpu=percpu)
    info = written.vmcoreinfo(symbols, named=False)
    assert columns(kallsyms.load(program(info, image(written), start=BASE))) == symbols


def test_the_base_is_before_stext() -> None:
    """As on arm64."""
    symbols = [("T", "_text", BASE), *((t, n, a + 0x1_0000) for t, n, a in many(1500))]
    written = write(symbols, "5.10")
    info = written.vmcoreinfo(symbols, named=False)
    assert columns(kallsyms.load(program(info, image(written), start=BASE))) == symbols


@pytest.mark.parametrize("stext", [0xFFFF_FFFF_FFFF_E000, 0xFFFF_FFFF_FFFF_EC78, 12345])
def test_the_search_ends(stext: int) -> None:
    def read(address: int, size: int) -> bytes:
        raise BadKallsyms("no memory")

    with pytest.raises(BadKallsyms, match="kallsyms_token_table"):
        search.find(read, {"_stext": stext})


def test_an_image_without_tables_is_refused() -> None:
    symbols = many(1100)
    written = write(symbols, "5.10")
    info = written.vmcoreinfo(symbols, named=False)
    with pytest.raises(BadKallsyms, match="has no kallsyms_token_table"):
        kallsyms.load(program(info, bytes(1 << 20), start=BASE))
    with pytest.raises(BadKallsyms, match="SYMBOL"):
        kallsyms.load(program(info.replace(b"(_stext)", b"(other)"), image(written), start=BASE))


@pytest.mark.parametrize("era", ERAS)
def test_tables_of_another_kernel_are_refused(era: str) -> None:
    symbols = many(1100)
    written = write(symbols, era)
    data = image(written)
    symbols[-3] = ("D", "init_uts_ns", symbols[-3][2] + 8)
    with pytest.raises(BadKallsyms, match="init_uts_ns"):
        kallsyms.load(program(written.vmcoreinfo(symbols, named=False), data, start=BASE))


def damaged(data: bytearray, chance: random.Random, pages: range) -> None:
    """Damage one of the pages, as a lost or wrong page of a dump is."""
    start = chance.choice(pages) * _PAGE
    other = chance.randrange(len(data) // _PAGE) * _PAGE
    page = data[start : start + _PAGE]
    kind = chance.randrange(6)
    if kind == 0:
        data[start : start + _PAGE] = bytes(len(page))
    elif kind == 1:
        data[start : start + _PAGE] = chance.randbytes(len(page))
    elif kind == 2:
        data[start : start + _PAGE] = data[other : other + _PAGE]
    elif kind == 3:
        data[start : start + _PAGE], data[other : other + _PAGE] = data[other : other + _PAGE], page
    elif kind == 4:
        shift = chance.randrange(1, _PAGE)
        data[start : start + _PAGE] = page[shift:] + page[:shift]
    else:
        size = chance.randrange(64, _PAGE)
        place = start + chance.randrange(_PAGE - size)
        data[place : place + size] = chance.randbytes(size)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_damaged_image_never_gives_a_wrong_table(
    named: bool, pytestconfig: pytest.Config
) -> None:
    cases = pytestconfig.getoption("--fuzz-cases")
    refused = 0
    images = []
    for era in ERAS:
        symbols = many(6000)
        written = write(symbols, era)
        info = written.vmcoreinfo(symbols, named=named)
        images.append((era, symbols, info, image(written)))
    for case in range(cases):
        era, symbols, info, data = images[case % len(images)]
        copy = bytearray(data)
        pages = range((TABLES - BASE) // _PAGE, len(copy) // _PAGE)
        damaged(copy, random.Random(f"{SEED} {case}"), pages)
        try:
            table = kallsyms.load(program(info, copy, start=BASE))
        except BadKallsyms:
            refused += 1
        else:
            assert columns(table) == symbols, f"case {case}, of {era}"
    assert refused > cases // 3
