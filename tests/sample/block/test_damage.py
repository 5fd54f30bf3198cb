# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump with requests in which words are damaged at random: gaps, never a wrong kind of error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import drgn
import numpy as np
import pytest

from kcensus.analyses.iosched.kernel.run import of_kernel
from kcensus.engine.memory import Memory
from kcensus.kernel.kernel import Kernel
from kcensus.sources import open_target
from kcensus.sources.capsule import NotRecorded

_CAPSULE = Path(__file__).parent / "cfq-4.19.capsule"
_SEVERE = 1e-2
"""Share of damaged words from which on analyses may fail, in one sentence."""


def damaging(
    read: Callable[[Memory, int, int], bytes], seed: int, share: float
) -> Callable[[Memory, int, int], bytes]:
    """Return a function that reads memory and damages some words of it, the same each time."""

    def damaged(memory: Memory, address: int, size: int) -> bytes:
        words = np.frombuffer(read(memory, address, size), np.uint8).copy()
        whole = words[: size // 8 * 8].view(np.uint64)
        chance = np.random.default_rng((seed, address & 0xFFFFFFFF, address >> 32))
        bad = chance.random(len(whole)) < share
        # Nothing, anything, a flipped bit, a pointer to somewhere, and one to another word.
        kind = chance.integers(0, 5, len(whole))
        anything = chance.integers(0, 1 << 64, len(whole), np.uint64)
        bit = np.uint64(1) << (anything % np.uint64(64))
        pointer = np.uint64(0xFFFF_8880_0000_0000) | (anything & np.uint64(0xFFF_FFF8))
        other = np.roll(whole, 1)
        choices = [np.zeros_like(whole), anything, whole ^ bit, pointer, other]
        whole[bad] = np.choose(kind, choices)[bad]
        return words.tobytes()

    return damaged


@pytest.mark.parametrize("share", [1e-4, 1e-3, _SEVERE])
@pytest.mark.parametrize("seed", range(4))
def test_random_damage(seed: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    prog = open_target(str(_CAPSULE)).prog
    monkeypatch.setattr(Memory, "_read", damaging(Memory._read, seed, share))
    start = time.process_time()
    try:
        answer = of_kernel(Kernel(prog))
    except (LookupError, NotRecorded, drgn.FaultError):
        assert share >= _SEVERE
    else:
        assert len(answer.tables["requests"].frame) == answer.summary["requests"].value
        assert all(gap.count > 0 for gap in answer.gaps)
    assert time.process_time() - start < 30


def test_much_damage_shows_as_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    prog = open_target(str(_CAPSULE)).prog
    monkeypatch.setattr(Memory, "_read", damaging(Memory._read, 7, 1e-3))
    assert of_kernel(Kernel(prog)).gaps
