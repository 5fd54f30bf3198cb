# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a census of dentries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.dentries.figures import Figures
from kcensus.charts import ChartSpec, RamUse
from kcensus.results import Result
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    PAGES,
    RATIO,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    address,
    ratios,
)

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"
UNKNOWN_SUPER_BLOCK = "(unknown super block)"
UNREADABLE_NAMES = "(names that could not be read)"

_DENTRIES = Column(COUNT, "dentries", ALWAYS, "Dentries of any kind.")
_NEGATIVE = Column(COUNT, "negative", ALWAYS, "Negative dentries: names that do not exist.")
_UNUSED = Column(COUNT, "unused", WIDE, "Negative dentries with refcount 0.")
_NEGATIVE_BYTES = Column(BYTES, "bytes", ALWAYS, "Slots of negative dentries and external names.")
_SHARE = Column(RATIO, "of all negative", WIDE, "Share of all negative dentries.")
_DIRECTORY = Column(TEXT, "dir", ALWAYS, "Path; ? replaces an unknown start.")
_STATE = "State of the super block; or unhashed (removed), disconnected, unreadable."
_PLACE = Column(TEXT, "state", WIDE, _STATE)
_OTHERS = Column(COUNT, "other children", WIDE, "Children that are not negative.")
_DENTRY = address("struct dentry", help_="Address of the directory's dentry.")
_BUCKETS = Column(COUNT, "buckets", ALWAYS, "Hash buckets.")
_LENGTH = Column(COUNT, "dentries", ALWAYS, "Dentries in the hash chain.")
_RUN = Column(COUNT, "longest run", ALWAYS, "Longest run of unreferenced negative dentries.")


def _super_blocks(figures: Figures) -> pd.DataFrame | None:
    if "super_blocks" not in figures.wanted:
        return None
    blocks, size = figures.super_blocks, len(figures.super_blocks)
    by_address = figures.census.sums("super_block")
    row = blocks.rows(by_address.key.astype(np.uint64))
    frame = pd.DataFrame(
        {
            "mount": [*blocks.mount, UNKNOWN_SUPER_BLOCK],
            "type": [*blocks.type, ""],
            "id": [*blocks.id, ""],
            "device": [*(blocks.device_name(row) for row in range(size)), ""],
            "state": [*(state.value for state in blocks.state), ""],
            "address": np.append(blocks.address, np.uint64(0)),
            **by_address.by_row(np.where(row < 0, size, row), size + 1).columns(figures.slot_size),
        }
    )
    if not frame["dentries"].iloc[size]:
        frame = frame.iloc[:size]
    return frame.assign(hidden=(frame["mount"] == "")).sort_values(
        ["negative", "hidden", "dentries", "mount", "type", "id", "device", "address"],
        ascending=[False, True, False, *[True] * 5],
    )


SUPER_BLOCKS = TableSpec(
    "super_blocks",
    "Dentries by super block",
    {
        "mount": Column(TEXT, "mounted at", ALWAYS, "Shortest mount point."),
        "type": Column(TEXT, "type", ALWAYS, "File system type."),
        "id": Column(TEXT, "id", WIDE, "super_block.s_id: name of the device or type."),
        "device": Column(TEXT, "device", DATA, "major:minor of super_block.s_dev."),
        "state": Column(
            TEXT, "state", WIDE, "mounted, kernel or detached: which processes reach it by a path."
        ),
        "dentries": _DENTRIES,
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "negative_bytes": _NEGATIVE_BYTES,
        "address": address("struct super_block"),
    },
    "A super block, mounted or not.",
    key=("type", "mount"),
    series=("negative", "negative_bytes", "dentries"),
    rows=_super_blocks,
)

DIRECTORIES = TableSpec(
    "directories",
    "Negative dentries by directory",
    {
        "directory": _DIRECTORY,
        "state": _PLACE,
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "others": _OTHERS,
        "negative_bytes": _NEGATIVE_BYTES,
        "share": _SHARE,
        "address": _DENTRY,
    },
    "A directory that has negative children.",
    key=("directory",),
    series=("negative", "negative_bytes"),
    rows=lambda figures: figures.most_negative,
)

PROCESSES = TableSpec(
    "processes",
    "Processes in directories with negatives",
    {
        "directory": _DIRECTORY,
        "pid": Column(NONE, "PID", ALWAYS, "PID of the main thread."),
        "comm": Column(TEXT, "command", ALWAYS, "task_struct.comm of the main thread."),
        "cwd": Column(NONE, "working directory", ALWAYS, "Whether the working directory is there."),
        "open_files": Column(COUNT, "open files", ALWAYS, "Open files and directories there."),
        "address": address("struct task_struct", help_="Address of the main thread."),
    },
    "A process with a working directory or open files in or below a directory with many negatives.",
    rows=lambda figures: figures.processes,
)

WALK_COST = TableSpec(
    "walk_cost",
    "Children to visit by directory",
    {
        "directory": _DIRECTORY,
        "state": _PLACE,
        "watched": Column(
            NONE, "watched", ALWAYS, "Whether it has inotify, fanotify or dnotify marks."
        ),
        "children": Column(COUNT, "children", ALWAYS, "All dentries on the list of children."),
        "others": _OTHERS,
        "negative": _NEGATIVE,
        "at_tail": Column(NONE, "at tail", WIDE, "All negative children are last in the list."),
        "sweeps": Column(COUNT, "runs before positives", DATA, "Negative runs before positives."),
        "damaged": Column(
            NONE, "list damaged", DATA, "Whether the list of children is endless, or has two ends."
        ),
        "address": _DENTRY,
    },
    "A directory: watched ones first, unreachable ones last, most children first.",
    rows=lambda figures: figures.walk_cost,
)


def _patterns(figures: Figures) -> dict[str, Any] | None:
    if (patterns := figures.patterns) is None:
        return None
    more = {
        f"({patterns.others} more patterns)": patterns.other_sums,
        UNREADABLE_NAMES: figures.census.tally.names_unreadable,
    }
    more = {name: sums for name, sums in more.items() if sums[0]}
    negative, unused, name_bytes = np.vstack([patterns.sums, *more.values()]).T
    # Directories of several patterns cannot be added up: they may be the same.
    directories: Any = patterns.directories
    if more:
        directories = pd.array([*directories.tolist(), *[None] * len(more)], dtype="Int64")
    return {
        "pattern": [*patterns.texts, *more],
        "negative": negative,
        "negative_unused": unused,
        "negative_bytes": negative * figures.slot_size + name_bytes,
        "directories": directories,
        "share": ratios(negative, negative.sum()),
    }


PATTERNS = TableSpec(
    "patterns",
    "Negative dentries by name pattern",
    {
        "pattern": Column(TEXT, "pattern", ALWAYS, "<digits>, <hex> and X vary."),
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "negative_bytes": _NEGATIVE_BYTES,
        "directories": Column(COUNT, "directories", WIDE, "Directories with such names."),
        "share": _SHARE,
    },
    "Names that differ only in digits, hexadecimal digits or random letters.",
    key=("pattern",),
    series=("negative", "negative_bytes"),
    rows=_patterns,
)


def _memcgs(figures: Figures) -> pd.DataFrame | None:
    if (groups := figures.groups) is None:
        return None
    owners, size = figures.census.sums("owner"), len(groups)
    row = np.where(figures.owner_rows < 0, size, figures.owner_rows)
    sums = owners.by_row(np.where(owners.key == 0, size + 1, row), size + 2)
    frame = pd.DataFrame(
        {
            "memcg": [*groups.path, UNKNOWN_MEMCG, NO_MEMCG],
            "state": [*np.where(groups.online, "online", "offline"), "unknown", "none"],
            "address": np.append(groups.address, np.zeros(2, np.uint64)),
            **sums.columns(figures.slot_size),
        }
    )
    return frame[frame["dentries"] > 0]


MEMCGS = TableSpec(
    "memcgs",
    "Dentries by memory cgroup",
    {
        "memcg": Column(TEXT, "memory cgroup", ALWAYS, "Path of the memory cgroup."),
        "state": Column(TEXT, "state", ALWAYS, "online; offline (dying): removed but charged."),
        "dentries": Column(COUNT, "dentries", WIDE, _DENTRIES.help),
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "negative_bytes": _NEGATIVE_BYTES,
        "address": address("struct mem_cgroup", help_="Address of mem_cgroup; 0 without one."),
    },
    f"A memory cgroup; {NO_MEMCG}: dentries charged to none.",
    ("negative", "memcg"),
    key=("memcg",),
    series=("negative", "negative_bytes", "dentries"),
    rows=_memcgs,
)

FRAGMENTATION = TableSpec(
    "fragmentation",
    "Slabs by dentries that pin them",
    {
        "pinned_by": Column(COUNT, "pinned by", ALWAYS, "Dentries that are positive or in use."),
        "slabs": Column(COUNT, "slabs", ALWAYS, "Number of such slabs."),
        "pages": Column(PAGES, "pages", DATA, "Pages of these slabs."),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Pages of these slabs."),
        "dentries": Column(COUNT, "dentries", WIDE, _DENTRIES.help),
        "negative_unused": Column(COUNT, "unused negative", ALWAYS, _UNUSED.help),
        "free_slots": Column(COUNT, "free slots", WIDE, "Slots that hold no dentry."),
    },
    "Slabs pinned by the same number of dentries; 0: freed by dropping all unused negatives.",
    rows=lambda figures: figures.fragmentation if "fragmentation" in figures.wanted else None,
)

CHAINS = TableSpec(
    "chains",
    "Hash chains by length",
    {
        "length": Column(
            COUNT, "dentries in chain", ALWAYS, _LENGTH.help, lambda of: np.flatnonzero(of.lengths)
        ),
        "buckets": replace(_BUCKETS, get=lambda of: of.lengths[of.lengths > 0]),
        "dentries": Column(
            COUNT,
            "dentries",
            ALWAYS,
            "Dentries in chains of this length.",
            lambda of: (np.arange(len(of.lengths)) * of.lengths)[of.lengths > 0],
        ),
        "negative": replace(_NEGATIVE, get=lambda of: of.negative[of.lengths > 0]),
    },
    "Buckets with the same number of dentries.",
    rows=lambda figures: figures.chains,
)

NEGATIVE_RUNS = TableSpec(
    "negative_runs",
    "Hash buckets by longest negative run",
    {
        "run": replace(_RUN, get=lambda of: np.flatnonzero(of.runs)),
        "buckets": replace(_BUCKETS, get=lambda of: of.runs[of.runs > 0]),
    },
    "Buckets with an equally long longest run.",
    rows=lambda figures: figures.chains,
)

LONGEST_CHAINS = TableSpec(
    "longest_chains",
    "Longest hash chains",
    {
        "bucket": Column(NONE, "bucket", ALWAYS, "Number of the hash bucket."),
        "length": _LENGTH,
        "negative": _NEGATIVE,
        "run": _RUN,
    },
    "A hash bucket.",
    rows=lambda figures: figures.chains and figures.chains.longest,
)

LIMITS = TableSpec(
    "limits",
    "Limits and settings of this kernel",
    {
        "setting": Column(TEXT, "setting", ALWAYS, "Name of the sysctl."),
        "value": Column(NONE, "value", ALWAYS, "Current value."),
        "meaning": Column(TEXT, "meaning", WIDE, "Effect of the value."),
    },
    "A sysctl that limits or weighs dentries.",
    rows=lambda figures: figures.limits,
)

TABLES = (
    SUPER_BLOCKS,
    DIRECTORIES,
    PROCESSES,
    WALK_COST,
    PATTERNS,
    MEMCGS,
    FRAGMENTATION,
    CHAINS,
    NEGATIVE_RUNS,
    LONGEST_CHAINS,
    LIMITS,
)

CHARTS = (
    ChartSpec(
        "directories",
        "directories",
        "Directories with most negative dentries",
        ("negative",),
        "directory",
        measure="negative dentries",
    ),
    ChartSpec(
        "patterns",
        "patterns",
        "Names with most negative dentries",
        ("negative",),
        "pattern",
        measure="negative dentries",
    ),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield the slab pages of dentries; external names are in slabs of other caches."""
    yield RamUse("dentries", result.amount("slab_bytes"), in_slabs=True)
