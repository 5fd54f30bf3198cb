# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory to wipe.

* Free slots of slabs have remains of former objects, except for their freelist pointers.
* The kernel keeps the vector registers of a program behind its ``task_struct``.
* At the top of its kernel stack are its registers at the entry into the kernel.
* Below the stack pointer of a task without a CPU are frames of functions that returned.

The frames in use stay: they lead to the objects of waits.
"""

from __future__ import annotations

from dataclasses import replace

import drgn
import numpy as np
import numpy.typing as npt
from drgn.helpers.linux.mm import follow_phys

from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, layout, word_dtype
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import covered
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import View, allocated, visit
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.kernel import Kernel

_USER_SEGMENTS = (0x23, 0x33)
"""Code segments of programs, of 32 and 64 bits: __USER32_CS and __USER_CS."""
_PADDINGS = (0, 16)
"""Bytes above the registers on a stack, TOP_OF_KERNEL_STACK_PADDING: 16 with CONFIG_X86_FRED."""
_MAX_STACK = 1 << 18

_Range = tuple[Words, Numbers]


class Ranges:
    """Ranges of physical memory without overlaps, as columns.

    :param link: offset in a range of a word to keep, -1 without one
    """

    def __init__(self, start: Words, size: Numbers, link: Numbers | None = None) -> None:
        order = np.argsort(start)
        self._start, self._size = start[order], size[order]
        self._link = np.full(len(start), -1) if link is None else link[order]
        self._longest = int(size.max(initial=0))

    def inside(self, start: int, length: int) -> tuple[Mask, Numbers]:
        """Return which of ``length`` bytes from ``start`` on to wipe, and the bytes of links."""
        reach = np.array([max(start - self._longest, 0), start + length], np.uint64)
        rows = slice(*np.searchsorted(self._start, reach))
        begin = (self._start[rows] - np.uint64(start)).view(np.int64)
        wiped = covered(begin, self._size[rows], length)
        words = (begin + self._link[rows])[self._link[rows] >= 0]
        words = words[(words >= 0) & (words < length)]
        links = (words[:, None] + np.arange(8)).ravel()
        wiped[links] = False
        return wiped, links


def free_slots(slab_map: SlabMap, frames: Mask, report: ScanReport) -> Ranges:
    """Return the certainly free slots of all slabs that lie partly on some page frames."""
    slabs = slab_map.index(slab_map.caches, report)
    first = slab_map.pages.pfn(slabs.address)
    wanted = np.concatenate([[0], np.cumsum(frames)])
    last = np.minimum(first + slab_map.slab_pages(slabs), len(frames))
    slabs = slabs[wanted[last] != wanted[np.minimum(first, len(frames))]]

    def look(view: View, _report: ScanReport) -> tuple[Words, Numbers, Numbers]:
        free = ~view.allocated & view.readable[:, None]
        address, cache = view.address()[free], view.cache
        following = slab_map.freelist_code.decode(
            view.column("link")[free],
            address + np.uint64(cache.free_offset),
            np.uint64(cache.secret),
        )
        # An object in a sheaf has no freelist pointer, but remains of its former content.
        start = view.slabs.address[np.nonzero(free)[0]]
        size = view.shape[1] * cache.slot_size + cache.left_pad
        linked = (following == 0) | ((following >= start) & (following < start + np.uint64(size)))
        link = np.where(linked, cache.free_offset, -1)
        return address, np.full(len(address), cache.slot_size), link

    word = slab_map.word.fields["word"]
    none = np.empty(0, np.int64)
    parts: list[tuple[Words, Numbers, Numbers]] = [(np.empty(0, np.uint64), none, none)]
    # Caches differ here only in the offset of the pointer, so there are few kinds of them.
    offsets = slab_map.column("free_offset")[slabs.cache]
    for offset in np.unique(offsets).tolist():
        members = Layout("free object", offset + 8, {"link": replace(word, offset=offset)})
        parts += visit(slab_map, slabs[offsets == offset], members, look, report)
    address, size, link = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Ranges(address - np.uint64(slab_map.pages.direct_map), size, link)


def task_memory(kernel: Kernel, report: ScanReport) -> Ranges:
    """Return the memory of tasks to wipe: on other machines than x86-64, vector registers only.

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
    prog, memory = kernel.prog, kernel.memory
    size = int(prog["THREAD_SIZE"])
    if not 0 < size <= _MAX_STACK:
        return []
    registers = prog.type("struct pt_regs")
    # The code segment stays: it marks the registers of a program for a walk along a stack.
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
    """Return the physical ranges of virtual ones within a page; unmapped ones are left out."""
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
