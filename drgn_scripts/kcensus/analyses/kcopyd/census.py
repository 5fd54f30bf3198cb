# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs, clients and snapshots of a kernel, the slab caches they use, and its workqueues."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import drgn
import numpy as np
from drgn import Object, Program

from kcensus.engine.slub.parked import parked
from kcensus.engine.slub.percpu import cpu_offsets
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.engine.zeros import is_lost
from kcensus.kernel.dm import snapshots as dm_snapshots
from kcensus.kernel.dm.bios import BioUse, bios_in_use, set_at
from kcensus.kernel.dm.devices import (
    BLOCK_IO_FOR_SUSPEND,
    CLIENTS_OF_TARGETS,
    MappedDevice,
    MappedDevices,
    mapped_devices,
)
from kcensus.kernel.dm.kcopyd import Clients, Jobs, Kcopyd, job_caches
from kcensus.kernel.dm.snapshots import Limit, Snapshots
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.workqueues import Workqueues, workqueues
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.faults import ZEROED

_FAILURES = (LookupError, drgn.FaultError, drgn.ObjectAbsentError, NotRecorded)
"""Errors of an unreadable part of the kernel; other parts are still read."""

DEFAULT_THRESHOLD = 2048


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
    """Bytes of a slab as normally allocated."""
    empty_bytes: int = 0
    """Bytes of slabs without an allocated object."""
    address: int = 0
    """Address of the ``struct kmem_cache``."""


NO_JOB_SLAB = SlabUse("kcopyd_job", "jobs", 0, 0, 0, 0, merged=False)


@dataclass(frozen=True)
class Owner:
    """The target with a client."""

    device: str
    number: str
    target: str


@dataclass(kw_only=True)
class Census:
    """The census; without debug info of ``dm_mod``, slabs and workqueues only."""

    job_slab: SlabUse = NO_JOB_SLAB
    slabs: Sequence[SlabUse] = ()
    """The slab cache of jobs, and other caches that grow with the jobs."""
    has_clients: bool = False
    """Whether clients and jobs could be read."""
    devices: MappedDevices = field(default_factory=MappedDevices)
    clients: Clients = field(default_factory=Clients)
    nr_jobs_after: int | None = None
    """Sum of ``nr_jobs`` on a running kernel after the jobs were read; None if a client is gone."""
    jobs: Jobs = field(default_factory=Jobs)
    owners: dict[int, Owner] = field(default_factory=dict)
    """Owners by address of the client."""
    callback_list: bool | None = None
    has_snapshots: bool = False
    """Whether snapshots could be read, or there are none."""
    snapshots: Snapshots = field(default_factory=Snapshots)
    limit: Limit | None = None
    threshold: int | None = None
    workqueues: Workqueues = field(default_factory=Workqueues)
    report: ScanReport = field(default_factory=ScanReport)
    search: ScanReport = field(default_factory=ScanReport)
    """Report of the search for clients in kmalloc() caches."""
    bios: dict[int, list[BioUse]] = field(default_factory=dict)
    """Bios in use of a client and of the mapped device that it copies to, by its address."""
    bios_expected: int | None = None
    """Least number of bios by the jobs in flight and the bios sent to mapped devices."""
    bios_found: int = 0
    """The part of :attr:`bios_expected` that was found."""
    caches_unknown: int = 0
    """Pointers to related slab caches that are unreadable or do not lead to a slab cache."""
    targets_unreadable: int = 0
    """Targets whose client is unreadable or not a client."""
    targets_undescribed: dict[str, int] = field(default_factory=dict)
    """Targets without debug info, by type."""
    errors: dict[str, str] = field(default_factory=dict)
    """Reasons for unreadable parts, by name: ``workqueues``, ``snapshots``, ``bios``,
    ``snapshot_cow_threshold``, ``kernel log``."""

    @property
    def in_use(self) -> bool:
        """Whether the kernel has a slab cache of jobs."""
        return self.job_slab is not NO_JOB_SLAB

    @property
    def has_jobs(self) -> bool:
        """Whether single jobs are known."""
        return self.in_use and self.has_clients


def take(kernel: Kernel) -> Census:
    """Read jobs, clients, snapshots and workqueues."""
    census, slab_map = Census(), kernel.slab_map
    caches = job_caches(slab_map)
    try:
        census.workqueues = workqueues(kernel)
    except _FAILURES as error:
        census.errors["workqueues"] = str(error)
    if not caches:
        return census
    try:
        census.devices = mapped_devices(kernel)
        kcopyd = Kcopyd(slab_map, caches)
    except LookupError:
        pass  # The runner reports modules that are loaded without debug info.
    else:
        _read_clients(census, kcopyd, live=kernel.live)
        _read_snapshots(census, kernel)
        _read_bios(census, kernel)
    roles = _roles(census, slab_map) | {caches[0].address: "jobs"}
    slabs_report = ScanReport()
    slabs = _slab_uses(slab_map, roles, slabs_report)
    census.job_slab = slabs[caches[0].address]
    census.slabs = list(slabs.values())
    if not census.has_clients:
        census.jobs = Jobs(active=census.job_slab.active)
    census.report = replace(
        census.jobs.report,
        memmap=slabs_report.memmap,
        slabs_invalid=slabs_report.slabs_invalid,
        slabs_missing=slabs_report.slabs_missing,
        lists_lost=slabs_report.lists_lost,
    )
    return census


def _read_clients(census: Census, kcopyd: Kcopyd, *, live: bool) -> None:
    census.owners = _owners(census, kcopyd.prog)
    addresses = np.array(sorted(census.owners), np.uint64)
    addresses = np.concatenate([addresses, kcopyd.candidates(census.search)])
    clients, report = kcopyd.clients(addresses), ScanReport()
    objects, columns = kcopyd.scan(report)
    # A preallocated job may name a client that was freed, a job in use cannot.
    used = columns["kc"][~np.isin(objects, clients.reserve)]
    if len(more := np.setdiff1d(used, clients.address)):
        clients = kcopyd.clients(np.concatenate([addresses, more]))
    census.targets_unreadable += len(np.setdiff1d(list(census.owners), clients.address))
    census.clients, census.jobs = clients, kcopyd.count(clients, objects, columns)
    census.jobs.report = report
    if live:
        census.jobs.pageless = 0  # it gives pages meanwhile
        after = kcopyd.clients(clients.address)
        if np.array_equal(after.address, clients.address):
            census.nr_jobs_after = int(after.nr_jobs.sum())
    census.callback_list = kcopyd.has_callback_list
    census.has_clients = True


def _owners(census: Census, prog: Program) -> dict[int, Owner]:
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
        if census.threshold == 0 and is_lost(kernel.prog["cow_threshold"]):
            census.threshold, census.errors["snapshot_cow_threshold"] = None, ZEROED
    except drgn.FaultError as error:
        census.errors["snapshot_cow_threshold"] = str(error)
    try:
        census.snapshots = dm_snapshots.snapshots(kernel.memory, devices.devices, live=kernel.live)
        census.has_snapshots = True
    except _FAILURES as error:
        census.errors["snapshots"] = str(error)


def _read_bios(census: Census, kernel: Kernel) -> None:
    slab_map, prog = kernel.slab_map, kernel.prog
    of_clients = {_address(bio_set): client for client, bio_set in _client_bio_sets(census, prog)}
    owners = dict(of_clients)
    clients_of_cow = {each.cow: each.client for each in census.snapshots.all if each.client}
    of_devices = [
        (device, [_address(each) for each in _device_bio_sets(prog, device)])
        for device in census.devices.devices
        if device.number in clients_of_cow
    ]
    for device, own in of_devices:
        owners |= dict.fromkeys(own, clients_of_cow[device.number])
    try:
        sets = np.array(sorted(owners), np.uint64)
        report = ScanReport()
        uses = bios_in_use(slab_map, sets, report)
    except _FAILURES as error:
        census.errors["bios"] = str(error)
        return
    if report.slabs:
        census.errors["bios"] = f"pages of their sets or slabs: {', '.join(sorted(report.slabs))}"
    for bio_set, use in uses.items():
        census.bios.setdefault(owners[bio_set], []).append(use)
    if not kernel.live:
        _count_least(census, prog, uses, of_clients, of_devices)


def _count_least(
    census: Census,
    prog: Program,
    uses: Mapping[int, BioUse],
    of_clients: Mapping[int, int],
    of_devices: Sequence[tuple[MappedDevice, list[int]]],
) -> None:
    """Count the bios that jobs in flight, and clones of their bios, require at least.

    :param of_clients: clients by their bio set
    :param of_devices: mapped devices with their bio sets
    """
    copying = census.jobs.in_flight - census.jobs.prepared
    jobs = dict(zip(census.clients.address.tolist(), copying.tolist(), strict=True))
    least = [([each], jobs[client]) for each, client in of_clients.items()]
    sent = sum((uses[each].devices for each in of_clients if each in uses), Counter[int]())
    for device, own in of_devices:
        places = _places(prog, device)
        least.append((own, sum(sent[place] for place in places)))
    # A CPU may have been stopped between a bio and its clone.
    slack = len(cpu_offsets(prog))
    census.bios_expected = sum(max(count - slack, 0) for _, count in least)
    census.bios_found = sum(
        min(max(count - slack, 0), sum(uses[each].bios for each in own if each in uses))
        for own, count in least
    )


def _places(prog: Program, device: MappedDevice) -> set[int]:
    """Return the addresses by which bios name a device; see :class:`BioUse`.

    A suspended device has none: it clones no bio until it is resumed.
    """
    places: set[int] = set()
    with contextlib.suppress(*_FAILURES, AttributeError, TypeError):
        md = Object(prog, "struct mapped_device *", value=device.address)
        if int(md.flags) & BLOCK_IO_FOR_SUSPEND:
            return places
        places.add(int(md.disk))
        # Since Linux kernel commit 0d02129e76ed ("block: merge struct block_device and struct
        # hd_struct") (in v5.11), part0 is a pointer.
        places.add(int(md.disk.part0))
    return places


def _address(bio_set: Object) -> int:
    return int(bio_set.address_of_().value_())


def _bio_sets(owner: Object, *path: str) -> list[Object]:
    """Return the bio set in a struct, or none; see :func:`set_at`."""
    with contextlib.suppress(*_FAILURES, AttributeError):
        bio_set = set_at(owner, *path)
        return [bio_set] if _address(bio_set) else []
    return []


def _client_bio_sets(census: Census, prog: Program) -> Iterator[tuple[int, Object]]:
    for address in census.clients.address.tolist():
        client = Object(prog, "struct dm_kcopyd_client *", value=address)
        for bio_set in _bio_sets(client, "io_client", "bios"):
            yield address, bio_set


def _device_bio_sets(prog: Program, device: MappedDevice) -> list[Object]:
    md = Object(prog, "struct mapped_device *", value=device.address)
    # Since Linux kernel commit 29dec90a0f1d ("dm: fix bio_set allocation") (in v5.19).
    pools = ("mempools",) if hasattr(md, "mempools") else ()
    return [bio_set for name in ("bs", "io_bs") for bio_set in _bio_sets(md, *pools, name)]


def _roles(census: Census, slab_map: SlabMap) -> dict[int, str]:
    prog = slab_map.prog
    known = {cache.address for cache in slab_map.caches}
    roles: dict[int, list[str]] = {}

    def note(role: str, cache: Object, *path: str) -> None:
        with contextlib.suppress(LookupError, AttributeError, drgn.ObjectAbsentError):
            try:
                for name in path:
                    cache = cache.member_(name)
                address = int(cache)
            except drgn.FaultError:
                census.caches_unknown += 1
                return
            if address in known and role not in roles.setdefault(address, []):
                roles[address].append(role)
            census.caches_unknown += address not in known and address != 0

    def note_bios(role: str, bio_set: Object) -> None:
        note(role, bio_set, "bio_slab")
        note("bio vectors", bio_set, "bvec_pool", "pool_data")

    for name, role in (("pending_cache", "pending exceptions"), ("exception_cache", "exceptions")):
        if name in prog:
            note(role, prog[name])
    for _, bio_set in _client_bio_sets(census, prog):
        note_bios("bios of kcopyd", bio_set)
    for device in census.devices.devices:
        for bio_set in _device_bio_sets(prog, device):
            note_bios("bios of devices", bio_set)
    if "fs_bio_set" in prog:
        for bio_set in _bio_sets(prog["fs_bio_set"]):
            note_bios("bios of file systems", bio_set)
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
    stores = parked(slab_map, wanted)
    report.lists_lost += stores.lost
    rows, _ = stores.slots(slab_map, slabs)
    used = slabs.inuse - np.bincount(rows, minlength=len(slabs))
    active = inuse - np.bincount(root[rows], minlength=len(inuse))
    empty = np.bincount(root[used == 0], slab_map.slab_pages(slabs)[used == 0], len(inuse))
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
            empty_bytes=int(empty[cache.id]) << slab_map.memory.page_shift,
            address=cache.address,
        )
        for cache in heads
    }
