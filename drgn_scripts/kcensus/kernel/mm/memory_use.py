# SPDX-License-Identifier: LGPL-2.1-or-later
"""What RAM is used for, by the kernel's own counters: /proc/meminfo in disjoint parts."""

from __future__ import annotations

import drgn
from drgn.helpers.linux.hugetlb import hugetlb_total_pages

from kcensus.kernel.mm.vmstat import page_state
from kcensus.kernel.size import attempt

_ITEMS = {
    "free": ("NR_FREE_PAGES",),
    "page_cache": ("NR_FILE_PAGES",),
    "shmem": ("NR_SHMEM",),
    # Renamed in v4.8 (commit not verified).
    "anonymous": ("NR_ANON_MAPPED", "NR_ANON_PAGES"),
    # Since Linux kernel commit d42f3245c7e2 ("mm: memcg: convert vmstat slab counters to bytes")
    # (in v5.9), the items are called ..._B; they still count pages.
    "slab_reclaimable": ("NR_SLAB_RECLAIMABLE_B", "NR_SLAB_RECLAIMABLE"),
    "slab_unreclaimable": ("NR_SLAB_UNRECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE"),
    "page_tables": ("NR_PAGETABLE",),
}
"""Counters of pages; the first must exist in each kernel."""
_TOLERANCE = 1.02
"""Counters of a running kernel are not read at the same time."""


def memory_use(prog: drgn.Program, ram_bytes: int) -> dict[str, int]:
    """Return the bytes of RAM by use; ``other`` is what none of the counters has.

    Free pages that wait on the lists of CPUs are ``other``, as are pages that drivers allocate,
    vmalloc() and the balloon.

    :param ram_bytes: ``totalram_pages()``
    :return: empty if a counter is unreadable, or the counters together exceed the RAM
    """
    page = attempt(lambda: int(prog["PAGE_SIZE"])) or 0
    counters = {name: page_state(prog, *items) for name, items in _ITEMS.items()}
    pages = {name: max(count, 0) for name, count in counters.items() if count is not None}
    if not page or len(pages) < len(_ITEMS):
        return {}
    # Pages of tmpfs and of the swap cache are in NR_FILE_PAGES; anonymous ones of the swap cache
    # that are mapped are in NR_ANON_MAPPED, too.
    pages["page_cache"] -= pages["shmem"] + (page_state(prog, "NR_SWAPCACHE") or 0)
    use = {name: max(count, 0) * page for name, count in pages.items()}
    use["huge_pages"] = (attempt(lambda: hugetlb_total_pages(prog)) or 0) * page
    use["kernel_stacks"] = _stacks(prog)
    use["per_cpu"] = (attempt(lambda: _per_cpu_pages(prog)) or 0) * page
    known = sum(use.values())
    if known > ram_bytes * _TOLERANCE:
        return {}
    return {**use, "other": max(ram_bytes - known, 0)}


def _stacks(prog: drgn.Program) -> int:
    # In KiB since v4.8; before, NR_KERNEL_STACK counted stacks (commit not verified).
    kibibytes = page_state(prog, "NR_KERNEL_STACK_KB")
    return max(kibibytes or 0, 0) << 10


def _per_cpu_pages(prog: drgn.Program) -> int:
    # What Percpu of /proc/meminfo is, since v4.20 (commit not verified).
    return int(prog["pcpu_nr_populated"]) * int(prog["pcpu_nr_units"])
