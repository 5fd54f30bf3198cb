# SPDX-License-Identifier: LGPL-2.1-or-later
"""BFQ: a queue per task, and asynchronous ones per cgroup and priority."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.layout import element_paths
from kcensus.engine.memory import Words
from kcensus.kernel.block.disks import Disk
from kcensus.kernel.block.schedulers.model import Data, SchedulerQueues, fifos, flag_names, has_flag
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import list_members

_MAX_QUEUES = 1 << 20
_TUNABLES = {
    "fifo_expire_async": ("bfq_fifo_expire[0]", "ns/ms"),
    "fifo_expire_sync": ("bfq_fifo_expire[1]", "ns/ms"),
    "back_seek_max": ("bfq_back_max", ""),
    "back_seek_penalty": ("bfq_back_penalty", ""),
    "slice_idle": ("bfq_slice_idle", "ns/ms"),
    "slice_idle_us": ("bfq_slice_idle", "ns/us"),
    "max_budget": ("bfq_user_max_budget", ""),
    "timeout_sync": ("bfq_timeout", "jiffies/ms"),
    "strict_guarantees": ("strict_guarantees", ""),
    "low_latency": ("low_latency", ""),
}


def queues(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    """Return the queues of BFQ with requests, in service, or waiting for service.

    :raises LookupError: the debug info lacks BFQ
    :raises drgn.FaultError: ``struct bfq_data`` is unreadable
    """
    prog = kernel.prog
    type_ = prog.type("struct bfq_data")
    expire = ["bfq_fifo_expire[0]", "bfq_fifo_expire[1]"]
    names = {"num_actuators", *(member for member, _ in _TUNABLES.values())} - {*expire}
    data = Data(
        kernel,
        disk,
        type_,
        {name: name for name in [*expire, "in_service_queue", "root_group", "queued"]},
        {name: name for name in names},
    )
    # A queue names its scheduler, unlike a stray address on a torn list.
    address, column = data.queues(
        _queues(data),
        "struct bfq_queue",
        {"data": "bfqd", "flags": "flags", "pid": "pid", "dispatched": "dispatched"}
        | {name: name for name in ("queued[0]", "queued[1]")},
    )
    flags = flag_names(prog, "enum bfqq_state_flags", "BFQQF_")
    is_sync = has_flag(column["flags"], flags, "sync").astype(np.int64)
    going = fifos(kernel, np.array([data.at("dispatch")], np.uint64), data.faults)
    data.torn += going.torn
    labels = zip(column["pid"].astype(np.int64).tolist(), is_sync.tolist(), strict=True)
    return data.task_queues(
        "struct bfq_queue",
        address,
        column,
        is_sync,
        # As in its traces; merged queues belong to several tasks.
        [f"bfq{'SHARED' if pid < 0 else pid}{'AS'[sync]}" for pid, sync in labels],
        "in_service_queue",
        expire,
        dispatch=going.request,
        tunables=data.tunables(_TUNABLES),
        inside={"bfq_data.queued": data["queued"]},
    )


def _queues(data: Data) -> Words:
    """Return the queues on the lists of active and idle ones, and the queues on no list."""
    # Since v6.3 (commit not verified), there is a list per actuator.
    paths = ["idle_list"]
    member = data.type.member("active_list").type
    if member.kind == drgn.TypeKind.ARRAY:
        # The rest of the array is not initialized.
        actuators = min(data["num_actuators"], member.length or 0) if "num_actuators" in data else 1
        paths += [f"active_list[{index}]" for index in range(actuators)]
    else:
        paths.append("active_list")
    heads = np.array([data.at(path) for path in paths], np.uint64)
    _, nodes, torn = list_members(
        data.memory, heads, data.faults, limit=_MAX_QUEUES, verify=not data.kernel.live
    )
    data.torn += len(torn)
    type_ = data.prog.type("struct bfq_queue")
    listed = nodes - np.uint64(drgn.offsetof(type_, "bfqq_list"))
    # The queue in service has left the list; the asynchronous ones of the root group may be empty.
    own = [data["in_service_queue"], data.at("oom_bfqq")]
    group = data.prog.type("struct bfq_group")
    paths = [*element_paths(group, "async_bfqq"), *element_paths(group, "async_idle_bfqq")]
    read = data.gather(
        np.array([data["root_group"]], np.uint64), "struct bfq_group", {}, {p: p for p in paths}
    )
    every = np.concatenate([listed, np.array(own, np.uint64), *read.columns.values()])
    found = np.unique(every)
    return np.asarray(found[found != 0])
