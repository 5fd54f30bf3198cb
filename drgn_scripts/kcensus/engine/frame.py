# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any slab cache, any members, as a DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import drgn
import pandas as pd

from kcensus.engine.layout import layout
from kcensus.engine.memory import CHUNK_BYTES, Memory
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport, SlabCache, SlabMap
from kcensus.progress import Progress


class IncompleteWarning(UserWarning):
    """Some objects could not be read; the DataFrame lacks them."""


class MergedCacheWarning(UserWarning):
    """The slab cache also holds objects of other types."""


def objects(
    prog: drgn.Program,
    type_name: str,
    members: Sequence[str],
    *,
    cache: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    jobs: int = 1,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """All allocated objects of a slab cache, free ones left out exactly.

    >>> objects(prog, "struct dentry", ["d_inode", "d_flags", "d_lockref.count"])

    :param type_name: type of the objects, such as ``struct dentry``
    :param members: member paths, such as ``d_lockref.count``, ``shared[0]`` or ``d_iname``;
        pointers become ``uint64``, character arrays ``bytes``
    :param cache: name of the slab cache; by default the one named after the type, with or without
        ``_cache`` (a merged cache is found by any of its names)
    :param chunk_bytes: bytes per bulk read
    :param jobs: worker processes; more than one only pays on compressed dumps, and only works on
        dumps that are files
    :param progress: is told how far the scan is
    :return: one row per object, indexed by its address; ``attrs["report"]`` is the
        :class:`ScanReport` of what could not be read
    :raises LookupError: no such type, member or cache
    :raises ValueError: a member lies beyond the end of the objects of the cache
    """
    columns = layout(prog, type_name, members)
    slab_map = SlabMap(Memory(prog, chunk_bytes, jobs=jobs, progress=progress))
    caches = find_caches(slab_map, type_name, cache)
    smallest = min(found.object_size for found in caches)
    # Objects may be smaller than their type: x86 cuts the unused end off every task_struct.
    if any(f.offset + f.dtype.itemsize > smallest for f in columns.fields.values()):
        raise ValueError(
            f"{type_name} has {columns.size} bytes, "
            f"but the objects of {caches[0].name} only {smallest}"
        )
    if any(found.merged for found in caches):
        warnings.warn(
            f"slab cache {caches[0].name} is merged: it also holds objects of other types",
            MergedCacheWarning,
            stacklevel=2,
        )
    report = ScanReport()
    address, values = allocated(slab_map, caches, columns, report)
    report.lists_lost += slab_map.caches_torn + slab_map.caches_damaged
    if not report.complete:
        warnings.warn(
            f"{report.objects_unreadable} slots could not be read, "
            f"{report.slabs_torn + report.lists_lost} free lists are torn, "
            f"{report.slabs_invalid} slabs have impossible counters, "
            f"{report.memmap.total()} pages of struct pages could not be read",
            IncompleteWarning,
            stacklevel=2,
        )
    frame = pd.DataFrame(values, index=pd.Index(address, name="address", copy=False), copy=False)
    frame.attrs["report"] = report
    return frame


def find_caches(slab_map: SlabMap, type_name: str, name: str | None = None) -> list[SlabCache]:
    """The slab cache of a type, with its per-cgroup children where the kernel has such.

    :raises LookupError: there is none of that name
    """
    tag = type_name.split()[-1]
    names = [name] if name is not None else [tag, f"{tag}_cache"]
    roots, _ = slab_map.lineage
    for candidate in _candidates(slab_map, names):
        # Before 6.12 nothing forbade several caches of one name.
        found = {cache.id for cache in slab_map.caches if cache.name == candidate}
        if found:
            return [cache for cache in slab_map.caches if int(roots[cache.id]) in found]
    raise LookupError(f"no slab cache {' or '.join(names)}: name one of prog's caches with cache=…")


def _candidates(slab_map: SlabMap, names: Sequence[str]) -> Iterator[str]:
    yield from names
    # Only now: listing the aliases takes half as long as reading a million objects.
    yield from (slab_map.aliases[name] for name in names if name in slab_map.aliases)
