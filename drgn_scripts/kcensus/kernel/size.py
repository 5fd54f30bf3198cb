# SPDX-License-Identifier: LGPL-2.1-or-later
"""RAM, CPUs and NUMA nodes of a machine, each compared with another count of the kernel."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import drgn
from drgn.helpers.linux.bitops import for_each_set_bit
from drgn.helpers.linux.cpumask import for_each_online_cpu, for_each_possible_cpu
from drgn.helpers.linux.mm import totalram_pages
from drgn.helpers.linux.nodemask import for_each_node_state, nr_node_ids

from kcensus.arch import MAX_MEMORY_BYTES, addresses_of
from kcensus.engine.memory import direct_map_start
from kcensus.engine.slub.percpu import node_ids
from kcensus.engine.zeros import present
from kcensus.human import human_bytes
from kcensus.kernel.names import DAMAGED
from kcensus.sources import faults

T = TypeVar("T")
MAX_NODES = 1024
"""``MAX_NUMNODES`` of the largest configuration."""
MAX_CPUS = 8192
"""``NR_CPUS`` of the largest configuration."""
_MAX_STACK = 1 << 18
"""THREAD_SIZE of the largest configuration: KASAN with 64 KiB pages."""
_TOLERANCE = 0.01
"""Counters of a running kernel are not read at the same time."""


@dataclass(frozen=True)
class Contradiction:
    """Two counts of the kernel that exclude each other."""

    what: str
    reason: str
    effect: str


@dataclass
class MachineSize:
    """RAM, online CPUs and nodes with memory; None where unknown."""

    ram_bytes: int = 0
    """``totalram_pages()``, or if that is damaged, the pages of the zones; 0 if unknown."""
    cpus: int | None = None
    nodes: int | None = None
    contradictions: list[Contradiction] = field(default_factory=list)


def stack_size(prog: drgn.Program) -> int:
    """Return THREAD_SIZE, the bytes of a kernel stack.

    :raises LookupError: it is unknown or impossible
    """
    size = int(prog["THREAD_SIZE"])
    if not 0 < size <= _MAX_STACK:
        raise LookupError(f"a stack of {size} bytes is impossible")
    return size


def machine_size(prog: drgn.Program) -> MachineSize:
    """Return the size of a machine, without exceptions: unreadable members are unknown."""
    size = MachineSize()
    if not attempt(lambda: prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL):
        return size
    nodes = None
    try:
        nodes = _pages_by_node(prog)
    except drgn.FaultError as error:
        effect = "counters of memory, and shares of them, may be unknown"
        size.contradictions.append(Contradiction("NUMA nodes", faults.reason(error), effect))
    except DAMAGED:
        pass
    _ram(prog, size, nodes)
    _cpus(prog, size)
    size.nodes = attempt(lambda: _count(for_each_node_state(prog["N_MEMORY"]), MAX_NODES))
    highest, ids = attempt(lambda: _highest_node(prog)), attempt(lambda: int(nr_node_ids(prog)))
    if highest is not None and ids is not None and highest + 1 != ids:
        reason = f"node_states has node {highest} as the last possible one, nr_node_ids is {ids}"
        effect = "figures by node may be wrong"
        size.contradictions.append(Contradiction("NUMA nodes", reason, effect))
    base = attempt(lambda: direct_map_start(prog))
    if base is not None and base not in addresses_of(prog.platform):
        reason = f"it begins at {base:#x}"
        effect = "objects cannot be told from their addresses: figures are too low"
        size.contradictions.append(Contradiction("direct map", reason, effect))
    present = None if nodes is None else sum(pages > 0 for pages, _ in nodes)
    if present is not None and size.nodes is not None and size.nodes != present:
        reason = f"node_states has {size.nodes} nodes with memory, node_data {present}"
        effect = "figures by node may be wrong"
        size.contradictions.append(Contradiction("NUMA nodes", reason, effect))
        size.nodes = present or None
    return size


def _highest_node(prog: drgn.Program) -> int:
    """Return the highest possible node; ``nr_node_ids`` is one more, since v3.0 or earlier."""
    bits = prog["node_states"][prog["N_POSSIBLE"]].bits
    return max(for_each_set_bit(bits, min(MAX_NODES, node_ids(prog))), default=-1)


def _ram(prog: drgn.Program, size: MachineSize, nodes: list[tuple[int, int]] | None) -> None:
    page_size = int(prog["PAGE_SIZE"])
    end = attempt(lambda: int(prog["max_pfn"]) * page_size)
    most = end if end and 0 < end <= MAX_MEMORY_BYTES else MAX_MEMORY_BYTES
    total = attempt(lambda: int(totalram_pages(prog)) * page_size)
    zones = None if nodes is None else sum(managed for _, managed in nodes) * page_size
    possible = [value for value in (total, zones) if value is not None and 0 < value <= most]
    # The larger value makes no share of RAM too large.
    size.ram_bytes = max(possible, default=0)
    known = [value for value in (total, zones) if value is not None]
    if possible and possible == known and min(known) >= (1 - _TOLERANCE) * max(known):
        return
    counts = (("totalram_pages", total), ("the zones", zones), ("the end of memory", end))
    reason = ", ".join(f"{name}: {_shown(value)}" for name, value in counts)
    used = human_bytes(size.ram_bytes) if size.ram_bytes else "unknown"
    effect = f"shares of RAM may be wrong: RAM is assumed to be {used}"
    size.contradictions.append(Contradiction("RAM", reason, effect))


def _shown(value: int | None) -> str:
    return "unreadable" if value is None else human_bytes(value)


def _pages_by_node(prog: drgn.Program) -> list[tuple[int, int]]:
    """Return (present, managed) pages of each node.

    :raises drgn.FaultError: they are unreadable, or their counters are on a page of zeros
    """
    try:
        pointers = prog["node_data"]
        nodes = [node[0] for node in itertools.islice(pointers.read_(), MAX_NODES) if node]
    except LookupError:
        nodes = [prog["contig_page_data"]]  # without CONFIG_NUMA
    pages = []
    for node in nodes:
        # Since Linux kernel commit 75ef71840539 ("mm, vmstat: add infrastructure for per-node
        # vmstats") (in v4.8); all readers of counters need it.
        if node.type_.has_member("vm_stat"):
            present(node.vm_stat)
        managed = 0
        for zone in node.node_zones:
            count = zone.managed_pages
            # Since Linux kernel commit 9705bea5f833 ("mm: convert zone->managed_pages to atomic
            # variable") (in v5.0).
            managed += int(getattr(count, "counter", count))
        pages.append((int(node.node_present_pages), managed))
    return pages


def _cpus(prog: drgn.Program, size: MachineSize) -> None:
    size.cpus = attempt(lambda: _count(for_each_online_cpu(prog), MAX_CPUS))
    possible = attempt(lambda: _count(for_each_possible_cpu(prog), MAX_CPUS))
    areas, most = attempt(lambda: _percpu_areas(prog)), possible
    if possible is not None and areas is not None and possible != areas:
        most = areas
        reason = f"cpu_possible_mask has {possible}, __per_cpu_offset {areas}"
        effect = "sums over CPUs, and objects on their lists, may be wrong"
        size.contradictions.append(Contradiction("CPUs", reason, effect))
    if size.cpus is not None and most is not None and not 0 < size.cpus <= most:
        reason = f"cpu_online_mask has {size.cpus}, of {most} possible ones"
        size.contradictions.append(Contradiction("CPUs", reason, "their number is not shown"))
        size.cpus = None


def _percpu_areas(prog: drgn.Program) -> int:
    """Return the number of CPUs with a per-CPU area: an offset shared with no other CPU."""
    offsets = prog["__per_cpu_offset"].read_().value_()[:MAX_CPUS]
    # Missing CPUs all have the same value, or zeros.
    return sum(times == 1 for offset, times in Counter(offsets).items() if offset)


def _count(items: Iterable[int] | Iterator[int], most: int) -> int:
    """Return the number of items; raise ValueError beyond ``most``."""
    count = sum(1 for _ in itertools.islice(items, most + 1))
    if count > most:
        raise ValueError(f"more than {most}")
    return count


def attempt(ask: Callable[[], T]) -> T | None:
    """Return the result of ``ask``; None if the kernel lacks it, or it is damaged."""
    try:
        return ask()
    except DAMAGED:
        return None
