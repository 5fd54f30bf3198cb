# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of memory cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from kcensus.analyses.memcgs.figures import Counts, Figures
from kcensus.charts import ChartSpec, RamUse
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM
from kcensus.kernel.memcg.charges import KINDS as CHARGES
from kcensus.kernel.memcg.memcgs import newer_states
from kcensus.results import Result
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    PAGES,
    TEXT,
    Column,
    TableSpec,
    address,
)

UNKNOWN = "unknown"
"""Kind of references without a known holder."""

_MEMCG = Column(TEXT, "memory cgroup", ALWAYS, "Path before the removal.")
_PIN = Column(
    TEXT,
    "pinned by",
    ALWAYS,
    "page cache, shmem, anonymous, kernel: charged pages; sockets; swap; writeback; children: "
    "offline memory cgroups below it; child caches (up to 5.2); unknown.",
)
_TYPE = Column(TEXT, "type", ALWAYS, "File system type.")
_MOUNT = Column(TEXT, "mounted on", ALWAYS, "A mount point of the file system.")


def _held(figures: Figures) -> dict[str, Counts]:
    return {**figures.pins.held, UNKNOWN: figures.pins.unexplained}


def _pins(figures: Figures) -> pd.DataFrame:
    pages = figures.charges.pages.sum(axis=0) * figures.page_size
    sizes = dict(zip(CHARGES, pages.tolist(), strict=True))
    rows = [
        (kind, int((held > 0).sum()), int(held.sum()), sizes.get(kind, 0))
        for kind, held in _held(figures).items()
        if held.any()
    ]
    return pd.DataFrame(rows, columns=[*PINS.columns])


PINS = TableSpec(
    "pins",
    "Holders of offline memory cgroups",
    {
        "kind": _PIN,
        "memcgs": Column(COUNT, "memory cgroups", ALWAYS, "Pinned memory cgroups."),
        "references": Column(COUNT, "references", ALWAYS, "References of these holders."),
        "bytes": Column(BYTES, "pages", ALWAYS, "Charged pages."),
    },
    "A kind of holder.",
    ("memcgs", "kind"),
    key=("kind",),
    series=("memcgs", "bytes"),
    rows=_pins,
)


def _mounts(figures: Figures) -> pd.DataFrame:
    files = figures.pins.files
    files = files[files["pages"] > 0].assign(bytes=files["pages"] * figures.page_size)
    grouped = files.groupby(["type", "mount", "kind"], as_index=False)
    return grouped.agg(
        memcgs=("memcg", "nunique"), files=("inode", "nunique"), bytes=("bytes", "sum")
    )


MOUNTS = TableSpec(
    "mounts",
    "File systems of charged pages",
    {
        "type": _TYPE,
        "mount": _MOUNT,
        "kind": _PIN,
        "memcgs": Column(COUNT, "memory cgroups", ALWAYS, "Memory cgroups pinned by these files."),
        "files": Column(COUNT, "files", ALWAYS, "Files with charged pages."),
        "bytes": Column(BYTES, "charged", ALWAYS, "Pages charged to offline memory cgroups."),
    },
    "A file system with pages charged to offline memory cgroups; from a sample of files.",
    ("bytes", "type", "mount", "kind"),
    key=("type", "mount"),
    series=("bytes", "memcgs"),
    rows=_mounts,
)


def pinned_by(figures: Figures) -> list[str]:
    """Return the kinds of holders of each memory cgroup, by descending number of references."""
    held = _held(figures)
    kinds, counts = [*held], np.stack([*held.values()])
    order = np.argsort(-counts, axis=0, kind="stable")
    texts = []
    for row in range(counts.shape[1]):
        present = [kinds[index] for index in order[:, row].tolist() if counts[index, row]]
        texts.append(", ".join(present))
    return texts


def _offline(figures: Figures) -> pd.DataFrame:
    structures, pins = figures.structures, figures.pins
    pages = figures.charges.pages * figures.page_size
    frame = pd.DataFrame(
        {
            "memcg": figures.groups.path,
            "pinned_by": pinned_by(figures),
            "newer": newer_states(figures.kernel),
            "bytes": figures.bytes,
            "structure_bytes": structures.slab + structures.shrinker_maps,
            "per_cpu_bytes": structures.per_cpu,
            "file_bytes": pages[:, FILE],
            "shmem_bytes": pages[:, SHMEM],
            "anon_bytes": pages[:, ANON],
            "kernel_bytes": pages[:, KERNEL],
            "swapped_pages": pins.swapped,
            "sockets": pins.held["sockets"],
            "references": pd.Series(pins.refs, dtype="Int64").mask(pins.refs < 0),
            "unexplained": pins.unexplained,
            "address": figures.groups.address,
        }
    )
    return frame[figures.offline]


OFFLINE = TableSpec(
    "offline",
    "Offline memory cgroups",
    {
        "memcg": _MEMCG,
        "pinned_by": _PIN,
        "newer": Column(
            COUNT,
            "created since",
            help="Controller states (css) of all controllers and cgroups, created later.",
        ),
        "bytes": Column(BYTES, "bytes", ALWAYS, "Structures, per-CPU areas, page cache and shmem."),
        "structure_bytes": Column(
            BYTES, "structures", help="Slots of slab caches, shrinker maps included."
        ),
        "per_cpu_bytes": Column(BYTES, "per-CPU", help="Areas of all possible CPUs."),
        "file_bytes": Column(BYTES, "page cache", help="Pages of files, without shmem."),
        "shmem_bytes": Column(BYTES, "shmem", help="Pages of tmpfs and shared memory."),
        "anon_bytes": Column(BYTES, "anonymous", DATA, "Memory of processes."),
        "kernel_bytes": Column(BYTES, "kernel", DATA, "Pages of the kernel (up to 5.12)."),
        "swapped_pages": Column(PAGES, "swapped", DATA, "Pages in swap."),
        "sockets": Column(COUNT, "sockets", DATA, "Sockets that hold a reference."),
        "references": Column(COUNT, "references", help="css.refcnt; -1 if unreadable."),
        "unexplained": Column(COUNT, "holder unknown", DATA, "References of unknown holders."),
        "address": address("struct mem_cgroup"),
    },
    "An offline memory cgroup.",
    ("bytes", "memcg", "address"),
    rows=_offline,
)


def _names(figures: Figures, rows: Any) -> pd.Series[Any]:
    paths = figures.groups.path
    return pd.Series([paths[row] for row in rows.tolist()], dtype=object)


def _files(figures: Figures) -> pd.DataFrame:
    files = figures.pins.files
    return files.assign(
        memcg=_names(figures, files["memcg"]),
        bytes=files["pages"] * figures.page_size,
        file_bytes=files["file_pages"] * figures.page_size,
        address=files["inode"],
    )


FILES = TableSpec(
    "files",
    "Files whose pages are charged",
    {
        "path": Column(TEXT, "path", ALWAYS, "Path, or number of the inode."),
        "kind": _PIN,
        "bytes": Column(BYTES, "charged", ALWAYS, "Pages charged to the memory cgroup."),
        "file_bytes": Column(BYTES, "of file", help="All pages of the file in memory."),
        "deleted": Column(NONE, "deleted", help="Whether the last name is removed."),
        "type": _TYPE,
        "mount": Column(TEXT, "mounted on", DATA, _MOUNT.help),
        "memcg": _MEMCG,
        "address": address("struct inode"),
    },
    "A file and an offline memory cgroup: the largest, up to 16 of each and 10,000 in all.",
    ("bytes", "path", "memcg"),
    rows=_files,
)


OBJECTS = TableSpec(
    "objects",
    "Objects that pin memory cgroups",
    {
        "kind": _PIN,
        "what": Column(TEXT, "what", ALWAYS, "Protocol, or slab cache."),
        "objects": Column(COUNT, "objects", ALWAYS, "Sockets, or objects in the cache."),
        "memcg": _MEMCG,
    },
    "Objects of one kind and an offline memory cgroup.",
    ("objects", "kind", "what", "memcg"),
    rows=lambda figures: figures.pins.other.assign(
        memcg=_names(figures, figures.pins.other["memcg"])
    ),
)


def _structures(figures: Figures) -> pd.DataFrame:
    rows = figures.structures.tally.frame(figures.footprint)
    if per_cpu := figures.offline_sum(figures.structures.per_cpu):
        row = {"kind": "per-CPU areas", "place": "per-CPU", "bytes": per_cpu}
        more = pd.DataFrame([row | {"objects": figures.structures.areas}])
        rows = pd.concat([rows, more]) if len(rows) else more
    return rows


STRUCTURES = TableSpec(
    "structures",
    "Structures of offline memory cgroups",
    {
        "kind": Column(TEXT, "structure", ALWAYS, "Kind of structure."),
        "place": Column(TEXT, "allocated from", ALWAYS, "Slab cache, pages, per-CPU or unknown."),
        "objects": Column(COUNT, "allocations", ALWAYS, "Allocations of this kind."),
        "bytes": Column(BYTES, "bytes", ALWAYS, "As the allocator rounds them."),
    },
    "Structures of one kind and place.",
    ("bytes", "kind", "place"),
    key=("kind", "place"),
    series=("bytes", "objects"),
    rows=_structures,
)

TABLES = (PINS, MOUNTS, OFFLINE, FILES, OBJECTS, STRUCTURES)

CHARTS = (
    ChartSpec("pins", "pins", "Offline (dying) memory cgroups by holder", ("memcgs",), "kind"),
)


def ram(result: Result) -> Iterator[RamUse]:
    """Yield pages and per-CPU areas of offline memory cgroups.

    Their structures share slabs with others, and shrinker maps belong to list_lrus.
    """
    charged = ("file_bytes", "shmem_bytes", "anon_bytes", "kernel_bytes")
    pages = sum(map(result.amount, charged))
    yield RamUse("offline memory cgroups", pages, in_slabs=False)
    per_cpu = result.amount("per_cpu_bytes")
    yield RamUse("offline memory cgroups", per_cpu, in_slabs=False)
