# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a disk by ``io.cost``: tasks that wait until their cgroup can pay for its I/O."""

from __future__ import annotations

import shlex

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.cgroups import BlockCgroup, block_cgroups
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.graph import NodeKind
from kcensus.results import Finding, Remedy
from kcensus.text import pasteable, printable

COST = NodeKind("share", ("struct ioc_gq",), is_io=True, tells_device=True)
_GROUP, _QUEUES = "struct ioc_gq", ("struct wait_queue_head", "struct __wait_queue_head")
_PERCENT = 10_000
"""``ioc_params.qos`` has parts per million."""
_ONE = 1 << 16
"""WEIGHT_ONE, a weight of 1, and all of the disk."""
_WHOLE = 0.9
"""Part of a disk that a larger weight does not add much to."""
_SLOW_MODEL = (
    "The cgroup already has nearly all of the disk: io.cost.model takes the disk for slower than "
    "the load needs. Correct the model once the tasks have gone on (they do, as the model allows): "
    "newer kernels freeze the queue to write io.cost.model or io.cost.qos, and wait for them"
)


class IoCosts(Finder):
    """Finds the shares of tasks that wait in ioc_rqos_throttle()."""

    about = "shares of io.cost"
    kinds = (COST,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.cgroups: dict[int, BlockCgroup] = {}
        """Cgroup by ``struct ioc_gq``."""
        self.devices: dict[int, str] = {}
        """Number of its disk by ``struct ioc_gq``."""

    def note(self) -> None:
        """Note the shares whose member a wait queue is.

        :raises LookupError: the debug info lacks a type
        """
        functions = frozenset({"ioc_rqos_throttle"})
        lanes = np.concatenate([self._lanes(functions, type_) for type_ in _QUEUES])
        if not len(lanes):
            return
        group = self.object[lanes] - self._offset(_GROUP, "waitq")
        # Since Linux kernel commit ba91c849fa50 ("blk-rq-qos: store a gendisk instead of
        # request_queue in struct rq_qos") (in v6.3), the policy has the disk.
        read = self._read(_GROUP, group, {"ioc": "ioc", "group": "pd.blkg"}, is_guess=True)
        owner = self._read(
            "struct ioc", read["ioc"], {"device": ("rqos.disk", "rqos.q")}, is_guess=True
        )["device"]
        queue = self._member("struct blkcg_gq", "q", read["group"], is_guess=True)
        disks = block_devices(self.kernel).disks
        rows = block_devices(self.kernel).disk_rows(queue)
        cgroups = block_cgroups(self.kernel, read["group"])
        for index, lane in enumerate(lanes.tolist()):
            disk = disks[int(rows[index])]
            if rows[index] < 0 or int(owner[index]) not in (disk.address, disk.queue):
                continue
            address, cgroup = int(group[index]), cgroups[int(read["group"][index])]
            self._note(lane, address, _GROUP, "ioc_gq.waitq")
            self.names[COST, address] = f"io.cost of cgroup {cgroup.path or '?'} on {disk.name}"
            self.cgroups[address], self.devices[address] = cgroup, disk.device

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a share, with its weight."""
        if kind is not COST:
            return None
        # hweight_inuse is the part of the disk that all weights leave to the cgroup.
        paths = {"weight": "weight", "part": "hweight_inuse", "ioc": "ioc"}
        group = self._read(_GROUP, np.array([address], np.uint64), paths)
        # Since the series in v5.10 that added saved_margin, too ("blk-iocost: use WEIGHT_ONE based
        # fixed point number for weights", commit not verified); before, it is the weight itself.
        unit = _ONE if self.kernel.prog.type(_GROUP).has_member("saved_margin") else 1
        weight, part = int(group["weight"][0]) // unit, int(group["part"][0]) / _ONE
        # enum QOS_MIN, QOS_MAX.
        paths = {"min": "params.qos[4]", "max": "params.qos[5]"}
        qos = self._read("struct ioc", group["ioc"], paths)
        least, most = (int(qos[name][0]) / _PERCENT for name in ("min", "max"))
        cgroup, device = self.cgroups[address], self.devices[address]
        name = printable(self.names[kind, address])
        helps = pasteable(cgroup.path) and cgroup.is_unified and part < _WHOLE
        return stall.finding(
            "waits-io-cost",
            name,
            name,
            f"io.weight {weight} gives the cgroup {part:.1%} of {device}; io.cost.qos "
            f"allows {least:.0f} % to {most:.0f} % of the speed in io.cost.model",
            (_heavier(cgroup, device, weight),) if helps else (),
            _SLOW_MODEL,
        )


def _heavier(cgroup: BlockCgroup, device: str, weight: int) -> Remedy:
    path = shlex.quote(cgroup.file("io.weight"))
    return Remedy(
        effect="Give the cgroup a larger part of the disk",
        command=f"echo '{device} 10000' > {path}",
        risk="other cgroups get less; do not write io.cost.qos or io.cost.model: newer kernels "
        "freeze the queue for that, and wait for these tasks",
        undo=f"echo '{device} {weight}' > {path}",
    )


FINDER = IoCosts
