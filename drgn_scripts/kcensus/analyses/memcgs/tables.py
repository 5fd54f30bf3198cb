# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of memory cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kcensus.analyses.memcgs.figures import Figures
from kcensus.charts import ChartSpec, RamUse
from kcensus.engine.memory import Numbers
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM
from kcensus.kernel.memcg.charges import KINDS as CHARGES
from kcensus.kernel.memcg.memcgs import newer_states
from kcensus.kernel.memcg.pins import SOCKET
from kcensus.kernel.mm.footprint import PER_CPU, Tally
from kcensus.results import Result
from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    NONE,
    PAGES,
    TEXT,
    WIDE,
    Column,
    TableSpec,
    address,
)

UNKNOWN = "unknown"
"""Kind of references without a known holder."""

_MEMCG = Column(TEXT, "memory cgroup", ALWAYS, "Path before the removal.", "groups.path")
_PIN = Column(TEXT, "pinned by", ALWAYS,
    "page cache, shmem, anonymous, kernel: charged pages; sockets; swap; writeback; children: "
    "offline memory cgroups below it; child caches (up to 5.2); unknown.")  # fmt: skip
_TYPE = Column(TEXT, "type", ALWAYS, "File system type.")
_MOUNT = Column(TEXT, "mounted on", ALWAYS, "A mount point of the file system.")


def _held(figures: Figures) -> dict[str, Numbers]:
    return {**figures.pins.held, UNKNOWN: figures.pins.unexplained}


class _Holder(NamedTuple):
    kind: str
    held: Numbers
    """References, by memory cgroup."""
    bytes: int


def _holders(figures: Figures) -> list[_Holder]:
    pages = figures.charges.pages.sum(axis=0) * figures.page_size
    sizes = dict(zip(CHARGES, pages.tolist(), strict=True))
    every = (_Holder(kind, held, sizes.get(kind, 0)) for kind, held in _held(figures).items())
    return [holder for holder in every if holder.held.any()]


PINS = TableSpec("pins", "Holders of offline memory cgroups", {
    "kind": _PIN,
    "memcgs": Column(COUNT, "memory cgroups", ALWAYS, "Pinned memory cgroups.",
        lambda row: (row.held > 0).sum()),
    "references": Column(COUNT, "", ALWAYS, "References of these holders.",
        lambda row: row.held.sum()),
    "bytes": Column(BYTES, "pages", ALWAYS, "Charged pages."),
}, "A kind of holder.", ("memcgs", "kind"), key=("kind",), series=("memcgs", "bytes"),
    rows=_holders)  # fmt: skip


def _files_by_mount(figures: Figures) -> Any:
    """Return the groups of files with pages."""
    files = figures.pins.files
    files = files[files["pages"] > 0].assign(bytes=files["pages"] * figures.page_size)
    return files.groupby(["type", "mount", "kind"])


MOUNTS = TableSpec("mounts", "File systems of charged pages", {
    "type": _TYPE,
    "mount": _MOUNT,
    "kind": _PIN,
    "memcgs": Column(COUNT, "memory cgroups", ALWAYS, "Memory cgroups pinned by these files.",
        lambda files: files["memcg"].nunique()),
    "files": Column(COUNT, "", ALWAYS, "Files with charged pages.",
        lambda files: files["inode"].nunique()),
    "bytes": Column(BYTES, "charged", ALWAYS, "Pages charged to offline memory cgroups."),
}, "A file system with pages charged to offline memory cgroups; from a sample of files.",
    ("bytes", "type", "mount", "kind"), key=("type", "mount"), series=("bytes", "memcgs"),
    rows=_files_by_mount)  # fmt: skip


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


OFFLINE = TableSpec("offline", "Offline memory cgroups", {
    "memcg": _MEMCG,
    "pinned_by": replace(_PIN, get=pinned_by),
    "newer": Column(COUNT, "created since", WIDE,
        "Controller states (css) of all controllers and cgroups, created later.",
        lambda f: newer_states(f.kernel)),
    "bytes": Column(BYTES, "", ALWAYS, "Structures, per-CPU areas, page cache and shmem."),
    "structure_bytes": Column(BYTES, "structures", WIDE,
        "Slots of slab caches, shrinker maps included.",
        lambda f: f.structures.slab + f.structures.shrinker_maps),
    "per_cpu_bytes": Column(BYTES, "per-CPU", WIDE, "Areas of all possible CPUs.",
        "structures.per_cpu"),
    "file_bytes": Column(BYTES, "page cache", WIDE, "Pages of files, without shmem.",
        lambda f: f.charged[:, FILE]),
    "shmem_bytes": Column(BYTES, "shmem", WIDE, "Pages of tmpfs and shared memory.",
        lambda f: f.charged[:, SHMEM]),
    "anon_bytes": Column(BYTES, "anonymous", DATA, "Memory of processes.",
        lambda f: f.charged[:, ANON]),
    "kernel_bytes": Column(BYTES, "kernel", DATA, "Pages of the kernel (up to 5.12).",
        lambda f: f.charged[:, KERNEL]),
    "swapped_pages": Column(PAGES, "swapped", DATA, "Pages in swap.", "pins.swapped"),
    "sockets": Column(COUNT, "", DATA, "Sockets that hold a reference.",
        lambda f: f.pins.held[SOCKET]),
    "references": Column(COUNT, "", WIDE, "css.refcnt; -1 if unreadable.",
        lambda f: pd.Series(f.pins.refs, dtype="Int64").mask(f.pins.refs < 0)),
    "unexplained": Column(COUNT, "holder unknown", DATA, "References of unknown holders.",
        "pins.unexplained"),
    "address": address("struct mem_cgroup", get="groups.address"),
}, "An offline memory cgroup.", ("bytes", "memcg", "address"), keep="offline")  # fmt: skip


def _names(figures: Figures, rows: pd.Series[Any]) -> pd.Series[Any]:
    paths = figures.groups.path
    return pd.Series([paths[row] for row in rows.tolist()], dtype=object)


FILES = TableSpec("files", "Files whose pages are charged", {
    "path": Column(TEXT, "", ALWAYS, "Path, or number of the inode.", "pins.files.path"),
    "kind": replace(_PIN, get="pins.files.kind"),
    "bytes": Column(BYTES, "charged", ALWAYS, "Pages charged to the memory cgroup.",
        lambda f: f.pins.files["pages"] * f.page_size),
    "file_bytes": Column(BYTES, "of file", WIDE, "All pages of the file in memory.",
        lambda f: f.pins.files["file_pages"] * f.page_size),
    "deleted": Column(NONE, "", WIDE, "Whether the last name is removed.", "pins.files.deleted"),
    "type": replace(_TYPE, get="pins.files.type"),
    "mount": replace(_MOUNT, show=DATA, get="pins.files.mount"),
    "memcg": replace(_MEMCG, get=lambda f: _names(f, f.pins.files["memcg"])),
    "address": address("struct inode", get="pins.files.inode"),
}, "A file and an offline memory cgroup: the largest, up to 16 of each and 10,000 in all.",
    ("bytes", "path", "memcg"))  # fmt: skip

OBJECTS = TableSpec("objects", "Objects that pin memory cgroups", {
    "kind": replace(_PIN, get="pins.other.kind"),
    "what": Column(TEXT, "", ALWAYS, "Protocol, or slab cache.", "pins.other.what"),
    "objects": Column(COUNT, "", ALWAYS, "Sockets, or objects in the cache.", "pins.other.objects"),
    "memcg": replace(_MEMCG, get=lambda f: _names(f, f.pins.other["memcg"])),
}, "Objects of one kind and an offline memory cgroup.",
    ("objects", "kind", "what", "memcg"))  # fmt: skip


def _structures(figures: Figures) -> pd.DataFrame:
    structures, tally = figures.structures, Tally()
    tally += structures.tally
    if per_cpu := figures.offline_sum(structures.per_cpu):
        tally.add("per-CPU areas", PER_CPU, structures.areas, per_cpu)
    return tally.frame(figures.footprint)


STRUCTURES = TableSpec("structures", "Structures of offline memory cgroups", {
    "kind": Column(TEXT, "structure", ALWAYS, "Kind of structure."),
    "place": Column(TEXT, "allocated from", ALWAYS, "Slab cache, pages, per-CPU or unknown."),
    "objects": Column(COUNT, "allocations", ALWAYS, "Allocations of this kind."),
    "bytes": Column(BYTES, "", ALWAYS, "As the allocator rounds them."),
}, "Structures of one kind and place.", ("bytes", "kind", "place"), key=("kind", "place"),
    series=("bytes", "objects"), rows=_structures)  # fmt: skip

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
