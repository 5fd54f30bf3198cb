# SPDX-License-Identifier: LGPL-2.1-or-later
"""Gaps of disks, of scans of slabs and of waits, in the same words for all analyses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import drgn
import numpy as np

from kcensus.engine.slub.slabs import ScanReport, SlabMap, UnsupportedAllocator
from kcensus.human import listed
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.stacks import Stacks, kind_of, stacks
from kcensus.kernel.block.unlisted import unlisted_disks
from kcensus.kernel.clock import clock
from kcensus.kernel.code.text import text_of
from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.kernel import Kernel, already
from kcensus.kernel.log import Log, read_log
from kcensus.kernel.symbols import symbols_of
from kcensus.kernel.workqueues import workqueues
from kcensus.results import Gap, nonzero_gaps
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.kernel.waiting.reader import Waiting
    from kcensus.kernel.waiting.waits import Waits

_MAX_NAMES = 16
WAITS_MISSING = "waits known from these are missing: "
"""Beginning of the effect of a gap; names of kinds of objects that tasks wait for follow."""
"""Most disks or subjects to name in a gap."""
_OF_READERS = {"XFS": "xfs", "Scsi_Host": "scsi_mod"}
"""Module of a subject that is of no finder, by a word of the subject."""


def reasons(*faults: Mapping[str, int]) -> str:
    """Return the distinct reasons for unreadable pages, separated by commas."""
    return ", ".join(sorted({reason for each in faults for reason in each})) or "unreadable"


def scan_gaps(slab_map: SlabMap, report: ScanReport, objects: str = "objects") -> list[Gap]:
    """Return the unread parts of a scan of slabs that hold ``objects`` (a plural)."""
    return nonzero_gaps(*_scan_gaps(slab_map, report, objects))


def other_scan_gaps(kernel: Kernel, report: ScanReport, objects: str) -> list[Gap]:
    """Return :func:`scan_gaps` of objects that are a part of an analysis.

    Of an allocator that cannot be read there are none: the reader of the objects has a gap.
    """
    try:
        return scan_gaps(kernel.slab_map, report, objects)
    except UnsupportedAllocator:
        return []


def _scan_gaps(slab_map: SlabMap, report: ScanReport, objects: str) -> Iterator[Gap]:
    uncounted = f"{objects} in them are not counted"
    effect = f"slabs described there, and the {objects} in them, are not counted"
    for reason, count in sorted(report.memmap.items()):
        yield Gap("struct page array: pages", reason, count, effect)
    for reason, count in sorted(report.slabs.items()):
        yield Gap("slab pages", reason, count, f"{objects} on them are not counted")
    effect = f"caches beyond the tear, and the {objects} in them, are not counted"
    yield Gap("slab_caches list", "torn or unreadable", slab_map.caches_torn, effect)
    reason = "unreadable, or impossible geometry"
    yield Gap("slab caches", reason, slab_map.caches_damaged, uncounted)
    yield Gap("slabs", "impossible counters", report.slabs_invalid, uncounted)
    reason = "counted by the kernel, but not in the struct page array"
    yield Gap("slabs", reason, report.slabs_missing, uncounted)
    effect = f"their share of the {objects} may be wrong"
    if report.objects_uncertain:
        effect = f"{report.objects_uncertain:,} free slots are counted as {objects}"
    reason = "the freelist is torn, or contradicts the counters"
    yield Gap("slabs", reason, report.slabs_torn, effect)
    effect = f"free slots on them are counted as {objects}"
    what = "arrays of free objects" if slab_map.is_slab else "freelists of CPUs, or sheaves"
    yield Gap(what, "torn or unreadable", report.lists_lost, effect)


def shared_gaps(kernel: Kernel) -> list[Gap]:
    """Return the gaps of what several analyses read: disks, workqueues, symbols, clock and log."""
    own = _disk_gaps(kernel) + _pool_gaps(kernel) + _symbol_gaps(kernel)
    if (now := already(clock, kernel)) is not None:
        reason, effect = "unreadable", "durations may be some seconds too short"
        own += nonzero_gaps(Gap("idle times of CPUs", reason, now.lost, effect))
    return own + _log_gaps(read_log(kernel))


def _disk_gaps(kernel: Kernel) -> list[Gap]:
    """Return the damaged parts of disks, of stacked and mapped ones too, if they were read."""
    own = []
    if (found := already(stacks, kernel)) is not None:
        reason, effect = reasons(found.faults), "the disks below some are unknown"
        own += nonzero_gaps(Gap("stacked disks", reason, found.faults.total(), effect))
    if (mapped := already(mapped_devices, kernel)) is not None:
        reason, effect = "unreadable or inconsistent", "waits through these devices may be missing"
        own += nonzero_gaps(Gap("mapped devices or tables", reason, mapped.damaged, effect))
    if (devices := already(block_devices, kernel)) is None:
        return own
    # On a running kernel, disks come and go between the readings.
    unlisted = [] if kernel.live else unlisted_disks(kernel)
    lost = devices.damage + Counter(
        {(name, "the list of devices lacks it"): 1 for name in unlisted}
    )
    return own + [
        Gap(
            f"disk {printable(name)}" if name else "disks",
            what,
            count,
            f"{'its' if name else 'their'} requests, and waits for them, may be missing",
        )
        for (name, what), count in sorted(lost.items())
    ]


def _pool_gaps(kernel: Kernel) -> list[Gap]:
    """Return a gap for damaged workqueues, if they were read."""
    if (found := already(workqueues, kernel)) is None:
        return []
    reason, effect = "torn, unreadable or inconsistent", "workers that wait may be missing"
    lost = found.damaged
    if not kernel.live and found.cpu_pools is not None:
        lost += max(found.cpu_pools - found.bound_pools, 0)
    return nonzero_gaps(Gap("worker pools or lists of workqueues", reason, lost, effect))


def _symbol_gaps(kernel: Kernel) -> list[Gap]:
    """Return gaps for damaged symbols, if they were read."""
    own = []
    if (names := already(symbols_of, kernel)) is not None:
        reason = f"they contradict their number: {_few(sorted(names.damaged))}"
        effect = "waits known from functions of modules may be missing"
        own.append(Gap("symbols of modules", reason, len(names.damaged), effect))
    if (text := already(text_of, kernel)) is not None:
        reason = "they are not where functions are"
        effect = "waits known from functions may be wrong"
        own.append(Gap("symbols of the kernel", reason, text.functions.misplaced, effect))
    return nonzero_gaps(*own)


def _log_gaps(log: Log) -> list[Gap]:
    """Return a gap for damaged records of the kernel log."""
    effect = "reports of hung tasks, lockups and disks may be missing"
    return nonzero_gaps(Gap("kernel log", printable(log.damage), log.lost, effect))


def stack_gaps(kernel: Kernel, found: Stacks) -> list[Gap]:
    """Return the stacked disks with unknown lower disks, a gap for each reason."""
    disks, groups = block_devices(kernel).disks, defaultdict[str, list[str]](list)
    for row, reason in sorted(found.unknown.items()):
        via = kind_of(disks[row])
        if via is not None and via.module in kernel.untyped_modules:
            reason = _untyped(via.module)
        groups[reason].append(disks[row].name)
    return [
        Gap("stacked disks", reason, len(names), f"the disks below {_few(names)} are unknown")
        for reason, names in groups.items()
    ]


def _untyped(module: str) -> str:
    return f"types of module {module} are missing"


def _missing(subjects: Sequence[str]) -> str:
    return f"{WAITS_MISSING}{_few(subjects)}"


def _few(names: Sequence[str]) -> str:
    return printable(listed(names, _MAX_NAMES))


def _subject_gaps(waiting: Waiting) -> list[Gap]:
    """Return the subjects that could not be read, a gap for each module without types."""
    kernels = [finder.kernel for finder in waiting.finders[:1]]
    untyped = kernels[0].untyped_modules if kernels else frozenset[str]()
    groups = defaultdict[str, list[str]](list)
    alone = []
    for what in dict.fromkeys(waiting.missing):
        needed = [name for each in waiting.finders if each.about == what for name in each.modules]
        needed += [name for word, name in _OF_READERS.items() if word in what]
        module = next((name for name in needed if name in untyped), "")
        if module:
            groups[module].append(what)
        else:
            alone.append(what)
    return [
        *(
            Gap("kinds of waits", _untyped(module), len(whats), _missing(whats))
            for module, whats in groups.items()
        ),
        *(Gap("kinds of waits", f"cannot be read: {what}", 1, _missing([what])) for what in alone),
    ]


def wait_gaps(
    kernel: Kernel, waiting: Waiting, waits: Waits, *more: Mapping[str, int]
) -> list[Gap]:
    """Return the unread parts of the graph of waits.

    :param waits: those of the tasks that the analysis is about
    :param more: further faults, in pages by reason
    """
    tasks = waiting.tasks
    faults = [each for each in (waits.faults, tasks.faults, waiting.faults, *more) if each]
    is_cut = 0 if "stacks of tasks" in waiting.missing else np.count_nonzero(waits.stacks.is_cut)
    own = nonzero_gaps(
        *_subject_gaps(waiting),
        Gap(
            "waits of tasks",
            "lists of waiters contradict the stack",
            waits.contradicted,
            "these tasks may wait for another object",
        ),
        Gap(
            "stacks of tasks",
            "unreadable or cut",
            int(is_cut),
            "the objects of these tasks may be unknown",
        ),
        Gap("lists of waiters", "torn", waits.torn, "waiters behind the damage are missing"),
        Gap(
            "lists that tell who waits for whom",
            "torn or inconsistent",
            waiting.torn,
            "waits known from these lists are missing",
        ),
        Gap("lists of tasks", "torn or unreadable", tasks.damaged, "their tasks are missing"),
        Gap(
            "clocks of CPUs",
            "impossible",
            tasks.bad_clocks,
            "tasks of these CPUs may have slept for less",
        ),
        Gap(
            "pages with tasks, locks or wait queues",
            reasons(*faults),
            sum(sum(each.values()) for each in faults),
            "waits through these pages are missing",
        ),
    )
    try:
        return own + other_scan_gaps(kernel, waits.report, "XFS buffers")
    except drgn.FaultError:
        effect = "waits for XFS buffers may be missing"
        return [*own, Gap("struct page array", "its place is unreadable", 1, effect)]
