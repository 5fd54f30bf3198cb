# SPDX-License-Identifier: LGPL-2.1-or-later
"""Back chains of POWER and Z on stacks of *synthetic* kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import pytest

from kcensus.engine.memory import Faults
from kcensus.kernel.arch.model import StackMemory, Unwinder
from kcensus.kernel.arch.ppc64le import unwinder as ppc64le
from kcensus.kernel.arch.s390x import unwinder as s390x
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.stacks import walk
from tests.unit.fakekernel import Machine

_SIZE = 16384
_CODE = 0xFFFF_FFFF_8100_0000
_POWER = """
struct pt_regs 352 : 0 unsigned long [32] gpr; 256 unsigned long nip; 264 unsigned long msr
    ; 288 unsigned long link
"""
_Z = """
struct psw 16 : 0 unsigned long mask; 8 unsigned long addr
struct pt_regs 200 : 8 struct psw psw; 24 unsigned long [16] gprs
struct stack_frame 160 : 72 unsigned long [10] gprs; 152 unsigned long back_chain
"""


class Big(Machine):
    """A big-endian machine."""

    byte_order = "big"


class Task(ABC):
    """A task whose stack is written from its end downwards."""

    registers: int
    back: int
    target: int
    least: int

    def __init__(self, k: Machine) -> None:
        self.k = k
        self.low = int(k.alloc(f"char [{_SIZE}]", alone=True).address_)
        self.high = self.low + _SIZE
        self.names: dict[str, int] = {"_text": _CODE}
        self.sp = 0
        self.at = self.high

    def code(self, name: str, within: int = 8) -> int:
        """An address in a function, behind a call."""
        self.names.setdefault(name, _CODE + 64 * len(self.names))
        return self.names[name] + within

    def frame(self, function: str, room: int = 0) -> None:
        """A frame of a function that has called another one."""
        self.at -= self.least + room
        self.k.write_words(self.at + self.back, self.sp)
        self.k.write_words(self.at + self.target, self.code(function))
        self.sp = self.at

    @abstractmethod
    def end(self, *, is_program: bool) -> None:
        """The frame with which the stack of a program or of a kernel thread ends."""

    @abstractmethod
    def interrupt(self, function: str, link: int) -> None:
        """Registers that an interrupt saved, and the frame of the entry."""

    @abstractmethod
    def unwinder(self, memory: StackMemory) -> Unwinder:
        """The unwinder of the architecture."""

    def walked(self) -> tuple[list[str], bool]:
        """The functions, the innermost first, and whether the stack is cut."""
        self.k.functions(self.names, size=64)
        low, sp = np.array([self.low], np.uint64), np.array([self.sp], np.uint64)
        memory = StackMemory(Kernel(self.k.prog), low, _SIZE, Faults())
        unwinder = self.unwinder(memory)
        start = unwinder.starts(np.zeros(1, np.uint64), sp)
        _, places, sps, exact, is_cut = walk(memory, unwinder, *start)
        assert (np.diff(sps.astype(np.int64)) >= 0).all()
        at = (places - (~exact).astype(np.uint64)).tolist()
        return [self.k.prog.symbol(each).name for each in at], bool(is_cut[0])


class Power(Task):
    """A task of POWER."""

    back, target, least, marker = 0, 16, 32, 32

    def __init__(self, marker: int = 32, mark: int = 0x5347_4552) -> None:
        super().__init__(Machine(_POWER))
        self.marker, self.mark = marker, mark

    def _registers(self, sp: int, pc: int, msr: int, link: int) -> None:
        registers = self.at + self.marker + 16
        self.k.write_words(self.at + self.marker, self.mark, 0)
        self.k.write_words(registers + 8, sp)
        self.k.write_words(registers + 256, pc, msr)
        self.k.write_words(registers + 288, link)

    def end(self, *, is_program: bool) -> None:
        self.sp = 0x7FFF_E13F_5650 if is_program else 0
        self.frame("system_call" if is_program else "start_kernel_thread", 352 + self.marker)
        if is_program:
            self._registers(0x7FFF_E13F_5650, 0x1000, 1 << 14, 0)

    def interrupt(self, function: str, link: int) -> None:
        sp = self.sp
        self.frame("hardware_interrupt", 352 + self.marker)
        self._registers(sp, self.code(function, 12), 0, link)

    def unwinder(self, memory: StackMemory) -> Unwinder:
        # __switch_to() called _switch(), whose frame is the innermost.
        return ppc64le.Unwinder(memory)

    def walked(self) -> tuple[list[str], bool]:
        self.frame("_switch", 352)
        return super().walked()


class Z(Task):
    """A task of Z."""

    back, target, least = 152, 72 + 8 * 8, 160

    def __init__(self) -> None:
        super().__init__(Big(_Z))

    def end(self, *, is_program: bool) -> None:
        self.at -= 200
        if is_program:
            self.k.write_words(self.at + 8, 1 << 48, 0x1000)
        self.sp = 0
        self.frame("system_call" if is_program else "ret_from_fork")

    def interrupt(self, function: str, link: int) -> None:
        sp = self.sp
        self.at -= 200
        self.k.write_words(self.at + 8, 0, self.code(function, 12))
        self.k.write_words(self.at + 24 + 14 * 8, link, sp)
        self.sp = 0
        self.frame("io_int_handler")

    def unwinder(self, memory: StackMemory) -> Unwinder:
        return s390x.Unwinder(memory)


TASKS: dict[str, Callable[[], Task]] = {
    "ppc64le": Power,
    "ppc64le before 6.1": lambda: Power(96, 0x7265_6773_6865_7265),
    "s390x": Z,
}


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    """A task of each architecture."""
    return TASKS[request.param]()


@pytest.mark.parametrize("is_program", [True, False])
def test_a_sleeping_task(task: Task, is_program: bool) -> None:
    task.end(is_program=is_program)
    end = next(name for name in reversed(task.names))
    for function in ("do_syscall", "schedule", "__schedule"):
        task.frame(function, 16)
    assert task.walked() == (["__schedule", "schedule", "do_syscall", end], False)


@pytest.mark.parametrize(
    ("link", "callers"),
    [
        (("outer", 8), ["outer", "worker"]),
        (("worker", 8), ["worker"]),
        (("copy", 24), ["worker"]),
        (("worker", 0), ["worker"]),
    ],
    ids=["a leaf", "before any call", "after a call", "no code"],
)
def test_an_interrupted_function(task: Task, link: tuple[str, int], callers: list[str]) -> None:
    task.end(is_program=False)
    end = next(name for name in reversed(task.names))
    task.frame("kthread")
    task.frame("worker")
    # A leaf has no frame.
    task.frame("outer" if link[0] == "outer" else "copy")
    task.interrupt("copy", task.code(*link) if link[1] else 0x1234)
    for function in ("do_irq", "schedule"):
        task.frame(function)
    names, is_cut = task.walked()
    assert (names[:2], is_cut) == (["schedule", "do_irq"], False)
    assert names[2] in {"hardware_interrupt", "io_int_handler"}
    assert names[3:] == ["copy", *callers, "kthread", end]


@pytest.mark.parametrize("damage", ["loop", "outside", "data"])
def test_a_damaged_stack_is_cut(task: Task, damage: str) -> None:
    task.end(is_program=True)
    task.frame("kthread")
    place = task.at
    for function in ("do_syscall", "schedule"):
        task.frame(function, 16)
    if damage == "data":
        task.k.write_words(place + task.target, 0x1235)
    else:
        task.k.write_words(place + task.back, task.sp if damage == "loop" else task.high + 64)
    names, is_cut = task.walked()
    assert is_cut
    assert names == ["schedule", "do_syscall", *["kthread"][: damage != "data"]]


def test_registers_of_an_earlier_interrupt_are_none() -> None:
    """They may be left in a frame, where its function has not written."""
    task = Power()
    task.end(is_program=False)
    task.frame("kthread")
    task.frame("worker", 352 + 32)
    task._registers(task.sp - 8, task.code("other"), 1 << 14, 0)
    names = ["worker", "kthread", "start_kernel_thread"]
    assert task.walked() == (names, False)
