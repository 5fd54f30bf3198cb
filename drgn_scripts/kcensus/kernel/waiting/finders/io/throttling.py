# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writeback throttling (wbt): tasks that wait until fewer writes of a disk are in flight."""

from __future__ import annotations

import numpy as np

from kcensus.human import counted, human_seconds
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.io.devices import to_devices
from kcensus.kernel.waiting.graph import NodeKind

THROTTLING = NodeKind("write throttling", ("struct rq_wait",), is_io=True)
_WAIT, _QUEUES = "struct rq_wait", ("struct wait_queue_head", "struct __wait_queue_head")
_MAX_POLICIES = 8
"""Most policies of a queue: wbt, io.latency, io.cost."""


class Throttling(Finder):
    """Finds the disks of tasks that wait in rq_qos_wait()."""

    about = "write throttling"
    kinds = (THROTTLING,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.throttled: dict[int, int] = {}
        """``struct gendisk *`` by lane."""
        self.limits: dict[int, int] = {}
        """``struct rq_wb`` of each queue of waiters."""
        self.disks: dict[int, str] = {}
        """Name of the disk of each queue of waiters; not safe to print."""

    def note(self) -> None:
        """Note the throttled queues whose member a wait queue is.

        Since Linux kernel commit a79050434b45 ("blk-rq-qos: refactor out common elements of
        blk-wbt") (in v5.0 or before).

        :raises LookupError: the debug info lacks a type
        """
        lanes = self._of_type(*_QUEUES)
        lanes = np.intersect1d(lanes, self._having(frozenset({"rq_qos_wait"})))
        if not len(lanes):
            return
        disks = [disk for disk in block_devices(self.kernel).disks if disk.queue]
        queues = np.array([disk.queue for disk in disks], np.uint64)
        policy = self._member("struct request_queue", "rq_qos", queues)
        try:
            kind = self.kernel.prog.constant("RQ_QOS_WBT").value_()
            size = self.kernel.prog.type("struct rq_wb").size
        except LookupError:
            return  # built without CONFIG_BLK_WBT
        inside = self._offset("struct rq_wb", "rqos")
        wait = self._offset(_WAIT, "wait")
        for _ in range(_MAX_POLICIES):
            found = self._read("struct rq_qos", policy, {"id": "id", "next": "next"})
            start = np.where((policy != 0) & (found["id"] == kind), policy - inside, 0)
            for lane in lanes.tolist():
                place = self.object[lane] - start
                for row in np.flatnonzero((start != 0) & (place < size)).tolist():
                    address = int(self.object[lane] - wait)
                    self._note(lane, address, _WAIT, "rq_wb.rq_wait")
                    self.names[THROTTLING, address] = f"of {disks[row].name} (wbt)"
                    self.throttled[lane] = disks[row].address
                    self.limits[address] = int(start[row])
                    self.disks[address] = disks[row].name
            policy = found["next"]

    def find(self) -> None:
        """Add edges to the disks, which end the waits by serving the writes in flight."""
        lanes = np.array([*self.throttled], np.int64)
        disks = np.array([*self.throttled.values()], np.uint64)
        to_devices(self, lanes, disks, "rq_wb.rqos")

    def hint(self, kind: NodeKind, address: int) -> str:
        """Return a sentence about the writes in flight, their limit, and the setting behind it."""
        if kind is not THROTTLING or address not in self.limits:
            return ""
        waits, owner = np.array([address], np.uint64), np.array([self.limits[address]], np.uint64)
        count = self._member(_WAIT, "inflight.counter", waits)[0]
        names = {"target": "min_lat_nsec", "least": "wb_background", "most": "wb_normal"}
        policy = {
            name: int(values[0])
            for name, values in self._read("struct rq_wb", owner, names).columns.items()
        }
        disk = self.disks[address]
        return (
            f"{kind.value} {self.names[kind, address]}: {counted(int(count), 'write')} in flight, "
            f"at most {policy['least']:,} in the background and {policy['most']:,} by tasks, for a "
            f"latency of {human_seconds(policy['target'] / 1e9)} ("
            f"/sys/block/{disk.replace('/', '!')}/queue/wbt_lat_usec is "
            f"{policy['target'] // 1000}; do not write it now: that freezes the queue, so that all "
            "new I/O of the disk waits until the present requests are done)"
        )


FINDER = Throttling
