# SPDX-License-Identifier: LGPL-2.1-or-later
"""Queue depths by ``io.latency``: tasks that wait until less I/O of their cgroup is in flight.

The kernel reduces the depth of cgroups while another one misses its target.
"""

from __future__ import annotations

import numpy as np

from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.cgroups import block_cgroups
from kcensus.kernel.waiting.finder import Draft, Finder
from kcensus.kernel.waiting.finders.io.devices import to_devices
from kcensus.kernel.waiting.graph import NodeKind

DEPTH = NodeKind("queue depth", ("struct iolatency_grp",), is_io=True, tells_device=True)
_GROUP, _QUEUES = "struct iolatency_grp", ("struct wait_queue_head", "struct __wait_queue_head")
_WAITS = frozenset({"rq_qos_wait", "__blkcg_iolatency_throttle", "blkcg_iolatency_throttle"})
_MAX_POLICIES = 64
"""Most policies of block cgroups; the kernel has 6."""


class IoLatencies(Finder):
    """Finds the cgroups and disks of tasks that io.latency keeps from a request."""

    about = "queue depths by io.latency"
    kinds = (DEPTH,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.disks: dict[int, int] = {}
        """``struct gendisk *`` by lane."""

    def note(self) -> None:
        """Note the cgroups whose member a wait queue is.

        Since Linux kernel commit d70675121546 ("block: introduce blk-iolatency io controller") (in
        v4.19). A cgroup is proven by its block cgroup, which points back to it.

        :raises LookupError: the debug info lacks a type
        """
        lanes = np.intersect1d(self._of_type(*_QUEUES), self._having(_WAITS))
        if not len(lanes):
            return
        try:
            inside = self._offset(_GROUP, "rq_wait.wait")
        except LookupError:
            return  # built without CONFIG_BLK_CGROUP_IOLATENCY
        start = self._offset(_GROUP, "pd")
        group = self.object[lanes] - inside
        names = {"block": "pd.blkg", "policy": "pd.plid", "depth": "max_depth"}
        read = self._read(_GROUP, group, names, is_guess=True)
        policy = read["policy"].astype(np.int64)
        sound = read.readable & (read["block"] != 0) & (policy >= 0) & (policy < _MAX_POLICIES)
        lanes, group, read = lanes[sound], group[sound], read.rows(sound)
        # The policies of a block cgroup are an array of pointers.
        place = (
            read["block"]
            + self._offset("struct blkcg_gq", "pd")
            + policy[sound].astype(np.uint64) * np.uint64(8)
        )
        back = self._read("struct list_head", place, {"to": "next"}, is_guess=True)["to"]
        queue = self._member("struct blkcg_gq", "q", read["block"], is_guess=True)
        devices = block_devices(self.kernel)
        rows = np.where(back == group + start, devices.disk_rows(queue), -1)
        cgroups = block_cgroups(self.kernel, read["block"][rows >= 0])
        for index in np.flatnonzero(rows >= 0).tolist():
            lane, address = int(lanes[index]), int(group[index])
            disk, depth = devices.disks[int(rows[index])], int(read["depth"][index])
            path = cgroups[int(read["block"][index])].path or "?"
            self._note(lane, address, _GROUP, "iolatency_grp.rq_wait")
            self.names[DEPTH, address] = f"{depth:,} of cgroup {path} on {disk.name} (io.latency)"
            self.disks[lane] = disk.address

    def find(self) -> None:
        """Add edges to the disks, which end the waits by serving the requests in flight."""
        lanes = np.array([*self.disks], np.int64)
        disks = np.array([*self.disks.values()], np.uint64)
        to_devices(self, lanes, disks, "iolatency_grp.rq_wait")

    def hint(self, kind: NodeKind, address: int) -> str:
        """Return a sentence about a reduced depth."""
        name = self.names.get((kind, address), "")
        if kind is not DEPTH or not name:
            return ""
        return (
            f"{kind.value} {name}: another cgroup misses the target in its file io.latency; a "
            "larger target there lets this one go on"
        )


FINDER = IoLatencies
