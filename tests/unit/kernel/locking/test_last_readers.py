# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the last reader of an rwsem of a *synthetic* kernel still holds it."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.locking.owners import Mode, Strength
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.waiting.objects.last_readers import Claim, LastReaders, Take
from tests.unit.kernel.waiting.making import SIZE, Sleepers, words

_TYPES = """
struct task_struct 64 : 8 struct mm_struct * mm
struct mm_struct 256 : 160 struct rw_semaphore mmap_lock
struct rw_semaphore 16 : 0 long count; 8 long owner
"""
_LOCK, _INSIDE, _OF_MEMORY = 0xFFFF_8881_2345_60A0, 0xA8, 0xA0
_RWSEM = "struct rw_semaphore"
_FUNCTIONS = ("__schedule", "rwsem_down_read_slowpath", "down_read", "inner", "outer")
_AT = (1000, 1104, 1200, 1304, 1400)
"""Where the frame of each function begins on the stack."""
_LATE = 6 * 10**9


class Reader:
    """A last reader that sleeps in a function that outer() has called."""

    def __init__(self) -> None:
        scene = self.scene = Sleepers(_TYPES, "inner")
        codes = np.arange(len(_FUNCTIONS), dtype=np.uint64) + np.uint64(0xFFFF_FFFF_8100_0000)
        names = dict(zip(codes.tolist(), _FUNCTIONS, strict=True))
        places = words(*(scene.stack[0] + at for at in _AT))
        flags = np.zeros(len(codes), np.bool_)
        lane = np.zeros(len(codes), np.int64)
        object.__setattr__(scene.waits, "stacks", Stacks(lane, codes, places, flags, names, SIZE))
        scene.waits.since_ns[0] = _LATE

    def judge(
        self,
        *inside: int,
        is_own: bool = False,
        is_only: bool = True,
        is_repeated: bool = False,
        mode: Mode = Mode.READ,
    ) -> Claim | None:
        scene, claim = self.scene, Claim(Strength.POSSIBLE, "last reader", "", 1)
        judge = LastReaders(scene.kernel, scene.known, scene.waits, Faults())
        take = [Take(_RWSEM, mode, "outer", frozenset(inside))]
        taken = ([], take) if is_repeated else (take, [])
        return judge.judge(0, _LOCK, claim, taken, is_own=is_own, is_only=is_only)


@pytest.mark.parametrize("at", [_AT[3], _AT[3] + 8, _AT[4] + 8])
@pytest.mark.parametrize("is_own", [False, True])
def test_the_object_of_a_lock_is_on_the_stack(at: int, is_own: bool) -> None:
    reader = Reader()
    reader.scene.put(0, _LOCK - _INSIDE, place=at)
    claim = reader.judge(0x10, _INSIDE, is_own=is_own)
    assert claim is not None
    assert (claim.strength, claim.code) == (Strength.DERIVED, "outer")
    assert claim.place == reader.scene.stack[0] + at


def test_what_is_no_further_evidence() -> None:
    reader = Reader()
    hint = Claim(Strength.POSSIBLE, "last reader, and code of outer", "outer", 1)
    # Another object, or nothing that the code says.
    assert reader.judge(_INSIDE) == reader.judge() == hint
    # A callee of the function that sleeps has it in any case.
    reader.scene.put(0, _LOCK - _INSIDE, place=_AT[2])
    assert reader.judge(_INSIDE) == hint
    reader.scene.put(0, _LOCK - _INSIDE, place=_AT[4])
    # Other readers may be inside.
    assert reader.judge(_INSIDE, is_only=False) == hint
    other = reader.judge(_INSIDE, mode=Mode.WRITE)
    assert other == Claim(Strength.POSSIBLE, "last reader", "", 1)


def test_a_last_reader_that_waits_for_the_same_lock() -> None:
    reader = Reader()
    # It has released it, as far as one knows, or takes it twice.
    assert reader.judge(_INSIDE, is_own=True) is None
    twice = reader.judge(_INSIDE, is_own=True, is_repeated=True)
    assert twice is not None
    assert twice.strength is Strength.POSSIBLE
    reader.scene.put(0, _LOCK - _INSIDE, place=_AT[4])
    assert reader.judge(_INSIDE, is_own=True) is not None
    reader.scene.waits.since_ns[0] = 10**9
    assert reader.judge(_INSIDE, is_own=True) is None


def test_callees_drop_the_lock_of_a_memory_map_and_take_it_again() -> None:
    reader = Reader()
    reader.scene.put(0, _LOCK - _OF_MEMORY, place=_AT[4])
    assert reader.judge(_OF_MEMORY, is_own=True) is None
    claim = reader.judge(_OF_MEMORY)
    assert claim is not None
    assert claim.strength is Strength.DERIVED
