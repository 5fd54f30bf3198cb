# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registers of programs at the top of stacks of *synthetic* kernels."""

from __future__ import annotations

import numpy as np
import pytest

from kcensus.engine.memory import Faults, Memory
from kcensus.kernel.arch.aarch64.registers import user_registers as of_arm64
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.registers import UNKNOWN, arguments, user_registers
from tests.unit.fakekernel import FakeKernel

_X86 = """
struct pt_regs 168 : 40 unsigned long bx; 88 unsigned long cx; 112 unsigned long di
    ; 136 unsigned long cs
"""
_ARM64 = """
struct frame 24 : 0 unsigned long fp
struct pt_regs 336 : 248 unsigned long sp; 256 unsigned long pc; 264 unsigned long pstate
    ; 304 struct frame stackframe
"""
_SIZE = 16384


def _stack(k: FakeKernel) -> int:
    return int(k.alloc(f"char [{_SIZE}]", alone=True).address_)


def test_registers_and_arguments_of_x86_programs() -> None:
    k = FakeKernel("6.10", _X86)
    k.constant("THREAD_SIZE", _SIZE)
    # A program of 64 bits, a kernel thread, and a program of 32 bits with a padding for FRED.
    stacks = [_stack(k) for _ in range(3)]
    native, kthread, compat = (stack + _SIZE - 168 for stack in stacks)
    compat -= 16
    k.write_words(native + 112, 0x7F00)
    k.write_words(native + 136, 0x33)
    k.write_words(kthread + 136, 0x10)
    k.write_words(compat + 40, 0x1234)
    k.write_words(compat + 136, 0x23)
    kernel, lows = Kernel(k.prog), np.array(stacks, np.uint64)
    found = user_registers(kernel, lows, Faults())
    assert (found.row.tolist(), found.start.tolist()) == ([0, 2], [native, compat])
    assert (found.size, found.kept, found.is_compat.tolist()) == (168, ((136, 8),), [0, 1])
    assert arguments(kernel, lows, 0, Faults()).tolist() == [0x7F00, int(UNKNOWN), 0x1234]


def test_registers_of_arm64_programs() -> None:
    k = FakeKernel("6.10", _ARM64)
    stacks = [_stack(k) for _ in range(5)]
    first = [stack + _SIZE - 336 for stack in stacks]
    first[4] -= 16
    # Programs of 64 and of 32 bits, a kernel thread, zeros, and a stack of Linux 4.13.
    k.write_words(first[0] + 248, 0x7F00, 0x4000, 0x6000_0000)
    k.write_words(first[1] + 248, 0x7F00, 0x4000, 0x6000_0010)
    k.write_words(first[2] + 248, 0, 0, 0x10_0005)
    k.write_words(first[4] + 248, 0x7F00, 0x4000, 0)
    top = np.array(stacks, np.uint64) + np.uint64(_SIZE)
    found = of_arm64(Memory(k.prog), top, Faults())
    assert found.row.tolist() == [0, 1, 4]
    assert found.start.tolist() == [first[row] for row in found.row.tolist()]
    assert (found.is_compat.tolist(), found.kept) == ([0, 1, 0], ((304, 24),))


def test_other_architectures_have_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel("6.10", _X86)
    monkeypatch.setattr("kcensus.kernel.tasks.registers.readers_of", lambda _: None)
    with pytest.raises(LookupError):
        user_registers(Kernel(k.prog), np.empty(0, np.uint64), Faults())
