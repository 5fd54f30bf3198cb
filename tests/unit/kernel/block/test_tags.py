# SPDX-License-Identifier: LGPL-2.1-or-later
"""Maps of tags of a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.block import hardware
from kcensus.kernel.block.hardware import set_bits
from tests.unit.fakekernel import FakeKernel, add_types
from tests.unit.fakekernel.types import Table

_WORD = 64
_OLD = {"struct sbitmap_word": (_WORD, "0 unsigned long word\n8 unsigned long depth")}
_NEW = {"struct sbitmap_word": (_WORD, "0 unsigned long word\n32 unsigned long cleared")}
_MAP = {
    "struct sbitmap": (
        24,
        "0 unsigned int depth\n4 unsigned int shift\n8 unsigned int map_nr\n"
        "16 struct sbitmap_word * map",
    ),
}


class Maps:
    """Maps of tags, in memory."""

    def __init__(
        self,
        types: Table | None = None,
        type_name: str = "struct sbitmap",
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.k = FakeKernel("6.13")  # without types of blk-mq
        add_types(self.k.prog, types or {**_MAP, **_NEW}, "sbitmap")
        self.type_name = type_name
        self.names = {"shift": "shift", "word": "struct sbitmap_word", **(names or {})}
        self.maps: list[int] = []

    def add(self, depth: int, shift: int, words: list[tuple[int, int]]) -> None:
        """Add a map of words, each with its set and lazily cleared bits."""
        place = self.k.alloc(self.type_name)
        array = self.k.alloc(f"{self.names['word']} [{max(len(words), 1)}]", alone=True)
        numbers = {"depth": depth, self.names["shift"]: shift, "map_nr": len(words)}
        for name, value in numbers.items():
            self.k.set(place.member_(name), value)
        self.k.set(place.map, array)
        for word, (bits, cleared) in zip(array, words, strict=False):
            self.k.set(word.word, bits)
            if word.type_.has_member("cleared"):
                self.k.set(word.cleared, cleared)
        self.maps.append(int(place.address_))

    def bits(self) -> tuple[list[list[int]], int]:
        lanes, bits, damaged = set_bits(
            Memory(self.k.prog), np.array(self.maps, np.uint64), Faults()
        )
        return [bits[lanes == lane].tolist() for lane in range(len(self.maps))], damaged


def test_bits_of_several_words() -> None:
    maps = Maps()
    maps.add(10, 3, [(0b1000_0001, 0), (0b11, 0)])
    maps.add(64, 6, [(1 << 63 | 1, 0)])
    assert maps.bits() == ([[0, 7, 8, 9], [0, 63]], 0)


def test_cleared_and_impossible_bits_do_not_count() -> None:
    maps = Maps()
    maps.add(10, 3, [(0b1_1000_0001, 0b1000_0000), (0b111, 0b1)])
    assert maps.bits() == ([[0, 9]], 0)


def test_without_lazy_clearing() -> None:
    maps = Maps({**_MAP, **_OLD})
    maps.add(8, 3, [(0b101, 0b101)])
    assert maps.bits() == ([[0, 2]], 0)


def test_maps_of_blk_mq_before_sbitmap() -> None:
    maps = Maps(
        {
            "struct blk_align_bitmap": (_WORD, "0 unsigned long word\n8 unsigned long depth"),
            "struct blk_mq_bitmap_tags": (
                32,
                "0 unsigned int depth\n4 unsigned int wake_cnt\n8 unsigned int bits_per_word\n"
                "12 unsigned int map_nr\n16 struct blk_align_bitmap * map",
            ),
        },
        "struct blk_mq_bitmap_tags",
        {"shift": "bits_per_word", "word": "struct blk_align_bitmap"},
    )
    maps.add(10, 3, [(0b101, 0), (0b10, 0)])
    assert maps.bits() == ([[0, 2, 9]], 0)


@pytest.mark.parametrize("numbers", [(1 << 30, 6), (1 << 17, 6), (64, 7), (8, 3)])
def test_an_impossible_map_costs_only_itself(numbers: tuple[int, int]) -> None:
    maps = Maps()
    maps.add(*numbers, [(1, 0)] * 8)
    maps.add(8, 3, [(2, 0)])
    assert maps.bits() == ([[], [1]], 1)


def test_maps_that_are_too_large_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_MAX_WORDS", 4)
    maps = Maps()
    maps.add(64, 3, [(1, 0)] * 8)
    maps.add(8, 3, [(2, 0)])
    assert maps.bits() == ([[], [1]], 1)


def test_an_unreadable_map() -> None:
    maps = Maps()
    maps.add(8, 3, [(1, 0)])
    maps.add(8, 3, [(2, 0)])
    maps.k.drop(int(maps.k.word(maps.maps[0] + 16)))
    assert maps.bits() == ([[], [1]], 1)
