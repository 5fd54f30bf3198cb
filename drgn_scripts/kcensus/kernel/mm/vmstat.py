# SPDX-License-Identifier: LGPL-2.1-or-later
"""The counters behind /proc/vmstat, exact to the page, and uses of RAM by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import drgn
import numpy as np
from drgn.helpers.linux.hugetlb import hugetlb_total_pages
from drgn.helpers.linux.mmzone import NODE_DATA

from kcensus.engine.layout import number_dtype
from kcensus.engine.slub.percpu import cpu_offsets, online_nodes
from kcensus.kernel.size import attempt
from kcensus.sources.capsule.uses import reading_numbers

_ITEMS = {
    "free": ("NR_FREE_PAGES",),
    "page_cache": ("NR_FILE_PAGES",),
    "shmem": ("NR_SHMEM",),
    # Renamed in v4.8 (commit not verified).
    "anonymous": ("NR_ANON_MAPPED", "NR_ANON_PAGES"),
    # Since Linux kernel commit d42f3245c7e2 ("mm: memcg: convert vmstat slab counters to bytes")
    # (in v5.9), the items are called ..._B; they still count pages.
    "slab_reclaimable": ("NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE"),
    "slab_unreclaimable": ("NR_SLAB_UNRECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE"),
    "page_tables": ("NR_PAGETABLE",),
}
"""Counters of pages by use; each kernel must have the first."""
_TOLERANCE = 1.02
"""Counters of a running kernel are not read at the same time."""


def node_page_state(prog: drgn.Program, *names: str) -> int | None:
    """Return a counter of ``enum node_stat_item``, summed over all nodes.

    It includes the counts not yet folded by CPUs, up to 125 pages per CPU and node; drgn's
    ``global_node_page_state()`` leaves them out.

    :param names: names of the enumerator in different releases; the first that exists is used
    :return: pages, also for byte counters; None if the kernel lacks the item or it is unreadable
    """
    item = _item(prog, names)
    # Linux kernel commit 385386cff4c6 ("mm: vmstat: move slab statistics from zone to node
    # counters") (in v4.13) moved the slab counters from enum zone_stat_item.
    if item is None or item.type_.type_name() != "enum node_stat_item":
        return None
    return attempt(lambda: sum(_node_page_state(prog, node, item) for node in online_nodes(prog)))


def page_state(prog: drgn.Program, *names: str) -> int | None:
    """Return a counter of ``enum node_stat_item`` or ``enum zone_stat_item``, over all of RAM.

    :param names: names of the enumerator in different releases; the first that exists is used
    :return: in the unit of the counter; None if the kernel has no such item or it is unreadable
    """
    item = _item(prog, names)
    if item is None or item.type_.type_name() == "enum node_stat_item":
        return node_page_state(prog, *names)
    return attempt(lambda: sum(_zone_page_state(zone, item) for zone in _zones(prog)))


def page_state_source(prog: drgn.Program, *names: str) -> str:
    """Return the kernel's own name of the counter of :func:`page_state`."""
    for name in names:
        if (item := _item(prog, (name,))) is not None:
            which = "zone" if item.type_.type_name() == "enum zone_stat_item" else "node"
            return f"vm_{which}_stat[{name}]"
    return f"vm_node_stat[{names[0]}]"


def _item(prog: drgn.Program, names: tuple[str, ...]) -> drgn.Object | None:
    for name in names:
        with suppress(LookupError):
            return prog.constant(name)
    return None


def _node_page_state(prog: drgn.Program, node: int, item: drgn.Object) -> int:
    pgdat = NODE_DATA(prog, node)
    per_cpu = _per_cpu(pgdat.per_cpu_nodestats, "vm_node_stat_diff", int(item))
    return int(pgdat.vm_stat[item].counter) + per_cpu


def _zones(prog: drgn.Program) -> Iterator[drgn.Object]:
    for node in online_nodes(prog):
        for zone in NODE_DATA(prog, node).node_zones:
            if zone.present_pages:  # else the per-CPU part is boot_pageset's
                yield zone


def _zone_page_state(zone: drgn.Object, item: drgn.Object) -> int:
    # Since Linux kernel commit 28f836b6777b ("mm/page_alloc: split per cpu page lists and zone
    # stats") (in v5.14), vm_stat_diff is in a struct of its own.
    try:
        per_cpu = zone.per_cpu_zonestats
    except AttributeError:
        per_cpu = zone.pageset
    return int(zone.vm_stat[item].counter) + _per_cpu(per_cpu, "vm_stat_diff", int(item))


def percpu_sum(prog: drgn.Program, name: str, file: str | None = None) -> int | None:
    """Return a per-CPU counter, summed over all possible CPUs; a single CPU's may be negative.

    :param file: end of the path of the source file that defines it, if the name is not unique
    :return: None if the kernel has no such variable or it is unreadable
    """

    def total() -> int:
        counter = prog.variable(name, file) if file else prog[name]
        # The kernel adds them up as long or int: the sum is right modulo its width.
        half = 1 << int(8 * drgn.sizeof(counter) - 1)
        return (_per_cpu(counter.address_of_()) + half) % (2 * half) - half

    return attempt(total)


def _per_cpu(pointer: drgn.Object, array: str = "", index: int = 0) -> int:
    """Return the sum over all CPUs of an integer, or of an element of an array in a struct.

    Raw reads: an object of drgn takes five times as long, and machines have hundreds of CPUs.
    """
    prog, type_, start = pointer.prog_, pointer.type_.type, int(pointer)
    if array:
        start += int(drgn.offsetof(type_, array))
        type_ = type_.member(array).type.type
        start += index * drgn.sizeof(type_)
    size, is_signed = drgn.sizeof(type_), bool(type_.unaliased().is_signed)
    number = number_dtype(prog, f"{'i' if is_signed else 'u'}{size}")
    places = ((start + offset) % (1 << 64) for offset in cpu_offsets(prog).tolist())
    with reading_numbers(prog):
        counts = np.frombuffer(b"".join(prog.read(place, size) for place in places), number)
    return int(counts.astype(np.int64).sum())


def memory_use(prog: drgn.Program, ram_bytes: int) -> dict[str, int]:
    """Return the bytes of RAM by use.

    ``other`` is the rest: pages on the lists of CPUs, of drivers, of vmalloc() and the balloon, and
    uses that are unknown, which have no key.

    :return: empty if a counter is unreadable, or the counters together exceed the RAM
    """
    page = attempt(lambda: int(prog["PAGE_SIZE"])) or 0
    counters = {name: page_state(prog, *items) for name, items in _ITEMS.items()}
    pages = {name: max(count, 0) for name, count in counters.items() if count is not None}
    if not page or len(pages) < len(_ITEMS):
        return {}
    # NR_FILE_PAGES includes tmpfs and the swap cache; NR_ANON_MAPPED includes mapped anonymous
    # pages of the swap cache, too.
    pages["page_cache"] -= pages["shmem"] + (page_state(prog, "NR_SWAPCACHE") or 0)
    use = {name: max(count, 0) * page for name, count in pages.items()}
    use["huge_pages"] = (attempt(lambda: hugetlb_total_pages(prog)) or 0) * page
    # In KiB since v4.8; before, NR_KERNEL_STACK counted stacks (commit not verified).
    kib = page_state(prog, "NR_KERNEL_STACK_KB")
    count = attempt(lambda: page_state(prog, "NR_KERNEL_STACK")) if kib is None else None
    size = attempt(lambda: int(prog["THREAD_SIZE"])) if count is not None else None
    stacks = kib << 10 if kib is not None else count * size if count and size else None
    if stacks is not None:
        use["kernel_stacks"] = max(stacks, 0)
    # As Percpu of /proc/meminfo, since Linux kernel commit 7e8a6304d541 ("/proc/meminfo: add percpu
    # populated pages count") (in v4.20); before, it is unknown.
    per_cpu = attempt(lambda: int(prog["pcpu_nr_populated"]) * int(prog["pcpu_nr_units"]))
    if per_cpu is not None:
        use["per_cpu"] = per_cpu * page
    known = sum(use.values())
    if known > ram_bytes * _TOLERANCE:
        return {}
    return {**use, "other": max(ram_bytes - known, 0)}
