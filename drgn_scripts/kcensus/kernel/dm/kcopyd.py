# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcopyd: the device mapper's copying threads, their clients, and the jobs that wait.

An object of the cache ``kcopyd_job`` is one *master* job with room for eight *sub-jobs*, into
which a copy is split that is larger than the client's ``sub_job_size``. ``nr_jobs`` of a client
counts masters and the sub-jobs that are on their way.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.engine.gather import gather
from kcensus.engine.layout import Field, Layout, layout
from kcensus.engine.memory import Faults, Mask, Words
from kcensus.engine.slub.scan import View, allocated, visit
from kcensus.engine.slub.slabs import ScanReport, SlabCache, SlabMap
from kcensus.kernel.dm.devices import UNKNOWN

LISTS = ("callback", "complete", "io", "pages")
"""The lists of a client: callbacks to run (since 5.0), copies done, copies that have their pages,
and copies that wait for pages. What is on none of them is in flight."""

_SPLIT_COUNT = 8
_MAX_RESERVE = 1 << 16
"""No pool reserves that many jobs: a larger number is damage."""
_OLD_SUB_JOB_SECTORS = 128
"""Where the client has no ``sub_job_size``: SUB_JOB_SIZE, until 5.2."""

Counts = npt.NDArray[np.int64]


def job_caches(slab_map: SlabMap) -> list[SlabCache]:
    """The cache of jobs, and after it its children up to 5.8; empty where kcopyd is not in use.

    It is the one that the module's own variable points at; without debug info, the one of that
    name, which may have been merged with another of the same size.
    """
    ids: set[int] = set()
    try:
        pointer = int(slab_map.prog["_job_cache"].value_())
        ids = {cache.id for cache in slab_map.caches if cache.address == pointer}
    except UNKNOWN:
        pass
    if not ids:
        name = "kcopyd_job"
        ids = {cache.id for cache in slab_map.caches if cache.name == name}
        if not ids and name in slab_map.aliases:
            name = slab_map.aliases[name]
            ids = {cache.id for cache in slab_map.caches if cache.name == name}
    roots, _ = slab_map.lineage
    found = [cache for cache in slab_map.caches if int(roots[cache.id]) in ids]
    return sorted(found, key=lambda cache: int(roots[cache.id]) != cache.id)


@dataclass(frozen=True)
class Clients:
    """Clients as columns, in ascending order of address."""

    address: Words
    nr_jobs: Counts
    """As the client counts."""
    sub_job_sectors: Counts
    reserved_pages: Counts
    free_pages: Counts
    """Of the reserved ones."""
    throttle: Counts
    """Percent of time it may copy; 100 is no limit, -1 unknown."""
    wq: Words
    """Its ``struct workqueue_struct``."""
    work: Words
    """Address of its work item."""
    work_data: Words
    heads: Words
    """Addresses of its list heads, shape (clients, len(LISTS)); 0 for a list it does not have."""
    first: Words
    """What they point at."""
    reserve: Words
    """Jobs that its memory pool keeps for hard times, of all clients, ascending."""
    reserves: Counts
    """How many of them are each client's."""
    lost: int
    """Clients that could not be read."""
    reserves_lost: int
    """Clients whose memory pool could not be read."""

    def __len__(self) -> int:
        return len(self.address)

    def rows(self, pointers: Words) -> npt.NDArray[np.int64]:
        """Rows of ``struct dm_kcopyd_client`` pointers, -1 for unknown ones."""
        if not len(self):
            return np.full(len(pointers), -1)
        at = np.minimum(np.searchsorted(self.address, pointers), len(self) - 1)
        rows: npt.NDArray[np.int64] = np.where(self.address[at] == pointers, at, -1)
        return rows


@dataclass
class Jobs:
    """Jobs by client; arrays are over the clients' rows."""

    jobs: Counts
    """Objects in use: masters."""
    split: Counts
    """Masters that have been split."""
    sub_jobs: Counts
    """Their parts that are on their way."""
    listed: Counts
    """On each list; shape (clients, len(LISTS))."""
    in_flight: Counts
    """On no list: being read or written, or prepared and not yet handed over."""
    sectors: Counts
    """To be copied by the jobs, as they were asked for."""
    pages: Counts
    """Pages that jobs hold for their data, at most."""
    unknown: int = 0
    """Jobs whose client could not be read."""
    reserve: int = 0
    """Objects that pools keep for hard times."""
    active: int = 0
    """Allocated objects, all of the above."""
    torn: int = 0
    """Lists that do not start with a job of the client."""
    report: ScanReport = field(default_factory=ScanReport)
    faults: Faults = field(default_factory=Faults)


_JOB_MEMBERS = {
    "kc": "kc",
    "next": "list.next",
    "prev": "list.prev",
    "count": "source.count",
    "pages": "pages",
    "sub_jobs": "sub_jobs.counter",
    "master": "master_job",
}


class Kcopyd:
    """Reads clients and jobs of one kernel.

    :raises LookupError: ``dm_mod`` has no debug info here
    """

    def __init__(self, slab_map: SlabMap, caches: list[SlabCache]) -> None:
        self.slab_map = slab_map
        self.memory = slab_map.memory
        self.prog = slab_map.prog
        self.caches = caches
        self.client_type = self.prog.type("struct dm_kcopyd_client")
        self.job_type = self.prog.type("struct kcopyd_job")
        self.has_callback_list = self.client_type.has_member("callback_jobs")
        """The fix of workqueue stalls: 5.0, RHEL 8.3, and backports to 4.4 and later."""
        self.faults = Faults()
        lists = {f"{n}.next": f"{n}_jobs.next" for n in LISTS}
        pool = "job_pool"
        # mempool_init() took the pool into the client in 4.18; before it was a pointer.
        self._pool_embedded = self.client_type.member(pool).type.kind != drgn.TypeKind.POINTER
        self._client = layout(
            self.prog,
            self.client_type,
            {
                "nr_jobs": "nr_jobs.counter",
                "reserved_pages": "nr_reserved_pages",
                "free_pages": "nr_free_pages",
                "throttle": "throttle",
                "wq": "kcopyd_wq",
                "work_data": "kcopyd_work.data.counter",
            },
            {"sub_job_sectors": "sub_job_size", **lists},
        )
        self._mempool = layout(
            self.prog,
            "mempool_t",
            {"count": "curr_nr", "elements": "elements", "cache": "pool_data"},
        )

    # Clients

    def candidates(self, report: ScanReport | None = None) -> Words:
        """Addresses of all that look like a client in kmalloc()'s caches.

        So those are found, too, that have no job and belong to a target nobody knows: a client's
        pool names the cache that it allocates jobs from.

        :param report: takes note of what could not be read
        """
        report = ScanReport() if report is None else report
        size = drgn.sizeof(self.client_type)
        kmalloc = [
            cache
            for cache in self.slab_map.caches
            if cache.name.startswith("kmalloc-") and cache.object_size >= size
        ]
        if not kmalloc or not self.caches:
            return np.empty(0, np.uint64)
        smallest = min(cache.object_size for cache in kmalloc)
        homes = [cache for cache in kmalloc if cache.object_size == smallest]
        offset = drgn.offsetof(self.client_type, "job_pool")
        if self._pool_embedded:
            offset += self._mempool.fields["cache"].offset
        word = self.slab_map.word.fields["word"].dtype
        where = Layout("struct dm_kcopyd_client", size, {"pool": Field("", offset, word)})
        ours = self._cache_addresses()

        def look(view: View, _report: ScanReport) -> Words:
            pools, address = view.column("pool")[view.allocated], view.address()[view.allocated]
            if not self._pool_embedded:
                pools = gather(self.memory, pools, self._mempool, Faults())["cache"]
            return address[np.isin(pools, ours)]

        slabs = self.slab_map.index(homes, report)
        slabs = slabs[slabs.inuse > 0]
        found = visit(self.slab_map, slabs, where, look, report)
        return np.concatenate([np.empty(0, np.uint64), *found])

    def _cache_addresses(self) -> Words:
        return np.array([cache.address for cache in self.caches], np.uint64)

    def clients(self, addresses: Words) -> Clients:
        """Read clients.

        :param addresses: in any order; what turns out to be no client is left out, and counted
        """
        unique = np.unique(addresses[addresses != 0])
        read = gather(self.memory, unique, self._client, self.faults)
        pools = unique + np.uint64(drgn.offsetof(self.client_type, "job_pool"))
        if not self._pool_embedded:
            pools = gather(self.memory, pools, self.slab_map.word, self.faults)["word"]
        pool = gather(self.memory, pools, self._mempool, self.faults)
        known = read.readable
        if self.caches:
            known = known & (~pool.readable | np.isin(pool["cache"], self._cache_addresses()))
        rows = np.flatnonzero(known)
        address = unique[rows]
        heads = np.zeros((len(rows), len(LISTS)), np.uint64)
        first = np.zeros_like(heads)
        for column, name in enumerate(LISTS):
            if f"{name}.next" in self._client:
                offset = self._client.fields[f"{name}.next"].offset
                heads[:, column] = address + np.uint64(offset)
                first[:, column] = read[f"{name}.next"][rows]
        reserve, reserves, lost = self._reserves(
            pool["elements"][rows], pool["count"][rows], pool.readable[rows]
        )
        old = np.full(len(unique), _OLD_SUB_JOB_SECTORS)
        return Clients(
            address=address,
            nr_jobs=read["nr_jobs"][rows].astype(np.int64),
            sub_job_sectors=read.columns.get("sub_job_sectors", old)[rows].astype(np.int64),
            reserved_pages=read["reserved_pages"][rows].astype(np.int64),
            free_pages=read["free_pages"][rows].astype(np.int64),
            throttle=self._throttle(read["throttle"][rows]),
            wq=read["wq"][rows],
            work=address + np.uint64(drgn.offsetof(self.client_type, "kcopyd_work")),
            work_data=read["work_data"][rows].astype(np.uint64),
            heads=heads,
            first=first,
            reserve=reserve,
            reserves=reserves,
            lost=len(unique) - len(rows),
            reserves_lost=lost,
        )

    def _throttle(self, pointers: Words) -> Counts:
        throttle = layout(self.prog, "struct dm_kcopyd_throttle", ["throttle"])
        read = gather(self.memory, pointers, throttle, self.faults)
        unknown = np.where(pointers == 0, 100, -1)
        return np.where(read.readable, read["throttle"].astype(np.int64), unknown)

    def _reserves(self, elements: Words, count: Counts, known: Mask) -> tuple[Words, Counts, int]:
        """The free objects that the clients' pools keep, which the slabs count as allocated."""
        sizes = np.where(known & (count <= _MAX_RESERVE), np.maximum(count, 0), 0)
        sizes = sizes.astype(np.int64)
        first = np.repeat(np.cumsum(sizes) - sizes, sizes)
        steps = (np.arange(int(sizes.sum())) - first).astype(np.uint64)
        places = np.repeat(elements, sizes) + np.uint64(8) * steps
        read = gather(self.memory, places, self.slab_map.word, self.faults)
        lost = ~known | (count > _MAX_RESERVE)
        return np.unique(read["word"][read.readable]), sizes, int(lost.sum())

    # Jobs

    def scan(self, report: ScanReport) -> tuple[Words, dict[str, npt.NDArray[np.uint64]]]:
        """All allocated objects of the cache of jobs: their addresses, and the masters' members."""
        members = layout(self.prog, self.job_type, _JOB_MEMBERS)
        return allocated(self.slab_map, self.caches, members, report)

    def count(
        self, clients: Clients, address: Words, columns: dict[str, npt.NDArray[np.uint64]]
    ) -> Jobs:
        """Jobs by client and state.

        :param address: of all objects, as :meth:`scan` returns them
        """
        used = ~np.isin(address, clients.reserve)
        row = clients.rows(columns["kc"])
        owned = used & (row >= 0)
        masters = np.flatnonzero(owned)
        row = row[masters]
        at = {name: column[masters] for name, column in columns.items()}
        number = len(clients)

        def per_client(rows: Counts, weights: npt.NDArray[np.int64] | None = None) -> Counts:
            return np.bincount(rows, weights, number).astype(np.int64)

        sectors = at["count"].astype(np.int64)
        split = sectors > clients.sub_job_sectors[row] if number else np.zeros(0, np.bool_)
        running = np.where(split, np.clip(at["sub_jobs"].astype(np.int64), 0, _SPLIT_COUNT), 0)
        parts = self._parts(address[masters][split], row[split])
        nodes = _Nodes(
            np.concatenate([address[masters], parts.address]) + self._link,
            np.concatenate([at["next"], parts.next]),
            np.concatenate([at["prev"], parts.prev]),
        )
        listed, torn = self._listed(clients, nodes)
        jobs = per_client(row)
        sub_jobs = per_client(row, running)
        # A split master whose parts are on their way is itself on no list, nor in flight.
        waiting = per_client(row[running > 0])
        in_flight = jobs + sub_jobs - waiting - listed.sum(axis=1)
        return Jobs(
            jobs=jobs,
            split=per_client(row[split]),
            sub_jobs=sub_jobs,
            listed=listed,
            in_flight=in_flight,
            sectors=per_client(row, sectors),
            pages=self._pages(clients, row, at, split, running),
            unknown=int((used & (clients.rows(columns["kc"]) < 0)).sum()),
            reserve=int((~used).sum()),
            active=len(address),
            torn=torn,
        )

    @property
    def _link(self) -> np.uint64:
        return np.uint64(drgn.offsetof(self.job_type, "list"))

    def _parts(self, masters: Words, row: npt.NDArray[np.int64]) -> _Nodes:
        """The sub-jobs of split masters."""
        size = drgn.sizeof(self.job_type)
        steps = (np.arange(1, _SPLIT_COUNT + 1) * size).astype(np.uint64)
        address = (masters[:, None] + steps[None, :]).ravel()
        link = layout(self.prog, self.job_type, {"next": "list.next", "prev": "list.prev"})
        read = gather(self.memory, address, link, self.faults)
        return _Nodes(address, read["next"], read["prev"])

    def _listed(self, clients: Clients, nodes: _Nodes) -> tuple[Counts, int]:
        """How many nodes are on each list, and how many lists begin with none of them."""
        counts = np.zeros(clients.heads.shape, np.int64)
        heads = clients.heads.ravel()
        first = clients.first.ravel()
        begun = np.flatnonzero((heads != 0) & (first != heads))
        if not len(begun):
            return counts, 0
        ends = nodes.ends(heads[begun])
        found = np.bincount(ends[ends >= 0], minlength=len(begun))
        counts.ravel()[begun] = found
        return counts, int((found == 0).sum())

    def _pages(
        self,
        clients: Clients,
        row: npt.NDArray[np.int64],
        at: dict[str, npt.NDArray[np.uint64]],
        split: Mask,
        running: Counts,
    ) -> Counts:
        """Pages that the data of jobs takes. Zeroing takes none: one page serves all."""
        shared = np.uint64(0)
        with contextlib.suppress(*UNKNOWN):
            shared = np.uint64(self.prog["zero_page_list"].address_of_().value_())
        per_page = self.memory.page_size // 512
        whole = ~split & (at["pages"] != 0) & (at["pages"] != shared)
        pages = np.where(whole, -(-at["count"].astype(np.int64) // per_page), 0)
        zeroing = at["pages"] == shared if shared else np.zeros(len(row), np.bool_)
        if len(clients):
            each = -(-clients.sub_job_sectors[row] // per_page)
            pages = np.where(split & ~zeroing, running * each, pages)
        return np.bincount(row, pages, len(clients)).astype(np.int64)


@dataclass(frozen=True)
class _Nodes:
    """Nodes of doubly linked lists whose members are all at hand."""

    address: Words
    next: Words
    prev: Words

    def ends(self, heads: Words) -> npt.NDArray[np.int64]:
        """Which list each node is on: the index of its head, or -1.

        Lists of millions of jobs in a step a node would take a minute; so all nodes look twice as
        far in every round, which takes as many rounds as the longest list has binary digits. A
        link counts only if the next node points back.
        """
        heads_order = np.argsort(heads, kind="stable")
        order = np.argsort(self.address, kind="stable")
        total, none = len(self.address), len(self.address) + len(heads)
        # Positions: nodes, then heads, then one for "nowhere"; heads and nowhere lead to
        # themselves.
        position = np.arange(none + 1)
        node = _find(self.address[order], self.next)
        head = _find(heads[heads_order], self.next)
        onto_node, onto_head = node >= 0, head >= 0
        following = np.full(total, none)
        target = order[node[onto_node]]
        back = self.prev[target] == self.address[onto_node]
        following[np.flatnonzero(onto_node)[back]] = target[back]
        following[onto_head] = total + heads_order[head[onto_head]]
        position[:total] = following
        for _ in range(max(total, 1).bit_length()):
            further = position[position[:total]]
            if np.array_equal(further, position[:total]):
                break
            position[:total] = further
        result = position[:total] - total
        found: npt.NDArray[np.int64] = np.where((result >= 0) & (result < len(heads)), result, -1)
        return found


def _find(ascending: Words, wanted: Words) -> npt.NDArray[np.int64]:
    """Where each wanted value stands in ``ascending``, -1 where it does not."""
    if not len(ascending):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    found: npt.NDArray[np.int64] = np.where(ascending[at] == wanted, at, -1)
    return found
