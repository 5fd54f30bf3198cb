# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bulk reads of *synthetic* memory, held against a plain loop over ``prog.read()``."""

from __future__ import annotations

import random
import struct

import drgn
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcensus.engine.gather import gather, gather_arrays, gather_pointers, gather_words
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.engine.strings import c_strings
from kcensus.sources.faults import reason
from tests.unit.fakekernel import DIRECT_MAP, PAGE, VMEMMAP, Machine

TYPES = {
    "struct row": (
        40,
        """0 unsigned int id
        8 unsigned long word
        17 unsigned char odd
        18 unsigned short unaligned
        20 char [8] name
        36 unsigned int bits:5
        36.5 unsigned int more:20""",
    ),
    "struct wide": (9000, "0 unsigned long first\n8992 unsigned long last"),
}
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


@pytest.fixture
def machine() -> Machine:
    return MACHINE


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


def row_layout() -> Layout:
    return layout(
        MACHINE.prog, "struct row", ["id", "word", "odd", "unaligned", "name", "bits", "more"]
    )


def plain(address: int, size: int) -> bytes | None:
    """What one read gives, kernel addresses alone."""
    if address < 1 << 63:
        return None
    try:
        return bytes(MACHINE.prog.read(address, size))
    except drgn.FaultError:
        return None


def expected_row(data: bytes | None) -> dict[str, object]:
    id_, word, odd, unaligned, name, bits = ROW.unpack(data if data is not None else bytes(40))
    return {
        "id": id_,
        "word": word,
        "odd": odd,
        "unaligned": unaligned,
        "name": name.rstrip(b"\0"),
        "bits": bits & 31,
        "more": bits >> 5 & 0xFFFFF,
    }


def check_rows(addresses: list[int], chunk_bytes: int) -> None:
    faults = Faults()
    found = gather(Memory(MACHINE.prog, chunk_bytes), words(*addresses), row_layout(), faults)
    data = [plain(address, 40) for address in addresses]
    assert found.readable.tolist() == [each is not None for each in data]
    for name, column in found.columns.items():
        assert column.tolist() == [expected_row(each)[name] for each in data]
    assert set(faults) <= {"filtered out of the dump", "not in the dump", "not mapped"}


near = st.integers(FIRST - 64, FIRST + PAGES * PAGE + 64)
edges = st.builds(
    lambda page, back: FIRST + page * PAGE - back, st.integers(0, PAGES), st.integers(-40, 40)
)
wild = st.sampled_from(
    [0, 1, 4095, 1 << 32, (1 << 63) - 8, 1 << 63, DIRECT_MAP, VMEMMAP, VMEMMAP + 70000]
) | st.integers((1 << 64) - 70000, (1 << 64) - 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(near | edges | wild, max_size=60),
    st.sampled_from([1, PAGE, 2 * PAGE, 3 * PAGE, 1 << 16, 4 << 20]),
)
def test_gather_reads_what_a_loop_reads(addresses: list[int], chunk_bytes: int) -> None:
    check_rows(addresses, chunk_bytes)


def test_unsorted_addresses_keep_their_order_and_repeat() -> None:
    check_rows([FIRST + 5000, FIRST + 80, FIRST + 80, FIRST + PAGE - 3, FIRST + 5000, FIRST], PAGE)


def test_a_row_that_straddles_two_pages_needs_both() -> None:
    addresses = [FIRST + page * PAGE - 20 for page in (1, 3, 6, 20, 21)]
    found = gather(Memory(MACHINE.prog), words(*addresses), row_layout(), Faults())
    assert found.readable.tolist() == [True, False, False, False, False]
    assert found["word"].tolist()[1:] == [0, 0, 0, 0]
    check_rows(addresses, PAGE)


def test_nothing_in_nothing_out(machine: Machine) -> None:
    memory = Memory(machine.prog)
    found = gather(memory, words(), row_layout(), Faults())
    assert not len(found.readable)
    assert found["word"].dtype == np.dtype("<u8")
    values, readable = gather_arrays(memory, words(), 3, "<u4", Faults())
    assert values.shape == (0, 3)
    assert not len(readable)


def test_a_layout_without_members_still_tells_what_is_readable(machine: Machine) -> None:
    empty = layout(machine.prog, "struct row", {})
    found = gather(Memory(machine.prog), words(FIRST, FIRST + 3 * PAGE), empty, Faults())
    assert found.readable.tolist() == [True, False]


def test_addresses_that_cannot_be_the_kernels_are_never_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The synthetic physical memory would answer there.
    memory = Memory(MACHINE.prog)
    read: list[int] = []

    def spy(address: int, size: int) -> bytes:
        read.append(address)
        return bytes(size)

    monkeypatch.setattr(memory, "_read", spy)
    addresses = words(0, 8, PAGE, 1 << 62, (1 << 63) - 1, (1 << 64) - 4095, (1 << 64) - 22)
    faults = Faults()
    assert not gather(memory, addresses, row_layout(), faults).readable.any()
    assert not read
    # Nor is a wild pointer an unreadable page.
    assert not faults


def test_members_of_three_pages(machine: Machine) -> None:
    wide = layout(machine.prog, "struct wide", ["first", "last"])
    addresses = [FIRST + 6 * PAGE, FIRST + 3 * PAGE, FIRST + PAGE, FIRST + 7 * PAGE + 100]
    for chunk_bytes in (PAGE, 1 << 20):
        found = gather(Memory(machine.prog, chunk_bytes), words(*addresses), wide, Faults())
        assert found.readable.tolist() == [True, False, False, True]
        for name, offset in (("first", 0), ("last", 8992)):
            assert [found[name][at] for at in (0, 3)] == [
                machine.word(addresses[at] + offset) for at in (0, 3)
            ]


def test_a_hole_between_members_is_no_loss_but_one_under_any_is(machine: Machine) -> None:
    wide = layout(machine.prog, "struct wide", ["last", "first"])
    addresses = [FIRST + page * PAGE for page in (19, 1, 5, 20, 6)]
    found = gather(Memory(machine.prog), words(*addresses), wide, Faults())
    # Page 20 is a hole that nothing of the first lies on; 1 ends and 5 begins on one.
    assert found.readable.tolist() == [True, False, False, False, True]
    for name, offset in (("first", 0), ("last", 8992)):
        assert found[name].tolist() == [
            machine.word(address + offset) if ok else 0
            for address, ok in zip(addresses, found.readable.tolist(), strict=True)
        ]


def test_only_the_pages_that_members_lie_on_matter(machine: Machine) -> None:
    # The struct begins on a page that is a hole; the member wanted does not lie there.
    last = layout(machine.prog, "struct wide", ["last"])
    found = gather(Memory(machine.prog), words(FIRST + 5 * PAGE), last, Faults())
    assert found.readable.tolist() == [True]
    assert found["last"].tolist() == [machine.word(FIRST + 5 * PAGE + 8992)]


def test_holes_are_counted_once_a_page_and_by_reason(machine: Machine) -> None:
    faults = Faults()
    addresses = [FIRST + page * PAGE + step for page in (3, 4, 5, 6) for step in (0, 64, 128)]
    gather(Memory(machine.prog), words(*addresses), row_layout(), faults)
    assert faults == {"filtered out of the dump": 3}


def test_no_read_is_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(MACHINE.prog, 4 * PAGE)
    sizes: list[int] = []
    read = memory._read

    def spy(address: int, size: int) -> bytes:
        sizes.append(size)
        return read(address, size)

    monkeypatch.setattr(memory, "_read", spy)
    addresses = FIRST + np.arange(6 * PAGE, 20 * PAGE, 100, dtype=np.uint64)
    found = gather(memory, addresses, row_layout(), Faults())
    assert found.readable.sum() > 500
    assert max(sizes) <= 4 * PAGE
    # And neighbours are read together.
    assert len(sizes) <= 14


def test_no_page_is_read_twice_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(MACHINE.prog, PAGE)
    read: list[int] = []
    monkeypatch.setattr(memory, "_read", lambda at, size: read.append(at) or bytes(size))  # type: ignore[func-returns-value]
    addresses = [FIRST + page * PAGE + at for page in range(6, 16) for at in range(0, 4000, 500)]
    random.Random(1).shuffle(addresses)
    gather(memory, words(*addresses), row_layout(), Faults())
    assert sorted(read) == [FIRST + page * PAGE for page in range(6, 16)]


# Arrays


def check_arrays(addresses: list[int], length: int, dtype: str, chunk_bytes: int) -> None:
    element = np.dtype(dtype)
    memory = Memory(MACHINE.prog, chunk_bytes)
    values, readable = gather_arrays(memory, words(*addresses), length, dtype, Faults())
    size = max(length * element.itemsize, 1)
    data = [plain(address, size) for address in addresses]
    assert readable.tolist() == [each is not None for each in data]
    assert values.shape == (len(addresses), length)
    assert values.dtype == element
    for row, each in zip(values, data, strict=True):
        truth: npt.NDArray[np.uint64] = np.zeros(length, element)
        if each is not None and length:
            truth = np.frombuffer(each, element)
        assert row.tolist() == truth.tolist()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(near | edges | wild, max_size=12),
    st.sampled_from([0, 1, 2, 21, 512, 3000]),
    st.sampled_from(["u1", "<u2", "<u4", "<u8", ">u8"]),
    st.sampled_from([1, 3 * PAGE, 1 << 20]),
)
def test_gather_arrays_reads_what_a_loop_reads(
    addresses: list[int], length: int, dtype: str, chunk_bytes: int
) -> None:
    check_arrays(addresses, length, dtype, chunk_bytes)


def test_arrays_of_pointers(machine: Machine) -> None:
    memory = Memory(machine.prog)
    # The second one is null, the third one not aligned, and the last one empty.
    arrays = words(FIRST + 8, 0, FIRST + 3, FIRST)
    row, pointers, readable = gather_pointers(memory, arrays, np.array([3, 2, 1, 0]), Faults())
    assert row.tolist() == [0, 0, 0, 1, 1, 2]
    assert readable.tolist() == [True] * 3 + [False] * 3
    data = machine.prog.read(FIRST + 8, 24)
    assert pointers.tolist() == [*np.frombuffer(data, "<u8").tolist(), 0, 0, 0]


# Memory


def test_a_word(machine: Machine) -> None:
    memory = Memory(machine.prog)
    assert memory.word(FIRST + 13) == int.from_bytes(machine.prog.read(FIRST + 13, 8), "little")
    assert memory.word(VMEMMAP + 8) == 0
    for address in (0, 8, (1 << 63) - 8, FIRST + 3 * PAGE, VMEMMAP - 8, (1 << 64) - 1):
        with pytest.raises(drgn.FaultError):
            memory.word(address)


def fast(monkeypatch: pytest.MonkeyPatch, *, physical: bool) -> None:
    """Make one way of reading the faster one."""
    monkeypatch.setattr(Memory, "_seconds", lambda self, at, by: 1.0 if by == physical else 2.0)


def test_the_direct_map_is_read_without_page_tables(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(monkeypatch, physical=True)
    memory = Memory(machine.prog)
    # Page 2 is the table that translates the direct map.
    machine.holes.add(2)
    try:
        with pytest.raises(drgn.FaultError):
            machine.prog.read(FIRST, 8)
        assert memory.word(FIRST) == machine.word(FIRST)
        assert memory.span(FIRST, 2, Faults())[1] is None
    finally:
        machine.holes.remove(2)


def test_where_virtual_addresses_are_as_fast_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast(monkeypatch, physical=False)
    machine = _machine()
    memory = Memory(machine.prog)
    assert memory.word(FIRST) == machine.word(FIRST)
    machine.holes.add(2)
    with pytest.raises(drgn.FaultError):
        memory.word(FIRST)


def test_the_time_that_a_read_takes_is_some() -> None:
    memory = Memory(MACHINE.prog)
    assert memory._seconds(FIRST, False) > 0
    assert memory._seconds(MACHINE.physical(FIRST), True) > 0


def test_filtered_first_pages_do_not_cost_the_direct_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast(monkeypatch, physical=True)
    # makedumpfile leaves out the first page frames where they are free.
    machine = _machine()
    machine.constant("min_low_pfn", 600 + HOLES[0])
    machine.holes.add(0)
    memory = Memory(machine.prog)
    machine.holes.add(2)
    assert memory.word(FIRST) == machine.word(FIRST)


def test_without_tasks_everything_is_read_by_virtual_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast(monkeypatch, physical=True)
    machine = _machine()
    del machine.symbols["init_task"]
    memory = Memory(machine.prog)
    assert memory.word(FIRST) == machine.word(FIRST)
    machine.holes.add(2)
    with pytest.raises(drgn.FaultError):
        memory.word(FIRST)


def test_physical_addresses_that_lead_elsewhere_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast(monkeypatch, physical=True)
    machine = _machine()

    def virtual(address: int, size: int, offset: int, physical: bool) -> bytes:
        return machine.ram[offset : offset + size]

    def elsewhere(address: int, size: int, offset: int, physical: bool) -> bytes:
        return bytes(size)

    machine.prog.add_memory_segment(DIRECT_MAP, len(machine.ram), virtual)
    machine.prog.add_memory_segment(0, len(machine.ram), elsewhere, True)
    assert Memory(machine.prog).word(FIRST) == machine.word(FIRST) != 0


def test_a_program_without_physical_memory_is_read_by_virtual_addresses() -> None:
    machine = Machine(TYPES)
    data = bytes(range(256)) * 32

    def physical(address: int, size: int, offset: int, physical: bool) -> bytes:
        raise drgn.FaultError("could not find physical memory segment", address)

    def virtual(address: int, size: int, offset: int, physical: bool) -> bytes:
        return data[offset : offset + size]

    machine.prog.add_memory_segment(0, 16 << 20, physical, True)
    machine.prog.add_memory_segment(FIRST, len(data), virtual)
    memory = Memory(machine.prog)
    assert bytes(memory.span(FIRST, 2, Faults())[0]) == data
    assert memory.word(FIRST + 8) == int.from_bytes(data[8:16], "little")


def test_a_span_keeps_what_can_be_read(machine: Machine) -> None:
    faults = Faults()
    data, readable = Memory(machine.prog).span(FIRST, PAGES, faults)
    assert readable is not None
    assert np.flatnonzero(~readable).tolist() == list(HOLES)
    assert faults == {"filtered out of the dump": len(HOLES)}
    for page in range(PAGES):
        start = machine.physical(FIRST) + page * PAGE
        truth = bytes(PAGE) if page in HOLES else bytes(machine.ram[start : start + PAGE])
        assert bytes(data[page * PAGE : (page + 1) * PAGE]) == truth


def test_salvage_reads_few_times() -> None:
    # One hole in 1024 pages: halving costs two reads a level, not one a page.
    machine = Machine(TYPES)
    machine.drop(DIRECT_MAP + 2500 * PAGE)
    memory, reads = Memory(machine.prog), 0
    read = memory._read

    def count(address: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(address, size)

    memory._read = count  # type: ignore[method-assign]
    faults = Faults()
    readable = memory.span(DIRECT_MAP + 2048 * PAGE, 1024, faults)[1]
    assert readable is not None
    assert np.flatnonzero(~readable).tolist() == [452]
    assert faults.total() == 1
    assert reads <= 1 + 2 * 10


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("could not read memory: Excluded page", "filtered out of the dump"),
        ("memory was not saved in the core dump", "filtered out of the dump"),
        ("short read from memory file", "beyond the end of a truncated dump"),
        ("could not find physical memory segment", "not in the dump"),
        ("address is not mapped", "not mapped"),
        ("something else", "unreadable"),
    ],
)
def test_reasons(message: str, words: str) -> None:
    assert reason(drgn.FaultError(message, 0)) == words


# Strings


def test_strings_of_all_lengths_and_places(machine: Machine) -> None:
    place = DIRECT_MAP + 700 * PAGE
    machine.drop(place + 3 * PAGE)
    texts = {
        place: b"",
        place + 100: b"caf\xe9",
        place + 200: b"x" * 63,
        place + 400: b"y" * 64,
        place + 600: b"z" * 300,
        place + 3 * PAGE - 4: b"end",
    }
    for address, text in texts.items():
        machine.write(address, text + b"\0")
    machine.write(place + 1000, b"-" * 3000)
    machine.write(place + 4 * PAGE, b"+" * (PAGE + 10) + b"\0")
    addresses = [*texts, 0, place + 3 * PAGE, place + 400]
    found = c_strings(Memory(machine.prog), words(*addresses), Faults())
    assert found == [*texts.values(), None, None, b"y" * 64]
    assert c_strings(Memory(machine.prog), words(), Faults()) == []


def test_a_string_without_an_end_is_none(machine: Machine) -> None:
    place = DIRECT_MAP + 720 * PAGE
    machine.write(place, b"+" * (3 * PAGE))
    assert c_strings(Memory(machine.prog), words(place), Faults()) == [None]


def test_a_string_that_runs_into_a_hole_is_none(machine: Machine) -> None:
    place = DIRECT_MAP + 730 * PAGE
    machine.write(place, b"+" * PAGE)
    machine.drop(place + PAGE)
    faults = Faults()
    assert c_strings(Memory(machine.prog), words(place + PAGE - 4), faults) == [None]
    assert faults.total() > 0


def test_a_string_is_never_read_at_a_low_address() -> None:
    machine = Machine(TYPES)

    def anything(address: int, size: int, offset: int, physical: bool) -> bytes:
        return b"A" * (size - 1) + b"\0"

    machine.prog.add_memory_segment(0, 1 << 20, anything)
    assert c_strings(Memory(machine.prog), words(0x1000), Faults()) == [None]


# Words


@settings(max_examples=80, deadline=None)
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
    assert values.dtype == word
    assert values.tolist() == [0 if each is None else np.frombuffer(each, word)[0] for each in data]


def test_gather_words_counts_pages_that_cannot_be_read_once(machine: Machine) -> None:
    faults = Faults()
    addresses = [FIRST + page * PAGE + step for page in (3, 20, 6) for step in (0, 64, 128)]
    values, readable = gather_words(Memory(machine.prog), words(*addresses), "u8", faults)
    assert readable.tolist() == [False] * 6 + [True] * 3
    assert values[6:].all()
    assert faults == {"filtered out of the dump": 2}
