# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` against what there was before, on a dump with 1.4 million dentries."""

from __future__ import annotations

import time
from itertools import islice

from drgn.helpers.linux.fs import dentry_path
from drgn.helpers.linux.slab import find_slab_cache, slab_cache_for_each_allocated_object

from drgn_scripts.analyses import Context
from drgn_scripts.analyses.dentries import run
from drgn_scripts.target import open_target
from tests.bench.timing import best, peak_memory, report
from tests.lab import build

FEW = "totals,superblocks,directories"
SAMPLE = 5000
"""Paths to list one by one, spread over all dentries; all of them would take minutes."""
LIMIT = 400 << 20


def test_faster_than_a_loop(slack: float) -> None:
    dump = build("6.12", "negatives")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    context = Context(target.prog, target.name, target.kernel)
    cache = find_slab_cache(target.prog, "dentry")
    result = run(context)
    everything = best(lambda: run(context), 7)
    few = best(lambda: run(context, only=FEW), 7)

    start = time.perf_counter()
    total = sum(1 for _ in slab_cache_for_each_allocated_object(cache, "struct dentry"))
    bare = time.perf_counter() - start
    start = time.perf_counter()
    negative = sum(
        not dentry.d_inode
        for dentry in slab_cache_for_each_allocated_object(cache, "struct dentry")
    )
    counting = time.perf_counter() - start
    assert result.summary["dentries"].value == total
    assert result.summary["negative"].value == negative > 1_400_000

    dentries = slab_cache_for_each_allocated_object(cache, "struct dentry")
    sample = list(islice(dentries, 0, None, total // SAMPLE))
    start = time.perf_counter()
    for dentry in sample:
        dentry_path(dentry)
    listing = (time.perf_counter() - start) / len(sample) * total
    report(
        "dentries, 6.12 ELF",
        dentries=total,
        all_tables_s=everything,
        few_tables_s=few,
        all_faster_than_counting_negatives=counting / everything,
        few_faster_than_counting_negatives=counting / few,
        all_faster_than_iterating=bare / everything,
        few_faster_than_iterating=bare / few,
        few_faster_than_listing_paths_by_sample=(bare + listing) / few,
    )
    assert counting / everything >= 15 / slack
    assert counting / few >= 60 / slack


def test_peak_memory() -> None:
    dump = build("6.12", "negatives")
    body = """
from drgn_scripts.analyses.dentries import run
run(Context(prog, target.name, target.kernel))
"""
    peak = peak_memory(body, dump.formats["elf"], dump.debug)
    report("peak memory, dentries, 6.12 negatives", MiB=peak / 2**20)
    assert peak < LIMIT
