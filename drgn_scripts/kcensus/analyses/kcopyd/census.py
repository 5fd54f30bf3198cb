# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that bears on kcopyd in one kernel: its jobs, whose they are, and who waits behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.memory import Memory
from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.slabs import ScanReport, SlabCache, SlabMap
from kcensus.kernel.dm.devices import CLIENTS_OF_TARGETS, UNKNOWN, MappedDevices, mapped_devices
from kcensus.kernel.dm.kcopyd import Clients, Jobs, Kcopyd, job_caches
from kcensus.kernel.dm.snapshots import (
    TARGETS,
    UNLIMITED,
    Limit,
    Snapshot,
    Snapshots,
    cow_threshold,
    limit_mechanism,
    snapshots,
)
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.workqueues import Workqueues, workqueues
from kcensus.results import Gap

DEFAULT_THRESHOLD = 2048
"""Copies on write of one snapshot at once, where nobody set anything else."""


@dataclass(frozen=True)
class SlabUse:
    """What a slab cache holds, its children included."""

    name: str
    role: str
    slot_size: int
    objects: int
    """Slots."""
    active: int
    bytes: int
    """Of its slabs."""
    merged: bool


@dataclass(frozen=True)
class Owner:
    """The target that a client belongs to."""

    device: str
    number: str
    target: str


@dataclass
class KcopydCensus:
    """What was found; what is None could not be, for lack of debug info or of the thing itself."""

    job_slab: SlabUse | None = None
    """None where kcopyd is not in use."""
    related: list[SlabUse] = field(default_factory=list)
    devices: MappedDevices | None = None
    clients: Clients | None = None
    jobs: Jobs | None = None
    owners: dict[int, Owner] = field(default_factory=dict)
    """By address of the client."""
    callback_list: bool | None = None
    snapshots: Snapshots | None = None
    limit: Limit | None = None
    threshold: int | None = None
    workqueues: Workqueues | None = None
    objects_per_slab: int = 1
    slab_bytes: int = 0
    """Of a slab of jobs as normally allocated."""
    gaps: list[Gap] = field(default_factory=list)

    @property
    def unlimited(self) -> bool:
        """Whether snapshots may copy as much at once as they like."""
        if self.limit is None or self.limit is Limit.NONE:
            return self.limit is Limit.NONE
        if self.threshold is None:
            return False
        if self.limit is Limit.SEMAPHORE and self.threshold <= 0:
            return True
        return self.threshold >= UNLIMITED

    @property
    def limited(self) -> bool | None:
        """Whether they may not; None where that cannot be known."""
        if self.limit is None or (self.limit is not Limit.NONE and self.threshold is None):
            return None
        return not self.unlimited

    @property
    def bound(self) -> int:
        """Copies of one snapshot at once under the limit: the one of this kernel, else 2048.

        A semaphore lets just as many through. Without it a task waits when more than the threshold
        are in progress, so there can be one more for each task that writes; one is assumed.
        """
        limit = self.threshold if self.limited and self.threshold else 0
        if not self.limited:
            limit = DEFAULT_THRESHOLD
        return limit + (self.limit is not Limit.SEMAPHORE)

    def copies(self, one: Snapshot) -> int | None:
        """Copies that a snapshot has in flight: its own count, else the jobs of its client.

        A semaphore tells only how many more may start, and of what limit it was made with the
        parameter may not say any more.
        """
        if self.limit is not Limit.IN_PROGRESS and self.clients is not None and self.jobs:
            row = int(self.clients.rows(np.array([one.client], np.uint64))[0])
            if row >= 0:
                return int(self.jobs.jobs[row])
        return one.in_flight

    def snapshot_clients(self) -> set[int]:
        """Addresses of the clients of snapshots."""
        return {one.client for one in self.snapshots.all} if self.snapshots else set()

    def projected_jobs(self) -> int | None:
        """Jobs in use if no snapshot had more than :attr:`bound` at once."""
        if self.clients is None or self.jobs is None:
            return None
        limited = np.isin(self.clients.address, sorted(self.snapshot_clients()))
        jobs = self.jobs.jobs
        return int(np.where(limited, np.minimum(jobs, self.bound), jobs).sum())

    def projected_bytes(self) -> int | None:
        """Slabs of jobs then, packed full, with what the pools keep in reserve."""
        projected = self.projected_jobs()
        if projected is None or self.jobs is None:
            return None
        together = projected + self.jobs.reserve + self.jobs.unknown
        return -(-together // self.objects_per_slab) * self.slab_bytes


def take(kernel: Kernel) -> KcopydCensus:
    """Look at everything.

    :raises UnsupportedAllocator: the kernel does not use SLUB
    :raises LookupError: its slabs cannot be found
    """
    census = KcopydCensus()
    memory, slab_map = kernel.memory, kernel.slab_map
    caches = job_caches(slab_map)
    kcopyd: Kcopyd | None = None
    try:
        census.devices = mapped_devices(kernel)
        kcopyd = Kcopyd(slab_map, caches)
    except LookupError:
        # The runner has said that dm_mod's debug info is missing, if the module is loaded.
        pass
    if kcopyd is not None and census.devices is not None:
        census.callback_list = kcopyd.has_callback_list
        _clients(census, kcopyd, census.devices)
    if census.devices is not None:
        _snapshots(census, memory, census.devices)
    roles = _roles(memory, census, kcopyd)
    report = ScanReport()
    uses = slab_use(slab_map, caches, roles, report)
    census.job_slab, census.related = uses[0] if caches else None, uses[bool(caches) :]
    if caches:
        census.objects_per_slab = caches[0].objects_per_slab
        census.slab_bytes = memory.page_size << caches[0].order
    _report_gaps(census, slab_map, report)
    try:
        census.workqueues = workqueues(kernel)
    except (LookupError, drgn.FaultError) as error:
        census.gaps.append(
            Gap("workqueues", str(error), 1, "pools, and who waits in them, are not known")
        )
    return census


def _clients(census: KcopydCensus, kcopyd: Kcopyd, devices: MappedDevices) -> None:
    unreadable = 0
    lacking: dict[str, int] = {}
    for device in devices.devices:
        for target in device.targets:
            find = CLIENTS_OF_TARGETS.get(target.type_name)
            if find is None:
                continue
            owner = Owner(device.name, device.number, target.type_name)
            try:
                for client in find(kcopyd.prog, target.private):
                    census.owners[client] = owner
            except drgn.FaultError:
                unreadable += 1
            except (LookupError, AttributeError, TypeError):
                lacking[target.type_name] = lacking.get(target.type_name, 0) + 1
    certain = np.array(sorted(census.owners), np.uint64)
    search = ScanReport()
    certain = np.concatenate([certain, kcopyd.candidates(search)])
    census.clients = kcopyd.clients(certain)
    if kcopyd.caches:
        report = ScanReport()
        address, columns = kcopyd.scan(report)
        # What a pool keeps in reserve may still name a client that is long gone; any other job
        # names one that is there, even if it was not found so far.
        used = columns["kc"][~np.isin(address, census.clients.reserve)]
        if len(more := np.setdiff1d(used, census.clients.address)):
            census.clients = kcopyd.clients(np.concatenate([certain, more]))
        census.jobs = kcopyd.count(census.clients, address, columns)
        census.jobs.report = report
    for name, count in sorted(lacking.items()):
        census.gaps.append(
            Gap(f"{name} targets", "their types are not known", count, "clients without an owner")
        )
    if unreadable:
        census.gaps.append(Gap("targets", "unreadable", unreadable, "their clients have no owner"))
    if search.slabs:
        census.gaps.append(
            Gap(
                "pages of kmalloc()'s slabs",
                ", ".join(sorted(search.slabs)),
                search.slabs.total(),
                "clients that have no job and no known target may be missing",
            )
        )
    if census.clients.reserves_lost:
        census.gaps.append(
            Gap(
                "pools of clients",
                "unreadable",
                census.clients.reserves_lost,
                "jobs that they keep in reserve may count as in use",
            )
        )


def _snapshots(census: KcopydCensus, memory: Memory, devices: MappedDevices) -> None:
    try:
        census.limit = limit_mechanism(memory.prog)
    except LookupError:
        # The runner has said that dm_snapshot's debug info is missing, if the module is loaded.
        names = {target.type_name for device in devices.devices for target in device.targets}
        if names.isdisjoint(TARGETS) and not devices.damaged:
            census.snapshots = Snapshots()
        return
    try:
        census.threshold = cow_threshold(memory.prog)
    except drgn.FaultError as error:
        census.gaps.append(Gap("snapshot_cow_threshold", str(error), 1, "the limit is not known"))
    try:
        census.snapshots = snapshots(memory, devices.devices, census.threshold)
    except (LookupError, drgn.FaultError) as error:
        census.gaps.append(Gap("snapshots", str(error), 1, "they are in no figure"))
        return
    if census.snapshots.damaged:
        census.gaps.append(
            Gap(
                "lists of snapshots",
                "torn or unreadable",
                census.snapshots.damaged,
                "exceptions and waiting tasks are too few",
            )
        )


# Slab caches, by the pointers of those who use them


def _roles(memory: Memory, census: KcopydCensus, kcopyd: Kcopyd | None) -> dict[int, str]:
    """What the caches beside that of the jobs are for, by their addresses."""
    prog = memory.prog
    found: dict[int, str] = {}

    def note(pointer: int, role: str) -> None:
        if pointer and role not in found.get(pointer, "").split(", "):
            found[pointer] = f"{found[pointer]}, {role}" if pointer in found else role

    for name, role in (("pending_cache", "pending exceptions"), ("exception_cache", "exceptions")):
        try:
            note(int(prog[name].value_()), role)
        except UNKNOWN:
            continue
    if kcopyd is not None and census.clients is not None:
        type_ = prog.type("struct dm_kcopyd_client *")
        for address in census.clients.address.tolist():
            client = Object(prog, type_, value=address)
            _bio_set(note, partial(_bios_of_client, client), "bios of kcopyd")
    for device in census.devices.devices if census.devices else ():
        md = Object(prog, "struct mapped_device *", value=device.address)
        for name in ("bs", "io_bs"):
            # 5.10 has them in the device itself, 6.1 and later in mempools beside it.
            home = md.mempools if hasattr(md, "mempools") else md
            _bio_set(note, partial(home.member_, name), "bios of devices")
    _bio_set(note, lambda: prog["fs_bio_set"], "bios of file systems")
    return found


def _bios_of_client(client: Object) -> Object:
    return client.io_client.bios


def _bio_set(note: Callable[[int, str], None], get: Callable[[], Object], role: str) -> None:
    """Note the caches of bios and of their vectors that a ``struct bio_set`` uses."""
    try:
        bios = get()
        note(int(bios.bio_slab), role)
        note(int(bios.bvec_pool.pool_data), "bio vectors")
    except (*UNKNOWN, AttributeError):
        return


def slab_use(
    slab_map: SlabMap,
    job: Sequence[SlabCache],
    roles: dict[int, str],
    report: ScanReport,
) -> list[SlabUse]:
    """Use of the cache of jobs first, then of others by descending size.

    :param roles: what the others are for, by their addresses
    """
    roots, _ = slab_map.lineage
    others = [cache for cache in slab_map.caches if cache.address in roles]
    heads = [*job[:1], *others]
    if not heads:
        return []
    of_heads = np.isin(roots, [head.id for head in heads])
    wanted = [cache for cache in slab_map.caches if of_heads[cache.id]]
    slabs = slab_map.index(wanted, report)
    number = len(slab_map.caches)
    root = roots[slabs.cache]
    pages = np.bincount(root, slab_map.slab_pages(slabs), number).astype(np.int64)
    objects = np.bincount(root, slabs.objects, number).astype(np.int64)
    inuse = np.bincount(root, slabs.inuse, number).astype(np.int64)
    kept = parked(slab_map, wanted)
    rows, _ = kept.slots(slab_map, slabs)
    inuse -= np.bincount(root[rows], minlength=number)
    found = [
        SlabUse(
            name=cache.name,
            role="jobs" if cache in job else roles[cache.address],
            slot_size=cache.slot_size,
            objects=int(objects[cache.id]),
            active=int(inuse[cache.id]),
            bytes=int(pages[cache.id]) << slab_map.memory.page_shift,
            merged=cache.merged,
        )
        for cache in heads
    ]
    first = found[: len(job[:1])]
    return first + sorted(found[len(first) :], key=lambda use: (-use.bytes, use.name))


def _report_gaps(census: KcopydCensus, slab_map: SlabMap, scan: ScanReport) -> None:
    jobs = census.jobs
    report = jobs.report if jobs else ScanReport()
    found = [
        ("pages of the struct page array", reason, count, "slabs they describe are missing")
        for reason, count in sorted(scan.memmap.items())
    ]
    found += [
        ("pages of jobs", reason, count, "jobs on them are in no client's figures")
        for reason, count in sorted(report.slabs.items())
    ]
    found += [
        (
            "lists of slab caches",
            "torn or unreadable",
            slab_map.caches_torn + slab_map.caches_damaged,
            "the cache of jobs may not have been found",
        ),
        (
            "slabs of jobs",
            "their free lists are torn",
            report.slabs_torn + report.lists_lost,
            "free jobs may count as in use",
        ),
        ("slabs", "their counters are impossible", scan.slabs_invalid, "they are in no figure"),
        (
            "jobs",
            "their client cannot be read",
            jobs.unknown if jobs else 0,
            "they are in no client's figures",
        ),
        (
            "lists of clients",
            "torn",
            jobs.torn if jobs else 0,
            "jobs on them count as in flight",
        ),
        (
            "devices or tables",
            "unreadable",
            census.devices.damaged if census.devices else 0,
            "their clients have no owner",
        ),
    ]
    census.gaps += [Gap(*gap) for gap in found if gap[2]]
