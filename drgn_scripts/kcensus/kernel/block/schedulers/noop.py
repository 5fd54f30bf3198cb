# SPDX-License-Identifier: LGPL-2.1-or-later
"""noop, on legacy queues up to v4.20: one list."""

from __future__ import annotations

import numpy as np

from kcensus.kernel.block.disks import Disk
from kcensus.kernel.block.schedulers.model import NEVER, Data, SchedulerQueues, fifos
from kcensus.kernel.kernel import Kernel


def queues(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    """Return the list of requests of noop.

    :raises LookupError: the debug info lacks noop
    :raises drgn.FaultError: ``struct noop_data`` is unreadable
    """
    data = Data(kernel, disk, kernel.prog.type("struct noop_data"), {"first": "queue.next"})
    head = np.array([data.at("queue")], np.uint64)
    lists = fifos(kernel, head, data.faults)
    none = np.full(1, -1)
    return SchedulerQueues(
        "noop",
        head,
        ["all"],
        none,
        np.zeros(1, np.int64),
        none,
        none,
        np.zeros(1, np.bool_),
        none,
        lists.row,
        lists.request,
        np.full(len(lists.row), NEVER),
        torn=lists.torn,
        faults=data.faults,
    )
