# SPDX-License-Identifier: LGPL-2.1-or-later
"""The uses of memory that a recorder notes."""

from __future__ import annotations

from collections import Counter

import drgn
import numpy as np
import pytest

from kcensus.engine.gather import gather, gather_arrays, gather_words
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Guess, Memory
from kcensus.engine.strings import c_strings
from kcensus.sources.capsule.recorder import Recorder
from kcensus.sources.capsule.uses import Use, Uses
from tests.unit.capsules import target_of
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel

_TYPES = "struct thing 64 : 8 unsigned int number; 16 char [16] name; 40 struct thing * next"


class _Scene:
    def __init__(self) -> None:
        self.k = FakeKernel("6.10", _TYPES)
        self.thing = self.k.alloc("struct thing", alone=True)
        self.recorder = Recorder(target_of(self.k), has_uses=True)
        self.prog = self.recorder.target.prog
        self.memory = Memory(self.prog)

    def uses(self, size: int = 64) -> list[tuple[int, Use]]:
        """Return (offset, use) of the used bytes of the thing."""
        assert self.recorder.uses is not None
        use = self.recorder.uses.of(int(self.thing.address_) - DIRECT_MAP, size)
        return [(at, Use(each)) for at, each in enumerate(use.tolist()) if each]

    @property
    def at(self) -> np.ndarray:
        return np.array([self.thing.address_], np.uint64)


def _span(start: int, end: int, use: Use) -> list[tuple[int, Use]]:
    return [(at, use) for at in range(start, end)]


def test_members_are_used_and_what_is_between_them_is_not() -> None:
    scene = _Scene()
    members = layout(scene.prog, "struct thing", ["number", "name", "next"])
    gather(scene.memory, scene.at, members, Faults())
    used = _span(8, 12, Use.NUMBER) + _span(16, 32, Use.TEXT) + _span(40, 48, Use.NUMBER)
    assert scene.uses() == used
    assert scene.recorder.touched[(int(scene.thing.address_) - DIRECT_MAP) // PAGE]


def test_at_a_guess_is_anything() -> None:
    scene = _Scene()
    gather(scene.memory, scene.at, layout(scene.prog, "struct thing", ["number"]), Guess())
    gather_words(scene.memory, scene.at + np.uint64(40), "<u8", Faults(), use=Use.UNKNOWN)
    assert scene.uses() == _span(8, 12, Use.UNKNOWN) + _span(40, 48, Use.UNKNOWN)


def test_strings_end_at_their_nul() -> None:
    scene = _Scene()
    scene.k.write(int(scene.thing.name.address_), b"abc\0rest")
    assert c_strings(scene.memory, scene.at + np.uint64(16), Faults()) == [b"abc"]
    assert scene.uses() == _span(16, 20, Use.TEXT)
    assert scene.prog.read_c_string(int(scene.thing.address_) + 17) == b"bc"
    assert scene.uses() == _span(16, 20, Use.TEXT)


def test_objects_of_drgn_use_what_they_read() -> None:
    scene = _Scene()
    thing = drgn.Object(scene.prog, "struct thing", address=int(scene.thing.address_))
    assert int(thing.number) == 0
    assert scene.uses() == _span(8, 12, Use.NUMBER)
    thing.read_()
    assert Counter(use for _, use in scene.uses()) == {Use.UNKNOWN: 64}


def test_a_caller_may_use_a_part_of_what_it_reads() -> None:
    scene = _Scene()
    gather_arrays(scene.memory, scene.at, 8, "<u8", Faults(), None)
    assert scene.uses() == []
    scene.memory.note(scene.at + np.uint64(3), np.array([7]), Use.NUMBER)
    assert scene.uses() == _span(3, 10, Use.NUMBER)
    scene.memory.span(int(scene.thing.address_), 1, Faults())
    assert Counter(use for _, use in scene.uses(PAGE)) == {Use.UNKNOWN: PAGE}


def test_addresses_outside_of_the_direct_map_are_translated() -> None:
    tables: list[int] = []

    def translate(address: int) -> int:
        uses.read(64, 8)  # an entry of a page table
        tables.append(address)
        if address >= 0xFFFF_C900_0000_3000:
            raise drgn.FaultError("not mapped", address)
        return 5 * PAGE - (address & PAGE)

    uses = Uses(16 * PAGE, PAGE, DIRECT_MAP, translate)
    start = 0xFFFF_C900_0000_1FFC
    uses.note(np.array([start, start, 0xFFFF_C900_0000_4000], np.uint64), 8, Use.TEXT)
    used = np.flatnonzero(uses.of(0, 16 * PAGE)).tolist()
    lower, upper = 4 * PAGE + 0xFFC, 5 * PAGE
    assert used == [*range(64, 72), *range(lower, lower + 4), *range(upper, upper + 4)]
    assert uses.of(64, 8).tolist() == [Use.NUMBER] * 8
    assert len(tables) == 3


def test_the_machine_may_have_more_memory_than_this_one() -> None:
    uses = Uses(1 << 45, PAGE, DIRECT_MAP, lambda address: address)
    uses.note(np.array([DIRECT_MAP + (1 << 45) - 8], np.uint64), 8, Use.NUMBER)
    assert uses.of((1 << 45) - 8, 8).tolist() == [Use.NUMBER] * 8
    with pytest.raises(OSError, match="memory"):
        Uses(1 << 52, PAGE, DIRECT_MAP, lambda address: address)


def test_memory_beyond_the_end_has_no_use() -> None:
    uses = Uses(2 * PAGE, PAGE, DIRECT_MAP, lambda address: address)
    uses.note(np.array([DIRECT_MAP + 2 * PAGE - 8], np.uint64), 8, Use.NUMBER)
    assert uses.of(2 * PAGE - 8, 256).tolist()[:16] == [1] * 8 + [0] * 8


def test_whole_pages_of_one_large_page_are_translated_twice() -> None:
    walks: list[int] = []
    large, small = 1 << 63 | 0x200_000, 1 << 63 | 0x400_000

    def translate(address: int) -> int:
        walks.append(address)
        uses.read(4096 + (8 * (address - small) // PAGE if address >= small else 0), 8)
        return 0x10_0000 + address - large

    uses = Uses(1 << 30, PAGE, DIRECT_MAP, translate)
    for start in (large, small):
        pages = np.uint64(start) + np.arange(16, dtype=np.uint64) * np.uint64(PAGE)
        uses.note(pages, PAGE, Use.NUMBER)
    assert len(walks) == 2 + 2 + 16
    assert (uses.of(0x10_0000, 16 * PAGE) == Use.NUMBER).all()
    assert not uses.of(0x10_0000 + 16 * PAGE, PAGE).any()
    # Entries of tables are in use.
    assert (uses.of(4096, 8 * 16) == Use.NUMBER).all()
