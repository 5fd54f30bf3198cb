# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where are the negative dentries, what do they cost, and how many would a limit leave?

Symptom: memory fills with ``dentry`` slabs although few files exist; adding or removing an inotify
watch ends in a soft lockup; ``echo 2 > drop_caches`` frees little.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

PARTS = (
    "super_blocks",
    "directories",
    "processes",
    "patterns",
    "memcgs",
    "chains",
    "walk_cost",
    "fragmentation",
)
"""Parts to choose from; totals are always taken."""

ANALYSIS = Analysis(
    name="dentries",
    question="where are the negative dentries, what do they cost, how many would a limit leave?",
    plain="names of files that the kernel remembers",
    gauges="kcensus.analyses.dentries.checks:gauges",
    headline=("negative", "negative_bytes", "slab_bytes"),
    first_tables=("directories", "patterns", "super_blocks"),
    description="""\
A negative dentry records that a name does not exist. It uses a slot of the dentry cache, and a slot
of kmalloc if its name is too long for the dentry (an external name); `bytes` counts both.

The tables of directories and patterns show which names were looked up: in patterns, digits,
hexadecimal digits and random letters are written as <digits>, <hex> and XXXXXX.

A slab page is freed only with its last dentry: the table fragmentation shows how many dentries pin
each slab. The table walk_cost shows how many children a walk over a directory visits; directories
with inotify or fanotify watches come first, since the kernel itself walks them.

The table processes lists processes with a working directory or open files in or below the
directories with most negative dentries: they may look up the names. Processes that keep nothing
open are missing from the table; the finding has a bpftrace command that counts lookups.

patched_negative is the number of negative dentries left by the series "fix the negative dentres
bloating system memory usage", which keeps the first three of each run of unreferenced negative
dentries in a hash bucket. An external name shared by several dentries counts for each.
""",
    examples=(
        ("kcensus dentries vmcore -s vmlinux", "the census of a dump"),
        ("kcensus dentries vmcore --only super_blocks,directories", "two tables only"),
        ("kcensus dentries vmcore --json | jq .tables.patterns", "name patterns for a script"),
    ),
    params=(
        Param(
            "only",
            str,
            None,
            f"Compute only the totals and these parts, separated by commas: {', '.join(PARTS)}.",
            ("totals", *PARTS),
        ),
        Param(
            "limit",
            int,
            1000,
            "Rows of the tables directories and patterns; one row sums the others. The table "
            "walk_cost has at most 100.",
        ),
    ),
)
