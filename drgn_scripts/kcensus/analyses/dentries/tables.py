# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a census of dentries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.name_patterns import Patterns
from kcensus.kernel.memcg.memcgs import Memcgs
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec, ratios

NO_MEMCG = "(no memory cgroup)"
UNKNOWN_MEMCG = "(unknown memory cgroup)"
UNKNOWN_SUPER_BLOCK = "(unknown super block)"
UNREADABLE_NAMES = "(names that could not be read)"

_TEXT, _COUNT, _BYTES, _RATIO, _NONE = Unit.TEXT, Unit.COUNT, Unit.BYTES, Unit.RATIO, Unit.NONE
_WIDE, _ALWAYS, _DATA = Show.WIDE, Show.ALWAYS, Show.DATA

_DENTRIES = Column(_COUNT, "dentries", _ALWAYS, "Dentries of any kind.")
_NEGATIVE = Column(_COUNT, "negative", _ALWAYS, "Negative dentries: names that do not exist.")
_UNUSED = Column(_COUNT, "unused", _WIDE, "Negative dentries with refcount 0.")
_NEGATIVE_BYTES = Column(_BYTES, "bytes", _ALWAYS, "Slots of negative dentries and of long names.")
_SHARE = Column(_RATIO, "of all negative", _WIDE, "Share of all negative dentries.")
_DIRECTORY = Column(_TEXT, "dir", _ALWAYS, "Path of the directory; ? where its start is unknown.")
_STATE = "State of its super block, or unhashed (removed), disconnected, or unreadable."
_PLACE = Column(_TEXT, "state", _WIDE, _STATE)
_OTHERS = Column(_COUNT, "other children", _WIDE, "Children that are not negative.")
_DENTRY = Column(Unit.ADDRESS, "dentry", _DATA, "Address of the directory's dentry.")
_BUCKETS = Column(_COUNT, "buckets", _ALWAYS, "Hash buckets.")
_LENGTH = Column(_COUNT, "dentries", _ALWAYS, "Dentries in the hash chain.")
_RUN = Column(_COUNT, "longest run", _ALWAYS, "Longest run of unreferenced negative dentries.")

SUPER_BLOCKS = TableSpec(
    "super_blocks",
    "Dentries by super block",
    {
        "mount": Column(_TEXT, "mounted at", _ALWAYS, "Shortest mount point."),
        "type": Column(_TEXT, "type", _ALWAYS, "File system type."),
        "id": Column(_TEXT, "id", _WIDE, "super_block.s_id: name of the device or type."),
        "device": Column(_TEXT, "device", _DATA, "major:minor of super_block.s_dev."),
        "state": Column(_TEXT, "state", _WIDE, "Whether a path leads to it, and for whom."),
        "dentries": _DENTRIES,
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "negative_bytes": _NEGATIVE_BYTES,
        "address": Column(Unit.ADDRESS, "super_block", _DATA, "Address of the super block."),
    },
    "A super block, mounted or not.",
    key=("type", "mount"),
    series=("negative", "negative_bytes", "dentries"),
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
)

PROCESSES = TableSpec(
    "processes",
    "Processes in directories with negatives",
    {
        "directory": _DIRECTORY,
        "pid": Column(_NONE, "PID", _ALWAYS, "PID of its main thread."),
        "comm": Column(_TEXT, "command", _ALWAYS, "task_struct.comm of its main thread."),
        "cwd": Column(_NONE, "working directory", _ALWAYS, "Its working directory is there."),
        "open_files": Column(_COUNT, "open files", _ALWAYS, "Files and directories it has open."),
    },
    "A process with a working directory or open files in a directory of most negatives, or below.",
)

WALK_COST = TableSpec(
    "walk_cost",
    "Children to visit by directory",
    {
        "directory": _DIRECTORY,
        "state": _PLACE,
        "watched": Column(_NONE, "watched", _ALWAYS, "Has inotify, fanotify or dnotify marks."),
        "children": Column(_COUNT, "children", _ALWAYS, "All dentries on its list of children."),
        "others": _OTHERS,
        "negative": _NEGATIVE,
        "at_tail": Column(_NONE, "at tail", _WIDE, "All negative children end the list."),
        "sweeps": Column(_COUNT, "runs before positives", _DATA, "Negative runs before the tail."),
        "damaged": Column(_NONE, "list damaged", _DATA, "The list does not end, or ends twice."),
        "address": _DENTRY,
    },
    "A directory: watched ones first, those that no path leads to last, most children first.",
)

PATTERNS = TableSpec(
    "patterns",
    "Negative dentries by name pattern",
    {
        "pattern": Column(_TEXT, "pattern", _ALWAYS, "<digits>, <hex> and X are what varies."),
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "negative_bytes": _NEGATIVE_BYTES,
        "directories": Column(_COUNT, "directories", _WIDE, "Directories that have such names."),
        "share": _SHARE,
    },
    "Names that differ only in digits, hexadecimal digits or random letters.",
    key=("pattern",),
    series=("negative", "negative_bytes"),
)

MEMCGS = TableSpec(
    "memcgs",
    "Dentries by memory cgroup",
    {
        "memcg": Column(_TEXT, "memory cgroup", _ALWAYS, "Path of the memory cgroup."),
        "state": Column(_TEXT, "state", _ALWAYS, "online; offline (dying): removed but charged."),
        "dentries": Column(_COUNT, "dentries", _WIDE, _DENTRIES.help),
        "negative": _NEGATIVE,
        "negative_unused": _UNUSED,
        "negative_bytes": _NEGATIVE_BYTES,
    },
    f"A memory cgroup; {NO_MEMCG} has the dentries that are charged to none.",
    ("negative", "memcg"),
    key=("memcg",),
    series=("negative", "negative_bytes", "dentries"),
)

FRAGMENTATION = TableSpec(
    "fragmentation",
    "Slabs by dentries that pin them",
    {
        "pinned_by": Column(_COUNT, "pinned by", _ALWAYS, "Dentries not unused and negative."),
        "slabs": Column(_COUNT, "slabs", _ALWAYS, "Slabs that so many dentries pin."),
        "pages": Column(Unit.PAGES, "pages", _DATA, "Pages of these slabs."),
        "bytes": Column(_BYTES, "bytes", _ALWAYS, "Pages of these slabs."),
        "dentries": Column(_COUNT, "dentries", _WIDE, _DENTRIES.help),
        "negative_unused": Column(_COUNT, "unused negative", _ALWAYS, _UNUSED.help),
        "free_slots": Column(_COUNT, "free slots", _WIDE, "Slots that hold no dentry."),
    },
    "Slabs that equally many dentries pin; 0: dropping all unused negative dentries frees them.",
)

CHAINS = TableSpec(
    "chains",
    "Hash chains by length",
    {
        "length": Column(_COUNT, "dentries in chain", _ALWAYS, _LENGTH.help),
        "buckets": _BUCKETS,
        "dentries": Column(_COUNT, "dentries", _ALWAYS, "Dentries in chains of this length."),
        "negative": _NEGATIVE,
    },
    "Buckets with equally many dentries.",
)

NEGATIVE_RUNS = TableSpec(
    "negative_runs",
    "Hash buckets by longest negative run",
    {"run": _RUN, "buckets": _BUCKETS},
    "Buckets whose longest run of unreferenced negative dentries is equally long.",
)

LONGEST_CHAINS = TableSpec(
    "longest_chains",
    "Longest hash chains",
    {
        "bucket": Column(_NONE, "bucket", _ALWAYS, "Number of the hash bucket."),
        "length": _LENGTH,
        "negative": _NEGATIVE,
        "run": _RUN,
    },
    "A hash bucket.",
)

LIMITS = TableSpec(
    "limits",
    "Limits and settings of this kernel",
    {
        "setting": Column(_TEXT, "setting", _ALWAYS, "Name of the sysctl."),
        "value": Column(_NONE, "value", _ALWAYS, "Its value."),
        "meaning": Column(_TEXT, "meaning", _WIDE, "What the value does."),
    },
    "A sysctl that bears on the number of dentries.",
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


def tables(figures: Figures) -> dict[str, Table]:
    """Return the tables of all wanted parts by name."""
    rows: dict[str, Any] = {
        "directories": figures.most_negative,
        "processes": figures.processes,
        "walk_cost": figures.walk_cost,
        "fragmentation": figures.fragmentation if "fragmentation" in figures.wanted else None,
        "limits": figures.limits,
    }
    if "super_blocks" in figures.wanted:
        rows["super_blocks"] = _super_blocks(figures)
    if figures.patterns is not None:
        rows["patterns"] = _patterns(figures, figures.patterns)
    if figures.groups is not None:
        rows["memcgs"] = _memcgs(figures, figures.groups)
    chains = figures.chains
    if chains is not None:
        length, run = np.flatnonzero(chains.lengths), np.flatnonzero(chains.runs)
        buckets = chains.lengths[length]
        rows["chains"] = {
            "length": length,
            "buckets": buckets,
            "dentries": length * buckets,
            "negative": chains.negative[length],
        }
        rows["negative_runs"] = {"run": run, "buckets": chains.runs[run]}
        rows["longest_chains"] = chains.longest
    return {
        spec.name: spec.of(rows[spec.name]) for spec in TABLES if rows.get(spec.name) is not None
    }


def _super_blocks(figures: Figures) -> pd.DataFrame:
    """Return dentries by super block, and in a row of their own those of unknown super blocks."""
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


def _patterns(figures: Figures, patterns: Patterns) -> dict[str, Any]:
    """Return the patterns of most names; the others, and unreadable names, in a row each."""
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


def _memcgs(figures: Figures, groups: Memcgs) -> pd.DataFrame:
    owners, size = figures.census.sums("owner"), len(groups)
    row = np.where(figures.owner_rows < 0, size, figures.owner_rows)
    sums = owners.by_row(np.where(owners.key == 0, size + 1, row), size + 2)
    frame = pd.DataFrame(
        {
            "memcg": [*groups.path, UNKNOWN_MEMCG, NO_MEMCG],
            "state": [*np.where(groups.online, "online", "offline"), "unknown", "none"],
            **sums.columns(figures.slot_size),
        }
    )
    return frame[frame["dentries"] > 0]
