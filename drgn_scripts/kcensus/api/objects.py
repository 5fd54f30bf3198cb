# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any slab cache, any members, as a DataFrame."""

from __future__ import annotations

import contextlib
import difflib
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import drgn
import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.api.conditions import Condition, Mask
from kcensus.api.frames import Frame
from kcensus.api.source import Readable, context_of
from kcensus.engine.layout import (
    Layout,
    LayoutError,
    element_paths,
    layout,
    member_hint,
    pointee_names,
)
from kcensus.engine.memory import Faults, Words
from kcensus.engine.rows import factorized
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.kmem_caches import SlabCache
from kcensus.engine.slub.scan import View, allocated, visit
from kcensus.engine.slub.slabs import ScanReport, SlabMap
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.memcg.objcg import SlotOwners
from kcensus.progress import Progress
from kcensus.sources.capsule import NotRecorded, recorded_types
from kcensus.text import printable

Filter: TypeAlias = str | Callable[[pd.DataFrame], Any]
"""A :class:`~kcensus.api.conditions.Condition`, or a function from a DataFrame of some objects to a
mask of the objects to keep."""
Keep: TypeAlias = Condition | Callable[[pd.DataFrame], Any]

_MEMCG = "memcg_address"
_LIKE = 0.85
"""Least likeness of a type that may have been meant, ``struct`` included."""
_MAX_PADDING = 64
"""Most bytes of objects beyond their type: alignment, a flexible array."""


class IncompleteWarning(UserWarning):
    """Some objects could not be read, and are missing from the DataFrame."""


class MergedCacheWarning(UserWarning):
    """The slab cache also holds objects of other types, or only these."""


def objects(
    source: Readable,
    type_name: str,
    members: str | Sequence[str] = (),
    *,
    cache: str | None = None,
    where: Filter | None = None,
    memcg: bool = False,
    jobs: int | None = None,
    chunk_bytes: int | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Return all allocated objects of a slab cache as rows; free ones are left out exactly.

    Objects are read in bulk: millions a second, a few bytes each, for any cache and any members.

    >>> import kcensus
    >>> target = kcensus.open_target("sample")
    >>> dentries = kcensus.objects(target, "struct dentry", ["d_inode", "d_lockref.count"])
    >>> len(dentries), dentries.index.name
    (44723, 'address')
    >>> negative = kcensus.objects(target, "struct dentry", "d_inode", where="d_inode == 0")
    >>> len(negative)
    29760

    :param source: a drgn program or a target
    :param type_name: type of the objects, such as ``struct dentry``, or the name of a slab cache,
        such as ``dentry``, whose objects are then of type ``struct dentry`` if there is one
    :param members: member paths, such as ``d_lockref.count``, ``d_iname`` or a bit field. Pointers
        become ``uint64``, character arrays ``bytes``, any other array one column per element
        (``shared[0]``, ``shared[1]``, …); one of them alone is ``shared[0]``
    :param cache: name of the slab cache; by default the name of the type, with or without
        ``_cache`` (a merged cache has all of its names)
    :param where: condition of the rows to keep, on ``members`` and ``address``, such as
        ``"d_inode == 0 and d_lockref.count > 0"`` or ``"d_flags & 0x80"``, or a function that takes
        a DataFrame of some objects and returns a mask. It is applied chunk by chunk, so that
        dropped rows take no memory
    :param memcg: add a column ``memcg`` with the path of the memory cgroup charged for the object:
        empty without one, ``?`` if unknown; and ``memcg_address``, by which to group: removed
        memory cgroups can have the same path
    :param jobs: worker processes; they pay only on compressed dumps
    :param chunk_bytes: bytes per bulk read
    :param progress: shows how far the scan is
    :return: one row per object, indexed by its address (``uint64``); ``attrs["report"]`` is the
        :class:`ScanReport` of unreadable memory, ``attrs["types"]`` the type at ``address`` and the
        types of pointers' targets
    :raises LookupError: there is no such type, member or slab cache
    :raises TypeError: ``source`` is missing
    :raises NotRecorded: the type or member is missing from the capsule
    :raises ValueError: a member lies beyond the end of the objects of the cache, ``where`` names
        another column or does not give one boolean per row, or ``members`` is one string with
        several names
    """
    if not isinstance(type_name, str) or (isinstance(source, str) and source.startswith("struct ")):
        raise TypeError(
            "objects() takes a program or target first: kcensus.objects(prog, 'struct dentry', "
            "['d_inode'])"
        )
    keep = Condition(where) if isinstance(where, str) else where
    kernel = context_of(source, jobs=jobs, chunk_bytes=chunk_bytes, progress=progress).kernel
    # The index is a copy of it, and the vectors of owners are not needed: free most of its memory.
    slab_map = kernel.slab_map if memcg else SlabMap(kernel.memory, shared=False, live=kernel.live)
    is_chosen = cache is not None
    type_, cache = _type_and_cache(kernel.prog, type_name, cache)
    caches = find_caches(slab_map, type_name, cache)
    if type_ is not None:
        columns = columns_of(kernel.prog, type_, members)
    elif members:
        raise LookupError(f"there is no type 'struct {type_name}' to find members of")
    else:
        columns = Layout(type_name, 0, {})
    _check(caches, columns, is_chosen=is_chosen and type_ is not None)
    report = ScanReport()
    if isinstance(keep, Condition):
        _mask(_empty(columns), keep)  # refuse it before anything is read
    if keep is None and not memcg:
        address, values = allocated(slab_map, caches, columns, report)
        frame = pd.DataFrame(values, pd.Index(address, name="address", copy=False), copy=False)
    else:
        frame = _filtered(kernel, slab_map, caches, columns, keep, memcg, report)
    report.lists_lost += slab_map.caches_torn + slab_map.caches_damaged
    if not report.complete:
        torn = report.slabs_torn + report.lists_lost
        problems = {
            "slots could not be read": report.objects_unreadable,
            "freelists or obj_cgroup vectors are torn": torn,
            "slabs have impossible counters": report.slabs_invalid,
            "slabs are counted, but not in the struct page array": report.slabs_missing,
            "pages of the struct page array could not be read": report.memmap.total(),
        }
        words = ", ".join(f"{count} {problem}" for problem, count in problems.items() if count)
        warnings.warn(words, IncompleteWarning, stacklevel=2)
    frame = Frame(frame, copy=False)
    frame.attrs["report"] = report
    if type_ is not None:
        types = pointee_names(type_, columns.fields)
        frame.attrs["types"] = {"address": columns.type_name, **types}
    if memcg:
        frame.attrs["types"] = frame.attrs.get("types", {}) | {_MEMCG: "struct mem_cgroup"}
    return frame


def type_of(prog: drgn.Program, name: str) -> drgn.Type:
    """Return a type.

    :raises LookupError: there is no such type; the message tells how to load a module's types
    :raises NotRecorded: the capsule lacks it; the message has the type that is most like it
    """
    try:
        return prog.type(name)
    except NotRecorded as error:
        if like := difflib.get_close_matches(name, recorded_types(prog), 1, _LIKE):
            raise NotRecorded(f"did you mean {printable(like[0])}? {error}") from None
        raise
    except LookupError as error:
        raise LookupError(
            f"{error}; if a module defines it, load the debug info of modules first: at drgn's "
            "prompt, `%kcensus doctor -s DIR` does"
        ) from None


def columns_of(prog: drgn.Program, type_: drgn.Type, members: str | Sequence[str]) -> Layout:
    """Return the layout of members; an array is one column per element.

    :raises LookupError: there is no such member
    :raises ValueError: ``members`` is one string with several names
    """
    if isinstance(members, str) and len(re.split(r"[\s,]+", members)) > 1:
        raise ValueError(f"members={members!r} is one member; pass several as a list")
    paths = [members] if isinstance(members, str) else members
    try:
        return layout(prog, type_, [each for path in paths for each in element_paths(type_, path)])
    except LayoutError as error:
        hints = [hint for path in paths if (hint := member_hint(type_, path))]
        raise LayoutError("; ".join((str(error), *hints[:1]))) from None


def _type_and_cache(
    prog: drgn.Program, type_name: str, cache: str | None
) -> tuple[drgn.Type | None, str | None]:
    """Return the type of the objects, if known, and the name of the cache, if not the type's."""
    if " " in type_name:
        return type_of(prog, type_name), cache
    name, struct = cache or type_name, f"struct {type_name}"
    other = struct.removesuffix("_cache")
    for candidate, chosen in ((type_name, cache), (struct, name), (other, name)):
        # drgn refuses names such as kmalloc-64; a capsule raises for types it was not asked for.
        with contextlib.suppress(LookupError, NotRecorded, SyntaxError):
            return prog.type(candidate), chosen
    return None, name


def _check(caches: Sequence[SlabCache], columns: Layout, *, is_chosen: bool) -> None:
    """Refuse members beyond the end of objects, and warn of objects of other types.

    :param is_chosen: whether the user chose the cache, whose name is then unrelated to the type
    """
    smallest = min(cache.object_size for cache in caches)
    # Objects may be smaller than their type: the unused end of every task_struct is cut off.
    if any(f.offset + f.dtype.itemsize > smallest for f in columns.fields.values()):
        raise ValueError(
            f"{columns.type_name} has {columns.size} bytes, "
            f"but the objects of {printable(caches[0].name)} only {smallest}"
        )
    problem = ""
    if any(cache.merged or cache.name.startswith("kmalloc-") for cache in caches):
        problem = f"slab cache {printable(caches[0].name)} is shared with objects of other types"
    elif is_chosen and smallest > columns.size + _MAX_PADDING:
        problem = (
            f"the objects of slab cache {printable(caches[0].name)} have {smallest} bytes, "
            f"{columns.type_name} has {columns.size}: the rows are right only if each object "
            "begins with that type; otherwise pass the type of the objects, and paths of members"
        )
    if problem:
        warnings.warn(problem, MergedCacheWarning, stacklevel=3)


def _filtered(
    kernel: Kernel,
    slab_map: SlabMap,
    caches: Sequence[SlabCache],
    columns: Layout,
    keep: Keep | None,
    memcg: bool,
    report: ScanReport,
) -> pd.DataFrame:
    slots, faults = SlotOwners(kernel.slab_map) if memcg else None, Faults()

    def look(view: View, part: ScanReport) -> pd.DataFrame:
        values = {name: view.column(name)[view.allocated] for name in columns.fields}
        if slots:
            owner, lost = slots.read(view.slabs, faults)
            part.lists_lost += lost
            values["memcg"] = owner[view.allocated]
        frame = pd.DataFrame(values, pd.Index(view.address()[view.allocated], name="address"))
        return frame if keep is None else frame[_mask(frame, keep)]

    slabs = slab_map.index(caches, report, in_use=True)
    parts = list(visit(slab_map, slabs, columns, look, report))
    if not parts:
        empty = {"memcg": np.empty(0, np.uint64)} if memcg else {}
        parts = [_empty(columns).assign(**empty)]
    frame = pd.concat(parts)
    if slots:
        paths, addresses = _memcgs(kernel, slots, frame["memcg"].to_numpy(), faults)
        frame = frame.assign(memcg=paths, **{_MEMCG: addresses})
    return frame


def _empty(columns: Layout) -> pd.DataFrame:
    values = {name: np.empty(0, field.dtype) for name, field in columns.fields.items()}
    return pd.DataFrame(values, pd.Index(np.empty(0, np.uint64), name="address"))


def _mask(frame: pd.DataFrame, keep: Keep) -> Mask:
    if isinstance(keep, Condition):
        # The owner is known by its address here, not yet by its path.
        members = {name: frame[name] for name in frame.columns if name != "memcg"}
        return keep({**members, "address": frame.index.to_series()}, len(frame))
    mask = np.asarray(keep(frame))
    if mask.dtype != np.bool_ or mask.shape != (len(frame),):
        raise ValueError("where: the function does not give one boolean per row (compare with ==)")
    return mask


def _memcgs(
    kernel: Kernel, slots: SlotOwners, owners: Words, faults: Faults
) -> tuple[npt.NDArray[np.object_], Words]:
    """Return path and address of each owner: empty and 0 without one, ``?`` if unknown."""
    code, known = factorized(owners)
    groups, address = memcgs(kernel), slots.memcg(known, faults)
    names = np.array([*map(printable, groups.path), "", "?"], object)
    is_none = known == 0
    paths = names[np.where(is_none, -2, groups.rows(address))]
    return paths[code], np.where(is_none, np.uint64(0), address)[code]
