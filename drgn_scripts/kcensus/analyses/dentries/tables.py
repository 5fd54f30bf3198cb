# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of a census of dentries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.name_patterns import Patterns
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

_SUMS = {
    "dentries": replace(_DENTRIES, get="sums.dentries"),
    "negative": replace(_NEGATIVE, get="sums.negative"),
    "negative_unused": replace(_UNUSED, get="sums.negative_unused"),
    "negative_bytes": replace(_NEGATIVE_BYTES, get="sums.negative_bytes"),
}


@dataclass(frozen=True)
class _Summed:
    """Super blocks or memory cgroups, and the sums of their dentries; those of others follow."""

    of: Any
    sums: pd.DataFrame


def _super_blocks(figures: Figures) -> _Summed | None:
    if "super_blocks" not in figures.wanted:
        return None
    blocks, sums = figures.super_blocks, figures.census.sums("super_block")
    row = blocks.rows(sums.key.astype(np.uint64))
    sums = sums.by_row(np.where(row < 0, len(blocks), row), len(blocks) + 1)
    return _Summed(blocks, pd.DataFrame(sums.columns(figures.slot_size)))


def _devices(rows: _Summed) -> list[str]:
    return [*map(rows.of.device_name, range(len(rows.of))), ""]


def _order(rows: _Summed) -> list[int]:
    """Return the super blocks with most negative dentries first, and of equal ones the mounted."""
    blocks, negative, dentries = rows.of, rows.sums["negative"], rows.sums["dentries"]
    columns = blocks.mount, blocks.type, blocks.id, _devices(rows)[:-1], blocks.address.tolist()
    names = [*zip(*columns, strict=True), (UNKNOWN_SUPER_BLOCK, "", "", "", 0)]
    known = range(len(names) if dentries.iloc[-1] else len(blocks))
    return sorted(
        known, key=lambda row: (-negative[row], not names[row][0], -dentries[row], names[row])
    )


SUPER_BLOCKS = TableSpec("super_blocks", "Dentries by super block", {
    "mount": Column(TEXT, "mounted at", ALWAYS, "Shortest mount point.",
        lambda rows: [*rows.of.mount, UNKNOWN_SUPER_BLOCK]),
    "type": Column(TEXT, "", ALWAYS, "File system type.", lambda rows: [*rows.of.type, ""]),
    "id": Column(TEXT, "", WIDE, "super_block.s_id: name of the device or type.",
        lambda rows: [*rows.of.id, ""]),
    "device": Column(TEXT, "", DATA, "major:minor of super_block.s_dev.", _devices),
    "state": Column(TEXT, "", WIDE,
        "mounted, kernel or detached: which processes reach it by a path.",
        lambda rows: [*(state.value for state in rows.of.state), ""]),
    **_SUMS,
    "address": address("struct super_block",
        get=lambda rows: np.append(rows.of.address, np.uint64(0))),
}, "A super block, mounted or not.", key=("type", "mount"),
    series=("negative", "negative_bytes", "dentries"), rows=_super_blocks, keep=_order)  # fmt: skip

DIRECTORIES = TableSpec("directories", "Negative dentries by directory", {
    "directory": _DIRECTORY,
    "state": _PLACE,
    "negative": _NEGATIVE,
    "negative_unused": _UNUSED,
    "others": _OTHERS,
    "negative_bytes": _NEGATIVE_BYTES,
    "share": _SHARE,
    "address": _DENTRY,
}, "A directory that has negative children.", key=("directory",),
    series=("negative", "negative_bytes"), rows="most_negative")  # fmt: skip

PROCESSES = TableSpec("processes", "Processes in directories with negatives", {
    "directory": _DIRECTORY,
    "pid": Column(NONE, "PID", ALWAYS, "PID of the main thread."),
    "comm": Column(TEXT, "command", ALWAYS, "task_struct.comm of the main thread."),
    "cwd": Column(NONE, "working directory", ALWAYS, "Whether the working directory is there."),
    "open_files": Column(COUNT, "", ALWAYS, "Open files and directories there."),
    "address": address("struct task_struct", help_="Address of the main thread."),
}, "A process with a working directory or open files in or below a directory with many negatives.",
    rows="processes")  # fmt: skip

WALK_COST = TableSpec("walk_cost", "Children to visit by directory", {
    "directory": _DIRECTORY,
    "state": _PLACE,
    "watched": Column(NONE, "", ALWAYS, "Whether it has inotify, fanotify or dnotify marks."),
    "children": Column(COUNT, "", ALWAYS, "All dentries on the list of children."),
    "others": _OTHERS,
    "negative": _NEGATIVE,
    "at_tail": Column(NONE, "", WIDE, "All negative children are last in the list."),
    "sweeps": Column(COUNT, "runs before positives", DATA, "Negative runs before positives."),
    "damaged": Column(NONE, "list damaged", DATA,
        "Whether the list of children is endless, or has two ends."),
    "address": _DENTRY,
}, "A directory: watched ones first, unreachable ones last, most children first.",
    rows="walk_cost")  # fmt: skip


def _patterns(figures: Figures) -> Patterns | None:
    """Return the patterns and the rows that add up others; the last sum is of all bytes."""
    if (known := figures.patterns) is None:
        return None
    more = {
        f"({known.others} more patterns)": known.other_sums,
        UNREADABLE_NAMES: figures.census.tally.names_unreadable,
    }
    more = {name: sums for name, sums in more.items() if sums[0]}
    sums = np.vstack([known.sums, *more.values()])
    sums[:, 2] += sums[:, 0] * figures.slot_size
    # Directories of several patterns cannot be added up: they may be the same.
    directories: Any = known.directories
    if more:
        directories = pd.array([*directories.tolist(), *[None] * len(more)], dtype="Int64")
    return replace(known, texts=[*known.texts, *more], sums=sums, directories=directories)


PATTERNS = TableSpec("patterns", "Negative dentries by name pattern", {
    "pattern": Column(TEXT, "", ALWAYS, "<digits>, <hex> and X vary.", "texts"),
    "negative": replace(_NEGATIVE, get=lambda of: of.sums[:, 0]),
    "negative_unused": replace(_UNUSED, get=lambda of: of.sums[:, 1]),
    "negative_bytes": replace(_NEGATIVE_BYTES, get=lambda of: of.sums[:, 2]),
    "directories": Column(COUNT, "", WIDE, "Directories with such names."),
    "share": replace(_SHARE, get=lambda of: ratios(of.sums[:, 0], of.sums[:, 0].sum())),
}, "Names that differ only in digits, hexadecimal digits or random letters.", key=("pattern",),
    series=("negative", "negative_bytes"), rows=_patterns)  # fmt: skip


def _memcgs(figures: Figures) -> _Summed | None:
    if (groups := figures.groups) is None:
        return None
    owners, size = figures.census.sums("owner"), len(groups)
    row = np.where(figures.owner_rows < 0, size, figures.owner_rows)
    sums = owners.by_row(np.where(owners.key == 0, size + 1, row), size + 2)
    return _Summed(groups, pd.DataFrame(sums.columns(figures.slot_size)))


MEMCGS = TableSpec("memcgs", "Dentries by memory cgroup", {
    "memcg": Column(TEXT, "memory cgroup", ALWAYS, "Path of the memory cgroup.",
        lambda rows: [*rows.of.path, UNKNOWN_MEMCG, NO_MEMCG]),
    "state": Column(TEXT, "", ALWAYS, "online; offline (dying): removed but charged.",
        lambda rows: [*rows.of.states, "unknown", "none"]),
    **_SUMS | {"dentries": replace(_SUMS["dentries"], show=WIDE)},
    "address": address("struct mem_cgroup", help_="Address of mem_cgroup; 0 without one.",
        get=lambda rows: np.append(rows.of.address, np.zeros(2, np.uint64))),
}, f"A memory cgroup; {NO_MEMCG}: dentries charged to none.", ("negative", "memcg"), key=("memcg",),
    series=("negative", "negative_bytes", "dentries"), rows=_memcgs,
    keep=lambda rows: rows.sums["dentries"] > 0)  # fmt: skip

FRAGMENTATION = TableSpec("fragmentation", "Slabs by dentries that pin them", {
    "pinned_by": Column(COUNT, "", ALWAYS, "Dentries that are positive or in use."),
    "slabs": Column(COUNT, "", ALWAYS, "Number of such slabs."),
    "pages": Column(PAGES, "", DATA, "Pages of these slabs."),
    "bytes": Column(BYTES, "", ALWAYS, "Pages of these slabs."),
    "dentries": Column(COUNT, "", WIDE, _DENTRIES.help),
    "negative_unused": Column(COUNT, "unused negative", ALWAYS, _UNUSED.help),
    "free_slots": Column(COUNT, "", WIDE, "Slots that hold no dentry."),
}, "Slabs pinned by the same number of dentries; 0: freed by dropping all unused negatives.",
    rows="fragmentation")  # fmt: skip

CHAINS = TableSpec("chains", "Hash chains by length", {
    "length": Column(COUNT, "dentries in chain", ALWAYS, _LENGTH.help,
        lambda of: np.flatnonzero(of.lengths)),
    "buckets": replace(_BUCKETS, get=lambda of: of.lengths[of.lengths > 0]),
    "dentries": Column(COUNT, "", ALWAYS, "Dentries in chains of this length.",
        lambda of: (np.arange(len(of.lengths)) * of.lengths)[of.lengths > 0]),
    "negative": replace(_NEGATIVE, get=lambda of: of.negative[of.lengths > 0]),
}, "Buckets with the same number of dentries.", rows="chains")  # fmt: skip

NEGATIVE_RUNS = TableSpec("negative_runs", "Hash buckets by longest negative run", {
    "run": replace(_RUN, get=lambda of: np.flatnonzero(of.runs)),
    "buckets": replace(_BUCKETS, get=lambda of: of.runs[of.runs > 0]),
}, "Buckets with an equally long longest run.", rows="chains")  # fmt: skip

LONGEST_CHAINS = TableSpec("longest_chains", "Longest hash chains", {
    "bucket": Column(NONE, "", ALWAYS, "Number of the hash bucket."),
    "length": _LENGTH,
    "negative": _NEGATIVE,
    "run": _RUN,
}, "A hash bucket.", rows=lambda figures: figures.chains and figures.chains.longest)  # fmt: skip

LIMITS = TableSpec("limits", "Limits and settings of this kernel", {
    "setting": Column(TEXT, "", ALWAYS, "Name of the sysctl."),
    "value": Column(NONE, "", ALWAYS, "Current value."),
    "meaning": Column(TEXT, "", WIDE, "Effect of the value."),
}, "A sysctl that limits or weighs dentries.", rows="limits")  # fmt: skip

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
