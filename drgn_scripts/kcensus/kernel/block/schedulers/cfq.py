# SPDX-License-Identifier: LGPL-2.1-or-later
"""CFQ, on legacy queues up to v4.20: a queue per task and priority, in trees by cgroup."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.chase import tree_nodes
from kcensus.engine.gather import gather
from kcensus.engine.layout import element_paths, layout
from kcensus.engine.memory import Words
from kcensus.kernel.block.disks import Disk
from kcensus.kernel.block.schedulers.model import Data, SchedulerQueues, flag_names, has_flag
from kcensus.kernel.kernel import Kernel

_MAX_GROUPS = 1 << 16
_MAX_QUEUES = 1 << 20
_ROOTS = "{0}.rb.rb_root.rb_node", "{0}.rb.rb_node"
"""Since v4.14 or v4.15 (commit not verified), roots of service trees are of type rb_root_cached."""

_TUNABLES = {
    "back_seek_max": ("cfq_back_max", ""),
    "back_seek_penalty": ("cfq_back_penalty", ""),
    "fifo_expire_async": ("cfq_fifo_expire[0]", "time/ms"),
    "fifo_expire_sync": ("cfq_fifo_expire[1]", "time/ms"),
    "group_idle": ("cfq_group_idle", "time/ms"),
    "low_latency": ("cfq_latency", ""),
    "quantum": ("cfq_quantum", ""),
    "slice_async": ("cfq_slice[0]", "time/ms"),
    "slice_async_rq": ("cfq_slice_async_rq", ""),
    "slice_idle": ("cfq_slice_idle", "time/ms"),
    "slice_sync": ("cfq_slice[1]", "time/ms"),
    "target_latency": ("cfq_target_latency", "time/ms"),
}


def queues(kernel: Kernel, disk: Disk) -> SchedulerQueues:
    """Return the queues of CFQ with requests or in a tree.

    :raises LookupError: the debug info lacks CFQ
    :raises drgn.FaultError: ``struct cfq_data`` is unreadable
    """
    prog = kernel.prog
    type_ = prog.type("struct cfq_data")
    expire = ["cfq_fifo_expire[0]", "cfq_fifo_expire[1]"]
    async_queues = element_paths(type_, "async_cfqq")
    root = type_.member("root_group").type if type_.has_member("root_group") else None
    has_pointer = root is not None and root.kind == drgn.TypeKind.POINTER
    names = [*(member for member, _ in _TUNABLES.values()), *async_queues]
    data = Data(
        kernel,
        disk,
        type_,
        {"active_queue": "active_queue", "queued": "rq_queued"}
        | {"groups": [p.format("grp_service_tree") for p in _ROOTS]}
        | {name: name for name in expire},
        {name: name for name in [*names, "serving_group", "async_idle_cfqq"] if name not in expire}
        | ({"root_group": "root_group"} if has_pointer else {}),
    )
    groups = _groups(data)
    found = [
        data[name] for name in (*async_queues, "async_idle_cfqq", "active_queue") if name in data
    ]
    # A queue names its scheduler, unlike a stray address in a damaged tree.
    address, column = data.queues(
        _queues(data, groups, np.array([*found, data.at("oom_cfqq")], np.uint64)),
        "struct cfq_queue",
        {"data": "cfqd", "flags": "flags", "pid": "pid"}
        | {name: name for name in ("queued[0]", "queued[1]", "dispatched")},
    )
    flags = flag_names(prog, "enum cfqq_state_flags", "CFQ_CFQQ_FLAG_")
    is_sync = has_flag(column["flags"], flags, "sync").astype(np.int64)
    idles = has_flag(column["flags"], flags, "idle_window")
    labels = zip(column["pid"].tolist(), is_sync.tolist(), idles.tolist(), strict=True)
    return data.task_queues(
        "struct cfq_queue",
        address,
        column,
        is_sync,
        # As in blktrace: N is a synchronous queue that CFQ does not idle for.
        [f"cfq{pid}{'AS'[sync]}{'N' if sync and not idle else ''}" for pid, sync, idle in labels],
        "active_queue",
        expire,
        tunables=data.tunables(_TUNABLES),
        inside={"cfq_data.rq_queued": data["queued"]},
    )


def _groups(data: Data) -> Words:
    root = np.array([data["groups"]], np.uint64)
    _, nodes, damaged = tree_nodes(data.memory, root, data.faults, limit=_MAX_GROUPS)
    data.torn += len(damaged)
    node = np.uint64(drgn.offsetof(data.prog.type("struct cfq_group"), "rb_node"))
    own = [data[name] for name in ("root_group", "serving_group") if name in data]
    if data.type.has_member("root_group") and "root_group" not in data:
        own.append(data.at("root_group"))
    groups = np.union1d(nodes - node, np.array(own, np.uint64))
    return np.asarray(groups[groups != 0])


def _queues(data: Data, groups: Words, others: Words) -> Words:
    """Return the queues in the service trees of groups, their asynchronous queues, and others."""
    type_ = data.prog.type("struct cfq_group")
    # By class and type; BTF has an array of arrays as a single one.
    trees = [*element_paths(type_, "service_trees"), "service_tree_idle"]
    roots = layout(data.prog, type_, {name: [p.format(name) for p in _ROOTS] for name in trees})
    read = gather(data.memory, groups, roots, data.faults)
    data.torn += int((~read.readable).sum())
    heads = np.concatenate([read[name] for name in trees])
    _, nodes, damaged = tree_nodes(data.memory, heads, data.faults, limit=_MAX_QUEUES)
    data.torn += len(damaged)
    node = np.uint64(drgn.offsetof(data.prog.type("struct cfq_queue"), "rb_node"))
    # Since v4.4 (commit not verified), asynchronous queues belong to a group.
    names = [*element_paths(type_, "async_cfqq"), "async_idle_cfqq"]
    own = gather(
        data.memory,
        groups,
        layout(data.prog, type_, {}, {name: name for name in names}),
        data.faults,
    )
    found = np.unique(np.concatenate([nodes - node, others, *own.columns.values()]))
    return np.asarray(found[found != 0])
