# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus list-lru`` against a loop over the slots, on a dump with two million of them."""

from __future__ import annotations

import time

import drgn
from drgn.helpers.linux.list import list_for_each_entry

from kcensus.sources import open_target
from tests.bench.timing import best, peak_memory, report
from tests.lab import build
from tests.running import on, runner

run = runner("list-lru")

SAMPLE = 6
"""list_lrus that the loop walks: all of them would take a minute."""
LIMIT = 200 << 20


def loop(prog: drgn.Program) -> tuple[int, int, float]:
    """Count slots and items of a sample of list_lrus, one drgn object at a time; seconds."""
    count = int(prog["memcg_nr_cache_ids"])
    lrus = list_for_each_entry("struct list_lru", prog["list_lrus"].address_of_(), "list")
    aware = [lru for lru in lrus if lru.memcg_aware]
    slots = items = 0
    start = time.perf_counter()
    for lru in aware[:: len(aware) // SAMPLE]:
        array = lru.node[0].memcg_lrus
        for id_ in range(count):
            one = array.lru[id_]
            if one:
                slots += 1
                items += int(one.nr_items)
    return slots, items, time.perf_counter() - start


def test_two_million_slots(slack: float) -> None:
    dump = build("5.10", "list-lru-large")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    context = on(target.prog)
    result = run(context)
    total = result.summary["slots"].value
    assert isinstance(total, int)
    assert total >= 2_000_000
    # All of it: super blocks, cgroups, what the allocator has, and the tables.
    ours = best(lambda: run(on(target.prog)), 3)
    slots, items, seconds = loop(target.prog)
    assert slots >= 15_000
    assert items == 0
    peak = peak_memory("runner('list-lru')(on(prog))", dump.formats["elf"], dump.debug)
    faster = seconds / slots * total / ours
    report(
        "list-lru, 5.10 ELF",
        slots=total,
        million_slots_a_second=total / ours / 1e6,
        faster_than_drgn_loop=faster,
        slots_of_the_loop=slots,
        peak_MiB=peak / 2**20,
    )
    assert faster >= 50 / slack
    assert peak < LIMIT
