# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs, clients and snapshots of a kernel, the slab caches they use, and its workqueues."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import drgn
import numpy as np
from drgn import Object, Program

from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.dm import snapshots as dm_snapshots
from kcensus.kernel.dm.devices import CLIENTS_OF_TARGETS, MappedDevices, mapped_devices
from kcensus.kernel.dm.kcopyd import Clients, Jobs, Kcopyd, job_caches
from kcensus.kernel.dm.snapshots import Limit, Snapshots
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import ABSENT
from kcensus.kernel.workqueues import Workqueues, workqueues

DEFAULT_THRESHOLD = 2048
"""The kernel's default of ``snapshot_cow_threshold``."""


@dataclass(frozen=True)
class SlabUse:
    """Use of a slab cache, its child caches included."""

    name: str
    role: str
    slot_size: int
    objects: int
    active: int
    bytes: int
    merged: bool
    objects_per_slab: int = 1
    slab_bytes: int = 0
    """Of a slab as normally allocated."""


NO_JOB_SLAB = SlabUse("kcopyd_job", "jobs", 0, 0, 0, 0, merged=False)


@dataclass(frozen=True)
class Owner:
    """The target that a client belongs to."""

    device: str
    number: str
    target: str


@dataclass(kw_only=True)
class Census:
    """What was read.

    Without debug info of ``dm_mod`` that is slabs and workqueues; the client of no job is known.
    """

    job_slab: SlabUse = NO_JOB_SLAB
    slabs: Sequence[SlabUse] = ()
    """This one, and others that grow with the jobs."""
    has_clients: bool = False
    """Whether clients and jobs could be read."""
    devices: MappedDevices = field(default_factory=MappedDevices)
    clients: Clients = field(default_factory=Clients)
    jobs: Jobs = field(default_factory=Jobs)
    owners: dict[int, Owner] = field(default_factory=dict)
    """By address of the client."""
    callback_list: bool | None = None
    has_snapshots: bool = False
    """Whether snapshots could be read, or there are none."""
    snapshots: Snapshots = field(default_factory=Snapshots)
    limit: Limit | None = None
    threshold: int | None = None
    workqueues: Workqueues = field(default_factory=Workqueues)
    report: ScanReport = field(default_factory=ScanReport)
    """Of the scan of jobs."""
    search: ScanReport = field(default_factory=ScanReport)
    """Of the search for clients in kmalloc() caches."""
    targets_unreadable: int = 0
    targets_undescribed: dict[str, int] = field(default_factory=dict)
    """Targets without debug info, by type."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why a part could not be read, by its name: ``workqueues``, ``snapshots``,
    ``snapshot_cow_threshold``, ``kernel log``."""

    @property
    def in_use(self) -> bool:
        """Whether the kernel has a slab cache of jobs."""
        return self.job_slab is not NO_JOB_SLAB

    @property
    def has_jobs(self) -> bool:
        """Whether jobs are known one by one."""
        return self.in_use and self.has_clients


def take(kernel: Kernel) -> Census:
    """Read jobs, clients, snapshots and workqueues."""
    census, slab_map = Census(), kernel.slab_map
    caches = job_caches(slab_map)
    try:
        census.devices = mapped_devices(kernel)
        kcopyd = Kcopyd(slab_map, caches)
    except LookupError:
        pass  # The runner reports modules that are loaded without debug info.
    else:
        _read_clients(census, kcopyd)
        _read_snapshots(census, kernel)
    roles = _roles(census, kernel.prog)
    if caches:
        roles[caches[0].address] = "jobs"
    slabs_report = ScanReport()
    slabs = _slab_uses(slab_map, roles, slabs_report)
    if caches:
        census.job_slab = slabs[caches[0].address]
    census.slabs = list(slabs.values())
    if not census.has_clients:
        census.jobs = Jobs(active=census.job_slab.active)
    census.report = replace(
        census.jobs.report, memmap=slabs_report.memmap, slabs_invalid=slabs_report.slabs_invalid
    )
    try:
        census.workqueues = workqueues(kernel)
    except (LookupError, drgn.FaultError) as error:
        census.errors["workqueues"] = str(error)
    return census


def _read_clients(census: Census, kcopyd: Kcopyd) -> None:
    census.owners = _owners(census, kcopyd.prog)
    addresses = np.array(sorted(census.owners), np.uint64)
    addresses = np.concatenate([addresses, kcopyd.candidates(census.search)])
    clients, report = kcopyd.clients(addresses), ScanReport()
    objects, columns = kcopyd.scan(report)
    # A preallocated job may name a client that was freed, a job in use cannot.
    used = columns["kc"][~np.isin(objects, clients.reserve)]
    if len(more := np.setdiff1d(used, clients.address)):
        clients = kcopyd.clients(np.concatenate([addresses, more]))
    census.clients, census.jobs = clients, kcopyd.count(clients, objects, columns)
    census.jobs.report = report
    census.callback_list = kcopyd.has_callback_list
    census.has_clients = True


def _owners(census: Census, prog: Program) -> dict[int, Owner]:
    """Return the owners of clients, by the tables of the mapped devices."""
    owners, undescribed = {}, census.targets_undescribed
    for device in census.devices.devices:
        for target in device.targets:
            name = target.type_name
            if name not in CLIENTS_OF_TARGETS:
                continue
            try:
                for client in CLIENTS_OF_TARGETS[name](prog, target.private):
                    owners[client] = Owner(device.name, device.number, name)
            except drgn.FaultError:
                census.targets_unreadable += 1
            except (LookupError, AttributeError, TypeError):
                undescribed[name] = undescribed.get(name, 0) + 1
    return owners


def _read_snapshots(census: Census, kernel: Kernel) -> None:
    devices = census.devices
    try:
        census.limit = dm_snapshots.limit_mechanism(kernel.prog)
    except LookupError:
        names = {target.type_name for device in devices.devices for target in device.targets}
        census.has_snapshots = names.isdisjoint(dm_snapshots.TARGETS) and not devices.damaged
        return
    try:
        census.threshold = dm_snapshots.cow_threshold(kernel.prog)
    except drgn.FaultError as error:
        census.errors["snapshot_cow_threshold"] = str(error)
    try:
        census.snapshots = dm_snapshots.snapshots(kernel.memory, devices.devices, census.threshold)
        census.has_snapshots = True
    except (LookupError, drgn.FaultError) as error:
        census.errors["snapshots"] = str(error)


def _roles(census: Census, prog: Program) -> dict[int, str]:
    """Return what the related slab caches hold, by the address of the cache."""
    roles: dict[int, list[str]] = {}

    def note(role: str, cache: Object, *path: str) -> None:
        with contextlib.suppress(*ABSENT, AttributeError):
            for name in path:
                cache = cache.member_(name)
            address = int(cache)
            if address and role not in roles.setdefault(address, []):
                roles[address].append(role)

    def note_bios(role: str, bio_set: Object, *path: str) -> None:
        note(role, bio_set, *path, "bio_slab")
        note("bio vectors", bio_set, *path, "bvec_pool", "pool_data")

    for name, role in (("pending_cache", "pending exceptions"), ("exception_cache", "exceptions")):
        if name in prog:
            note(role, prog[name])
    for address in census.clients.address.tolist():
        client = Object(prog, "struct dm_kcopyd_client *", value=address)
        note_bios("bios of kcopyd", client, "io_client", "bios")
    for device in census.devices.devices:
        md = Object(prog, "struct mapped_device *", value=device.address)
        # Since Linux kernel commit 29dec90a0f1d ("dm: fix bio_set allocation") (in v5.19).
        pools = ("mempools",) if hasattr(md, "mempools") else ()
        for name in ("bs", "io_bs"):
            note_bios("bios of devices", md, *pools, name)
    if "fs_bio_set" in prog:
        note_bios("bios of file systems", prog["fs_bio_set"])
    return {address: ", ".join(names) for address, names in roles.items()}


def _slab_uses(slab_map: SlabMap, roles: dict[int, str], report: ScanReport) -> dict[int, SlabUse]:
    """Return the use of the slab caches in ``roles``, by address; ``report`` notes damage."""
    roots, _ = slab_map.lineage
    heads = [cache for cache in slab_map.caches if cache.address in roles]
    is_wanted = np.isin(roots, [head.id for head in heads])
    wanted = [cache for cache in slab_map.caches if is_wanted[cache.id]]
    if not wanted:
        return {}
    slabs = slab_map.index(wanted, report)
    root = roots[slabs.cache]
    pages, objects, inuse = (
        np.bincount(root, counts, len(slab_map.caches)).astype(np.int64)
        for counts in (slab_map.slab_pages(slabs), slabs.objects, slabs.inuse)
    )
    rows, _ = parked(slab_map, wanted).slots(slab_map, slabs)
    active = inuse - np.bincount(root[rows], minlength=len(inuse))
    return {
        cache.address: SlabUse(
            name=cache.name,
            role=roles[cache.address],
            slot_size=cache.slot_size,
            objects=int(objects[cache.id]),
            active=int(active[cache.id]),
            bytes=int(pages[cache.id]) << slab_map.memory.page_shift,
            merged=cache.merged,
            objects_per_slab=cache.objects_per_slab,
            slab_bytes=slab_map.memory.page_size << cache.order,
        )
        for cache in heads
    }
