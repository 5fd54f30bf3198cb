# SPDX-License-Identifier: LGPL-2.1-or-later
"""mq-deadline and legacy deadline: a list of reads and one of writes, since v5.14 by priority; and
noop: one list."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.kernel.block.disks import Disk, QueueKind
from kcensus.kernel.block.schedulers.model import (
    READ,
    WRITE,
    Data,
    SchedulerQueues,
    fifos,
    lateness,
    plain_lists,
)
from kcensus.kernel.kernel import Kernel

_DIRECTIONS = "read", "write"
_TUNABLES = {
    "read_expire": ("fifo_expire[0]", "jiffies/ms"),
    "write_expire": ("fifo_expire[1]", "jiffies/ms"),
    "writes_starved": ("writes_starved", ""),
    "front_merges": ("front_merges", ""),
    "fifo_batch": ("fifo_batch", ""),
    "async_depth": ("async_depth", ""),
    "prio_aging_expire": ("prio_aging_expire", "jiffies/ms"),
}


def queues(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    """Return the lists of requests of deadline or mq-deadline.

    :raises LookupError: the debug info lacks the scheduler
    :raises drgn.FaultError: ``struct deadline_data`` is unreadable
    """
    type_ = _type(kernel, disk)
    # Since Linux kernel commit c807ab520fc3 ("block/mq-deadline: Add I/O priority support") (in
    # v5.14), there are lists for each class of priority.
    prefixes = ["per_prio[0].", "per_prio[1].", "per_prio[2]."]
    names = ["RT ", "BE ", "idle "]
    if not type_.has_member("per_prio"):
        prefixes, names = [""], [""]
    tunables = [member for member, _ in _TUNABLES.values()]
    data = Data(
        kernel,
        disk,
        type_,
        {"fifo_expire[0]": "fifo_expire[0]", "fifo_expire[1]": "fifo_expire[1]"},
        {name: name for name in tunables},
    )
    rows = [
        (p, name, way) for p, name in zip(prefixes, names, strict=True) for way in (READ, WRITE)
    ]
    heads = np.array([data.at(f"{p}fifo_list[{way}]") for p, _, way in rows], np.uint64)
    lists = fifos(kernel, heads, data.faults)
    expiry = [data.time_ns(f"fifo_expire[{way}]", "jiffies") for way in (READ, WRITE)]
    direction = np.array([way for _, _, way in rows], np.int64)
    # One of all priorities until v5.13 and since v6.9, one of each between (commits not verified).
    dispatch = [data.at(f"{p}dispatch") for p in ["", *prefixes] if _has(type_, f"{p}dispatch")]
    going = fifos(kernel, np.unique(np.array(dispatch, np.uint64)), data.faults)
    return plain_lists(
        disk.scheduler,
        heads,
        [f"{name}{_DIRECTIONS[way]}" for _, name, way in rows],
        lists.row,
        lists.request,
        expiry_ns=np.array(expiry, np.int64)[direction],
        late_ns=lateness(kernel, lists, in_jiffies=True),
        dispatch=going.request,
        tunables=data.tunables(_TUNABLES),
        direction=direction,
        torn=lists.torn + going.torn,
        faults=data.faults,
    )


def noop_queues(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    """Return the one list of requests of noop, on legacy queues up to v4.20.

    :raises LookupError: the debug info lacks noop
    :raises drgn.FaultError: ``struct noop_data`` is unreadable
    """
    data = Data(kernel, disk, kernel.prog.type("struct noop_data"), {"first": "queue.next"})
    head = np.array([data.at("queue")], np.uint64)
    lists = fifos(kernel, head, data.faults)
    columns = {"torn": lists.torn, "faults": data.faults}
    return plain_lists("noop", head, ["all"], lists.row, lists.request, **columns)


def _type(kernel: Kernel, disk: Disk) -> drgn.Type:
    """Return the scheduler's ``struct deadline_data``: up to v4.20 there are two."""
    mq = disk.kind == QueueKind.MULTI
    try:
        return kernel.prog.type(
            "struct deadline_data", "mq-deadline.c" if mq else "deadline-iosched.c"
        )
    except LookupError:
        return kernel.prog.type("struct deadline_data")


def _has(type_: drgn.Type, path: str) -> bool:
    """Return whether a path of the form ``per_prio[0].dispatch`` or ``dispatch`` exists."""
    prefix, _, name = path.rpartition(".")
    if not prefix:
        return bool(type_.has_member(name))
    element = type_.member(prefix.split("[")[0]).type.type
    return bool(element.has_member(name))
