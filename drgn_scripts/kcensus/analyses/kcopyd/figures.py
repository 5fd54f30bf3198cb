# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures of a census of kcopyd and of the events of the kernel log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD, NO_JOB_SLAB, Census, Owner, SlabUse
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.kernel.dm.snapshots import UNLIMITED, Limit, Snapshot
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.symbols import Symbols, symbols_of
from kcensus.kernel.workqueues import Pool
from kcensus.results import Bound

_UNKNOWN = Owner("(unknown)", "", "")


@dataclass
class Figures:
    """Figures of the census, and the effect of a limit of copies."""

    kernel: Kernel
    census: Census
    log: LogEvents
    is_log_file: bool = False
    """Whether the log is not that of the target."""

    @cached_property
    def functions(self) -> Symbols:
        return symbols_of(self.kernel)

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
        return self.census.snapshots.all

    @property
    def jobs(self) -> int:
        """Jobs in use."""
        return self.census.jobs.active - self.census.jobs.reserve

    @property
    def jobs_bound(self) -> Bound:
        """Bound of :attr:`jobs`: unidentified preallocated jobs count as in use."""
        census, report = self.census, self.census.report
        has_reserves = census.has_jobs and not census.clients.reserves_lost
        return Bound.of(
            over=census.in_use
            and (not has_reserves or bool(report.slabs_torn or report.lists_lost)),
            under=self.lacks_slabs,
        )

    @property
    def lacks_slabs(self) -> bool:
        """Whether some slabs could not be counted."""
        report, slab_map = self.census.report, self.kernel.slab_map
        lost = report.memmap or report.slabs or report.slabs_invalid or report.slabs_missing
        return bool(lost or slab_map.caches_torn or slab_map.caches_damaged)

    # Memory

    @property
    def memory_bound(self) -> Bound:
        """Bound of the bytes of :attr:`memory`."""
        census = self.census
        is_whole = census.has_jobs and census.has_snapshots and "bios" not in census.errors
        return Bound.of(over=False, under=self.lacks_slabs or (census.in_use and not is_whole))

    @property
    def page_bytes(self) -> int:
        """Bytes of copy pages: held by jobs, and free reserved ones of clients."""
        jobs = self.census.jobs
        free = jobs.free_pages_followed
        free = int(self.census.clients.free_pages.sum()) if free is None else free
        return (int(jobs.pages.sum()) + free) * self.kernel.memory.page_size

    @property
    def bios(self) -> dict[str, int]:
        """Bytes of bios in use and of their vectors, by slab cache."""
        sizes: Counter[str] = Counter()
        for uses in self.census.bios.values():
            for use in uses:
                sizes.update({use.cache.name: use.bytes} | use.vec_bytes)
        return dict(sizes)

    @property
    def exceptions(self) -> dict[str, int]:
        """Bytes of pending and completed exceptions, by slab cache."""
        sizes: Counter[str] = Counter()
        pending = sum(snapshot.pending_in_table for snapshot in self.snapshots)
        completed = sum(snapshot.exceptions for snapshot in self.snapshots)
        for role, count in (("pending exceptions", pending), ("exceptions", completed)):
            use = self.slab_of(role)
            sizes[use.name] += count * use.slot_size
        return {name: size for name, size in sizes.items() if size}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that kcopyd and snapshots hold, by place as in :attr:`Finding.memory`."""
        places = Counter({f"slab:{self.census.job_slab.name}": self.census.job_slab.bytes})
        for sizes in (self.bios, self.exceptions):
            places.update({f"slab:{name}": size for name, size in sizes.items()})
        if self.census.has_jobs:
            places["kcopyd pages"] = self.page_bytes
        return {place: size for place, size in places.items() if size}

    @property
    def users(self) -> dict[str, str]:
        """The objects in slab caches with the name of others, by place."""
        of = {"bio": ("bios", self.bios), "dm": ("exceptions", self.exceptions)}
        found: dict[str, list[str]] = {}
        if not self.census.job_slab.name.startswith("kcopyd"):
            found[self.census.job_slab.name] = ["kcopyd jobs"]
        for start, (objects, sizes) in of.items():
            for name, size in sizes.items():
                if size and not name.startswith(start):
                    found.setdefault(name, []).append(objects)
        return {f"slab:{name}": " and ".join(objects) for name, objects in found.items()}

    def slab_of(self, role: str) -> SlabUse:
        """Return the slab cache with a role."""
        slabs = (use for use in self.census.slabs if role in use.role.split(", "))
        return next(slabs, NO_JOB_SLAB)

    # The limit of copies

    def limit_of(self, snapshot: Snapshot) -> int | None:
        """Return the most copies of a snapshot in flight, or UNLIMITED; None if unknown.

        A semaphore keeps the limit from the snapshot's creation, whatever the parameter is now.
        """
        limit, copies = self.census.limit, self.jobs_of(snapshot)
        if limit is Limit.IN_PROGRESS:
            allowed = self.census.threshold
        elif limit is Limit.SEMAPHORE:
            is_known = copies is not None and snapshot.available is not None
            allowed = (copies or 0) + (snapshot.available or 0) if is_known else None
        else:
            allowed = None if limit is None else UNLIMITED
        return UNLIMITED if allowed is not None and allowed > UNLIMITED // 2 else allowed

    @property
    def new_limit(self) -> int | None:
        """The limit of a snapshot created now, as :meth:`limit_of`."""
        limit, threshold = self.census.limit, self.census.threshold
        if limit is Limit.NONE:
            return UNLIMITED
        if limit is None or threshold is None:
            return None
        is_off = threshold > UNLIMITED // 2 or (limit is Limit.SEMAPHORE and threshold <= 0)
        return UNLIMITED if is_off else threshold

    @property
    def limited(self) -> bool | None:
        """Whether all snapshots are limited, or, without snapshots, new ones; None if unknown."""
        limits = [self.limit_of(snapshot) for snapshot in self.snapshots] or [self.new_limit]
        return None if None in limits else UNLIMITED not in limits

    @property
    def unlimited(self) -> list[Snapshot]:
        """Snapshots without a limit that have more copies in flight than the default allows."""
        return [
            snapshot
            for snapshot in self.snapshots
            if self.limit_of(snapshot) == UNLIMITED
            and (self.copies(snapshot) or 0) > self.bound(None)
        ]

    def bound(self, limit: int | None) -> int:
        """Return the most copies of a snapshot under a limit, or under 2048 without one.

        A semaphore admits the limit. Otherwise a task waits when more than the limit are in
        progress, so each writing task can exceed it by one; one task is assumed.
        """
        allowed = DEFAULT_THRESHOLD if limit in (None, UNLIMITED) else limit or 0
        return allowed + (self.census.limit is not Limit.SEMAPHORE)

    @property
    def largest_bound(self) -> int:
        """Most copies of any snapshot under its limit."""
        limits = [self.limit_of(snapshot) for snapshot in self.snapshots] or [self.new_limit]
        return max(map(self.bound, limits))

    def jobs_of(self, snapshot: Snapshot) -> int | None:
        """Return the jobs of a snapshot's client; None if the client is unknown."""
        row = self._row(snapshot)
        return int(self.census.jobs.jobs[row]) if row >= 0 else None

    def _row(self, snapshot: Snapshot) -> int:
        return int(self.census.clients.rows(np.array([snapshot.client], np.uint64))[0])

    def copies(self, snapshot: Snapshot) -> int | None:
        """Return the copies of a snapshot in flight: its counter, or the jobs of its client."""
        return self.jobs_of(snapshot) if snapshot.in_flight is None else snapshot.in_flight

    @property
    def in_flight(self) -> int | None:
        """Copies in flight of all snapshots; None if those of one are unknown."""
        counts = [self.copies(snapshot) for snapshot in self.snapshots]
        is_known = self.census.has_snapshots and None not in counts
        return sum(filter(None, counts)) if is_known or not self.census.in_use else None

    @property
    def projected(self) -> tuple[int, int] | tuple[None, None]:
        """Jobs in use if each snapshot had at most :meth:`bound`, and bytes of their slabs.

        The slabs are packed full, and hold the preallocated jobs as well. Both are None where jobs
        are unknown.
        """
        if self.census.in_use and not self.census.has_jobs:
            return None, None
        return self._projected({row.address: self.limit_of(row) for row in self.snapshots})

    def _projected(self, limits: Mapping[int, int | None]) -> tuple[int, int]:
        """Return :attr:`projected` under other limits, by address of the snapshot."""
        jobs, use = self.census.jobs, self.census.job_slab
        excess = sum(self._excess(row, limits[row.address]) for row in self.snapshots)
        projected = int(jobs.jobs.sum()) - excess
        together = projected + jobs.reserve + jobs.unknown
        return projected, -(-together // use.objects_per_slab) * use.slab_bytes

    def _excess(self, snapshot: Snapshot, limit: int | None) -> int:
        return max((self.jobs_of(snapshot) or 0) - self.bound(limit), 0)

    def returned_by(self, limit: int | None) -> int | None:
        """Return the bytes that a limit for all snapshots frees; None where jobs are unknown.

        A snapshot's pages, bios and pending exceptions shrink like its jobs, once the copies beyond
        the limit (None: the kernel's default) have completed. Empty slabs are left out.
        """
        if not self.census.has_jobs:
            return None
        use, jobs = self.census.job_slab, self.census.jobs
        _, packed = self._projected({row.address: limit for row in self.snapshots})
        total = max(use.bytes - use.empty_bytes - packed, 0)
        for snapshot in self.snapshots:
            if excess := self._excess(snapshot, limit):
                row, copies = self._row(snapshot), self.jobs_of(snapshot) or excess
                whole = int(jobs.pages[row]) * self.kernel.memory.page_size
                for bios in self.census.bios.get(snapshot.client, ()):
                    whole += bios.bytes + sum(bios.vec_bytes.values())
                whole += snapshot.pending_in_table * self.slab_of("pending exceptions").slot_size
                total += whole * excess // copies
        return min(total, sum(self.memory.values()))

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
    def kcopyd_pools(self) -> set[int]:
        """Ids of the pools that run work of kcopyd clients."""
        items = self.census.workqueues.items
        running = items[items["state"] == "in-flight"]
        return {
            pool
            for pool, wq in zip(running["pool"].tolist(), running["wq"].tolist(), strict=True)
            if self.is_kcopyd(wq)
        }

    @cached_property
    def devices(self) -> dict[str, str]:
        """Names of mapped devices by number."""
        return self.census.devices.by_number()

    @property
    def client_works(self) -> list[tuple[str, int]]:
        """State and pool of each client's work item."""
        works = self.census.clients.work.tolist()
        return [self.work_states.get(work, ("idle", -1)) for work in works]

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
