# SPDX-License-Identifier: LGPL-2.1-or-later
"""What follows from a census of kcopyd and the events of the kernel log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD, Census, Owner
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.kernel.dm.snapshots import UNLIMITED, Limit, Snapshot
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.workqueues import Functions, Pool

_UNKNOWN = Owner("(unknown)", "", "")


@dataclass
class Figures:
    """Figures of the census, and what the limit of copies would change."""

    kernel: Kernel
    census: Census
    log: LogEvents

    @cached_property
    def functions(self) -> Functions:
        """Names of functions."""
        return Functions(self.kernel.prog)

    @cached_property
    def unreclaimable_bytes(self) -> int | None:
        """``SUnreclaim``; None where the kernel has no such counter."""
        prog, memory = self.kernel.prog, self.kernel.memory
        pages = node_page_state(prog, "NR_SLAB_UNRECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE")
        return None if pages is None else pages << memory.page_shift

    @property
    def owners(self) -> list[Owner]:
        """The owner of each client, by its row."""
        known = self.census.owners
        return [known.get(address, _UNKNOWN) for address in self.census.clients.address.tolist()]

    @property
    def snapshots(self) -> list[Snapshot]:
        """All snapshots."""
        return self.census.snapshots.all

    @property
    def jobs(self) -> int:
        """Jobs in use."""
        return self.census.jobs.active - self.census.jobs.reserve

    # The limit of copies

    @property
    def limited(self) -> bool | None:
        """Whether the kernel limits the copies of snapshots; None where that is unknown."""
        limit, threshold = self.census.limit, self.census.threshold
        if limit is Limit.NONE:
            return False
        if limit is None or threshold is None:
            return None
        return threshold < UNLIMITED and (limit is Limit.IN_PROGRESS or threshold > 0)

    @property
    def bound(self) -> int:
        """Most copies of a snapshot under the limit of this kernel, or of 2048 without one.

        A semaphore admits the threshold. Otherwise a task waits when more than the threshold are in
        progress, so each writing task can exceed it by one; one task is assumed.
        """
        limit = (self.census.threshold or 0) if self.limited else DEFAULT_THRESHOLD
        return limit + (self.census.limit is not Limit.SEMAPHORE)

    def jobs_of(self, snapshot: Snapshot) -> int | None:
        """Return the jobs of a snapshot's client; None if the client is unknown."""
        row = int(self.census.clients.rows(np.array([snapshot.client], np.uint64))[0])
        return int(self.census.jobs.jobs[row]) if row >= 0 else None

    def copies(self, snapshot: Snapshot) -> int | None:
        """Return the copies in flight of a snapshot: its own count, else the jobs of its client.

        A semaphore counts down from the threshold at the snapshot's creation, which is unknown.
        """
        jobs = None if self.census.limit is Limit.IN_PROGRESS else self.jobs_of(snapshot)
        return snapshot.in_flight if jobs is None else jobs

    @property
    def in_flight(self) -> int | None:
        """Copies in flight of all snapshots; None if that of one is unknown."""
        counts = [self.copies(snapshot) for snapshot in self.snapshots]
        is_known = self.census.has_snapshots and None not in counts
        return sum(filter(None, counts)) if is_known or not self.census.in_use else None

    @property
    def projected(self) -> tuple[int, int] | tuple[None, None]:
        """Jobs in use if no snapshot had more than :attr:`bound`, and bytes of their slabs.

        The slabs are packed full, and hold the preallocated jobs as well. Both are None where jobs
        are unknown.
        """
        jobs, use, clients = self.census.jobs, self.census.job_slab, self.census.clients
        if self.census.in_use and not self.census.has_jobs:
            return None, None
        owners = [snapshot.client for snapshot in self.snapshots]
        is_limited = np.isin(clients.address, np.array(owners, np.uint64))
        projected = int(np.where(is_limited, np.minimum(jobs.jobs, self.bound), jobs.jobs).sum())
        together = projected + jobs.reserve + jobs.unknown
        return projected, -(-together // use.objects_per_slab) * use.slab_bytes

    # Workqueues

    @property
    def stalled(self) -> list[Pool]:
        """Stalled worker pools."""
        return [pool for pool in self.census.workqueues.pools if pool.is_stalled]

    @cached_property
    def devices_of_wqs(self) -> dict[int, str]:
        """Device of the client that each kcopyd workqueue belongs to."""
        wqs = self.census.clients.wq.tolist()
        return {wq: owner.device for wq, owner in zip(wqs, self.owners, strict=True)}

    def is_kcopyd(self, wq: int) -> bool:
        """Return whether a workqueue is that of a kcopyd client."""
        return wq in self.devices_of_wqs or self.census.workqueues.names.get(wq) == "kcopyd"

    @cached_property
    def work_states(self) -> dict[int, tuple[str, int]]:
        """State and pool of the clients' work items by address; idle ones are left out."""
        states: dict[int, tuple[str, int]] = {}
        items = self.census.workqueues.items
        items = items[items["work"].isin(self.census.clients.work)]
        items = items.sort_values("state", kind="stable")[["work", "state", "pid", "pool"]]
        for work, state, pid, pool in items.itertuples(index=False, name=None):
            name = f"running ({pid})" if state == "in-flight" else state
            before, first = states.get(work, ("", pool))
            states[work] = (f"{before}, {name}" if before else name), first
        return states
