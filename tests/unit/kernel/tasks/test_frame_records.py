# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frame records of arm64 on stacks of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kcensus.arch import by_name
from kcensus.engine.memory import Faults
from kcensus.kernel.arch.aarch64.unwinder import Unwinder, cpu_stacks, pac_mask
from kcensus.kernel.arch.model import Frames, StackMemory
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.symbols import image_range
from kcensus.kernel.tasks.stacks import walk
from tests.unit.fakekernel import FakeKernel, Machine

_SIZE = 16384
_CODE = 0xFFFF_8000_8000_0000
_PAC = 0xFF7F << 48
_REGISTERS = 336
_RECORD = {"6.12": 304, "7.3": 296}
_TYPES = """
struct cpu_context 104 : 80 unsigned long fp; 88 unsigned long sp; 96 unsigned long pc
struct thread_struct 104 : 0 struct cpu_context cpu_context
struct task_struct 120 : 0 struct thread_struct thread; 104 struct list_head tasks
struct frame_record 16 : 0 unsigned long fp; 8 unsigned long lr
struct frame_record_meta 24 : 0 struct frame_record record; 16 unsigned long type
struct pt_regs 336 : 0 unsigned long [31] regs; 248 unsigned long sp; 256 unsigned long pc
    ; 264 unsigned long pstate
"""
_OLD = f"{_TYPES}    ; 304 unsigned long [2] stackframe\n"
_NEW = f"{_TYPES}    ; 296 struct frame_record_meta stackframe\n"


@dataclass
class Task:
    """A task whose stack is written from its end downwards."""

    release: str
    numbers: str = "NUMBER(KERNELPACMASK)=0xff7f000000000000\n"
    entry: str = "el0t_64_sync"

    def __post_init__(self) -> None:
        types = _NEW if self.release == "7.3" else _OLD
        self.k = Machine(types, vmcoreinfo=self.numbers)
        self.low = int(self.k.alloc(f"char [{_SIZE}]", alone=True).address_)
        self.high = self.low + _SIZE
        self.names: dict[str, int] = {"_text": _CODE, self.entry: _CODE + 64}
        self.at = self.high - _REGISTERS
        self.fp = 0

    def code(self, name: str, within: int = 8) -> int:
        """An address in a function, behind a call."""
        if name not in self.names:
            self.names[name] = _CODE + 64 * len(self.names)
        return self.names[name] + within

    def end(self, kind: int = 1) -> None:
        """The last record, in the registers at the end of the stack."""
        self.fp = self.at + _RECORD[self.release]
        self.k.write_words(self.fp, 0, 0, *[kind][: self.release == "7.3"])

    def call(self, caller: str, *, room: int = 48, pac: int = 0) -> None:
        """A record of a function that ``caller`` has called."""
        self.at -= room
        self.k.write_words(self.at, self.fp, self.code(caller) & ~_PAC | pac << 56 | 1 << 55)
        self.fp = self.at

    def interrupt(self, function: str, link: int, *, within: int = 12) -> None:
        """Registers that an exception saved in a function, whose x29 is ``fp``."""
        sp = self.at
        self.at -= _REGISTERS
        pc = self.code(function, within)
        self.k.write_words(self.at + 29 * 8, self.fp, link, sp, pc, 5)
        record = self.at + _RECORD[self.release]
        self.k.write_words(record, *((0, 0, 2) if self.release == "7.3" else (self.fp, pc)))
        self.fp = record

    def walked(self, pc: int | None = None) -> tuple[list[str], bool]:
        """The functions, the innermost first, and whether the stack is cut."""
        task = self.k.alloc("struct task_struct")
        pc = self.code("__switch_to") if pc is None else pc
        self.k.write_words(int(task.address_) + 80, self.fp, self.at, pc)
        self.k.functions(self.names, size=64)
        low, every = np.array([self.low], np.uint64), np.array([task.address_], np.uint64)
        memory = StackMemory(Kernel(self.k.prog), low, _SIZE, Faults())
        unwinder = Unwinder(memory)
        start = unwinder.starts(every, np.zeros(1, np.uint64))
        _, places, sp, exact, is_cut = walk(memory, unwinder, *start)
        assert (np.diff(sp.astype(np.int64)) >= 0).all()
        at = (places - (~exact).astype(np.uint64)).tolist()
        return [self.k.prog.symbol(each).name for each in at], bool(is_cut[0])


@pytest.mark.parametrize("release", _RECORD)
def test_a_sleeping_task(release: str) -> None:
    task = Task(release)
    task.end()
    for caller in ("el0t_64_sync", "do_el0_svc", "schedule", "__schedule"):
        task.call(caller, pac=0x2A)
    names = ["__switch_to", "__schedule", "schedule", "do_el0_svc", "el0t_64_sync"]
    assert task.walked() == (names, False)


@pytest.mark.parametrize("release", _RECORD)
@pytest.mark.parametrize(
    ("link", "callers"),
    [
        (("outer", 8), ["outer", "kthread"]),
        (("worker", 8), ["kthread"]),
        (("kthread", 8), ["kthread"]),
        (("worker", 0), ["kthread"]),
    ],
    ids=["leaf", "after a call", "before any call", "x30 is no code"],
)
def test_an_interrupted_function(release: str, link: tuple[str, int], callers: list[str]) -> None:
    """Of a function without a record, the caller is in x30 only."""
    task = Task(release)
    task.end()
    task.call("ret_from_fork")
    task.call("kthread")
    place = task.code(*link) if link[1] else 0x1234
    task.interrupt("worker", place)
    for caller in ("el1h_64_irq", "el1_interrupt", "__schedule"):
        task.call(caller)
    names = ["__switch_to", "__schedule", "el1_interrupt", "el1h_64_irq", "worker", *callers]
    assert task.walked() == ([*names, "ret_from_fork"], False)


def test_a_kernel_thread_before_v5_14_has_no_last_record() -> None:
    task = Task("6.12", entry="el0_sync")
    task.call("ret_from_fork")
    task.call("kthread")
    assert task.walked() == (["__switch_to", "kthread", "ret_from_fork"], False)


@pytest.mark.parametrize("release", _RECORD)
def test_a_stack_since_v5_14_without_its_last_record_is_cut(release: str) -> None:
    task = Task(release)
    task.call("ret_from_fork")
    task.call("kthread")
    assert task.walked() == (["__switch_to", "kthread", "ret_from_fork"], True)


def test_a_new_thread_before_v5_14_has_no_record() -> None:
    task = Task("6.12", entry="el0_sync")
    assert task.walked(task.code("ret_from_fork")) == (["ret_from_fork"], False)


@pytest.mark.parametrize("release", _RECORD)
@pytest.mark.parametrize("word", [0, 1], ids=["x29", "return address"])
@pytest.mark.parametrize("value", [0, 0x41414141, "itself", "another stack"])
def test_a_damaged_record_cuts_the_stack(release: str, word: int, value: int | str) -> None:
    task = Task(release)
    task.end()
    for number in range(20):
        task.call(f"function_{number}", room=64)
    damaged = task.high - _REGISTERS - 64 * 15
    other = task.low - 64 if value == "another stack" else damaged
    task.k.write_words(damaged + 8 * word, value if isinstance(value, int) else other)
    if value == "another stack":
        task.names["compiled"] = task.low - 128
    names, is_cut = task.walked()
    # An address elsewhere may be of code that was compiled at run time.
    assert is_cut or (word == 1 and value == "another stack")
    assert names[:6] == ["__switch_to", *(f"function_{number}" for number in range(19, 14, -1))]


@pytest.mark.parametrize("release", _RECORD)
def test_zeros_in_place_of_records_cut_the_stack(release: str) -> None:
    task = Task(release)
    task.end()
    for number in range(40):
        task.call(f"function_{number}", room=128)
    task.k.write(task.high - _REGISTERS - 128 * 30, bytes(1024))
    names, is_cut = task.walked()
    assert (len(names), is_cut) == (11, True)


def test_a_last_record_of_another_type_cuts_the_stack() -> None:
    task = Task("7.3")
    task.end(kind=3)
    task.call("kthread")
    assert task.walked() == (["__switch_to", "kthread"], True)


def test_a_running_task_on_the_stack_of_interrupts() -> None:
    """Its records lead to the stack of the task, and never back."""
    task = Task("7.3")
    task.end()
    task.call("ret_from_fork")
    task.call("kthread")
    task.interrupt("worker", task.code("worker"))
    task.call("el1h_64_irq")
    task.call("do_interrupt_handler")
    low = int(task.k.alloc("char [4096]", alone=True).address_)
    outer = task.fp
    task.at = low + 4096
    task.call("call_on_irq_stack")
    task.call("gic_handle_irq")
    pc, none = np.array([task.code("handle_irq")], np.uint64), np.zeros(1, np.uint64)
    task.k.functions(task.names, size=64)
    lows = np.array([task.low], np.uint64)
    memory = StackMemory(Kernel(task.k.prog), lows, _SIZE, Faults(), ((low, low + 4096),))
    sp = np.array([task.at], np.uint64)
    start = Frames(pc, sp, sp, none == 0, none)
    unwinder = Unwinder(memory)
    _, places, _, exact, is_cut = walk(memory, unwinder, start, none == 0)
    at = (places - (~exact).astype(np.uint64)).tolist()
    names = [task.k.prog.symbol(each).name for each in at]
    inner = ["handle_irq", "gic_handle_irq", "call_on_irq_stack", "do_interrupt_handler"]
    assert names == [*inner, "el1h_64_irq", "worker", "kthread", "ret_from_fork"]
    assert not is_cut.any()
    task.k.write_words(outer, task.at)
    _, places, _, _, is_cut = walk(memory, unwinder, start, none == 0)
    assert (len(places), is_cut.tolist()) == (3, [True])


def test_damaged_pointers_to_the_stacks_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    k = Machine(_NEW)
    k.constant("THREAD_SIZE", _SIZE)
    pointers = k.alloc("unsigned long [4]")
    start = int(k.alloc("char [4096]", alone=True).address_)
    k.write_words(int(pointers.address_), start, (1 << 64) - 8, 0, 0x7F00)
    k.functions({"irq_stack_ptr": int(pointers.address_), "overflow_stack": (1 << 64) - 32})
    offsets = np.arange(0, 32, 8, dtype=np.uint64)
    monkeypatch.setattr("kcensus.kernel.arch.aarch64.unwinder.cpu_offsets", lambda _: offsets)
    found = cpu_stacks(Kernel(k.prog))
    assert found == ((start, start + _SIZE),)
    StackMemory(Kernel(k.prog), np.empty(0, np.uint64), _SIZE, Faults(), found)


@pytest.mark.parametrize(
    ("text", "linear", "first"),
    [
        (0xFFFF_8000_8000_0000, 0xFFFF << 48, 0xFFFF_8000_0000_0000),
        (0xFFFF_8000_8000_0000, 0xFFF0 << 48, 0xFFFF_8000_0000_0000),
        (0xFFFF_FFC0_0800_0000, 0xFFFF_FF80_0000_0000, 0),
        # Before v5.4.
        (0xFFFF_0000_0808_0000, 0xFFFF_8000_0000_0000, 0xFFFE_FFFF_8808_0000),
        (0xFFFF_FF80_0808_0000, 0xFFFF_FFC0_0000_0000, 0xFFFF_8000_0000_0000),
    ],
    ids=["48 bits", "52 bits", "39 bits", "48 bits of old", "39 bits of old"],
)
def test_where_code_is(text: int, linear: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    k = FakeKernel()
    k.functions({"_text": text})
    monkeypatch.setattr("kcensus.kernel.symbols.architecture_of", lambda _: by_name("aarch64"))
    monkeypatch.setattr("kcensus.kernel.symbols.direct_map_start", lambda _: linear)
    end = linear + (int(k.prog["max_pfn"]) << 12)
    assert image_range(k.prog).start == (first or end)


@pytest.mark.parametrize(
    ("numbers", "mask"),
    [
        ("NUMBER(KERNELPACMASK)=0xff7f000000000000\n", _PAC),
        ("NUMBER(KERNELPACMASK)=0x0\nNUMBER(VA_BITS)=48\n", 0),
        ("NUMBER(VA_BITS)=39\n", 0xFFFF_FF80 << 32),
        ("NUMBER(VA_BITS)=52\n", 0xFFFF << 48),
        ("NUMBER(VA_BITS)=9999999999999999999\n", 0xFFFF << 48),
    ],
)
def test_bits_of_pointer_authentication(numbers: str, mask: int) -> None:
    assert pac_mask(Machine(vmcoreinfo=numbers).prog) == mask
