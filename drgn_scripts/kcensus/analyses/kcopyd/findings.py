# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about kcopyd and the kernel log, and their remedies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import drgn
import numpy as np

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.kept import Keeper, keepers, waits
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.analyses.remedies import sysctl, together, written
from kcensus.human import counted, human_bytes, human_ratio, human_seconds, listed
from kcensus.kernel.dm.snapshots import UNLIMITED, Limit, Snapshot
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.waiting.frames import place_of
from kcensus.kernel.workqueues import Pool
from kcensus.results import Bound, Danger, Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.severity import MIN_BYTES, severity_of
from kcensus.sources.capsule import NotRecorded
from kcensus.text import task_name

_SHRINK = "/sys/kernel/slab/kcopyd_job/shrink"
_LIMIT_PATCH, _CALLBACK_PATCH = "dm-snapshot-cow-in-progress", "dm-kcopyd-callback-list"
_LIST_INVALID = Remedy(
    effect="List invalid snapshots; remove each with lvremove or dmsetup remove",
    command="dmsetup status --target snapshot | grep Invalid",
    risk="removal is final; invalid snapshots have lost their content already",
)
_SHOW_USED = Remedy(
    effect="Show how full each snapshot is; extend the COW device with lvextend",
    command="dmsetup status --target snapshot",
)
_FIND_PATCHES = Remedy(
    effect="Show whether this kernel limits the callbacks of a kcopyd run, and the copies of "
    "dm-snapshot in flight",
    command="kcensus patches TARGET",
)
_SHOW_PATCH = Remedy(
    effect="Show the patch that limits the callbacks of a kcopyd run, and the releases with it",
    command=f"kcensus patches show {_CALLBACK_PATCH}",
)
_PARAMETER = "/sys/module/dm_snapshot/parameters/snapshot_cow_threshold"
_MODPROBE = "/etc/modprobe.d/snapshot_cow_threshold.conf"
"""A name other than dm_snapshot.conf, which may exist."""
_MIB = 1 << 20
_MAX_DIRTY, _MIN_DIRTY = 256 * _MIB, 4 * _MIB

_FIND_SETTER = Remedy(
    effect="Find where the limit was set; the kernel's default is 2,048",
    command=(
        "grep -rs snapshot_cow_threshold /proc/cmdline /etc/default/grub /etc/modprobe.d "
        "/run/modprobe.d /usr/lib/modprobe.d /etc/udev /usr/lib/udev /etc/tuned /usr/lib/tuned "
        "/etc/rc.local /etc/systemd"
    ),
)
_SHOW_BUSY = Remedy(
    effect=(
        "Show how busy the COW devices are; only a faster COW device shortens the wait, a higher "
        "limit defers it"
    ),
    command="iostat -xd 2 5",
)
_PERSIST = Remedy(
    effect=(
        "Keep the limit after a reboot or reload of dm_snapshot, unless a script sets another one; "
        "rebuild the initramfs if dm_snapshot is loaded from it"
    ),
    command=f"echo 'options dm_snapshot snapshot_cow_threshold={DEFAULT_THRESHOLD}' > {_MODPROBE}",
    undo=f"rm {_MODPROBE}",
)
_SHOW_LIMIT = Remedy(
    effect="Show the limit of copies; the kernel's default is 2,048",
    command=f"cat {_PARAMETER}",
    knobs=(_PARAMETER,),
)
_NO_FEWER = (
    "Remove unneeded snapshots, since a written chunk is copied once per snapshot: the limit of "
    "dirty pages is already low, or unknown"
)
_MAX_STACKS = 6


def findings(figures: Figures) -> list[Finding]:
    """Return all findings, the most severe first."""
    stalls = [_stall(figures, pool) for pool in figures.stalled]
    stalled_cpus = {
        str(pool.cpu): stall.id
        for pool, stall in zip(figures.stalled, stalls, strict=True)
        if pool.cpu >= 0
    }
    unsorted = [
        *stalls,
        *_memory(figures),
        *([] if stalls else _callbacks(figures)),
        *_waiters(figures),
        *_unusable(figures),
        *_page_wait(figures),
        *log_findings(figures.log, stalled_cpus, is_file=figures.is_log_file),
    ]
    return sorted(unsorted, key=lambda finding: -finding.severity)


def _counts(**numbers: int | None) -> dict[str, Figure]:
    return {name: Figure(value, Unit.COUNT) for name, value in numbers.items()}


# Stalled worker pools


def _stall(figures: Figures, pool: Pool) -> Finding:
    queues, describe = figures.census.workqueues, figures.functions.described
    items = queues.items[queues.items["pool"] == pool.id]
    is_busy = items["state"] == "in-flight"
    busy = items[is_busy]
    places = {pid: _inside(figures, pid) for pid in busy["pid"].tolist()[:_MAX_STACKS]}
    running = sorted(
        f"{describe(int(func))} of {queues.names.get(int(wq), '?')} "
        f"(PID {pid}{places.get(pid, '')})"
        for func, wq, pid in zip(busy["func"], busy["wq"], busy["pid"], strict=True)
    )
    waiting = sorted(describe(func) for func in items["func"][~is_busy].unique().tolist())
    runs_kcopyd = any(figures.is_kcopyd(wq) for wq in busy["wq"].tolist())
    title = f"worker pool of CPU {pool.cpu}" if pool.cpu >= 0 else f"unbound worker pool {pool.id}"
    title += f" has made no progress for {human_seconds(pool.age or 0)}"
    if runs_kcopyd:
        title += " while it runs kcopyd" + (" and other work" if len(busy) > 1 else "")
    stacks = "\n".join(f"cat /proc/{pid}/stack" for pid in busy["pid"].tolist()[:_MAX_STACKS])
    where = "Show the stacks of the running workers (in a vmcore: `bt PID` in crash)"
    remedies = (Remedy(effect=where, command=stacks),) if stacks else ()
    source = "wq_watchdog_thresh" if queues.has_watchdog else "default; the watchdog is off"
    return Finding(
        id=f"{'kcopyd' if runs_kcopyd else 'workqueue'}-stall:{pool.id}",
        severity=Severity.CRITICAL,
        danger=Danger.STALL,
        title=title,
        evidence=(
            f"pending: {counted(pool.pending, 'item')}, {listed(waiting)}; "
            f"running: {listed(running) or 'nothing, all workers sleep or starve'}; "
            f"stall threshold: {queues.threshold} s ({source})"
        ),
        figures={
            "cpu": Figure(pool.cpu if pool.cpu >= 0 else None, Unit.NONE),
            "seconds": Figure(pool.age, Unit.SECONDS),
            "threshold": Figure(queues.threshold, Unit.SECONDS),
            **_counts(pending=pool.pending, running=len(busy)),
        },
        remedies=(*remedies, *(_write_less(figures) if runs_kcopyd else ())),
        no_remedy=""
        if runs_kcopyd or stacks
        else "No worker of the pool runs any work: look in the kernel log for a stuck CPU, or for "
        "workers that could not be created",
        patch=_CALLBACK_PATCH if runs_kcopyd and figures.census.callback_list is False else "",
    )


def _inside(figures: Figures, pid: int) -> str:
    """Return the function in which a worker is, as the end of a phrase."""
    with contextlib.suppress(*DAMAGED):
        if place := place_of(figures.kernel, pid):
            return f", in {place}"
    return ""


def _callbacks(figures: Figures) -> Iterator[Finding]:
    jobs = figures.census.jobs.jobs
    most = int(jobs.max(initial=0))
    if figures.census.callback_list is not False or most <= DEFAULT_THRESHOLD:
        return
    yield Finding(
        id="kcopyd-callbacks",
        severity=Severity.NOTICE,
        danger=Danger.STALL,
        title=f"kcopyd can stall a CPU: one client has {most:,} jobs, and this kernel bounds no "
        "run of callbacks",
        evidence=(
            "struct dm_kcopyd_client has no callback_jobs: callbacks queued during a run extend "
            "that run"
        ),
        figures=_counts(jobs=most),
        remedies=(remedies := tuple(_write_less(figures))),
        no_remedy="" if remedies else _NO_FEWER,
        patch=_CALLBACK_PATCH,
    )


# Memory


def _memory(figures: Figures) -> Iterator[Finding]:
    ram, memory = figures.kernel.ram_bytes, figures.memory
    total = sum(memory.values())
    if (severity := severity_of(total, ram)) is None:
        return
    share, jobs = ratio(total, ram), figures.jobs
    parts = {
        "job_bytes": Figure(figures.census.job_slab.bytes, Unit.BYTES, "kcopyd_job slabs"),
        "page_bytes": Figure(memory.get("kcopyd pages", 0), Unit.BYTES, "copy pages"),
        "bio_bytes": Figure(sum(figures.bios.values()), Unit.BYTES, "bios"),
        "exception_bytes": Figure(sum(figures.exceptions.values()), Unit.BYTES, "exceptions"),
    }
    numbers = {
        "total_bytes": Figure(total, Unit.BYTES),
        "total_share_of_ram": Figure(share, Unit.RATIO),
        **_counts(jobs=jobs, cow_threshold=figures.census.threshold),
        **parts,
    }
    size = f"{human_bytes(total)} ({human_ratio(share)} of RAM)"
    listed = ", ".join(
        f"{human_bytes(int(part.value))} {part.label}" for part in parts.values() if part.value
    )
    danger = Danger.OOM if severity >= Severity.WARNING else Danger.NONE
    if unlimited := figures.unlimited:
        copies = sum(figures.copies(snapshot) or 0 for snapshot in unlimited)
        kept, stalls = keepers(figures.kernel, unlimited), waits(figures.kernel)
        stalls += [each.finding for each in kept]
        yield Finding(
            id="kcopyd-unthrottled",
            severity=max([severity, *(each.severity for each in stalls if each.tasks)]),
            danger=danger,
            tasks=frozenset().union(*(each.tasks for each in stalls)),
            covers=frozenset(each.finding.id for each in kept),
            title=(
                f"dm-snapshot copy-on-write is unthrottled: {copies:,} copies in flight hold {size}"
            ),
            evidence=(
                f"{listed}; {counted(len(unlimited), 'snapshot')} with more than "
                f"{DEFAULT_THRESHOLD:,} copies; {_cause(figures)}" + _kept(kept)
            ),
            figures=numbers | _counts(copies=copies, snapshots=len(unlimited)),
            memory=memory,
            users={place: of for place, of in figures.users.items() if place in memory},
            remedies=(
                remedies := (
                    *_first(kept, figures.returned_by(0) or None),
                    *_limit(figures),
                    *_shrink(figures),
                )
            ),
            no_remedy="" if remedies else _NO_FEWER,
            patch=_LIMIT_PATCH if figures.census.limit is Limit.NONE else "",
        )
        return
    if figures.limited:
        # Copies within the limit are normal, up to a quarter of RAM.
        severity = Severity.WARNING if severity is Severity.CRITICAL else Severity.INFO
    # The reserved pages of idle clients alone can be worth a notice.
    if severity >= (Severity.WARNING if figures.census.has_jobs else Severity.NOTICE):
        remedies = (*_lower(figures), *_shrink(figures))
        yield Finding(
            id="kcopyd-jobs",
            severity=severity,
            danger=danger,
            title=(
                f"kcopyd holds {_bounded(figures.memory_bound, size)} for "
                f"{_bounded(figures.jobs_bound, counted(jobs, 'job'))}"
            ),
            evidence=listed,
            figures=numbers,
            memory=memory,
            users={place: of for place, of in figures.users.items() if place in memory},
            remedies=remedies,
            no_remedy="" if remedies else _no_lower(figures),
        )


def _kept(kept: Sequence[Keeper]) -> str:
    names = listed([each.name for each in kept])
    return f"; the copies wait for what keeps their COW devices: {names}" if kept else ""


def _first(kept: Sequence[Keeper], returns: int | None = None) -> Iterator[Remedy]:
    """Yield the remedies that let the copies in flight complete, before any limit."""
    for each in together([each.finding.remedies[:1] for each in kept]):
        effect = f"First {each.effect[0].lower()}{each.effect[1:]}"
        yield replace(
            each,
            effect=f"{effect}; a limit that is set before makes writers wait for these copies",
            returns=returns,
            is_upper_bound=returns is not None,
        )


def _cause(figures: Figures) -> str:
    census = figures.census
    if census.limit is Limit.NONE:
        return "struct dm_snapshot has neither cow_count nor in_progress: there is no limit"
    if census.limit is Limit.SEMAPHORE:
        return (
            "their cow_count is INT_MAX: snapshot_cow_threshold was 0 or less when they were "
            f"created, and is {_number(census.threshold)} now"
        )
    now = _number(census.threshold)
    return f"snapshot_cow_threshold is {now} (default {DEFAULT_THRESHOLD:,})"


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _limit(figures: Figures) -> tuple[Remedy, ...]:
    census = figures.census
    if census.limit is Limit.NONE:
        return tuple(_write_less(figures))
    is_semaphore = census.limit is Limit.SEMAPHORE
    echo = _set_limit(
        figures,
        DEFAULT_THRESHOLD,
        f"Limit each snapshot created from now on to {DEFAULT_THRESHOLD:,} copies in flight; "
        "existing snapshots keep their limit"
        if is_semaphore
        else f"Limit each snapshot to {DEFAULT_THRESHOLD:,} copies in flight, at once: "
        "the memory returns as the copies beyond the limit complete",
        "writes to an origin wait for copies, and become as slow as the slowest COW device",
        returns=None if is_semaphore else figures.returned_by(None) or None,
        is_upper_bound=not is_semaphore,
    )
    return (echo, _PERSIST, _FIND_SETTER, *(_write_less(figures) if is_semaphore else ()))


def _lower(figures: Figures) -> tuple[Remedy, ...]:
    census, threshold = figures.census, figures.census.threshold
    if census.limit is not Limit.IN_PROGRESS or not threshold or not figures.limited:
        return ()
    lower = max(threshold // 4, 1)
    if not (returns := figures.returned_by(lower)):
        return ()
    return (
        _set_limit(
            figures,
            lower,
            f"Limit each snapshot to {lower:,} copies in flight instead of {threshold:,}",
            "writes to an origin start to wait for copies earlier",
            returns=returns,
            is_upper_bound=True,
        ),
    )


def _bounded(bound: Bound, amount: str) -> str:
    return f"{bound.value} {amount}".lstrip()


def _no_lower(figures: Figures) -> str:
    if figures.census.has_jobs:
        return (
            "The memory returns when the copies are done; `kcensus kcopyd TARGET --table clients` "
            "shows their devices"
        )
    return (
        "Pass the debug info of dm_mod and dm_snapshot, or a type pack with them, with -s: it has "
        "the owners of the jobs. `kcensus doctor TARGET` names the package"
    )


def _shrink(figures: Figures) -> tuple[Remedy, ...]:
    use = figures.census.job_slab
    if use.empty_bytes < MIN_BYTES:
        return ()
    return (
        written(
            "Free the slabs of kcopyd_job that hold no job",
            _SHRINK,
            1,
            risk="none; the next copies allocate new slabs",
            returns=use.empty_bytes,
            knobs=(_SHRINK,),
        ),
    )


# Snapshots


def _waiters(figures: Figures) -> Iterator[Finding]:
    is_semaphore = figures.census.limit is Limit.SEMAPHORE
    for snapshot in figures.snapshots:
        if not snapshot.waiters:
            continue
        copies, limit = figures.copies(snapshot), figures.limit_of(snapshot)
        tasks = [task_name(task.comm, task.pid) for task in snapshot.waiters]
        known = "none" if limit == UNLIMITED else _number(limit)
        higher = _raise_limit(figures, snapshot, limit)
        # A limit below the default is probably too low.
        is_low = limit and limit < DEFAULT_THRESHOLD
        evidence = (
            f"copies in flight: {_number(copies)}, limit: {known}; the COW device completes copies "
            "more slowly than the origin is written; waiting: "
            f"{listed(tasks)}"
        )
        kept, stalls = keepers(figures.kernel, [snapshot]), waits(figures.kernel, snapshot)
        evidence += _kept(kept)
        remedies = (*higher, _SHOW_BUSY) if is_low else (_SHOW_BUSY, *higher)
        how = Severity.WARNING if is_semaphore else Severity.NOTICE
        how = max([how, *(each.severity for each in stalls)])
        if is_semaphore:
            evidence += "; the tasks wait for cow_count, and may hold _origins_lock"
        yield Finding(
            id=f"dm-snapshot-waiters:{snapshot.device.name}",
            severity=how,
            danger=Danger.STALL if how >= Severity.WARNING else Danger.NONE,
            title=(
                f"{counted(len(tasks), 'task', 'wait')} for the copy limit of snapshot "
                f"{snapshot.device.name}"
                + (", a semaphore that can deadlock" if is_semaphore else "")
            ),
            evidence=evidence,
            tasks=frozenset(int(task.pid) for task in snapshot.waiters),
            figures=_counts(tasks=len(tasks), copies=copies, limit=limit),
            remedies=(*_first(kept), *remedies),
            covers=frozenset(each.finding.id for each in kept),
            patch=_LIMIT_PATCH if is_semaphore else "",
        )


def _raise_limit(figures: Figures, snapshot: Snapshot, limit: int | None) -> tuple[Remedy, ...]:
    if not limit or limit == UNLIMITED:
        return ()
    is_semaphore = figures.census.limit is Limit.SEMAPHORE
    higher = max(2 * limit, DEFAULT_THRESHOLD)
    job = figures.census.job_slab.slot_size + (snapshot.chunk_sectors or 0) * 512
    more = human_bytes((higher - limit) * job)
    scope = "each snapshot created from now on" if is_semaphore else "each snapshot at once"
    return (
        _set_limit(
            figures,
            higher,
            f"Raise the limit from {limit:,} to {higher:,} copies in flight, for {scope}",
            f"up to {more} more memory for each snapshot",
        ),
    )


def _unusable(figures: Figures) -> Iterator[Finding]:
    valid = [row for row in figures.snapshots if row.valid]
    states = {
        "invalid": (
            [row for row in figures.snapshots if not row.valid],
            "dm_snapshot.valid is 0: the COW device was full or failed",
            _LIST_INVALID,
        ),
        "full": (
            [row for row in valid if row.overflowed],
            "dm_snapshot.snapshot_overflowed is 1: writes to the snapshot fail",
            _SHOW_USED,
        ),
    }
    for state, (rows, evidence, remedy) in states.items():
        if names := sorted(row.device.name for row in rows):
            verb = "is" if len(names) == 1 else "are"
            yield Finding(
                id=f"dm-snapshot-{state}",
                severity=Severity.NOTICE,
                title=f"{counted(len(names), 'snapshot')} {verb} {state}: {listed(names)}",
                evidence=evidence,
                figures=_counts(snapshots=len(names)),
                remedies=(remedy,),
            )


def _page_wait(figures: Figures) -> Iterator[Finding]:
    waiting = figures.census.jobs.listed[:, -1]
    starved = (waiting > 0) & (figures.census.clients.free_pages == 0)
    if not starved.any():
        return
    jobs, clients = int(waiting[starved].sum()), int(np.count_nonzero(starved))
    yield Finding(
        id="kcopyd-page-wait",
        severity=Severity.NOTICE,
        danger=Danger.OOM,
        title=f"{counted(jobs, 'job')} of {counted(clients, 'client', 'wait')} for pages",
        evidence="the jobs are on pages_jobs: all reserved pages are in use, and no page is free",
        figures=_counts(jobs=jobs, clients=clients),
        no_remedy="The jobs continue once pages are free; `kcensus slab TARGET --table caches` "
        "shows the largest slab caches",
    )


# The kernel log


def log_findings(
    log: LogEvents, stalled: Mapping[str, str] | None = None, *, is_file: bool = True
) -> list[Finding]:
    """Return the findings of a log.

    :param stalled: ids of findings about stalled pools, by CPU; None without a target
    :param is_file: whether it is not the log of the target, whose hung tasks `waits` reports
    """
    hung = _hung_tasks(log) if is_file else ()
    return [*_lockups(log, stalled), *hung, *_out_of_memory(log)]


def _lockups(log: LogEvents, stalled: Mapping[str, str] | None) -> Iterator[Finding]:
    lockups = log.of("lockup")
    worst = max(lockups, key=lambda event: event.seconds or 0, default=None)
    if not worst:
        return
    running, runs_kcopyd = set(), False
    for event in log.of("in-flight"):
        if event.cpus == worst.cpus:
            module = f" [{event.module}]" if event.module else ""
            running.add(f"{event.function}{module} of {event.workqueue}")
            runs_kcopyd |= event.workqueue == "kcopyd"
    yield Finding(
        id="log-lockup",
        severity=Severity.WARNING,
        danger=Danger.STALL,
        title=(
            f"the log reports {counted(len(lockups), 'workqueue lockup')}, the longest of "
            f"{human_seconds(worst.seconds or 0)} on CPU {worst.cpus}"
            + (" while it ran kcopyd" if runs_kcopyd else "")
        ),
        evidence=f"running on that CPU: {listed(sorted(running)) or 'nothing shown'}",
        figures={"seconds": Figure(worst.seconds, Unit.SECONDS), **_counts(lockups=len(lockups))},
        remedies=(_SHOW_PATCH if stalled is None else _FIND_PATCHES,) if runs_kcopyd else (),
        no_remedy=""
        if runs_kcopyd
        else "Read the running work items in the log, in the lines after each message",
        part_of=(stalled or {}).get(worst.cpus or "", ""),
    )


def _tasks(log: LogEvents, kind: str) -> str:
    named = {task_name(event.comm or "?", event.pid or "?") for event in log.of(kind)}
    return listed(sorted(named))


def _hung_tasks(log: LogEvents) -> Iterator[Finding]:
    if hung := log.of("hung task"):
        longest = max(event.seconds or 0 for event in hung)
        # The detector reports a task again and again.
        tasks = len({(event.comm, event.pid) for event in hung})
        pids = frozenset(int(event.pid) for event in hung if event.pid)
        title = f"the log reports {counted(tasks, 'hung task')}, the longest blocked for more "
        yield Finding(
            id="log-hung-task",
            tasks=pids,
            is_generic=True,
            is_vague=True,
            severity=Severity.WARNING,
            danger=Danger.STALL,
            title=f"{title}than {human_seconds(longest)}",
            evidence=_tasks(log, "hung task"),
            no_remedy="Read the stack after each message in the log: its functions name the lock, "
            "driver or file system",
            figures={"seconds": Figure(longest, Unit.SECONDS), **_counts(tasks=tasks)},
        )


def _out_of_memory(log: LogEvents) -> Iterator[Finding]:
    if not (ooms := log.of("oom")):
        return
    title = f"the log reports {counted(len(ooms), 'run')} of the OOM killer"
    largest = max(log.of("slab"), key=lambda event: event.total_bytes or 0, default=None)
    numbers = _counts(runs=len(ooms))
    remedies: tuple[Remedy, ...] = ()
    if largest:
        size = largest.total_bytes or 0
        title += (
            f"; the largest unreclaimable slab cache was {largest.detail} with {human_bytes(size)}"
        )
        numbers["slab_bytes"] = Figure(size, Unit.BYTES)
        if largest.detail == "kcopyd_job":
            remedies = (_SHOW_LIMIT,)
    yield Finding(
        id="log-oom",
        severity=Severity.WARNING,
        danger=Danger.OOM,
        title=title,
        evidence=f"killed: {_tasks(log, 'oom kill') or 'none'}",
        figures=numbers,
        remedies=remedies,
        no_remedy=""
        if remedies
        else "Read the memory by use in the log, in the lines after each message",
    )


# Remedies


def _set_limit(figures: Figures, limit: int, effect: str, risk: str, **more: Any) -> Remedy:
    return written(
        effect,
        _PARAMETER,
        limit,
        figures.census.threshold,
        risk=risk,
        until="reboot, or dm_snapshot is loaded again",
        knobs=(_PARAMETER,),
        **more,
    )


def _write_less(figures: Figures) -> Iterator[Remedy]:
    """Yield the remedy that lowers the limit of dirty pages to a quarter, if the limit is known."""
    limit = None
    with contextlib.suppress(LookupError, TypeError, drgn.FaultError, NotRecorded):
        prog = figures.kernel.prog
        dirty, ratio = int(prog["vm_dirty_bytes"]), int(prog["vm_dirty_ratio"])
        limit = dirty or figures.kernel.ram_bytes * ratio // 100
        undo = f"vm.dirty_bytes={dirty}" if dirty else f"vm.dirty_ratio={ratio}"
    if limit is None or limit // 4 < _MIN_DIRTY:
        return
    lower = min(limit // 4 // _MIB * _MIB, _MAX_DIRTY)
    yield sysctl(
        f"Lower the limit of dirty pages from about {human_bytes(limit)} to {human_bytes(lower)}: "
        "fewer copies start at once",
        "vm.dirty_bytes",
        lower,
        undo,
        risk="buffered writes of all programs on this machine are throttled earlier",
        until="reboot",
    )
