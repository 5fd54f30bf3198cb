# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose negative dentries are these, what do they cost, and what would a limit leave?

Symptom: memory fills with ``dentry`` slabs although few files exist; adding or removing an inotify
watch ends in a soft lockup; ``echo 2 > drop_caches`` frees little. Programs that look up names that
do not exist leave a negative dentry for each, and no limit applies by default.
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
    question="whose negative dentries are these, what do they cost, and what would a limit leave?",
    runner="kcensus.analyses.dentries.run:run",
    specs="kcensus.analyses.dentries.tables:TABLES",
    charts="kcensus.analyses.dentries.charts:CHARTS",
    ram="kcensus.analyses.dentries.charts:ram",
    gauges="kcensus.analyses.dentries.checks:gauges",
    headline=("negative", "negative_bytes", "slab_bytes"),
    first_tables=("directories", "patterns", "super_blocks"),
    description="""\
A negative dentry records that a name does not exist. It uses a slot of the dentry cache, and a slot
of kmalloc if its name is too long for the dentry (an external name); `bytes` are these slots.

The tables of directories and patterns show which names were looked up: in patterns, digits,
hexadecimal digits and random letters are written as <digits>, <hex> and XXXXXX.

A slab page is freed only when all dentries on it are gone: the table fragmentation shows how many
dentries pin each slab. The table walk_cost shows how many children a visit of a directory passes;
directories with inotify or fanotify watches come first, since the kernel itself visits those.

The table processes shows who has a working directory or open files in the directories with most
negative dentries, or below them: these processes may look up the names. A process that looks up a
name and keeps nothing open is not there; the finding has a command that shows it as it happens.

patched_negative is the number of negative dentries that the rule of the series "fix the negative
dentres bloating system memory usage" would keep: of each run of unreferenced negative dentries in a
hash bucket, the first three. An external name that several dentries share counts for each of them.
""",
    examples=(
        ("kcensus dentries vmcore -s vmlinux", "the census of a dump"),
        ("kcensus dentries vmcore --only super_blocks,directories", "only where they are"),
        ("kcensus dentries vmcore --json | jq .tables.patterns", "name patterns for a script"),
    ),
    params=(
        Param(
            "only",
            str,
            None,
            f"Only totals and these parts, separated by commas: {', '.join(PARTS)}.",
        ),
        Param(
            "limit",
            int,
            1000,
            "Rows of the tables of directories and patterns; the others are added up. "
            "The table walk_cost has at most 100.",
        ),
    ),
)
