# SPDX-License-Identifier: LGPL-2.1-or-later
"""kyber: per hardware queue a list for each domain (reads, writes, …), without expiry."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.rows import spread
from kcensus.kernel.block.disks import Disk, block_devices
from kcensus.kernel.block.hardware import hardware_queues
from kcensus.kernel.block.schedulers.model import Data, SchedulerQueues, fifos, plain_lists
from kcensus.kernel.kernel import Kernel

_MAX_CONTEXTS = 1 << 16
_DOMAINS = {
    # Since v4.20 (commit not verified), discards are a domain of their own.
    4: ("read", "write", "discard", "other"),
    3: ("read", "sync write", "other"),
}
_TUNABLES = {"read_lat_nsec": ("read_latency", ""), "write_lat_nsec": ("write_latency", "")}


def queues(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    """Return the lists of requests of kyber, a row per hardware queue and domain.

    :raises LookupError: the debug info lacks kyber
    :raises drgn.FaultError: ``struct kyber_queue_data`` is unreadable
    """
    prog, memory = kernel.prog, kernel.memory
    data = Data(
        kernel,
        disk,
        prog.type("struct kyber_queue_data"),
        {},
        {"read_latency": ("latency_targets[0]", "read_lat_nsec"), "async_depth": "async_depth"}
        | {"write_latency": ("latency_targets[1]", "write_lat_nsec")},
    )
    hardware = hardware_queues(kernel)
    own = np.flatnonzero(hardware.disk == block_devices(kernel).queue_rows[disk.queue])
    per_queue = prog.type("struct kyber_hctx_data")
    per_context = prog.type("struct kyber_ctx_queue")
    domains = per_queue.member("rqs").type.length or 0
    names = _DOMAINS.get(domains, tuple(str(index) for index in range(domains)))
    address = hardware.sched_data[own]
    read = gather(memory, address, layout(prog, per_queue, ["kcqs", "cur_domain"]), data.faults)
    data.torn += int((~read.readable).sum())
    contexts = np.clip(hardware.nr_contexts[own], 0, _MAX_CONTEXTS)
    contexts[~read.readable] = 0
    lane, index = spread(contexts)
    size = np.uint64(drgn.sizeof(per_context))
    context = read["kcqs"][lane] + index.astype(np.uint64) * size
    heads, rows = [], []
    for domain in range(domains):
        # Requests that left the software queues come first.
        heads.append(address[read.readable] + _at(per_queue, f"rqs[{domain}]"))
        rows.append(np.flatnonzero(read.readable) * domains + domain)
        heads.append(context + _at(per_context, f"rq_list[{domain}]"))
        rows.append(lane * domains + domain)
    lists = fifos(kernel, np.concatenate(heads), data.faults)
    row = np.concatenate(rows)[lists.row]
    order = np.argsort(row, kind="stable")
    numbers = hardware.number[own].tolist()
    first = address[:, None] + np.array([_at(per_queue, f"rqs[{d}]") for d in range(domains)])
    return plain_lists(
        "kyber",
        first.ravel(),
        [f"hctx{number} {name}" for number in numbers for name in names],
        row[order],
        lists.request[order],
        is_in_service=(read["cur_domain"][:, None] == np.arange(domains)).ravel(),
        tunables=data.tunables(_TUNABLES),
        torn=data.torn + lists.torn,
        faults=data.faults,
    )


def _at(type_: drgn.Type, path: str) -> np.uint64:
    return np.uint64(drgn.offsetof(type_, path))
