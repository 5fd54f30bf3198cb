# SPDX-License-Identifier: LGPL-2.1-or-later
"""The counters behind /proc/vmstat, exact to the page."""

from __future__ import annotations

from collections.abc import Iterator

import drgn
import numpy as np
from drgn.helpers.linux.mmzone import NODE_DATA

from kcensus.engine.layout import word_dtype
from kcensus.engine.slub.percpu import cpu_offsets, online_nodes
from kcensus.kernel.names import DAMAGED


def node_page_state(prog: drgn.Program, *names: str) -> int | None:
    """Return a counter of ``enum node_stat_item``, summed over all nodes.

    drgn's ``global_node_page_state()`` reads the global sum, which lacks what CPUs have counted
    since they last folded it: up to 125 pages per CPU and node. Here these are included.

    :param names: names of the enumerator in different releases; the first that exists is used
    :return: pages (byte counters are kept in pages as well); None if the kernel has no such item
        or it is unreadable
    """
    for name in names:
        try:
            item = prog.constant(name)
        except LookupError:
            continue
        # Linux kernel commit 385386cff4c6 ("mm: vmstat: move slab statistics from zone to node
        # counters") (in v4.13) moved the slab counters from enum zone_stat_item.
        if item.type_.type_name() != "enum node_stat_item":
            return None
        total = 0
        try:
            for pgdat in (NODE_DATA(prog, node) for node in online_nodes(prog)):
                total += int(pgdat.vm_stat[item].counter)
                total += _per_cpu(pgdat.per_cpu_nodestats, "vm_node_stat_diff", int(item))
        except DAMAGED:
            return None
        return total
    return None


def page_state(prog: drgn.Program, *names: str) -> int | None:
    """Return a counter of ``enum node_stat_item`` or ``enum zone_stat_item``, over all of RAM.

    :param names: names of the enumerator in different releases; the first that exists is used
    :return: in the unit of the counter; None if the kernel has no such item or it is unreadable
    """
    for name in names:
        try:
            item = prog.constant(name)
        except LookupError:
            continue
        if item.type_.type_name() == "enum node_stat_item":
            return node_page_state(prog, name)
        try:
            return sum(_zone_page_state(zone, item) for zone in _zones(prog))
        except DAMAGED:
            return None
    return None


def _zones(prog: drgn.Program) -> Iterator[drgn.Object]:
    for node in online_nodes(prog):
        for zone in NODE_DATA(prog, node).node_zones:
            if zone.present_pages:  # else its per-CPU part is that of boot_pageset
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
    """Return a per-CPU counter, summed over all possible CPUs; that of one CPU may be negative.

    :param file: end of the path of the source file that defines it, where the name is not unique
    :return: None if the kernel has no such variable or it is unreadable
    """
    try:
        counter = prog.variable(name, file) if file else prog[name]
        # The kernel adds them up as long or int: the sum is right modulo its width.
        half = 1 << int(8 * drgn.sizeof(counter) - 1)
        return (_per_cpu(counter.address_of_()) + half) % (2 * half) - half
    except DAMAGED:
        return None


def _per_cpu(pointer: drgn.Object, array: str = "", index: int = 0) -> int:
    """Return the sum over all CPUs of what a per-CPU pointer points to: an integer, or a struct
    with an array of them.

    A read takes a fifth of what an object of drgn does, and machines have hundreds of CPUs.
    """
    prog, type_, start = pointer.prog_, pointer.type_.type, int(pointer)
    if array:
        start += int(drgn.offsetof(type_, array))
        type_ = type_.member(array).type.type
        start += index * drgn.sizeof(type_)
    size, is_signed = drgn.sizeof(type_), bool(type_.unaliased().is_signed)
    number = np.dtype(f"{'i' if is_signed else 'u'}{size}").newbyteorder(word_dtype(prog).byteorder)
    places = ((start + offset) % (1 << 64) for offset in cpu_offsets(prog).tolist())
    counts = np.frombuffer(b"".join(prog.read(place, size) for place in places), number)
    return int(counts.astype(np.int64).sum())
