# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bulk reads of *synthetic* memory, held against a plain loop over ``prog.read()``."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import nullcontext

import drgn
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcensus.engine.gather import (
    IMPOSSIBLE_COUNT,
    STRAY,
    gather,
    gather_arrays,
    gather_pointers,
    gather_words,
)
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.engine.strings import c_strings
from kcensus.engine.zeros import is_lost
from kcensus.sources.faults import ZEROED, reason
from tests.unit.fakekernel import DIRECT_MAP, PAGE, VMEMMAP, Machine

TYPES = """
struct row 40
    0 unsigned int id; 8 unsigned long word; 17 unsigned char odd; 18 unsigned short unaligned
    20 char [8] name; 36 unsigned int bits:5; 36.5 unsigned int more:20
struct wide 9000 : 0 unsigned long first; 8992 unsigned long last
"""
ROW = struct.Struct("<I4xQxBH8s8xI")
FIRST = DIRECT_MAP + 600 * PAGE
"""Sixty pages of noise; some of them cannot be read."""
PAGES = 60
HOLES = (3, 4, 5, 20, 41, 59)


def _machine() -> Machine:
    machine = Machine(TYPES)
    machine.write(FIRST, random.Random(6).randbytes(PAGES * PAGE))
    for page in HOLES:
        machine.drop(FIRST + page * PAGE)
    return machine


MACHINE = _machine()


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


MEMBERS = ["id", "word", "odd", "unaligned", "name", "bits", "more"]


def row_layout() -> Layout:
    return layout(MACHINE.prog, "struct row", MEMBERS)


def plain(address: int, size: int) -> bytes | None:
    """What one read gives, kernel addresses alone."""
    if address < 1 << 63:
        return None
    try:
        return bytes(MACHINE.prog.read(address, size))
    except drgn.FaultError:
        return None


def expected_row(data: bytes | None) -> dict[str, object]:
    *whole, name, bits = ROW.unpack(data if data is not None else bytes(40))
    values = (*whole, name.rstrip(b"\0"), bits & 31, bits >> 5 & 0xFFFFF)
    return dict(zip(MEMBERS, values, strict=True))


near = st.integers(FIRST - 64, FIRST + PAGES * PAGE + 64)
edges = st.builds(
    lambda page, back: FIRST + page * PAGE - back, st.integers(0, PAGES), st.integers(-40, 40)
)
wild = st.sampled_from(
    [0, 1, 4095, 1 << 32, (1 << 63) - 8, 1 << 63, DIRECT_MAP, VMEMMAP, VMEMMAP + 70000]
) | st.integers((1 << 64) - 70000, (1 << 64) - 1)


# Rows that straddle two pages need both.
@example([FIRST + page * PAGE - 20 for page in (1, 3, 6, 20, 21)], PAGE)
@example([FIRST + at for at in (5000, 80, 80, PAGE - 3, 5000, 0)], PAGE)
@given(
    st.lists(near | edges | wild, max_size=60),
    st.sampled_from([1, PAGE, 2 * PAGE, 3 * PAGE, 1 << 16, 4 << 20]),
)
def test_gather_reads_what_a_loop_reads(addresses: list[int], chunk_bytes: int) -> None:
    faults = Faults()
    memory = Memory(MACHINE.prog, chunk_bytes)
    found = gather(memory, words(*addresses), row_layout(), faults, may_be_zero=True)
    data = [plain(address, 40) for address in addresses]
    assert found.readable.tolist() == [each is not None for each in data]
    for name, column in found.columns.items():
        assert column.tolist() == [expected_row(each)[name] for each in data]
    assert set(faults) <= {"filtered out of the dump", "not in the dump", "not mapped", STRAY}


def test_a_struct_on_a_page_of_zeros_is_lost() -> None:
    machine = Machine()
    whole, empty, both = (machine.alloc("struct list_head", 2 * PAGE, alone=True) for _ in range(3))
    for place in (whole, empty, both):
        at = machine.physical(place.address_)
        machine.ram[at : at + 3 * PAGE] = bytes(3 * PAGE)
    machine.write_words(whole.address_ + 16, 1)
    across = both.address_ + PAGE - 8
    machine.write_words(across, whole.address_)
    faults, links = Faults(), layout(machine.prog, "struct list_head", ["next", "prev"])
    places = words(whole.address_, empty.address_, across)
    found = gather(Memory(machine.prog), places, links, faults)
    assert found.readable.tolist() == [True, False, False]
    assert faults == {ZEROED: 2}
    assert found["next"].tolist() == [0, 0, 0]
    kept = gather(Memory(machine.prog), places, links, Faults(), may_be_zero=True)
    assert kept.readable.all()
    assert kept["next"].tolist() == [0, 0, whole.address_]


def test_a_variable_is_lost_with_its_page() -> None:
    machine = Machine()
    null, gone, dropped = (machine.alloc("void *", alone=True) for _ in range(3))
    at = machine.physical(gone.address_)
    machine.ram[at : at + PAGE] = bytes(PAGE)
    machine.drop(dropped.address_)
    assert [is_lost(each) for each in (null, gone, dropped)] == [False, True, False]


def reads_of(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    reads: list[tuple[int, int]] = []
    read = memory._read

    def spy(address: int, size: int) -> bytes:
        reads.append((address, size))
        return read(address, size)

    monkeypatch.setattr(memory, "_read", spy)
    return reads


def test_low_addresses_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, faults = Memory(MACHINE.prog), Faults()
    reads = reads_of(memory, monkeypatch)
    addresses = words(0, 8, PAGE, 1 << 62, (1 << 63) - 1, (1 << 64) - 4095, (1 << 64) - 22)
    assert not gather(memory, addresses, row_layout(), faults).readable.any()
    # What is no NULL or small number was a pointer.
    assert (reads, faults) == ([], {STRAY: 2})


def test_no_read_is_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(MACHINE.prog, 4 * PAGE)
    reads = reads_of(memory, monkeypatch)
    addresses = FIRST + np.arange(6 * PAGE, 20 * PAGE, 100, dtype=np.uint64)
    found = gather(memory, addresses, row_layout(), Faults())
    assert found.readable.sum() > 500
    assert max(size for _, size in reads) <= 4 * PAGE
    # And neighbours are read together.
    assert len(reads) <= 14


def test_no_page_is_read_twice_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(MACHINE.prog, PAGE)
    reads = reads_of(memory, monkeypatch)
    addresses = [FIRST + page * PAGE + at for page in range(6, 16) for at in range(0, 4000, 500)]
    random.Random(1).shuffle(addresses)
    gather(memory, words(*addresses), row_layout(), Faults())
    assert sorted(at for at, _ in reads) == [FIRST + page * PAGE for page in range(6, 16)]


@pytest.mark.parametrize("chunk_bytes", [PAGE, 1 << 20])
@pytest.mark.parametrize(
    ("members", "starts", "readable"),
    [
        ({"first": 0, "last": 8992}, (6, 3, 1, 7.5), [True, False, False, True]),
        # Page 20 is a hole that nothing of the first lies on; 1 ends and 5 begins on one.
        ({"last": 8992, "first": 0}, (19, 1, 5, 20, 6), [True, False, False, False, True]),
        # The struct begins on a page that is a hole; the member wanted does not lie there.
        ({"last": 8992}, (5,), [True]),
    ],
)
def test_only_the_pages_that_members_lie_on_matter(
    chunk_bytes: int, members: dict[str, int], starts: tuple[float, ...], readable: list[bool]
) -> None:
    wide = layout(MACHINE.prog, "struct wide", [*members])
    addresses = [FIRST + int(page * PAGE) for page in starts]
    found = gather(Memory(MACHINE.prog, chunk_bytes), words(*addresses), wide, Faults())
    assert found.readable.tolist() == readable
    for name, offset in members.items():
        assert found[name].tolist() == [
            MACHINE.word(address + offset) if ok else 0
            for address, ok in zip(addresses, readable, strict=True)
        ]


def test_holes_are_counted_once_a_page_and_by_reason() -> None:
    faults, of_words = Faults(), Faults()
    pages = (3, 4, 5, 6)
    addresses = words(*(FIRST + page * PAGE + step for page in pages for step in (0, 64, 128)))
    gather(Memory(MACHINE.prog), addresses, row_layout(), faults)
    values, readable = gather_words(Memory(MACHINE.prog), addresses, "u8", of_words)
    assert faults == of_words == {"filtered out of the dump": 3}
    assert readable.tolist() == [False] * 9 + [True] * 3
    assert values[9:].all()


@given(
    st.lists(near | edges | wild, max_size=12),
    st.sampled_from([0, 1, 2, 21, 512, 3000]),
    st.sampled_from(["u1", "<u2", "<u4", "<u8", ">u8"]),
    st.sampled_from([1, 3 * PAGE, 1 << 20]),
)
def test_gather_arrays_reads_what_a_loop_reads(
    addresses: list[int], length: int, dtype: str, chunk_bytes: int
) -> None:
    element = np.dtype(dtype)
    memory = Memory(MACHINE.prog, chunk_bytes)
    values, readable = gather_arrays(memory, words(*addresses), length, dtype, Faults())
    data = [plain(address, max(length * element.itemsize, 1)) for address in addresses]
    assert readable.tolist() == [each is not None for each in data]
    assert values.shape == (len(addresses), length)
    assert values.dtype == element.newbyteorder("=")
    nothing = bytes(length * element.itemsize)
    for row, each in zip(values, data, strict=True):
        truth = np.frombuffer(each if each is not None and length else nothing, element)
        assert row.tolist() == truth.tolist()


def test_arrays_of_pointers() -> None:
    memory = Memory(MACHINE.prog)
    # The second one is null, the third one not aligned, and the last one empty.
    arrays = words(FIRST + 8, 0, FIRST + 3, FIRST)
    row, pointers, readable = gather_pointers(memory, arrays, np.array([3, 2, 1, 0]), Faults())
    assert row.tolist() == [0, 0, 0, 1, 1, 2]
    assert readable.tolist() == [True] * 3 + [False] * 3
    data = MACHINE.prog.read(FIRST + 8, 24)
    assert pointers.tolist() == [*np.frombuffer(data, "<u8").tolist(), 0, 0, 0]


def test_a_word() -> None:
    memory = Memory(MACHINE.prog)
    assert memory.word(FIRST + 13) == int.from_bytes(MACHINE.prog.read(FIRST + 13, 8), "little")
    assert memory.word(VMEMMAP + 8) == 0
    for address in (0, 8, (1 << 63) - 8, FIRST + 3 * PAGE, VMEMMAP - 8, (1 << 64) - 1):
        with pytest.raises(drgn.FaultError):
            memory.word(address)


def _without_first_pages(machine: Machine) -> None:
    """makedumpfile leaves out the first page frames where they are free."""
    machine.constant("min_low_pfn", 600 + HOLES[0])
    machine.holes.add(0)


def fast(monkeypatch: pytest.MonkeyPatch, *, physical: bool) -> None:
    monkeypatch.setattr(Memory, "_seconds", lambda self, at, by: 1.0 if by == physical else 2.0)


@pytest.mark.parametrize(
    ("change", "physical", "is_physical"),
    [
        (None, True, True),
        (None, False, False),
        (_without_first_pages, True, True),
        # By the first task, the two ways are compared.
        (lambda machine: machine.symbols.pop("init_task"), True, False),
    ],
)
def test_the_direct_map_is_read_in_the_faster_way(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Machine], object] | None,
    physical: bool,
    is_physical: bool,
) -> None:
    fast(monkeypatch, physical=physical)
    machine = _machine()
    if change is not None:
        change(machine)
    memory = Memory(machine.prog)
    assert memory.word(FIRST) == machine.word(FIRST)
    # Page 2 is the table that translates the direct map.
    machine.holes.add(2)
    with nullcontext() if is_physical else pytest.raises(drgn.FaultError):
        assert memory.word(FIRST) == machine.word(FIRST)
    assert (memory.span(FIRST, 2, Faults())[1] is None) == is_physical


def add_segment(machine: Machine, address: int, data: bytes | None, physical: bool = False) -> None:
    def read(at: int, size: int, offset: int, physical: bool) -> bytes:
        if data is None:
            raise drgn.FaultError("could not find physical memory segment", at)
        return data[offset : offset + size]

    machine.prog.add_memory_segment(
        address, 16 << 20 if data is None else len(data), read, physical
    )


def test_physical_addresses_that_lead_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch, physical=True)
    machine = _machine()
    add_segment(machine, DIRECT_MAP, bytes(machine.ram))
    add_segment(machine, 0, bytes(len(machine.ram)), physical=True)
    assert Memory(machine.prog).word(FIRST) == machine.word(FIRST) != 0


def test_a_program_without_physical_memory_is_read_by_virtual_addresses() -> None:
    machine = Machine(TYPES)
    data = bytes(range(256)) * 32
    add_segment(machine, 0, None, physical=True)
    add_segment(machine, FIRST, data)
    memory = Memory(machine.prog)
    assert bytes(memory.span(FIRST, 2, Faults())[0]) == data
    assert memory.word(FIRST + 8) == int.from_bytes(data[8:16], "little")


def test_a_span_keeps_what_can_be_read() -> None:
    faults = Faults()
    data, readable = Memory(MACHINE.prog).span(FIRST, PAGES, faults)
    assert readable is not None
    assert np.flatnonzero(~readable).tolist() == list(HOLES)
    assert faults == {"filtered out of the dump": len(HOLES)}
    for page in range(PAGES):
        start = MACHINE.physical(FIRST) + page * PAGE
        truth = bytes(PAGE) if page in HOLES else bytes(MACHINE.ram[start : start + PAGE])
        assert bytes(data[page * PAGE : (page + 1) * PAGE]) == truth
    # A layout without members tells that, too.
    empty = layout(MACHINE.prog, "struct row", {})
    found = gather(Memory(MACHINE.prog), words(FIRST, FIRST + 3 * PAGE), empty, Faults())
    assert found.readable.tolist() == [True, False]


def test_salvage_reads_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    # One hole in 1024 pages: halving costs two reads a level, not one a page.
    machine = Machine(TYPES)
    machine.drop(DIRECT_MAP + 2500 * PAGE)
    memory, faults = Memory(machine.prog), Faults()
    reads = reads_of(memory, monkeypatch)
    readable = memory.span(DIRECT_MAP + 2048 * PAGE, 1024, faults)[1]
    assert readable is not None
    assert np.flatnonzero(~readable).tolist() == [452]
    assert faults.total() == 1
    assert len(reads) <= 1 + 2 * 10


def test_reasons() -> None:
    for message, words in {
        "could not read memory: Excluded page": "filtered out of the dump",
        "memory was not saved in the core dump": "filtered out of the dump",
        "short read from memory file": "beyond the end of a truncated dump",
        "could not find physical memory segment": "not in the dump",
        "address is not mapped": "not mapped",
        "something else": "unreadable",
    }.items():
        assert reason(drgn.FaultError(message, 0)) == words


def test_strings_of_all_lengths_and_places() -> None:
    place = DIRECT_MAP + 700 * PAGE
    MACHINE.drop(place + 3 * PAGE)
    texts = {
        place: b"",
        place + 100: b"caf\xe9",
        place + 200: b"x" * 63,
        place + 400: b"y" * 64,
        place + 600: b"z" * 300,
        place + 3 * PAGE - 4: b"end",
    }
    for address, text in texts.items():
        MACHINE.write(address, text + b"\0")
    MACHINE.write(place + 1000, b"-" * 3000)
    MACHINE.write(place + 4 * PAGE, b"+" * (PAGE + 10) + b"\0")
    addresses = [*texts, 0, place + 3 * PAGE, place + 400]
    found = c_strings(Memory(MACHINE.prog), words(*addresses), Faults())
    assert found == [*texts.values(), None, None, b"y" * 64]
    assert c_strings(Memory(MACHINE.prog), words(), Faults()) == []


@pytest.mark.parametrize("has_hole", [False, True])
def test_a_string_without_an_end_is_none(has_hole: bool) -> None:
    place, faults = DIRECT_MAP + (720 + 10 * has_hole) * PAGE, Faults()
    MACHINE.write(place, b"+" * (3 * PAGE))
    if has_hole:
        MACHINE.drop(place + PAGE)
    assert c_strings(Memory(MACHINE.prog), words(place + PAGE - 4), faults) == [None]
    assert bool(faults) == has_hole


def test_a_string_is_never_read_at_a_low_address() -> None:
    machine = Machine(TYPES)
    add_segment(machine, 0, b"A\0" * (1 << 19))
    assert c_strings(Memory(machine.prog), words(0x1000), Faults()) == [None]


@given(
    st.lists(near | edges | wild, max_size=30),
    st.sampled_from(["u1", "<u4", "<u8", "<i8", ">u8"]),
    st.sampled_from([1, 3 * PAGE, 1 << 20]),
)
def test_gather_words_reads_what_a_loop_reads(
    addresses: list[int], dtype: str, chunk_bytes: int
) -> None:
    word = np.dtype(dtype)
    aligned = [address & -word.itemsize for address in addresses]
    memory = Memory(MACHINE.prog, chunk_bytes)
    values, readable = gather_words(memory, words(*aligned), dtype, Faults())
    data = [plain(address, word.itemsize) for address in aligned]
    assert readable.tolist() == [each is not None for each in data]
    assert values.dtype == word.newbyteorder("=")
    assert values.tolist() == [0 if each is None else np.frombuffer(each, word)[0] for each in data]


def test_counts_that_exceed_ram_are_zero_where_they_are_read() -> None:
    machine = Machine(
        "struct counted 24 : 0 long nr_items; 8 unsigned long nr_pages; 16 unsigned int nr_ctx"
    )
    place = DIRECT_MAP + 600 * PAGE
    most = Memory(machine.prog).end
    rows = [(most // 32, 7, 1), (most // 32 + 1, 7, 2), (-3, most // PAGE + 1, 3), (-(2**63), 5, 4)]
    rows.append((1, 2**64 - 2, 2**32 - 1))  # a counter of one CPU may be negative
    for row, values in enumerate(rows):
        machine.write(place + 24 * row, struct.pack("<qQI4x", *values))
    members = layout(machine.prog, "struct counted", ["nr_items", "nr_pages", "nr_ctx"])
    faults = Faults()
    addresses = place + 24 * np.arange(len(rows), dtype=np.uint64)
    found = gather(Memory(machine.prog), addresses, members, faults)
    assert found["nr_items"].tolist() == [most // 32, 0, -3, 0, 1]
    assert found["nr_pages"].tolist() == [7, 7, 0, 5, 2**64 - 2]
    assert found["nr_ctx"].tolist() == [1, 2, 3, 4, 2**32 - 1]
    assert found.readable.all()
    assert found.possible.tolist() == [True, False, False, False, True]
    assert faults == {IMPOSSIBLE_COUNT: 3}
