# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of block cgroups (``io.max``, ``blkio.throttle.*``), and the bios that they hold.

A bio above a limit waits in the service queue of its cgroup's ``struct throtl_grp``, later in those
of the cgroups above. It has no request yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import Path, layout
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.engine.rows import Addressed
from kcensus.kernel.block.bios import Bios, bios_of
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.lists import list_members

_GROUP, _NODE = "struct throtl_grp", "struct throtl_qnode"
_MAX_GROUPS = 1 << 20
"""Most block cgroups of all disks."""
_MAX_NODES = 1 << 20
"""Most queued ``struct throtl_qnode``: a cgroup has four."""
_MAX_BIOS = 1 << 14
"""Most bios of a cgroup and direction: it may have any number, one per step of a walk."""
_DIRECTIONS = 2
UNLIMITED = (1 << 64) - 1, (1 << 32) - 1
"""Values of a limit that is not set: bytes, and operations a second."""


@dataclass(frozen=True)
class Throttles(Addressed):
    """Limits with bios behind them, as columns."""

    address: Words
    """``struct throtl_grp``."""
    disk: Numbers
    """Row of the disk."""
    group: Words
    """``struct blkcg_gq`` of the cgroup."""
    rates: Words
    """Bytes a second of reads and writes, shape (limits, 2); see :data:`UNLIMITED`."""
    operations: Words
    """Reads and writes a second, shape (limits, 2)."""
    next_ns: Numbers
    """Nanoseconds until the next bio may go; negative if it is due."""
    bios: Bios
    """The bios behind the limits; :attr:`Bios.request` is the row of a chain."""
    chain: Numbers
    """Row of the limit of each chain of bios."""
    torn: int = 0
    """Lists that could not be followed to their end, and contradicted members of them."""
    faults: Faults = field(default_factory=Faults)


@once
def throttles(kernel: Kernel) -> Throttles:
    """Return the limits with bios behind them.

    :raises LookupError: the kernel has no such limits, or the debug info lacks them
    """
    return _Reader(kernel).read()


class _Reader:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.memory, self.prog = kernel, kernel.memory, kernel.prog
        self.faults = Faults()
        self.torn = 0

    def read(self) -> Throttles:
        disk, address, group = self._groups()
        known = address
        # Since Linux kernel commit 28ad83b774a6 ("blk-throttle: Split the service queue") (in
        # v6.16), bios above the limits of bytes and of operations are counted apart; the commit
        # before it gave them lists of their own.
        counts: dict[str, Path] = {
            f"count{each}": (f"service_queue.nr_queued[{each}]",
                             f"service_queue.nr_queued_bps[{each}]")
            for each in range(_DIRECTIONS)
        }  # fmt: skip
        others = {
            f"other{each}": f"service_queue.nr_queued_iops[{each}]" for each in range(_DIRECTIONS)
        }
        read = gather(self.memory, address, layout(self.prog, _GROUP, counts, others), self.faults)
        queued = np.zeros(len(address), np.int64)
        for column in read.columns.values():
            queued += column
        rows = np.flatnonzero((queued != 0) & read.readable)
        disk, address, group, queued = disk[rows], address[rows], group[rows], queued[rows]
        owner, heads, tails = self._chains(address, known)
        held = bios_of(self.kernel, heads, tails, limit=_MAX_BIOS)
        self.faults.update(held.faults)
        counted = np.bincount(owner[held.request], minlength=len(address))
        if not self.kernel.live:
            self.torn += int(np.count_nonzero(counted != queued))
        rates, operations, due = self._limits(address)
        return Throttles(
            address=address,
            disk=disk,
            group=group,
            rates=rates,
            operations=operations,
            next_ns=due,
            bios=held,
            chain=owner,
            torn=self.torn + held.torn,
            faults=self.faults,
        )

    def _groups(self) -> tuple[Numbers, Words, Words]:
        """Return row of the disk, address and block cgroup of all limits that point back."""
        devices = block_devices(self.kernel)
        disk = np.array([row for row, each in enumerate(devices.disks) if each.queue], np.int64)
        queue = np.array([devices.disks[row].queue for row in disk.tolist()], np.uint64)
        members = layout(self.prog, "struct request_queue", ["td"])
        data = gather(self.memory, queue, members, self.faults)["td"]
        names = [f"nr_queued[{way}]" for way in range(_DIRECTIONS)]
        read = gather(
            self.memory,
            data,
            layout(self.prog, "struct throtl_data", ["queue", *names]),
            self.faults,
        )
        sound = (data != 0) & (read["queue"] == queue)
        self.torn += int(np.count_nonzero((data != 0) & ~sound))
        # Without held bios, a disk may have thousands of cgroups.
        sound &= (read[names[0]] != 0) | (read[names[1]] != 0)
        disk, queue, data = disk[sound], queue[sound], data[sound]
        head = queue + np.uint64(_offset(self.prog, "struct request_queue", "blkg_list"))
        lane, node = self._members(head, _MAX_GROUPS)
        group = node - np.uint64(_offset(self.prog, "struct blkcg_gq", "q_node"))
        policy = int(self.prog["blkcg_policy_throtl"].plid)
        pointers = layout(self.prog, "struct blkcg_gq", {"data": f"pd[{policy}]"})
        start = gather(self.memory, group, pointers, self.faults)["data"]
        inside = np.uint64(_offset(self.prog, _GROUP, "pd"))
        address = np.where(start != 0, start - inside, np.uint64(0))
        back = layout(self.prog, _GROUP, {"group": "pd.blkg", "data": "td"})
        read = gather(self.memory, address, back, self.faults)
        is_one = (address != 0) & (read["group"] == group) & (read["data"] == data[lane])
        self.torn += int(np.count_nonzero((address != 0) & ~is_one))
        return disk[lane[is_one]], address[is_one], group[is_one]

    def _members(self, heads: Words, most: int) -> tuple[Numbers, Words]:
        lane, node, torn = list_members(
            self.memory, heads, self.faults, limit=most, total=most, verify=not self.kernel.live
        )
        self.torn += len(torn)
        return lane, node

    def _chains(self, address: Words, known: Words) -> tuple[Numbers, Words, Words]:
        """Return row of the limit, first and last bio of each chain of queued bios.

        :param known: all limits
        """
        places = [
            _offset(self.prog, _GROUP, f"service_queue.queued[{each}]")
            for each in range(_DIRECTIONS)
        ]
        heads = np.concatenate([address + np.uint64(place) for place in places])
        lane, node = self._members(heads, _MAX_NODES)
        row = lane % max(len(address), 1)
        node = node - np.uint64(_offset(self.prog, _NODE, "node"))
        lists = {"bios": "bios", "bps": "bios_bps", "iops": "bios_iops"}
        ends = {
            f"{name}_{end}": f"{member}.{end}"
            for name, member in lists.items()
            for end in ("head", "tail")
        }
        read = gather(self.memory, node, layout(self.prog, _NODE, ["tg"], ends), self.faults)
        # A cgroup queues its own nodes, and those of the cgroups below it.
        sound = read.readable & np.isin(read["tg"], known)
        self.torn += int(np.count_nonzero(~sound))
        present = [name for name in lists if f"{name}_head" in read.columns]
        head, tail = (
            np.concatenate([read[f"{name}_{end}"][sound] for name in present])
            for end in ("head", "tail")
        )
        owner = np.tile(row[sound], len(present))
        return owner[head != 0], head[head != 0], tail[head != 0]

    def _limits(self, address: Words) -> tuple[Words, Words, Numbers]:
        """Return bytes and operations a second by direction, and when the next bio may go."""
        # From v4.12 (commit not verified) until Linux kernel commit bf20ab538c81 ("blk-throttle:
        # remove CONFIG_BLK_DEV_THROTTLING_LOW") (in v6.10), there may be two limits of each kind:
        # the second one is io.max.
        paths: dict[str, Path] = {
            f"{name}{way}": tuple(f"{name}[{way}]{last}" for last in ("[1]", "[0]", ""))
            for name in ("bps", "iops")
            for way in range(_DIRECTIONS)
        }
        if self.prog.type(_GROUP).member("bps").type.length == 2 * _DIRECTIONS:
            # BTF has an array of arrays as a single one.
            paths = {key: f"{key[:-1]}[{2 * int(key[-1]) + 1}]" for key in paths}
        members = layout(self.prog, _GROUP, paths | {"due": "disptime"})
        read = gather(self.memory, address, members, self.faults)
        rates, operations = (
            np.stack([read[f"{name}{way}"].astype(np.uint64) for way in range(_DIRECTIONS)], 1)
            for name in ("bps", "iops")
        )
        return rates, operations, -clock(self.kernel).since_jiffies(read["due"])


def _offset(prog: drgn.Program, type_: str, path: str) -> int:
    return int(drgn.offsetof(prog.type(type_), path))
