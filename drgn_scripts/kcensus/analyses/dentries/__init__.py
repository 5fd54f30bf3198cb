# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose negative dentries are these, what do they cost, and what would a limit leave?

Symptom: memory fills with ``dentry`` slabs although few files exist; adding or removing an inotify
watch ends in a soft lockup; ``echo 2 > drop_caches`` gives little back. Programs that look up names
that do not exist leave a negative dentry for each, and nothing bounds their number.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

PARTS = ("superblocks", "directories", "patterns", "memcgs", "chains", "walk_cost", "fragmentation")
"""What can be asked for; totals are always there."""

ANALYSIS = Analysis(
    name="dentries",
    question="whose negative dentries are these, what do they cost, and what would a limit leave?",
    runner="kcensus.analyses.dentries.run:run",
    description="""\
A negative dentry remembers that a name does not exist. Each takes a slot of the dentry cache, and
one of kmalloc if its name is long; `bytes` are those slots.

Directories and patterns tell who looks up such names: digits, hexadecimal and random stretches of
names are written as <digits>, <hex> and XXXXXX. A page comes back only when all dentries on it are
gone: fragmentation shows what pins them. walk_cost has what a visitor of a directory must pass;
directories with inotify or fanotify watches come first, since the kernel itself visits them.

patched_negative is what this dump would have under the rule of the series "fix the negative dentres
bloating system memory usage": at most three unreferenced negatives in a row in each hash bucket,
of a longer row the first three. A long name that several dentries share counts for each of them.
""",
    examples=(
        ("kcensus dentries vmcore -s vmlinux", "the census of a dump"),
        ("kcensus dentries vmcore --only superblocks,directories", "where they are, and no more"),
        ("kcensus dentries vmcore --json | jq .tables.patterns", "name patterns for a script"),
    ),
    params=(
        Param(
            "only",
            str,
            None,
            f"Only totals and these parts, separated by commas: {', '.join(PARTS)}.",
        ),
        Param("limit", int, 1000, "Rows of the tables of directories and patterns in data."),
    ),
)
