# SPDX-License-Identifier: LGPL-2.1-or-later
"""Families of names that are looked at together, against those of one name at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kcensus.analyses.dentries.name_patterns import WORD, Families, families, merged, trimmed

SHAPES = ("ab{}cd.log", "tmp.{}{}", "{}1x.{}", "x{}.a{}b", "{}", "lib{}.so.{}", "-{}-.{}é")


def grouped(names: list[tuple[int, bytes]]) -> Families:
    """Return the families of names that take two words, given with their directories."""
    data = np.array([list(name.ljust(16, b"\0")) for _, name in names], np.uint8)
    words = np.ascontiguousarray(data.view(WORD).T)
    lengths = np.array([len(name) for _, name in names])
    parent = np.array([each for each, _ in names], np.int32)
    return families(trimmed(words, lengths), lengths, parent, [lengths % 2 == 0, lengths])


def by_key(found: Families) -> dict[int, tuple[object, ...]]:
    """Return all of a family but its sample, which may be any of its names."""
    varies = found.differs != 0
    rows = zip(
        found.key.tolist(),
        found.parent.tolist(),
        (found.sample & ~found.differs).T.tolist(),
        varies.T.tolist(),
        found.classes.T.tolist(),
        found.sums.T.tolist(),
        strict=True,
    )
    return {key: tuple(map(str, rest)) for key, *rest in rows}


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [1, 3])
@pytest.mark.parametrize("parents", [1, 4])
def test_families_are_those_of_one_name_at_a_time(shapes: int, parents: int) -> None:
    choice = random.Random(shapes * 10 + parents)
    for _ in range(200):
        shape, wide = choice.sample(SHAPES, shapes), choice.choice(["ab", "01", "0aF", "xyz.9"])
        names: list[tuple[int, bytes]] = []
        while len(names) < 30:
            parts = ["".join(choice.choices(wide, k=choice.randint(2, 3))) for _ in range(2)]
            name = choice.choice(shape).format(*parts).ljust(9, choice.choice("_z7")).encode()
            if 8 < len(name) <= 16:
                names.append((choice.randrange(parents), name))
        alone = merged([grouped([name]) for name in names])
        assert by_key(grouped(names)) == by_key(alone)
