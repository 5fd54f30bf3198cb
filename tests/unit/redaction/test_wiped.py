# SPDX-License-Identifier: LGPL-2.1-or-later
"""The registers of programs on the stacks of a *synthetic* kernel."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.redaction.wiped import registers
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel

_TASK = (
    "struct task_struct 128 : 8 void * stack; 16 struct list_head tasks; 32 struct mm_struct * mm"
)
_X86 = f"{_TASK}\nstruct pt_regs 168 : 128 unsigned long ip; 136 unsigned long cs"
_ARM64 = f"{_TASK}\nstruct pt_regs 336 : 0 unsigned long sp; 264 unsigned long pstate"
_STACK = 4 * PAGE


def _wiped(types: str, *, cs: int = 0, padding: int = 0, mm: int = 1) -> list[int]:
    """Return the wiped bytes of a task's stack, counted back from its end."""
    k = FakeKernel("6.10", base=types)
    k.constant("THREAD_SIZE", _STACK)
    stack = k.alloc("char", _STACK, alone=True)
    slab = k.slab(k.cache("task_struct", 128), free=range(1, 32))
    k.write_words(slab.object(0) + 8, stack.address_)
    k.write_words(slab.object(0) + 32, mm)
    k.write_words(stack.address_ + _STACK - padding - 168 + 136, cs)
    report = ScanReport()
    ranges = registers(Kernel(k.prog), report)
    assert report.complete
    wiped, _ = ranges.inside(stack.address_ - DIRECT_MAP, _STACK)
    return (_STACK - np.flatnonzero(wiped)).tolist()


def test_of_arm64_they_are_at_the_end_of_the_stack() -> None:
    assert _wiped(_ARM64) == [*range(336, 0, -1)]
    assert _wiped(_ARM64, mm=0) == []


@pytest.mark.parametrize("padding", [0, 16])
@pytest.mark.parametrize("cs", [0x23, 0x33])
def test_of_x86_the_code_segment_stays(cs: int, padding: int) -> None:
    expected = set(range(1 + padding, 169 + padding)) - set(range(25 + padding, 33 + padding))
    assert set(_wiped(_X86, cs=cs, padding=padding)) == expected
    assert _wiped(_X86, cs=0x10, padding=padding) == []


def test_memory_below_the_stack_pointer_of_the_task_that_has_the_stack() -> None:
    k = FakeKernel(
        "6.10",
        base="struct thread_struct 8 : 0 unsigned long sp\n"
        "struct pt_regs 168 : 136 unsigned long cs\n"
        f"{_TASK}; 40 int on_cpu; 48 struct thread_struct thread",
    )
    k.constant("THREAD_SIZE", _STACK)
    stack = int(k.alloc("char", _STACK, alone=True).address_)
    slab = k.slab(k.cache("task_struct", 128), free=range(2, 32))
    # The second task has exited, and its stack is that of the first.
    for slot, own, sp in ((0, stack, 2 * PAGE + 64), (1, 0, 3 * PAGE + 512)):
        k.write_words(slab.object(slot) + 8, own)
        k.write_words(slab.object(slot) + 48, stack + sp)
    ranges = registers(Kernel(k.prog), ScanReport())
    wiped, _ = ranges.inside(stack - DIRECT_MAP, _STACK)
    assert np.flatnonzero(wiped).tolist() == [*range(2 * PAGE, 2 * PAGE + 64)]
