# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests of legacy single queues, up to v4.20: objects of a slab cache."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.block.disks import QueueKind, block_devices
from kcensus.kernel.dm.kcopyd import pool_elements
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members

_MAX_GROUPS = 1 << 20


def single_requests(kernel: Kernel, report: ScanReport, faults: Faults) -> tuple[Words, int]:
    """Return the requests of single queues in use, and the number of their lost pools.

    Requests are allocated through a mempool per queue and cgroup: from ``blkdev_requests``, or by
    kmalloc() with the driver's data behind them. Requests in a mempool are not in use.

    :raises LookupError: the debug info lacks requests, or the slab caches cannot be read
    """
    prog, memory = kernel.prog, kernel.memory
    _, queues = block_devices(kernel).of_kind(QueueKind.SINGLE)
    if not len(queues):
        return queues, 0
    # Since v4.11 (commit not verified), the driver's data is allocated with a request.
    columns = layout(prog, "struct request_queue", {"id": "id"}, {"size": "cmd_size"})
    read = gather(memory, queues, columns, faults)
    extra = read.columns.get("size", np.zeros(len(queues), np.uint64))
    members = layout(prog, "struct request", {"queue": "q"}, {"list": "rl"})
    reserve, lists, lost = _reserve(kernel, queues, faults)
    found = [np.empty(0, np.uint64)]
    for size in np.unique(extra).tolist():
        own = queues[extra == size]
        for caches in _caches(kernel, size and drgn.sizeof(prog.type("struct request")) + size):
            address, column = allocated(kernel.slab_map, caches, members, report)
            # Other objects of kmalloc() begin with a queue, too: struct blkcg_gq, and the request
            # that flushes the disk. Only requests in use have a request_list.
            fits = np.isin(column["queue"], own)
            if "list" in column:
                fits &= np.isin(column["list"], lists)
            found.append(address[fits])
    return np.setdiff1d(np.concatenate(found), reserve), lost


def _caches(kernel: Kernel, size: int) -> list[list[SlabCache]]:
    """Return the slab caches for objects of a size; 0 for plain requests."""
    if not size:
        return [find_caches(kernel.slab_map, "struct request", "blkdev_requests")]
    fitting = [
        cache
        for cache in kernel.slab_map.caches
        if cache.name.startswith("kmalloc-") and cache.object_size >= size
    ]
    smallest = min((cache.object_size for cache in fitting), default=0)
    return [[cache] for cache in fitting if cache.object_size == smallest]


def _reserve(kernel: Kernel, queues: Words, faults: Faults) -> tuple[Words, Words, int]:
    """Return requests in mempools, their ``struct request_list``, and the unreadable mempools."""
    prog, memory = kernel.prog, kernel.memory
    queue = prog.type("struct request_queue")
    root = queues + np.uint64(drgn.offsetof(queue, "root_rl"))
    lists, cut = [root], 0
    group = prog.type("struct blkcg_gq")
    # With CONFIG_BLK_CGROUP, each cgroup has a list of its own.
    if queue.has_member("blkg_list") and group.is_complete() and group.has_member("rl"):
        heads = queues + np.uint64(drgn.offsetof(queue, "blkg_list"))
        _, nodes, torn = list_members(memory, heads, faults, limit=_MAX_GROUPS)
        cut = len(torn)
        step = drgn.offsetof(group, "rl") - drgn.offsetof(group, "q_node")
        lists.append(nodes + np.uint64(step))
    every = np.concatenate(lists)
    pools = gather(memory, every, layout(prog, "struct request_list", ["rq_pool"]), faults)
    pool = np.unique(pools["rq_pool"])
    pool = pool[pool != 0]
    read = gather(memory, pool, layout(prog, "mempool_t", ["curr_nr", "elements"]), faults)
    elements, _, lost = pool_elements(
        memory, read["elements"], read["curr_nr"].astype(np.int64), read.readable
    )
    return elements, every, lost + cut
