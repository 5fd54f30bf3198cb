# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sleeping tasks of a kernel while their objects are looked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kcensus.engine.gather import plausible
from kcensus.engine.memory import Numbers, Words
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind, entered_by, kind_of, lock_type, waits_in
from kcensus.kernel.tasks.places import Places, places_of_inodes
from kcensus.kernel.tasks.stacks import stacks, unknown_stacks
from kcensus.kernel.tasks.tasks import tasks
from kcensus.kernel.waiting.attempts import Attempts
from kcensus.kernel.waiting.objects.queued import Queued

Queues = Mapping[str, tuple[str, tuple[str, ...]]]
"""By waiting function, the type that contains its wait queue, and the names of that member in
various kernels: the first present one counts."""


@dataclass(frozen=True)
class Facts:
    """Facts known from the functions on a stack."""

    function: str
    entry: str
    kind: WaitKind
    lock: str
    """C type of the lock that the task waits for; empty for none."""
    is_completion: bool

    @classmethod
    def of(cls, functions: tuple[str, ...], kinds: Mapping[str, WaitKind]) -> Facts:
        return cls(
            function=waits_in(functions),
            entry=entered_by(functions),
            kind=kind_of(functions, kinds),
            lock=lock_type(functions),
            is_completion=any(
                name.strip("_").startswith(("wait_for_completion", "wait_for_common"))
                for name in functions
            ),
        )


class Reading(Attempts):
    """Known facts of each sleeping task, a *lane*; the first evidence of an object stays.

    :param rows: of these tasks among all
    :param kinds: kinds of wait by function
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: Numbers,
        kinds: Mapping[str, WaitKind],
        queues: Queues = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.kernel, self.known = kernel, tasks(kernel)
        self.report = ScanReport()
        self.rows, self.queues = rows, queues
        self.links: Queued | None = None
        count = len(self.rows)
        try:
            self.stacks = stacks(kernel, self.known, self.rows, self.faults)
        except LookupError:
            # Lists of waiters prove objects without stacks.
            self.missing.append("stacks of tasks")
            self.stacks = unknown_stacks(count)
        # Tasks behind one disk have few different stacks.
        facts_of = functools.cache(functools.partial(Facts.of, kinds=kinds))
        self.facts = [facts_of(tuple(self.stacks.functions(row))) for row in range(count)]
        self.kind = [each.kind for each in self.facts]
        self.type = [""] * count
        self.evidence = [""] * count
        self.object, self.holder, self.disk, self.inode = (
            np.zeros(count, np.uint64) for _ in range(4)
        )
        self.device, self.sector, self.offset = (np.full(count, -1) for _ in range(3))
        self.sectors = np.zeros(count, np.int64)
        self.torn = self.contradicted = 0

    def note(
        self,
        lane: Numbers,
        object_: Words,
        kind: WaitKind,
        type_: str | list[str],
        evidence: str | list[str],
    ) -> None:
        """Note the objects of tasks without one."""
        types = type_ if isinstance(type_, list) else [type_] * len(lane)
        proofs = evidence if isinstance(evidence, list) else [evidence] * len(lane)
        # An address outside of the kernel was read from a damaged waiter.
        sound = plausible(self.kernel.memory, object_.astype(np.uint64), 1)
        for row, address, is_sound, name, proof in zip(
            lane.tolist(), object_.tolist(), sound.tolist(), types, proofs, strict=True
        ):
            if is_sound and not self.object[row]:
                self.object[row], self.kind[row] = address, kind
                self.type[row], self.evidence[row] = name, proof

    def lanes(self, task: Words) -> tuple[Numbers, Numbers]:
        """Return the indexes of the waiters that are tasks of this reading, and their lanes.

        Others were just woken up, are called back instead of woken, or sleep in another state.
        """
        lane = np.full(len(self.known), -1)
        lane[self.rows] = np.arange(len(self.rows))
        at = np.append(lane, -1)[self.known.rows(task)]
        kept = np.flatnonzero(at >= 0)
        return kept, at[kept]

    def place(self, lane: Numbers, places: Places) -> None:
        self.disk[lane], self.sector[lane] = places.disk, places.start

    def place_files(self, lane: Numbers, inode: Words, offset: Numbers) -> None:
        self.inode[lane], self.offset[lane] = inode, offset
        places = places_of_inodes(self.kernel, inode, self.faults)
        self.device[lane], self.disk[lane] = places.device, places.disk
        # The node of a block device may be on any file system.
        nodes = lane[(places.disk == 0) & (places.device > 0)]
        if len(nodes):
            devices = block_devices(self.kernel)
            disks = np.array([*(disk.address for disk in devices.disks), 0], np.uint64)
            self.disk[nodes] = disks[devices.rows_of_numbers(self.device[nodes])]


Reads = Mapping[str, Callable[[Reading], None]]
"""Readers of objects of waits, by the subject that is missing if they fail."""
