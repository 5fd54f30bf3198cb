# SPDX-License-Identifier: LGPL-2.1-or-later
"""The registers of programs on the stacks of a *synthetic* kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import drgn
import numpy as np
import pytest

from kcensus.arch import by_name
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.kernel import Kernel
from kcensus.progress import SilentProgress
from kcensus.redaction.redaction import Redaction
from kcensus.redaction.wiped import constants, registers, secrets
from kcensus.sources import Target
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel

_TASK = (
    "struct task_struct 128 : 8 void * stack; 16 struct list_head tasks; 32 struct mm_struct * mm"
)
_X86 = f"{_TASK}\nstruct pt_regs 168 : 128 unsigned long ip; 136 unsigned long cs"
_ARM64 = f"""
struct frame_record_meta 24 : 0 unsigned long fp
struct pt_regs 336 : 248 unsigned long sp; 256 unsigned long pc; 264 unsigned long pstate
    ; 304 struct frame_record_meta stackframe
{_TASK}
"""
_STACK = 4 * PAGE


@pytest.fixture
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kcensus take synthetic kernels for those of arm64."""
    arch = by_name("aarch64")
    assert arch is not None
    readers = readers_of(arch.platform)
    monkeypatch.setattr("kcensus.redaction.wiped.architecture_of", lambda _: arch)
    for module in ("kernel.tasks.registers", "redaction.wiped"):
        monkeypatch.setattr(f"kcensus.{module}.readers_of", lambda _: readers)


def _wiped(
    types: str, *, words: Mapping[int, int] = MappingProxyType({}), mm: int = 1
) -> list[int]:
    """Return the wiped bytes of a task's stack, counted back from its end.

    :param words: on the stack, by their distance from its end
    """
    k = FakeKernel("6.10", base=types)
    k.constant("THREAD_SIZE", _STACK)
    stack = k.alloc("char", _STACK, alone=True)
    slab = k.slab(k.cache("task_struct", 128), free=range(1, 32))
    k.write_words(slab.object(0) + 8, stack.address_)
    k.write_words(slab.object(0) + 32, mm)
    for place, word in words.items():
        k.write_words(stack.address_ + _STACK - place, word)
    report = ScanReport()
    ranges = registers(Kernel(k.prog), report)
    assert report.complete
    wiped, _ = ranges.inside(stack.address_ - DIRECT_MAP, _STACK)
    return (_STACK - np.flatnonzero(wiped)).tolist()


@pytest.mark.usefixtures("arm64")
@pytest.mark.parametrize("padding", [0, 16])
def test_of_arm64_the_frame_record_stays(padding: int) -> None:
    program = {88 + padding: 0x7F00, 80 + padding: 0x4000, 72 + padding: 0}
    expected = [*range(336 + padding, 32 + padding, -1), *range(8 + padding, padding, -1)]
    assert _wiped(_ARM64, words=program) == expected
    # Its memory map goes before its stack when a program ends.
    assert _wiped(_ARM64, words=program, mm=0) == expected


@pytest.mark.usefixtures("arm64")
def test_of_arm64_they_are_at_the_end_of_the_stack_whatever_they_hold() -> None:
    expected = [*range(336, 32, -1), *range(8, 0, -1)]
    assert _wiped(_ARM64, words={88: (1 << 64) - 16, 80: 0x4000}) == expected
    assert _wiped(_ARM64) == expected
    assert _wiped(_ARM64, mm=0) == []


@pytest.mark.parametrize("padding", [0, 16])
@pytest.mark.parametrize("cs", [0x23, 0x33])
def test_of_x86_the_code_segment_stays(cs: int, padding: int) -> None:
    expected = set(range(1 + padding, 169 + padding)) - set(range(25 + padding, 33 + padding))
    assert set(_wiped(_X86, words={padding + 32: cs})) == expected
    assert set(_wiped(_X86, words={padding + 32: cs}, mm=0)) == expected
    assert _wiped(_X86, words={padding + 32: 0x10}, mm=0) == []


@pytest.mark.usefixtures("arm64")
def test_vector_registers_keys_and_guards_of_arm64() -> None:
    thread = (
        "struct regs 16 : 0 unsigned long tp_value\n"
        "struct key 16 : 0 unsigned long lo; 8 unsigned long hi\n"
        "struct keys 16 : 0 struct key apia\n"
        "struct context 8 : 0 unsigned long sp\n"
        "struct thread_struct 64 : 0 struct context cpu_context; 8 struct regs uw; "
        "24 void * sve_state; 32 void * sme_state; 40 unsigned int [2] vl; "
        "48 struct keys keys_kernel\n"
    )
    members = "; 40 unsigned long stack_canary; 56 struct thread_struct thread"
    k = FakeKernel("6.10", base=thread + _ARM64.rstrip() + members)
    k.constant("THREAD_SIZE", _STACK)
    vectors, matrix = (int(k.alloc("char", 2 * PAGE, alone=True).address_) for _ in range(2))
    slab = k.slab(k.cache("task_struct", 128), free=range(2, 32))
    first, second = slab.object(0), slab.object(1)
    # Vectors of 64 and 32 bytes, over the end of a page; then lengths that are impossible.
    at = vectors + PAGE - 64
    k.write_words(first + 80, at, matrix, 64 | 32 << 32)
    k.write_words(second + 80, 0, 0, (1 << 64) - 1)
    # The second task has no guard.
    k.write_words(first + 40, 0xAB << 40)
    k.write_words(second + 40, 0xABC)
    k.write_words(second + 104, 0xEF << 40, 0x1234)
    kernel, report = Kernel(k.prog), ScanReport()
    ranges = registers(kernel, report)

    def wiped(address: int, size: int) -> list[int]:
        return np.flatnonzero(ranges.inside(address - DIRECT_MAP, size)[0]).tolist()

    assert secrets(kernel, report).tolist() == [0xAB << 40, 0xEF << 40]
    k.variable("init_task", "struct task_struct")
    k.set(k.symbols["init_task"].stack_canary, 0xCD << 40)
    assert secrets(kernel, report).tolist() == [0xAB << 40, 0xCD << 40, 0xEF << 40]
    assert wiped(first, 256) == [*range(64, 128), *range(192, 256)]
    assert wiped(vectors, 2 * PAGE) == [*range(PAGE - 64, PAGE - 64 + 4 * 546)]
    assert wiped(matrix, 2 * PAGE) == [*range(32 * 32 + 64)]


def _below(tasks: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Return the wiped bytes of four pages with the stacks of two tasks.

    :param tasks: places of the stack and of the stack pointer in these pages
    """
    k = FakeKernel(
        "6.10",
        base="struct thread_struct 8 : 0 unsigned long sp\n"
        "struct pt_regs 168 : 136 unsigned long cs\n"
        f"{_TASK}; 40 int on_cpu; 48 struct thread_struct thread",
    )
    k.constant("THREAD_SIZE", size)
    memory = int(k.alloc("char", 4 * PAGE, alone=True).address_)
    slab = k.slab(k.cache("task_struct", 128), free=range(2, 32))
    for slot, (stack, sp) in enumerate(tasks):
        k.write_words(slab.object(slot) + 8, memory + stack)
        k.write_words(slab.object(slot) + 48, memory + sp)
    ranges = registers(Kernel(k.prog), ScanReport())
    return np.flatnonzero(ranges.inside(memory - DIRECT_MAP, 4 * PAGE)[0]).tolist()


def test_memory_below_the_stack_pointer_of_the_task_that_has_the_stack() -> None:
    # The second task has exited, and its stack is that of the first.
    tasks = [(0, 2 * PAGE + 64), (-8 * PAGE, 3 * PAGE + 512)]
    assert _below(tasks, _STACK) == [*range(2 * PAGE, 2 * PAGE + 64)]


def test_stacks_that_share_a_page() -> None:
    half = PAGE // 2
    expected = [*range(64), *range(half, half + 128)]
    assert _below([(0, 64), (half, half + 128)], half) == expected


def test_constants_without_their_builder() -> None:
    k = FakeKernel("6.10", base=_X86)
    size = 3 * PAGE
    image = int(k.alloc("char", size, alone=True).address_)
    banner = b"Linux version 6.10.0 (jmbl@qz) (gcc 12.2.0) #1 SMP\n\0"
    source, names = b"/home/jmbl/src/inode.c\0", (b"jmbl@qz", b"/home/jmbl/src/")
    # One of them is on two pages.
    places = {PAGE + 64: banner, 2 * PAGE - 8: source}
    for offset, text in places.items():
        k.write(image + offset, text)
    symbols = {"_stext": 0, "__start_rodata": PAGE, "__end_rodata": size}
    k.functions({name: image + offset for name, offset in symbols.items()})
    ranges, content = constants(Kernel(k.prog))
    assert banner in content
    kept, _ = ranges.inside(image - DIRECT_MAP, size)
    expected = {
        offset + text.index(name) + at
        for (offset, text), name in zip(places.items(), names, strict=True)
        for at in range(len(name))
    }
    assert {*np.flatnonzero(~kept).tolist()} == expected


def test_an_architecture_without_readers_is_refused_before_anything_is_written() -> None:
    prog = drgn.Program(drgn.Platform(drgn.Architecture.S390X))
    target = Target(prog, "x", "vmcore", "synthetic", live=False, kernel="x")
    recorder: Any = SimpleNamespace(uses=object())
    with pytest.raises(LookupError, match="architecture"):
        Redaction(target, recorder, None, SilentProgress())
