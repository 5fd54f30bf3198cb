# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters that the memory management keeps, exact to the page."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.mmzone import for_each_online_pgdat
from drgn.helpers.linux.percpu import per_cpu_ptr


def node_page_state(prog: drgn.Program, *names: str) -> int | None:
    """A counter of ``enum node_stat_item``, summed over all nodes.

    drgn's ``global_node_page_state()`` reads the global sum, which lacks what CPUs have counted
    since they last folded: up to 125 pages per CPU and node. Here that is added.

    :param names: enumerators by which the item is known; the first that exists is used
    :return: pages (byte counters, too, are kept in pages); None where the kernel has no such item
        or the dump lacks it
    """
    for name in names:
        try:
            item = prog.constant(name)
        except LookupError:
            continue
        # 385386cff4c6 (4.13) moved the slab counters from zones to nodes.
        if item.type_.type_name() != "enum node_stat_item":
            return None
        index = int(item)
        try:
            return _sum(prog, index)
        except drgn.FaultError:
            return None
    return None


def _sum(prog: drgn.Program, index: int) -> int:
    total = 0
    for pgdat in for_each_online_pgdat(prog):
        total += int(pgdat.vm_stat[index].counter)
        for cpu in for_each_possible_cpu(prog):
            total += int(per_cpu_ptr(pgdat.per_cpu_nodestats, cpu).vm_node_stat_diff[index])
    return total


def percpu_sum(prog: drgn.Program, name: str, file: str | None = None) -> int | None:
    """A per-CPU counter, summed over all CPUs that can be: the kernel shows it clamped to zero.

    :param file: part of the path of the source that defines it, where the name is not unique
    :return: None where the kernel has no such variable or the dump lacks it
    """
    try:
        counter = prog.variable(name, file) if file else prog[name]
        cpus = for_each_possible_cpu(prog)
        return max(sum(int(per_cpu_ptr(counter.address_of_(), cpu)[0]) for cpu in cpus), 0)
    except (LookupError, drgn.FaultError):
        return None
