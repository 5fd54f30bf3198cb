# SPDX-License-Identifier: LGPL-2.1-or-later
"""The queues of all I/O schedulers: a module for each."""

from __future__ import annotations

from collections.abc import Callable

import drgn

from kcensus.kernel.block.disks import Disk, block_devices
from kcensus.kernel.block.schedulers import bfq, cfq, deadline, kyber
from kcensus.kernel.block.schedulers.model import SchedulerQueues, unknown
from kcensus.kernel.kernel import Kernel, once

_READERS: dict[str, Callable[[Kernel, Disk], SchedulerQueues]] = {
    "bfq": bfq.queues,
    "cfq": cfq.queues,
    "deadline": deadline.queues,
    "kyber": kyber.queues,
    "mq-deadline": deadline.queues,
    "noop": deadline.noop_queues,
}


@once
def scheduler_queues(kernel: Kernel) -> tuple[SchedulerQueues, ...]:
    """Return the queues of the scheduler of each disk, in the order of ``disks()``.

    Disks without a scheduler have no queues. Queues of a scheduler without debug info are unknown;
    ``lacks`` names the missing part.
    """
    return tuple(_of_disk(kernel, disk) for disk in block_devices(kernel).disks)


def _of_disk(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    if not disk.scheduler_data:
        return unknown(disk.scheduler)
    reader = _READERS.get(disk.scheduler)
    if reader is None:
        return unknown(disk.scheduler, "a reader of this scheduler")
    try:
        return reader(kernel, disk)
    except LookupError as error:
        return unknown(disk.scheduler, str(error))
    except drgn.FaultError as error:
        found = unknown(disk.scheduler)
        found.torn = 1
        found.faults.note(error)
        return found
