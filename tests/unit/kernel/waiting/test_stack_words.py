# SPDX-License-Identifier: LGPL-2.1-or-later
"""Words on the stacks of *synthetic* tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.waiting.objects.queued import stack_words
from tests.unit.fakekernel import PAGE, FakeKernel


def test_stacks_that_share_a_page() -> None:
    """Where pages are larger than stacks, as on POWER with pages of 64 KiB."""
    k, half = FakeKernel("6.10"), PAGE // 2
    low = int(k.alloc("char", PAGE, alone=True).address_)
    k.write_words(low, *range(1, PAGE // 8 + 1))
    stack = np.array([low, low + half, low], np.uint64)
    # The third stack pointer is of the other stack.
    sp = np.array([low + half - 16, low + half + 64, low + half], np.uint64)
    known: Any = SimpleNamespace(stack=stack, sp=sp)
    found = {}
    for lanes, start, words in stack_words(Memory(k.prog), known, np.arange(3), half, Faults()):
        for lane, first, own in zip(lanes.tolist(), start.tolist(), words.tolist(), strict=True):
            found[lane] = first - low, [word for word in own if word]
    assert found == {
        0: (0, [PAGE // 16 - 1, PAGE // 16]),
        1: (half, [*range(PAGE // 16 + 9, PAGE // 8 + 1)]),
    }
