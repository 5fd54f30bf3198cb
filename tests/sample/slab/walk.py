# SPDX-License-Identifier: LGPL-2.1-or-later
"""The slow, obvious way through SLAB: one drgn object at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from drgn import FaultError, Object, Program, cast
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.mm import for_each_page
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.percpu import per_cpu_ptr
from drgn.helpers.linux.slab import for_each_slab_cache

from kcensus.sources.capsule import NotRecorded


@dataclass
class Walked:
    """The slabs of a cache."""

    slabs: int = 0
    total: int = 0
    active: int = 0
    """Objects in use by the counts of slabs."""
    parked: set[int] = field(default_factory=set)
    """Free objects in arrays of CPUs and nodes."""
    allocated: set[int] = field(default_factory=set)
    unread: int = 0
    """Slabs whose numbers of free slots are not in the capsule."""


def walk(prog: Program) -> dict[str, Walked]:
    """Walk over all caches and slabs."""
    caches = {int(cache): cache for cache in for_each_slab_cache(prog)}
    names = {address: cache.name.string_().decode() for address, cache in caches.items()}
    found = {
        names[address]: Walked(parked=set(_parked(prog, cache)))
        for address, cache in caches.items()
    }
    is_slab = 1 << int(prog.constant("PG_slab"))
    for page in for_each_page(prog):
        if not int(page.flags) & is_slab:
            continue
        slab = cast("struct slab *", page)
        cache = caches[int(slab.slab_cache)]
        own = found[names[int(cache)]]
        count, size, first = int(cache.num), int(cache.size), int(slab.s_mem)
        active = int(slab.active)
        numbers = cast("freelist_idx_t *", slab.freelist)
        own.slabs, own.total, own.active = own.slabs + 1, own.total + count, own.active + active
        try:
            free = {int(numbers[at]) for at in range(active, count)}
        except (FaultError, NotRecorded):
            own.unread += 1
            continue
        assert len(free) == count - active
        slots = {first + at * size for at in range(count) if at not in free}
        own.allocated |= slots - own.parked
    return found


def _parked(prog: Program, cache: Object) -> list[int]:
    arrays = [per_cpu_ptr(cache.cpu_cache, cpu) for cpu in for_each_possible_cpu(prog)]
    for number in range(nr_node_ids(prog)):
        node = cache.node[number]
        if not node:
            continue
        if node.shared:
            arrays.append(node.shared)
        if node.alien:
            aliens = (node.alien[other] for other in range(nr_node_ids(prog)))
            arrays += [alien.ac.address_of_() for alien in aliens if alien]
    return [int(array.entry[at]) for array in arrays for at in range(int(array.avail))]
