# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a disk by ``io.cost``: tasks that wait until their cgroup can pay for its I/O."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kcensus.human import listed
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
_FREEZES = "blk_mq_freeze_queue", "blk_mq_freeze_queue_nomemsave"
_SLOW_MODEL = (
    "io.cost.model takes {disk} for slower than the load needs, and larger weights only move the "
    "wait to other cgroups. The tasks go on by themselves, as the model allows. Correct the model "
    "for later I/O"
)
_LIGHT = "Raise io.weight of the waiting cgroups, which have a small part of the disk"
_WRITES = {
    True: ", but only when they have gone on: on this kernel, a write to io.cost.model or "
    "io.cost.qos freezes the queue, so that it and all new I/O of the disk wait for them",
    False: ": on this kernel, the write does not freeze the queue, so you need not wait for them",
    None: " when they have gone on: a write to io.cost.model or io.cost.qos may freeze the queue, "
    "and wait for them",
}
"""By whether writing the model freezes the queue; None if unknown."""
_RISKS = {
    True: "; do not write io.cost.model or io.cost.qos now: on this kernel, that freezes the "
    "queue, and waits for these tasks",
    False: "",
    None: "; do not write io.cost.model or io.cost.qos now: that may freeze the queue, and wait "
    "for these tasks",
}


@dataclass(frozen=True)
class _Share:
    """The share of a cgroup that waits."""

    cgroup: BlockCgroup
    weight: int
    part: float
    """Of the disk."""


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
        self.disks: dict[int, str] = {}
        """Name of its disk by ``struct ioc_gq``; not safe to print."""

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
            self.disks[address] = disk.name

    def alike(self, kind: NodeKind, address: int) -> Sequence[int]:
        """Return the shares of a share's disk."""
        own = self.devices.get(address)
        return [each for each, device in self.devices.items() if device == own] or [address]

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about the shares of a disk that tasks wait for."""
        if kind is not COST:
            return None
        shares, (least, most) = self._shares(self.alike(kind, address)), self._speeds(address)
        device, disk = self.devices[address], printable(self.disks[address])
        # Since Linux kernel commit 2b2da2f6dc80 ("blk-iocost: prevent configuration update
        # concurrent with io throttling") (in v6.2).
        freezes = self.draft.sites.calls("ioc_cost_model_write", _FREEZES)
        is_slow = sum(each.part for each in shares) >= _WHOLE
        remedies = [
            _heavier(each, device, _also(each, shares) + _RISKS[freezes])
            for each in shares
            if pasteable(each.cgroup.path) and each.cgroup.is_unified and each.part < _WHOLE
        ]
        weights = ", ".join(
            f"{printable(each.cgroup.path or '?')} {each.part:.1%} (io.weight {each.weight:,})"
            for each in shares
        )
        found = stall.finding(
            "waits-io-cost",
            disk,
            f"io.cost of {disk}",
            f"parts of {device} by cgroup: {weights}; io.cost.qos allows {least:.0f} % to "
            f"{most:.0f} % of the speed in io.cost.model",
            remedies,
        )
        slow = _SLOW_MODEL.format(disk=disk) + _WRITES[freezes]
        return replace(found, no_remedy=slow if is_slow else "" if remedies else _LIGHT)

    def _shares(self, groups: Sequence[int]) -> list[_Share]:
        """Return the shares, the largest first."""
        # hweight_inuse is the part of the disk that all weights leave to the cgroup.
        paths = {"weight": "weight", "part": "hweight_inuse"}
        read = self._read(_GROUP, np.array(groups, np.uint64), paths)
        # Since the series in v5.10 that added saved_margin, too ("blk-iocost: use WEIGHT_ONE based
        # fixed point number for weights", commit not verified); before, it is the weight itself.
        unit = _ONE if self.kernel.prog.type(_GROUP).has_member("saved_margin") else 1
        columns = read["weight"].tolist(), read["part"].tolist()
        found = [
            _Share(self.cgroups[group], int(weight) // unit, int(part) / _ONE)
            for group, weight, part in zip(groups, *columns, strict=True)
        ]
        return sorted(found, key=lambda each: -each.part)

    def _speeds(self, group: int) -> tuple[float, float]:
        """Return the least and most percent of the model's speed, by io.cost.qos."""
        # enum QOS_MIN, QOS_MAX.
        paths = {"min": "params.qos[4]", "max": "params.qos[5]"}
        owner = self._read(_GROUP, np.array([group], np.uint64), {"ioc": "ioc"})["ioc"]
        qos = self._read("struct ioc", owner, paths)
        return int(qos["min"][0]) / _PERCENT, int(qos["max"][0]) / _PERCENT


def _also(share: _Share, others: Sequence[_Share]) -> str:
    """Return which cgroups with larger parts of the disk wait, too, as the end of a risk."""
    larger = [printable(each.cgroup.path or "?") for each in others if each.part > share.part]
    return f", also {listed(larger)}, which has to wait itself" if larger else ""


def _heavier(share: _Share, device: str, risk: str) -> Remedy:
    path = shlex.quote(share.cgroup.file("io.weight"))
    return Remedy(
        effect=f"Give cgroup {printable(share.cgroup.path)} a larger part of the disk",
        command=f"echo '{device} 10000' > {path}",
        risk=f"other cgroups get less{risk}",
        undo=f"echo '{device} {share.weight}' > {path}",
    )


FINDER = IoCosts
