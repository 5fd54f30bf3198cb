# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory to wipe although analyses use it, and memory to keep as it is.

* Free slots of slabs have remains of former objects, except for their freelist pointers.
* At the top of the kernel stack of a program's task are its registers at the entry into the kernel,
  and at the end of its ``task_struct`` or behind it, and in memory of their own, its vector
  registers, and keys with which it signs pointers.
* The guards of stacks are on all of them, and keys where registers were saved.
* Below the stack pointer of a task without a CPU are frames of functions that returned.
* Code and constants are the same on all machines.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice

import drgn
import numpy as np
from drgn.helpers.linux.mm import follow_phys
from drgn.helpers.linux.module import for_each_module

from kcensus.arch import architecture_of
from kcensus.engine.gather import gather
from kcensus.engine.layout import Layout, layout
from kcensus.engine.memory import Faults, Mask, Numbers, Words
from kcensus.engine.rows import covered
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.free_indexes import used_part
from kcensus.engine.slub.scan import View, allocated, lie_on, visit
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.arch.readers import readers_of
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.size import attempt, stack_size
from kcensus.kernel.tasks.registers import user_registers
from kcensus.redaction.tokens import builders_own

_MIN_SECRET = 1 << 32
"""Guards and keys are random; a smaller one is not, and may be another number."""
_MAX_MODULES = 1 << 16
_MAX_IMAGE = 1 << 30
_MAX_LOG = 1 << 31


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
    slabs = slabs[lie_on(slab_map, slabs, frames)]

    def look(view: View, _report: ScanReport) -> tuple[Words, Numbers, Numbers]:
        free = ~view.allocated & view.readable[:, None]
        address, cache = view.address()[free], view.cache
        if slab_map.is_slab:
            return _around_indexes(view, free)
        following = slab_map.freelist_code.decode(
            view.column("link")[free],
            address + np.uint64(cache.free_offset),
            np.uint64(cache.secret),
        )
        # An object in a sheaf has no freelist pointer, but remains of its former content.
        start = view.slabs.address[np.nonzero(free)[0]]
        size = view.shape[1] * cache.slot_size + view.pad
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


def _around_indexes(view: View, free: Mask) -> tuple[Words, Numbers, Numbers]:
    """Return the free slots of slabs of SLAB, without the numbers of free slots in one of them."""
    address = view.address()[free]
    row = np.nonzero(free)[0]
    begin, length = used_part(view.memory, view.slabs)
    begin, end = begin[row], begin[row] + length[row].astype(np.uint64)
    slot_end = address + np.uint64(view.cache.slot_size)
    # A slab whose list is elsewhere has whole slots.
    has_list = (length[row] > 0) & (begin >= address) & (end <= slot_end)
    first = np.where(has_list, begin, slot_end) - address
    start = np.concatenate([address, end[has_list]])
    size = np.concatenate([first, (slot_end - end)[has_list]]).astype(np.int64)
    return start, size, np.full(len(start), -1)


def registers(kernel: Kernel, report: ScanReport) -> Ranges:
    """Return the registers and keys of programs, and the frames of functions that returned.

    :raises LookupError: the debug info lacks tasks or registers, or the architecture is unknown
    """
    prog, slab_map, page = kernel.prog, kernel.slab_map, kernel.memory.page_size
    arch, readers = architecture_of(prog.platform), readers_of(prog.platform)
    if arch is None or readers is None:
        raise LookupError("where this architecture keeps registers of programs is unknown")
    size = np.uint64(stack_size(prog))
    caches = find_caches(slab_map, "struct task_struct")
    optional = {"sp": arch.stack_pointer, "on_cpu": "on_cpu"}
    columns = layout(prog, "struct task_struct", ["stack", "mm"], optional)
    address, tasks = allocated(slab_map, caches, columns, report)
    spans = [
        _general(kernel, tasks["stack"], tasks["mm"] != 0),
        readers.vectors(kernel.memory, address, Faults()),
    ]
    type_ = prog.type("struct task_struct")
    try:
        first = int(drgn.offsetof(type_, arch.registers))
    except LookupError:
        first = int(drgn.sizeof(type_))  # they follow the task
    last = max((each.object_size for each in caches), default=0)
    # Since Linux kernel commit 0c8c0f03e3a2 ("x86/fpu, sched: Dynamically allocate 'struct fpu'")
    # (in v4.2), thread is the last member of a task; RHEL 7 has others behind it.
    members = {each.name: each.bit_offset // 8 for each in type_.members or () if each.name}
    if "thread" in members and max(members.values()) > members["thread"]:
        last = members["thread"] + drgn.sizeof(type_.member("thread").type)
    if first < last:
        spans.append((address + np.uint64(first), address + np.uint64(last)))
    if "sp" in tasks and "on_cpu" in tasks:
        # A task that exited has given its stack to another one.
        own = (tasks["sp"] >= tasks["stack"]) & (tasks["sp"] - tasks["stack"] < size)
        own &= tasks["on_cpu"] == 0
        sp, low = tasks["sp"][own], tasks["stack"][own]
        # A page may have several stacks.
        spans.append((np.maximum(sp & ~np.uint64(page - 1), low), sp))
    starts, ends = (np.concatenate(each) for each in zip(*spans, strict=True))
    return _physical(kernel, *_by_pages(starts, ends, page))


def secrets(kernel: Kernel, report: ScanReport) -> Words:
    """Return random numbers that may be anywhere on stacks, ascending: the guards of all stacks,
    and keys that sign pointers, which are in registers while the kernel loads them.

    :raises LookupError: the debug info lacks tasks
    """
    prog, arch = kernel.prog, architecture_of(kernel.prog.platform)
    caches = find_caches(kernel.slab_map, "struct task_struct")
    # Without CONFIG_STACKPROTECTOR, tasks have none; some architectures have one for all.
    wanted = ("stack_canary", *(arch.keys if arch is not None else ()))
    members = layout(prog, "struct task_struct", [], {name: name for name in wanted})
    _, tasks = allocated(kernel.slab_map, caches, members, report)
    # The first task is not in a slab; the boot CPU keeps its guard in a variable, too.
    boot = attempt(lambda: prog["init_task"].address_) or 0
    first = gather(kernel.memory, np.array([boot], np.uint64), members, Faults())
    columns = [*tasks.values(), *first.columns.values()]
    found = np.unique(np.concatenate([np.empty(0, np.uint64), *columns]))
    return np.asarray(found[found > np.uint64(_MIN_SECRET)])


def _general(kernel: Kernel, stacks: Words, has_mm: Mask) -> tuple[Words, Words]:
    """Return the start and the end of the general registers of programs at the ends of stacks.

    They are also at the usual place where nothing shows that they are those of a program, such as
    a program counter, which a program may have set to anything.
    """
    found = user_registers(kernel, stacks, Faults())
    others = np.setdiff1d(np.flatnonzero(has_mm), found.row)
    usual = stacks[others] + np.uint64(stack_size(kernel.prog) - found.size)
    start = np.concatenate([found.start, usual])
    # What a walk along a stack needs stays.
    edges = [0, *(edge for at, size in found.kept for edge in (at, at + size)), found.size]
    parts = [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]
    starts, ends = ([start + np.uint64(part[side]) for part in parts] for side in (0, 1))
    return np.concatenate(starts), np.concatenate(ends)


def constants(kernel: Kernel) -> tuple[Ranges, bytes]:
    """Return code and constants of the kernel and its modules, which no user named.

    :return: their physical memory without names of who built them, and the content of the
        constants, so far as it is readable
    """
    prog = kernel.prog
    spans = []
    with suppress(LookupError):
        start, rodata, end = (
            prog.symbol(name).address for name in ("_stext", "__start_rodata", "__end_rodata")
        )
        spans.append((start, rodata, end))
    with suppress(LookupError, drgn.FaultError):
        # drgn follows a list that leads into itself forever.
        for module in islice(for_each_module(prog), _MAX_MODULES):
            with suppress(LookupError, drgn.FaultError):
                spans += _of_module(module)
    content = []
    page = kernel.memory.page_size
    starts, ends = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for start, rodata, end in spans:
        if not 0 <= end - start <= _MAX_IMAGE:
            continue
        first = rodata & -page
        data, _ = kernel.memory.span(first, -(-(end - first) // page), Faults())
        text = data[rodata - first : end - first].tobytes()
        content.append(text)
        names = (rodata + at for span in builders_own(text) for at in span)
        edges = np.array([start, *names, end], np.uint64)
        for column, places in zip(
            (starts, ends), _by_pages(edges[::2], edges[1::2], page), strict=True
        ):
            column.append(places)
    ranges = _physical(kernel, np.concatenate(starts), np.concatenate(ends))
    return ranges, b"\0".join(content)


def _of_module(module: drgn.Object) -> list[tuple[int, int, int]]:
    """Return start, start of constants and end of memory that a module does not change."""
    prog = module.prog_
    try:
        # Since Linux kernel commit ac3b43283923 ("module: replace module_layout with
        # module_memory") (in v6.4).
        memory = [module.mem[int(prog.constant(kind))] for kind in ("MOD_TEXT", "MOD_RODATA")]
    except (LookupError, AttributeError):
        pass
    else:
        (text, size), (rodata, length) = ((int(each.base), int(each.size)) for each in memory)
        return [(text, text + size, text + size), (rodata, rodata, rodata + length)]
    try:
        # Since Linux kernel commit 7523e4dc5057 ("module: use a structure to encapsulate layout.")
        # (in v4.5).
        core = module.core_layout
        start, text, end = int(core.base), int(core.text_size), int(core.ro_size)
    except AttributeError:
        start, text = int(module.module_core), int(module.core_text_size)
        end = int(module.core_ro_size)
    return [(start, start + text, start + end)]


def log_text(kernel: Kernel) -> Ranges:
    """Return the memory of the kernel log's text."""
    prog = kernel.prog
    try:
        # Since Linux kernel commit 896fbe20b4e2 ("printk: use the lockless ringbuffer") (in v5.10).
        ring = prog["prb"].text_data_ring
        start, size = int(ring.data), 1 << int(ring.size_bits)
    except LookupError:
        start, size = int(prog.variable("log_buf", "printk.c")), int(prog["log_buf_len"])
    return _physical(kernel, *_by_page(start, start + min(size, _MAX_LOG), kernel.memory.page_size))


def _by_page(start: int, end: int, page: int) -> tuple[Words, Words]:
    """Return starts and ends of the parts of a range on each page."""
    low = np.arange(start & -page, end, page, dtype=np.uint64)
    high = np.minimum(low + np.uint64(page), np.uint64(end))
    return np.maximum(low, np.uint64(start)), high


def _by_pages(start: Words, end: Words, page: int) -> tuple[Words, Words]:
    """Return the ranges with those that cross the end of a page cut into parts."""
    mask = ~np.uint64(page - 1)
    whole = (start & mask) == ((end - np.uint64(1)) & mask)
    parts = [(start[whole], end[whole])]
    parts += [
        _by_page(low, high, page)
        for low, high in zip(start[~whole].tolist(), end[~whole].tolist(), strict=True)
        if low < high
    ]
    starts, ends = (np.concatenate(each) for each in zip(*parts, strict=True))
    return starts, ends


def _physical(kernel: Kernel, start: Words, end: Words) -> Ranges:
    """Return the physical ranges of virtual ones within a page; unmapped ones are left out."""
    direct, memory_bytes = kernel.slab_map.pages.direct_map, kernel.memory.end
    physical, sizes = [], []
    for low, high in zip(start.tolist(), end.tolist(), strict=True):
        at = low - direct
        if not 0 <= at < memory_bytes:
            try:
                at = int(follow_phys(kernel.prog["init_mm"].address_of_(), low))
            except (drgn.FaultError, ValueError, OverflowError):
                continue
        physical.append(at)
        sizes.append(high - low)
    return Ranges(np.array(physical, np.uint64), np.array(sizes, np.int64))
