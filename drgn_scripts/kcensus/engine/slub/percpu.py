# SPDX-License-Identifier: LGPL-2.1-or-later
"""Per-CPU areas and NUMA nodes, even if the variables that count them are damaged."""

from __future__ import annotations

import itertools

import drgn
import numpy as np
from drgn.helpers.linux.bitops import for_each_set_bit
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.percpu import per_cpu_ptr

from kcensus.engine.layout import word_dtype
from kcensus.engine.memory import Words
from kcensus.sources.capsule import NotRecorded

_MAX_CPUS = 8192
"""``NR_CPUS`` of the largest configuration."""
_MAX_NODES = 1024
"""``MAX_NUMNODES`` of the largest configuration (``CONFIG_NODES_SHIFT`` 10)."""


def cpu_offsets(prog: drgn.Program) -> Words:
    """Return the offsets of all per-CPU areas, ascending.

    CPUs missing from ``__cpu_possible_mask`` count, too: the elements of ``__per_cpu_offset`` for
    impossible CPUs are 0 or all the same.

    :raises drgn.FaultError: the mask is not in the dump
    """
    # They never change, and finding them takes longer than reading a counter of each CPU.
    if (known := prog.cache.get(cpu_offsets)) is None:
        known = prog.cache[cpu_offsets] = _cpu_offsets(prog)
    return np.asarray(known)


def _cpu_offsets(prog: drgn.Program) -> Words:
    null = drgn.NULL(prog, "void *")
    possible = itertools.islice(for_each_possible_cpu(prog), _MAX_CPUS)
    offsets = np.array([per_cpu_ptr(null, cpu).value_() for cpu in possible], np.uint64)
    try:
        array = prog["__per_cpu_offset"]
        raw = array.to_bytes_()
    except (LookupError, drgn.FaultError, NotRecorded):
        return np.unique(offsets)  # with one processor, or an incomplete array
    every, count = np.unique(
        np.frombuffer(raw, word_dtype(prog)).astype(np.uint64), return_counts=True
    )
    return np.union1d(offsets, every[(count == 1) & (every != 0)])


def online_nodes(prog: drgn.Program) -> list[int]:
    """Return the online NUMA nodes, ascending."""
    # drgn's for_each_online_node() reads nr_node_ids bits, however many these are.
    mask = prog["node_states"][prog["N_ONLINE"]]
    return list(for_each_set_bit(mask.bits, min(8 * drgn.sizeof(mask), _MAX_NODES)))


def node_ids(prog: drgn.Program) -> int:
    """Return ``nr_node_ids``; if impossible, one more than the highest online node."""
    ids, online = int(nr_node_ids(prog)), max(online_nodes(prog), default=0)
    return ids if online < ids <= _MAX_NODES else online + 1
