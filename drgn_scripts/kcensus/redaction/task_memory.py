# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory of tasks that is wiped: what programs had in registers, and frames that returned.

* The kernel keeps the vector registers of a program behind its ``task_struct``.
* At the top of its kernel stack are the registers with which it entered the kernel.
* Below the stack pointer of a task that is not on a CPU are frames of functions that returned.

The frames in use stay: they lead to what a task waits for.
"""

from __future__ import annotations

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import follow_phys

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel

_USER_SEGMENTS = (0x23, 0x33)
"""Code segments of programs, of 32 and 64 bits: __USER32_CS and __USER_CS."""
_PADDINGS = (0, 16)
"""Bytes above the registers on a stack, TOP_OF_KERNEL_STACK_PADDING: 16 with CONFIG_X86_FRED."""
_MAX_STACK = 1 << 18

_Numbers = npt.NDArray[np.int64]


class Ranges:
    """Physical memory to wipe: ranges that do not overlap, as columns."""

    def __init__(self, start: Words, size: _Numbers) -> None:
        order = np.argsort(start)
        self.start, self.size = start[order], size[order]
        self._longest = int(size.max(initial=0))

    def inside(self, start: int, length: int) -> Mask:
        """Return which of ``length`` bytes from ``start`` on lie in a range."""
        reach = np.array([max(start - self._longest, 0), start + length], np.uint64)
        rows = slice(*np.searchsorted(self.start, reach))
        begin = (self.start[rows] - np.uint64(start)).view(np.int64)
        return covered(begin, self.size[rows], length)


def covered(begin: _Numbers, size: _Numbers, length: int) -> Mask:
    """Return which of ``length`` positions lie in ranges that do not overlap."""
    marks = np.zeros(length + 1, np.int8)
    np.add.at(marks, np.clip(begin, 0, length), 1)
    np.add.at(marks, np.clip(begin + size, 0, length), -1)
    inside: Mask = np.cumsum(marks[:-1], dtype=np.int8) > 0
    return inside


_Range = tuple[Words, _Numbers]


def task_memory(kernel: Kernel, report: ScanReport) -> Ranges:
    """Return the memory of tasks to wipe: on other machines than x86-64, vector registers only.

    :param report: takes note of tasks that could not be read
    :raises LookupError: the debug info lacks tasks
    """
    prog, slab_map = kernel.prog, kernel.slab_map
    caches = find_caches(slab_map, "struct task_struct")
    optional = {"sp": "thread.sp", "on_cpu": "on_cpu"}
    columns = layout(prog, "struct task_struct", ["stack", "mm"], optional)
    address, tasks = allocated(slab_map, caches, columns, report)
    first = _vector_registers(prog)
    last = max((cache.object_size for cache in caches), default=0)
    count = len(address) if first < last else 0
    direct = np.uint64(slab_map.pages.direct_map)
    starts = [address[:count] + np.uint64(first) - direct]
    sizes = [np.full(count, last - first)]
    if "sp" in tasks and "on_cpu" in tasks:
        for start, size in _of_stacks(kernel, tasks):
            starts.append(start)
            sizes.append(size)
    return Ranges(np.concatenate(starts), np.concatenate(sizes))


def _vector_registers(prog: drgn.Program) -> int:
    """Return where the vector registers are, counted from the task."""
    type_ = prog.type("struct task_struct")
    # Since v6.16 (commit not verified), they follow the task instead of ending it; see
    # x86_task_fpu(). On arm64, thread.uw holds them.
    for member in ("thread.fpu", "thread.uw"):
        try:
            return int(drgn.offsetof(type_, member))
        except LookupError:
            continue
    return int(drgn.sizeof(type_))


def _of_stacks(kernel: Kernel, tasks: dict[str, npt.NDArray[np.uint64]]) -> list[_Range]:
    """Return ranges on the stacks of tasks."""
    prog, memory = kernel.prog, kernel.memory
    size = int(prog["THREAD_SIZE"])
    if not 0 < size <= _MAX_STACK:
        return []
    registers = prog.type("struct pt_regs")
    # What tells a program's registers from the kernel's stays: the walk along a stack ends there.
    segment = drgn.offsetof(registers, "cs")
    word = np.dtype(word_dtype(prog)).itemsize
    cs = layout(prog, registers, ["cs"])
    top = (tasks["stack"] + np.uint64(size))[tasks["mm"] != 0]
    ranges: list[tuple[Words, Words]] = []
    for padding in _PADDINGS:
        start = top - np.uint64(padding + drgn.sizeof(registers))
        read = gather(memory, start, cs, Faults())
        entered = read.readable & np.isin(read["cs"].astype(np.uint64) & 0xFFFF, _USER_SEGMENTS)
        start, top = start[entered], top[~entered]
        end = start + np.uint64(drgn.sizeof(registers))
        ranges.append((start, start + np.uint64(segment)))
        ranges.append((start + np.uint64(segment + word), end))
    page = np.uint64(memory.page_size)
    sp = tasks["sp"][tasks["on_cpu"] == 0]
    ranges.append((sp & ~(page - np.uint64(1)), sp))
    return [_physical(kernel, *each) for each in ranges]


def _physical(kernel: Kernel, start: Words, end: Words) -> _Range:
    """Return where ranges within a page are; without those that are mapped nowhere."""
    mm = kernel.prog["init_mm"].address_of_()
    physical, sizes = [], []
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        try:
            at = int(follow_phys(mm, low))
        except (drgn.FaultError, ValueError, OverflowError):
            continue
        physical.append(at)
        sizes.append(high - low)
    return np.array(physical, np.uint64), np.array(sizes, np.int64)
