# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the census of memory cgroups."""

from __future__ import annotations

import contextlib
from typing import Any

import drgn
import numpy as np
import pandas as pd

from kcensus.analyses.memcgs.figures import Counts, Figures
from kcensus.kernel.memcg.charges import ANON, FILE, KERNEL, SHMEM
from kcensus.kernel.memcg.charges import KINDS as CHARGES
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec
from kcensus.sources.capsule import NotRecorded

UNKNOWN = "unknown"
"""Kind of references whose holder was not found."""

_MEMCG = Column(
    Unit.TEXT, "memory cgroup", Show.ALWAYS, "Path; an offline one is removed from there."
)
_PIN = Column(
    Unit.TEXT,
    "pinned by",
    Show.ALWAYS,
    "page cache, shmem, anonymous, kernel: charged pages; sockets; swap; writeback; children: "
    "offline memory cgroups below it; child caches (up to 5.8); unknown.",
)
_TYPE = Column(Unit.TEXT, "type", Show.ALWAYS, "File system type.")
_MOUNT = Column(Unit.TEXT, "mounted on", Show.ALWAYS, "A mount point of the file system.")

PINS = TableSpec(
    "pins",
    "What pins offline memory cgroups",
    {
        "kind": _PIN,
        "memcgs": Column(Unit.COUNT, "memory cgroups", Show.ALWAYS, "Those that it pins."),
        "references": Column(Unit.COUNT, "references", Show.ALWAYS, "References that it holds."),
        "bytes": Column(Unit.BYTES, "pages", Show.ALWAYS, "Pages that are charged."),
    },
    "A kind of holder of references.",
    ("memcgs", "kind"),
    key=("kind",),
    series=("memcgs", "bytes"),
)

MOUNTS = TableSpec(
    "mounts",
    "File systems of charged pages",
    {
        "type": _TYPE,
        "mount": _MOUNT,
        "kind": _PIN,
        "memcgs": Column(Unit.COUNT, "memory cgroups", Show.ALWAYS, "Those that files here pin."),
        "files": Column(Unit.COUNT, "files", Show.ALWAYS, "Files with such pages."),
        "bytes": Column(Unit.BYTES, "charged", Show.ALWAYS, "Pages charged to offline ones."),
    },
    "A file system whose pages are charged to offline memory cgroups; from a sample of the files.",
    ("bytes", "type", "mount", "kind"),
    key=("type", "mount"),
    series=("bytes", "memcgs"),
)

OFFLINE = TableSpec(
    "offline",
    "Offline memory cgroups",
    {
        "memcg": _MEMCG,
        "pinned_by": _PIN,
        "newer": Column(
            Unit.COUNT,
            "created since",
            help="Controller states (css) created after this one, of any controller and cgroup.",
        ),
        "bytes": Column(
            Unit.BYTES, "bytes", Show.ALWAYS, "Structures, per-CPU areas, page cache and shmem."
        ),
        "structure_bytes": Column(
            Unit.BYTES, "structures", help="Slots of slab caches, shrinker maps included."
        ),
        "per_cpu_bytes": Column(Unit.BYTES, "per-CPU", help="Areas of all possible CPUs."),
        "file_bytes": Column(Unit.BYTES, "page cache", help="Pages of files, without shmem."),
        "shmem_bytes": Column(Unit.BYTES, "shmem", help="Pages of tmpfs and shared memory."),
        "anon_bytes": Column(Unit.BYTES, "anonymous", Show.DATA, "Memory of processes."),
        "kernel_bytes": Column(
            Unit.BYTES, "kernel", Show.DATA, "Pages of the kernel (up to 5.12)."
        ),
        "swapped_pages": Column(Unit.PAGES, "swapped", Show.DATA, "Pages in swap."),
        "sockets": Column(Unit.COUNT, "sockets", Show.DATA, "Sockets that hold a reference."),
        "references": Column(
            Unit.COUNT, "references", help="css.refcnt; -1 if it could not be read."
        ),
        "unexplained": Column(
            Unit.COUNT, "holder unknown", Show.DATA, "References whose holder was not found."
        ),
        "address": Column(
            Unit.ADDRESS,
            "mem_cgroup",
            Show.DATA,
            "struct mem_cgroup pointer.",
            type="struct mem_cgroup",
        ),
    },
    "An offline memory cgroup.",
    ("bytes", "memcg", "address"),
)

FILES = TableSpec(
    "files",
    "Files whose pages are charged",
    {
        "path": Column(Unit.TEXT, "path", Show.ALWAYS, "Path, or number of the inode."),
        "kind": _PIN,
        "bytes": Column(Unit.BYTES, "charged", Show.ALWAYS, "Pages charged to the memory cgroup."),
        "file_bytes": Column(Unit.BYTES, "of file", help="All pages of the file in memory."),
        "deleted": Column(Unit.NONE, "deleted", help="Whether it has no name any more."),
        "type": _TYPE,
        "mount": Column(Unit.TEXT, "mounted on", Show.DATA, _MOUNT.help),
        "memcg": _MEMCG,
        "address": Column(
            Unit.ADDRESS, "inode", Show.DATA, "struct inode pointer.", type="struct inode"
        ),
    },
    "A file and an offline memory cgroup: up to 16 of each, up to 10,000 in all, the largest.",
    ("bytes", "path", "memcg"),
)

OBJECTS = TableSpec(
    "objects",
    "Kernel objects that pin",
    {
        "kind": _PIN,
        "what": Column(Unit.TEXT, "what", Show.ALWAYS, "Protocol, or slab cache."),
        "objects": Column(Unit.COUNT, "objects", Show.ALWAYS, "Sockets, or objects in the cache."),
        "memcg": _MEMCG,
    },
    "Objects of one kind and an offline memory cgroup.",
    ("objects", "kind", "what", "memcg"),
)

STRUCTURES = TableSpec(
    "structures",
    "Structures of offline memory cgroups",
    {
        "kind": Column(Unit.TEXT, "structure", Show.ALWAYS, "Kind of structure."),
        "place": Column(
            Unit.TEXT, "allocated from", Show.ALWAYS, "Slab cache, pages, per-CPU or unknown."
        ),
        "objects": Column(Unit.COUNT, "allocations", Show.ALWAYS, "Allocations of this kind."),
        "bytes": Column(Unit.BYTES, "bytes", Show.ALWAYS, "As the allocator rounds them."),
    },
    "Structures of one kind and place.",
    ("bytes", "kind", "place"),
    key=("kind", "place"),
    series=("bytes", "objects"),
)

TABLES = (PINS, MOUNTS, OFFLINE, FILES, OBJECTS, STRUCTURES)


def tables(figures: Figures) -> dict[str, Table]:
    """Return all tables by name."""
    rows = {
        "pins": _pins(figures),
        "mounts": _mounts(figures),
        "offline": _offline(figures),
        "files": _files(figures),
        "objects": _objects(figures),
        "structures": _structures(figures),
    }
    return {spec.name: spec.of(rows[spec.name]) for spec in TABLES}


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


def _mounts(figures: Figures) -> pd.DataFrame:
    files = figures.pins.files
    files = files[files["pages"] > 0].assign(bytes=files["pages"] * figures.page_size)
    grouped = files.groupby(["type", "mount", "kind"], as_index=False)
    return grouped.agg(
        memcgs=("memcg", "nunique"), files=("inode", "nunique"), bytes=("bytes", "sum")
    )


def pinned_by(figures: Figures) -> list[str]:
    """Return the kinds of holders of each memory cgroup, the one with most references first."""
    held = _held(figures)
    kinds, counts = [*held], np.stack([*held.values()])
    order = np.argsort(-counts, axis=0, kind="stable")
    texts = []
    for row in range(counts.shape[1]):
        present = [kinds[index] for index in order[:, row].tolist() if counts[index, row]]
        texts.append(", ".join(present))
    return texts


def _offline(figures: Figures) -> pd.DataFrame:
    groups, structures, pins = figures.groups, figures.structures, figures.pins
    newer = np.zeros(len(groups), np.int64)
    with contextlib.suppress(LookupError, drgn.FaultError, NotRecorded):
        next_serial = int(figures.kernel.prog["css_serial_nr_next"])
        if groups.serial.any():
            newer = next_serial - 1 - groups.serial.astype(np.int64)
    sizes = figures.charges.pages * figures.page_size
    frame = pd.DataFrame(
        {
            "memcg": pd.Series(groups.path, dtype=object),
            "pinned_by": pd.Series(pinned_by(figures), dtype=object),
            "newer": newer,
            "bytes": figures.bytes,
            "structure_bytes": structures.slab + structures.shrinker_maps,
            "per_cpu_bytes": structures.per_cpu,
            "file_bytes": sizes[:, FILE],
            "shmem_bytes": sizes[:, SHMEM],
            "anon_bytes": sizes[:, ANON],
            "kernel_bytes": sizes[:, KERNEL],
            "swapped_pages": pins.swapped,
            "sockets": pins.held["sockets"],
            "references": pd.Series(pins.refs, dtype="Int64").mask(pins.refs < 0),
            "unexplained": pins.unexplained,
            "address": groups.address,
        }
    )
    return frame[figures.offline]


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


def _objects(figures: Figures) -> pd.DataFrame:
    other = figures.pins.other
    return other.assign(memcg=_names(figures, other["memcg"]))


def _structures(figures: Figures) -> pd.DataFrame:
    tally = figures.structures.tally
    rows = [
        (kind, figures.footprint.place(place), count, tally.bytes[kind, place])
        for (kind, place), count in tally.objects.items()
    ]
    if per_cpu := figures.offline_sum(figures.structures.per_cpu):
        rows.append(("per-CPU areas", "per-CPU", figures.structures.areas, per_cpu))
    return pd.DataFrame(rows, columns=[*STRUCTURES.columns])
