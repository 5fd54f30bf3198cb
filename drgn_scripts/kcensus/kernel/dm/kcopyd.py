# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcopyd clients and their jobs.

An object of the slab cache ``kcopyd_job`` is a *master* job and eight *sub-jobs*: a copy larger
than the client's ``sub_job_size`` is split into these. ``nr_jobs`` of a client counts masters and
running sub-jobs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.chase import Damage, collect, pointer_step
from kcensus.engine.gather import gather, gather_pointers
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Guess, Mask, Memory, Numbers, Words
from kcensus.engine.rows import Addressed, rows_of
from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.scan import View, allocated, visit
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.names import ABSENT
from kcensus.sources.capsule import NotRecorded

LISTS = ("callback", "complete", "io", "pages")
"""The lists of a client, without their suffix ``_jobs``; a job on no list is in flight.

Since Linux kernel commit "dm kcopyd: Fix bug causing workqueue stalls" (in v5.0, and stable; commit
not verified), callbacks have a list of their own, ``callback_jobs``."""

_LINKS = ["list.next", "list.prev"]
_SPLIT_COUNT = 8
_MAX_RESERVE = 1 << 16
_MAX_PAGES = 1 << 12
"""Most copy pages of a sub-job, which has at most 1 MiB, or free reserved pages of a client."""
_OLD_SUB_JOB_SECTORS = 128
"""SUB_JOB_SIZE, until Linux kernel commit c663e04097f4 ("dm kcopyd: Increase default sub-job size
to 512KB") (in v5.3), which added ``dm_kcopyd_client.sub_job_size``."""

_MAX_SUB_JOB_SECTORS = 2048
"""MAX_SUB_JOB_SIZE_KB in sectors."""


def _no_counts(*shape: int) -> Numbers:
    return np.empty((0, *shape), np.int64)


def _no_words(*shape: int) -> Words:
    return np.empty((0, *shape), np.uint64)


def job_caches(slab_map: SlabMap) -> list[SlabCache]:
    """Return the slab cache of jobs, then its child caches; empty where kcopyd is not in use.

    Without debug info of ``_job_cache``, it is found by its name, and may be merged with others. It
    has child caches until Linux kernel commit 9855609bde03 ("mm: memcg/slab: use a single set of
    kmem_caches for all accounted allocations") (in v5.9).
    """
    pointer = 0
    with contextlib.suppress(*ABSENT):
        pointer = int(slab_map.prog["_job_cache"].value_())
    names = {cache.name: cache.id for cache in slab_map.caches}
    alias = slab_map.aliases.get("kcopyd_job", "")
    ids = {cache.address: cache.id for cache in slab_map.caches}
    id_ = ids.get(pointer, names.get("kcopyd_job", names.get(alias)))
    roots, _ = slab_map.lineage
    caches = [cache for cache in slab_map.caches if roots[cache.id] == id_]
    return sorted(caches, key=lambda cache: cache.id != id_)


@dataclass(frozen=True)
class Clients(Addressed):
    """``struct dm_kcopyd_client`` as columns, in ascending order of address."""

    address: Words = field(default_factory=_no_words)
    nr_jobs: Numbers = field(default_factory=_no_counts)
    sub_job_sectors: Numbers = field(default_factory=_no_counts)
    reserved_pages: Numbers = field(default_factory=_no_counts)
    free_pages: Numbers = field(default_factory=_no_counts)
    throttle: Numbers = field(default_factory=_no_counts)
    """Percentage of time for copying; 100 is unthrottled, -1 unknown."""
    wq: Words = field(default_factory=_no_words)
    work: Words = field(default_factory=_no_words)
    heads: Words = field(default_factory=lambda: _no_words(len(LISTS)))
    """Addresses of its list heads, shape (clients, len(LISTS)); 0 for an empty or missing list."""
    firsts: Words = field(default_factory=lambda: _no_words(len(LISTS)))
    """Addresses of the first nodes of its lists, in the shape of ``heads``."""
    free_list: Words = field(default_factory=_no_words)
    """First ``struct page_list`` of its free reserved pages, or 0."""
    reserve: Words = field(default_factory=_no_words)
    """Preallocated jobs in the mempools of all clients, ascending addresses."""
    reserves: Numbers = field(default_factory=_no_counts)
    reserves_lost: int = 0
    """Clients with an unreadable mempool."""


@dataclass
class Jobs:
    """Jobs by client; arrays are indexed by the row of the client."""

    jobs: Numbers = field(default_factory=_no_counts)
    split: Numbers = field(default_factory=_no_counts)
    sub_jobs: Numbers = field(default_factory=_no_counts)
    listed: Numbers = field(default_factory=lambda: _no_counts(len(LISTS)))
    """Jobs and sub-jobs on each list, shape (clients, len(LISTS))."""
    in_flight: Numbers = field(default_factory=_no_counts)
    """Jobs and sub-jobs on no list: in I/O, or prepared and not yet dispatched."""
    prepared: Numbers = field(default_factory=_no_counts)
    """The part of :attr:`in_flight` that copies nothing: of dm_kcopyd_prepare_callback()."""
    pages: Numbers = field(default_factory=_no_counts)
    """Copy pages, by the sizes of the jobs; an upper bound for split jobs with their last sub-jobs
    running, since it is not recorded which of them still hold pages."""
    pages_expected: int = 0
    """The part of :attr:`pages` in jobs with a ``page_list`` that was followed."""
    pages_followed: int | None = None
    """Pages found on these lists; None where a capsule lacks them."""
    free_pages_followed: int | None = None
    """Free reserved pages of all clients, by following ``dm_kcopyd_client.pages``."""
    pageless: int = 0
    """Jobs that need pages but have none, though they wait for none."""
    unknown: int = 0
    """Jobs with an unreadable client."""
    reserve: int = 0
    active: int = 0
    """Allocated objects: all of the above."""
    torn: int = 0
    """Lists with a first node that does not lead back to the head along ``next`` and ``prev``."""
    report: ScanReport = field(default_factory=ScanReport)

    def on(self, name: str) -> Numbers:
        """Return the jobs and sub-jobs of each client on one of :data:`LISTS`."""
        return self.listed[:, LISTS.index(name)]


class Kcopyd:
    """Reads the clients and jobs of a kernel.

    :raises LookupError: ``dm_mod`` has no debug info
    """

    def __init__(self, slab_map: SlabMap, caches: list[SlabCache]) -> None:
        self.slab_map = slab_map
        self.memory = slab_map.memory
        self.prog = slab_map.prog
        self.caches = caches
        self.client_type = self.prog.type("struct dm_kcopyd_client")
        self.job_type = self.prog.type("struct kcopyd_job")
        self.has_callback_list = self.client_type.has_member("callback_jobs")
        self.faults = Faults()
        # Since Linux kernel commit 6f1c819c219f ("dm: convert to bioset_init()/mempool_init()")
        # (in v4.18), the mempool is embedded.
        pool = self.client_type.member("job_pool").type
        self._pool_embedded = pool.kind != drgn.TypeKind.POINTER
        self._pool = "job_pool.pool_data" if self._pool_embedded else "job_pool"
        self._mempool = layout(self.prog, "mempool_t", ["curr_nr", "elements", "pool_data"])
        self._cache_addresses = np.array([cache.address for cache in caches], np.uint64)

    def candidates(self, report: ScanReport) -> Words:
        """Return kmalloc objects with a mempool of jobs: clients, also idle ones of any target."""
        columns = layout(self.prog, self.client_type, [self._pool])
        kmalloc = [cache for cache in self.slab_map.caches if cache.is_kmalloc]
        sizes = [cache.object_size for cache in kmalloc if cache.object_size >= columns.size]
        if not sizes or not self.caches:
            return _no_words()
        homes = [cache for cache in kmalloc if cache.object_size == min(sizes)]

        def is_client(pools: Words) -> Mask:
            if not self._pool_embedded:
                pools = gather(self.memory, pools, self._mempool, Guess())["pool_data"]
            return np.isin(pools, self._cache_addresses)

        def look(view: View, _report: ScanReport) -> Words:
            return view.matching(self._pool, is_client)

        slabs = self.slab_map.index(homes, report, in_use=True)
        clients = visit(self.slab_map, slabs, columns, look, report)
        return np.concatenate([_no_words(), *clients])

    def clients(self, addresses: Words) -> Clients:
        """Read the clients at ``addresses``, in any order; drop addresses of no client."""
        names = ["nr_jobs.counter", "nr_reserved_pages", "nr_free_pages", "throttle", "kcopyd_wq"]
        required = {name: name for name in [*names, self._pool]} | {"free_list": "pages"}
        optional = {"sub_job_size": "sub_job_size"} | {name: f"{name}_jobs.next" for name in LISTS}
        members = layout(self.prog, self.client_type, required, optional)
        unique = np.unique(addresses[addresses != 0])
        read = gather(self.memory, unique, members, self.faults)
        pools = read[self._pool]
        if self._pool_embedded:
            pools = unique + np.uint64(drgn.offsetof(self.client_type, "job_pool"))
        pool = gather(self.memory, pools, self._mempool, self.faults)
        known = read.readable
        if self.caches:
            known = known & (~pool.readable | np.isin(pool["pool_data"], self._cache_addresses))
        address = unique[known]
        client = {name: column[known] for name, column in read.columns.items()}
        heads = np.zeros((len(address), len(LISTS)), np.uint64)
        firsts = np.zeros_like(heads)
        for column, name in enumerate(LISTS):
            if name in members:
                head = address + np.uint64(members.fields[name].offset)
                heads[:, column] = np.where(client[name] == head, 0, head)
                firsts[:, column] = client[name]
        elements, owner, lost = pool_elements(
            self.memory, pool["elements"][known], pool["curr_nr"][known], pool.readable[known]
        )
        throttle = layout(self.prog, "struct dm_kcopyd_throttle", ["throttle"])
        throttles = gather(self.memory, client["throttle"], throttle, self.faults)
        unthrottled = np.where(client["throttle"] == 0, 100, -1)
        sub_jobs = client.get("sub_job_size", np.full(len(address), _OLD_SUB_JOB_SECTORS))
        return Clients(
            address=address,
            nr_jobs=client["nr_jobs.counter"].astype(np.int64),
            sub_job_sectors=np.clip(sub_jobs.astype(np.int64), 1, _MAX_SUB_JOB_SECTORS),
            reserved_pages=client["nr_reserved_pages"].astype(np.int64),
            free_pages=client["nr_free_pages"].astype(np.int64),
            throttle=np.where(throttles.readable, throttles["throttle"], unthrottled),
            wq=client["kcopyd_wq"],
            work=address + np.uint64(drgn.offsetof(self.client_type, "kcopyd_work")),
            heads=heads,
            firsts=firsts,
            free_list=client["free_list"],
            reserve=np.unique(elements),
            reserves=np.bincount(owner, minlength=len(address)).astype(np.int64),
            reserves_lost=lost,
        )

    def scan(self, report: ScanReport) -> tuple[Words, dict[str, Words]]:
        """Return the addresses of all allocated objects, and members of the masters."""
        members = ["kc", *_LINKS, "source.count", "pages", "sub_jobs.counter"]
        columns = layout(self.prog, self.job_type, members)
        return allocated(self.slab_map, self.caches, columns, report)

    def count(self, clients: Clients, address: Words, columns: dict[str, Words]) -> Jobs:
        """Count jobs by client and state, given the results of :meth:`scan`."""
        used = ~np.isin(address, clients.reserve)
        row = clients.rows(columns["kc"])
        masters = np.flatnonzero(used & (row >= 0))
        unknown = int((used & (row < 0)).sum())
        row, master = row[masters], address[masters]
        job = {name: column[masters] for name, column in columns.items()}
        sectors = job["source.count"].astype(np.int64)
        split = sectors > clients.sub_job_sectors[row]
        running = np.where(
            split, np.clip(job["sub_jobs.counter"].astype(np.int64), 0, _SPLIT_COUNT), 0
        )

        def per_client(rows: Numbers, weights: Numbers | None = None) -> Numbers:
            return np.bincount(rows, weights, len(clients)).astype(np.int64)

        steps = np.arange(1, _SPLIT_COUNT + 1) * drgn.sizeof(self.job_type)
        parts = (master[split][:, None] + steps.astype(np.uint64)).ravel()
        members = layout(self.prog, self.job_type, [*_LINKS, "source.count", "pages"])
        part = gather(self.memory, parts, members, self.faults)
        is_listed = clients.heads != 0
        nodes = np.concatenate([master, parts]) + np.uint64(drgn.offsetof(self.job_type, "list"))
        ends = list_heads(
            clients.heads[is_listed],
            nodes,
            *(np.concatenate([job[link], part[link]]) for link in _LINKS),
        )
        first = rows_of(nodes, clients.firsts[is_listed], np.argsort(nodes))
        is_torn = (first < 0) | (np.append(ends, -1)[first] != np.arange(int(is_listed.sum())))
        listed = np.zeros(clients.heads.shape, np.int64)
        listed[is_listed] = np.bincount(ends[ends >= 0], minlength=int(is_listed.sum()))
        jobs, sub_jobs = per_client(row), per_client(row, running)
        # A job on pages_jobs has no pages yet, whatever its pointer says.
        waits = np.isin(ends, np.flatnonzero(np.nonzero(is_listed)[1] == len(LISTS) - 1))
        whole, of_parts = ~split & ~waits[: len(master)], ~waits[len(master) :]
        # With all sub-jobs running, none has a pointer to returned pages.
        of_parts &= np.repeat(running[split] == _SPLIT_COUNT, _SPLIT_COUNT)
        starts = np.concatenate(
            [np.where(whole, job["pages"], 0), np.where(of_parts, part["pages"], 0)]
        )
        pageless = whole & (job["pages"] == 0) & (sectors > 0)
        with contextlib.suppress(*ABSENT):
            # Zeroing shares zero_page_list.
            starts[starts == int(self.prog["zero_page_list"].address_of_().value_())] = 0
        per_page = self.memory.page_size // 512
        owners = np.concatenate([row, np.repeat(row[split], _SPLIT_COUNT)])
        sizes = np.concatenate([sectors, part["source.count"].astype(np.int64)])
        sizes = -(-np.clip(sizes, 0, clients.sub_job_sectors[owners]) // per_page)
        sizes = np.where(starts != 0, sizes, 0)
        last = split & (running < _SPLIT_COUNT)
        each = -(-clients.sub_job_sectors[row] // per_page)
        pages = per_client(owners, sizes) + per_client(row, np.where(last, running * each, 0))
        # A split master with running sub-jobs is neither on a list nor in flight.
        waiting = per_client(row[running > 0])
        return Jobs(
            jobs=jobs,
            split=per_client(row[split]),
            sub_jobs=sub_jobs,
            listed=listed,
            in_flight=jobs + sub_jobs - waiting - listed.sum(axis=1),
            prepared=per_client(row[(sectors == 0) & (ends[: len(master)] < 0)]),
            pages=pages,
            pages_expected=int(sizes.sum()),
            pages_followed=self._page_lists(starts),
            free_pages_followed=self._page_lists(clients.free_list),
            pageless=int(pageless.sum()),
            unknown=unknown,
            reserve=int((~used).sum()),
            active=len(address),
            torn=int(is_torn.sum()),
        )

    def _page_lists(self, starts: Words) -> int | None:
        """Return the number of pages on lists of ``struct page_list``."""
        try:
            link = layout(self.prog, "struct page_list", ["next"])
        except NotRecorded:
            return None
        step = pointer_step(self.memory, link, "next", self.faults)
        return len(collect(starts, step, limit=_MAX_PAGES, damage=Damage())[1])


def pool_elements(
    memory: Memory, elements: Words, count: Numbers, known: Mask
) -> tuple[Words, Numbers, int]:
    """Return the elements of mempools, which are allocated objects but not in use.

    :param known: whether ``mempool_t.elements`` and ``count``, its ``curr_nr``, were readable
    :return: addresses of the elements; rows of their pools; unreadable or impossible pools
    """
    known = known & (count >= 0) & (count <= _MAX_RESERVE)
    sizes = np.where(known, count, 0)
    pools, element, readable = gather_pointers(memory, elements, sizes, Faults())
    return element[readable], pools[readable], int((~known).sum())


def list_heads(heads: Words, node: Words, following: Words, before: Words) -> Numbers:
    """Return the index of the head of the doubly linked list that each node is on, or -1.

    All nodes look twice as far in every round, so rounds grow with the logarithm of the longest
    list. A link counts only if the next node points back.

    :param node: all members of all lists, in any order, followed by their ``next`` and ``prev``
    """
    total, nowhere = len(node), len(node) + len(heads)
    # Positions: nodes, then heads, then one for "nowhere". The last two lead to themselves.
    column = np.concatenate([node, heads])
    order = np.argsort(column)
    rank = rows_of(column[order], following)
    target = np.where(rank < 0, nowhere, order[rank])
    leads_on = (target >= total) | (before.take(target, mode="clip") == node)
    position = np.append(np.where(leads_on, target, nowhere), np.arange(total, nowhere + 1))
    for _ in range(max(total, 1).bit_length()):
        further = position[position[:total]]
        if np.array_equal(further, position[:total]):
            break
        position[:total] = further
    index = position[:total] - total
    return np.where((index >= 0) & (index < len(heads)), index, -1)
