# SPDX-License-Identifier: LGPL-2.1-or-later
"""The counters behind /proc/vmstat, exact to the page."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.mmzone import for_each_online_pgdat
from drgn.helpers.linux.percpu import per_cpu_ptr


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
            for pgdat in for_each_online_pgdat(prog):
                total += int(pgdat.vm_stat[item].counter)
                for cpu in for_each_possible_cpu(prog):
                    total += int(per_cpu_ptr(pgdat.per_cpu_nodestats, cpu).vm_node_stat_diff[item])
        except drgn.FaultError:
            return None
        return total
    return None


def percpu_sum(prog: drgn.Program, name: str, file: str | None = None) -> int | None:
    """Return a per-CPU counter, summed over all possible CPUs; 0 if the sum is negative.

    :param file: end of the path of the source file that defines it, where the name is not unique
    :return: None if the kernel has no such variable or it is unreadable
    """
    try:
        counter = prog.variable(name, file) if file else prog[name]
        cpus = for_each_possible_cpu(prog)
        return max(sum(int(per_cpu_ptr(counter.address_of_(), cpu)[0]) for cpu in cpus), 0)
    except (LookupError, drgn.FaultError):
        return None
