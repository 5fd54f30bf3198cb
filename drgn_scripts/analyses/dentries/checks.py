# SPDX-License-Identifier: LGPL-2.1-or-later
"""A census of dentries, held against what the kernel counts itself."""

from __future__ import annotations

from contextlib import suppress

import drgn

from drgn_scripts.engine.memory import Memory
from drgn_scripts.kernel.dcache import counter, lru_items
from drgn_scripts.kernel.dentry_census import DEAD, DENTRY, NEGATIVE, ON_LRU, ON_SHRINK, Census
from drgn_scripts.kernel.superblocks import SuperBlocks
from drgn_scripts.results import Check


def dentry_checks(
    memory: Memory, census: Census, super_blocks: SuperBlocks | None, live: bool
) -> list[Check]:
    """All dentries, those on LRU lists, and the negative ones among them."""
    prog = memory.prog
    note = "the kernel went on while it was read" if live else ""
    unused, source = counter(prog, "nr_dentry_unused"), "nr_dentry_unused"
    if "nr_dentry_unused" not in prog:
        # Up to 3.11, and in RHEL 7, it is one number instead of one for each CPU.
        source = "dentry_stat.nr_unused"
        with suppress(LookupError, AttributeError, drgn.FaultError):
            unused = int(prog["dentry_stat"].nr_unused)
    on_list = census.count(ON_LRU, ON_SHRINK)
    items, lost = (None, 0) if super_blocks is None else lru_items(memory, super_blocks.address)
    return [
        # What was killed is no longer counted, but its memory is free only after an RCU period.
        Check(
            "dentries",
            census.count(DENTRY, DEAD),
            counter(prog, "nr_dentry"),
            source="nr_dentry",
            note=note,
        ),
        Check("on LRU and shrink lists", census.count(ON_LRU), unused, source=source, note=note),
        # Since 5.0; what is on a shrink list is not counted.
        Check(
            "negative, on LRU lists",
            census.count(ON_LRU | NEGATIVE, ON_SHRINK),
            counter(prog, "nr_dentry_negative"),
            source="nr_dentry_negative",
            note=note,
        ),
        Check(
            "on LRU lists",
            on_list,
            items,
            source="list_lru_node.nr_items of s_dentry_lru",
            note=f"{lost} list heads could not be read" if lost else note,
        ),
    ]
