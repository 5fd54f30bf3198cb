# SPDX-License-Identifier: LGPL-2.1-or-later
"""A *synthetic* big-endian kernel, such as Z has, read on this machine."""

from __future__ import annotations

import random
from collections.abc import Callable

import drgn
import numpy as np
import pytest
from drgn import Object

from kcensus.arch import KNOWN
from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import gather, gather_arrays, gather_pointers, gather_words
from kcensus.engine.layout import layout, number_dtype, word_dtype
from kcensus.engine.memory import Faults, Memory, Words
from tests.unit.analyses.dentries import test_damage as damaged
from tests.unit.analyses.dentries import test_dentries as dentries
from tests.unit.analyses.memcgs import test_memcgs as memcgs
from tests.unit.engine import test_slab_scan as slabs
from tests.unit.engine.test_gather import PAGES, TYPES
from tests.unit.fakekernel import DIRECT_MAP, PAGE, Machine

FIRST = DIRECT_MAP + 600 * PAGE


@pytest.fixture(autouse=True)
def _big_endian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "byte_order", "big")


@pytest.fixture
def machine() -> Machine:
    machine = Machine(TYPES)
    machine.write(FIRST, random.Random(6).randbytes(PAGES * PAGE))
    return machine


def test_members_are_what_drgn_reads(machine: Machine) -> None:
    members = ["id", "word", "odd", "unaligned", "name", "bits", "more"]
    places: Words = np.uint64(FIRST) + np.arange(500, dtype=np.uint64) * np.uint64(311)
    row = layout(machine.prog, "struct row", members)
    read = gather(Memory(machine.prog), places, row, Faults())
    assert read.readable.all()
    for name in members:
        column = read[name]
        # Columns go to pandas, and into views.
        assert column.dtype.isnative
        assert column.tolist() == [
            _value(Object(machine.prog, "struct row", address=place).member_(name))
            for place in places.tolist()
        ]


def _value(object_: Object) -> int | bytes:
    if object_.type_.kind == drgn.TypeKind.ARRAY:
        return bytes(np.frombuffer(object_.to_bytes_(), "S8")[0])
    return int(object_)


def test_words_arrays_and_pointers(machine: Machine) -> None:
    prog, memory = machine.prog, Memory(machine.prog)
    places: Words = np.uint64(FIRST) + np.arange(999, dtype=np.uint64) * np.uint64(8)
    expected = [prog.read_u64(place) for place in places.tolist()]
    read, readable = gather_words(memory, places, word_dtype(prog), Faults())
    assert readable.all()
    assert read.dtype == np.uint64
    assert read.tolist() == expected
    array, _ = gather_arrays(memory, places[:1], 999, word_dtype(prog), Faults())
    assert array.dtype == np.uint64
    assert array[0].tolist() == expected
    _, pointers, _ = gather_pointers(memory, places[:2], np.array([3, 4]), Faults())
    assert pointers.tolist() == [*expected[:3], *expected[1:5]]
    numbers, _ = gather_words(memory, places, number_dtype(prog, "i4"), Faults())
    assert numbers.dtype == np.int32
    assert numbers.tolist() == [(value >> 32) - (value >> 63 << 32) for value in expected]
    assert memory.word(FIRST) == expected[0]


def test_a_ring_is_followed(machine: Machine) -> None:
    head = machine.alloc("struct list_head")
    machine.list_init(head)
    nodes = [machine.alloc("struct list_head") for _ in range(20)]
    for node in nodes:
        machine.list_add_tail(node, head)
    memory, faults, damage = Memory(machine.prog), Faults(), Damage()
    link = layout(machine.prog, "struct list_head", ["next"])
    ends = np.array([head.address_], np.uint64)
    step = pointer_step(memory, link, "next", faults)
    first = gather(memory, ends, link, faults)["next"]
    _, found = collect(first, step, limit=100, damage=damage, ends=ends)
    assert found.tolist() == [node.address_ for node in nodes]
    assert not damage.lists


@pytest.mark.parametrize("era", ["4.18", "7.3"])
def test_objects_are_exactly_those_allocated(era: str) -> None:
    kernel, cache = slabs.populated(era)
    assert slabs.check(kernel, cache, chunk_bytes=PAGE).complete


@pytest.mark.parametrize(
    "check",
    [
        *(dentries.test_memory_cgroups, damaged.test_names_that_cannot_be_read),
        *(damaged.test_hostile_names, damaged.test_parents_that_are_no_dentries),
        *(memcgs.test_what_goes_with_its_children, memcgs.test_inodes_hold_writeback),
    ],
)
def test_analyses_find_the_same(check: Callable[[], None]) -> None:
    check()


def test_only_z_has_low_addresses_and_is_big_endian() -> None:
    assert [each.name for each in KNOWN if not each.is_little] == ["s390x"]
    assert [each.name for each in KNOWN if each.addresses.start < 1 << 63] == ["s390x"]
