# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of block cgroups (``io.max``, ``blkio.throttle.*``) that hold the bios of tasks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np

from kcensus.human import counted, human_seconds
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.limits.cgroups import BlockCgroup, block_cgroups
from kcensus.kernel.block.limits.throttles import UNLIMITED, Throttles, throttles
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.finders.io.requests import add_joins
from kcensus.kernel.waiting.graph import Graph, NodeKind
from kcensus.kernel.waiting.joined import held
from kcensus.results import Finding, Gap, Remedy
from kcensus.sources.capsule import NotRecorded
from kcensus.text import pasteable, printable

LIMIT = NodeKind("limit", ("struct throtl_grp",), is_io=True, tells_device=True)
_KEYS = "rbps", "wbps", "riops", "wiops"
_FILES = "read_bps_device", "write_bps_device", "read_iops_device", "write_iops_device"
"""Files of cgroup v1 with these limits."""


class IoLimits(Finder):
    """Finds the limits that hold the bios of tasks."""

    about = "limits of block cgroups"
    kinds = (LIMIT,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.limits: Throttles | None = None
        self.cgroups: dict[int, BlockCgroup] = {}

    def find(self) -> None:
        """Add edges to the limits from the objects of tasks whose bios they hold.

        :raises LookupError: the debug info lacks a type
        """
        if not self.known.is_blocked[self.rows].any():
            return
        if not self.kernel.prog.type("struct request_queue").has_member("td"):
            return  # built without CONFIG_BLK_DEV_THROTTLING
        try:
            limits = self.limits = throttles(self.kernel)
        except NotRecorded:
            return  # a capsule of a version that did not read them
        joins = held(self.kernel)
        self.draft.faults += joins.faults + limits.faults
        row = limits.chain[joins.request]
        strength = np.full(len(row), int(Strength.PROVEN))
        add_joins(self, joins, LIMIT, limits.address[row], strength)
        self.cgroups = block_cgroups(self.kernel, limits.group)
        disks = block_devices(self.kernel).disks
        for each in range(len(limits)):
            node = LIMIT, int(limits.address[each])
            cgroup = self.cgroups[int(limits.group[each])]
            disk = disks[int(limits.disk[each])]
            name = "io.max" if cgroup.is_unified else "blkio.throttle"
            self.types[node] = "struct throtl_grp"
            self.names[node] = f"{name} of cgroup {cgroup.path or '(unknown)'} on {disk.name}"

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a limit, with the command to lift it."""
        limits = self.limits
        if kind is not LIMIT or limits is None:
            return None
        row = int(limits.rows(np.array([address], np.uint64))[0])
        cgroup = self.cgroups[int(limits.group[row])]
        device = block_devices(self.kernel).disks[int(limits.disk[row])].device
        values = dict(zip(_KEYS, _values(limits, row), strict=True))
        line = f"{device} {' '.join(f'{key}={value}' for key, value in values.items())}"
        name = printable(self.names[kind, address])
        return stall.finding(
            "waits-io-limit",
            name,
            name,
            f"limit: {line}; {_held(limits, row)}",
            (_lifted(cgroup, device, values),) if pasteable(cgroup.path) else (),
            "The path of the cgroup is unknown or unprintable: search all its limits: "
            f"`grep -rs ^{device} /sys/fs/cgroup --include=io.max`",
        )

    def gaps(self, graph: Graph) -> Iterator[Gap]:
        """Yield the damaged lists of bios."""
        yield Gap(
            "limits of block cgroups",
            "torn, or contradict their cgroups",
            self.limits.torn if self.limits is not None else 0,
            "tasks whose bios they hold seem to wait for the device",
        )


def _values(limits: Throttles, row: int) -> Iterator[str]:
    """Yield the limits in the order of :data:`_KEYS`."""
    for column, none in zip((limits.rates, limits.operations), UNLIMITED, strict=True):
        yield from ("max" if each == none else str(each) for each in column[row].tolist())


def _held(limits: Throttles, row: int) -> str:
    """Return the number of bios that a limit holds, and when the next one may go."""
    count = int(np.count_nonzero(limits.chain[limits.bios.request] == row))
    due = int(limits.next_ns[row]) / 1e9
    rest = f"the next may go in {human_seconds(due)}" if due > 0 else "the next is due"
    return f"it holds {counted(count, 'bio')}, of which {rest}"


def _lifted(cgroup: BlockCgroup, device: str, values: dict[str, str]) -> Remedy:
    """Return the remedy that lifts all limits of a cgroup on a device."""
    if cgroup.is_unified:
        path = shlex.quote(cgroup.file("io.max"))
        free, old = (
            f"echo '{device} {' '.join(f'{key}={each}' for key, each in limits.items())}' > {path}"
            for limits in (dict.fromkeys(values, "max"), values)
        )
    else:
        set_ones = [
            (shlex.quote(cgroup.file(f"blkio.throttle.{file}")), value)
            for file, value in zip(_FILES, values.values(), strict=True)
            if value != "max"
        ]
        free = " && ".join(f"echo '{device} 0' > {path}" for path, _ in set_ones)
        old = " && ".join(f"echo '{device} {value}' > {path}" for path, value in set_ones)
    return Remedy(
        effect="Lift the limit, or raise it: the held I/O goes to the disk at once",
        command=free,
        risk="I/O of the cgroup competes with that of all others; a service manager sets the limit "
        "again when it starts the service (systemd: IOReadBandwidthMax, IOWriteIOPSMax, …)",
        undo=old,
    )


FINDER = IoLimits
