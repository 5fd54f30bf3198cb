# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the census of kcopyd means, in sentences to act on."""

from __future__ import annotations

from collections.abc import Iterator

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD, KcopydCensus
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.analyses.kcopyd.tables import described
from kcensus.human import human_bytes, human_ratio, human_seconds
from kcensus.kernel.dm.snapshots import Limit, Snapshot
from kcensus.kernel.workqueues import Functions, Pool, Workqueues
from kcensus.results import Finding, Severity

_PARAMETER = "/sys/module/dm_snapshot/parameters/snapshot_cow_threshold"
_LARGE_SHARE, _HUGE_SHARE = 0.1, 0.25
"""Of RAM: worth a warning, and close to what brought the OOM killer."""
_LIMIT_PATCH, _CALLBACK_PATCH = "dm-snapshot-cow-in-progress", "dm-kcopyd-callback-list"


def findings(census: KcopydCensus, log: LogEvents, functions: Functions, ram: int) -> list[Finding]:
    """All of them, the most severe first.

    :param ram: bytes of it
    """
    found = [
        *_stalls(census, functions),
        *_memory(census, ram),
        *_mechanisms(census),
        *_waiters(census),
        *_invalid(census),
        *_pages(census),
        *_strangers(census),
        *log_findings(log),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _all(census: KcopydCensus) -> list[Snapshot]:
    return census.snapshots.all if census.snapshots else []


# Pools that are stuck


def _stalls(census: KcopydCensus, functions: Functions) -> Iterator[Finding]:
    queues = census.workqueues
    for pool in queues.pools if queues else []:
        if queues is not None and pool.stalled:
            yield _stall(census, queues, pool, functions)


def _stall(census: KcopydCensus, queues: Workqueues, pool: Pool, functions: Functions) -> Finding:
    items = queues.items[queues.items["pool"] == pool.id]
    busy = items[items["state"] == "in-flight"]
    culprits = sorted(
        f"{described(functions, int(func))} of {queues.names.get(int(wq), '?')} (PID {pid})"
        for func, wq, pid in zip(busy["func"], busy["wq"], busy["pid"], strict=True)
    )
    waiting = items[items["state"] != "in-flight"]
    victims = sorted({described(functions, func) for func in waiting["func"].unique().tolist()})
    clients = set(census.clients.wq.tolist()) if census.clients is not None else set()
    kcopyd = any(int(wq) in clients or queues.names.get(int(wq)) == "kcopyd" for wq in busy["wq"])
    where = f"of CPU {pool.cpu}" if pool.cpu >= 0 else f"{pool.id} (unbound)"
    holds = ", and kcopyd holds it" if len(busy) == 1 else ", and kcopyd is among what it runs"
    return Finding(
        Severity.CRITICAL,
        f"the worker pool {where} has made no progress for {human_seconds(pool.age or 0)}"
        + (holds if kcopyd else ""),
        f"pending: {_counted(pool.pending, 'item')}, {_some(victims)}; "
        f"running: {_some(culprits) or 'nothing, all its workers sleep or starve'}; "
        f"the limit is {queues.threshold} s"
        + ("" if queues.threshold_known else ", the kernel's default: this one does not watch"),
        _stall_remedy(census) if kcopyd else "look at what the running worker does",
        _CALLBACK_PATCH if kcopyd and census.callback_list is False else "",
    )


def _stall_remedy(census: KcopydCensus) -> str:
    fewer = (
        "keep fewer copies in flight: write less at once, use larger chunks or fewer snapshots of "
        "one origin"
    )
    if census.callback_list is False:
        return f"until the kernel has the callback list, {fewer}"
    if census.callback_list is None:
        return fewer
    return (
        "this kernel has the callback list, so one run of kcopyd ends: look at which client's "
        "callbacks take that long, and lower what it has in flight"
    )


# Memory


def _memory(census: KcopydCensus, ram: int) -> Iterator[Finding]:
    if census.job_slab is None:
        return
    use = census.job_slab
    share = use.bytes / ram if ram else 0.0
    if census.unlimited and _all(census):
        yield _unlimited(census, share)
    elif share >= _LARGE_SHARE:
        yield Finding(
            Severity.CRITICAL if share >= _HUGE_SHARE else Severity.WARNING,
            f"jobs of kcopyd take {human_bytes(use.bytes)}, {human_ratio(share)} of RAM",
            f"{use.active:,} of {use.objects:,} slots of {use.name} are in use",
            "install the debug info of dm_mod and dm_snapshot to see whose they are"
            if census.jobs is None
            else "the table of clients says whose they are: have those copy less at once",
        )


def _unlimited(census: KcopydCensus, share: float) -> Finding:
    use, projected = census.job_slab, census.projected_bytes()
    assert use is not None
    over = [one for one in _all(census) if (census.copies(one) or 0) > census.bound]
    severity = Severity.INFO
    if over and share >= _HUGE_SHARE:
        severity = Severity.CRITICAL
    elif over or share >= _LARGE_SHARE:
        severity = Severity.WARNING
    jobs = census.jobs.active - census.jobs.reserve if census.jobs else use.active
    evidence = f"{_counted(len(over), 'snapshot')} with more than {DEFAULT_THRESHOLD:,} copies"
    lifted = census.limit is not Limit.NONE
    if not lifted:
        evidence += "; struct dm_snapshot has neither cow_count nor in_progress"
        remedy = (
            "until the kernel has the limit, write less at once (vm.dirty_bytes), use larger "
            "chunks or fewer snapshots of one origin"
        )
    else:
        evidence += f"; snapshot_cow_threshold is {census.threshold}"
        remedy = f"echo {DEFAULT_THRESHOLD} > {_PARAMETER}"
        if census.limit is Limit.SEMAPHORE:
            remedy += "; snapshots made before keep their old limit, make them anew"
    return Finding(
        severity,
        f"nothing limits the copies of snapshots: {_counted(jobs, 'job')} of kcopyd take "
        f"{human_bytes(use.bytes)}, {human_ratio(share)} of RAM",
        evidence,
        remedy,
        "" if lifted else _LIMIT_PATCH,
        max(use.bytes - projected, 0) if projected is not None else None,
    )


# What this kernel lacks


def _mechanisms(census: KcopydCensus) -> Iterator[Finding]:
    if census.job_slab is None:
        return
    if census.limit is Limit.SEMAPHORE and not census.unlimited:
        yield Finding(
            Severity.NOTICE,
            "a semaphore limits the copies of snapshots, which can deadlock",
            "struct dm_snapshot has cow_count: tasks wait for it with the lock of all origins held",
            f"until the kernel has the rework, raise {_PARAMETER} so that nobody waits; it counts "
            "for snapshots that are made after that",
            _LIMIT_PATCH,
        )
    if census.callback_list is False:
        yield Finding(
            Severity.NOTICE,
            "kcopyd can run callbacks without end on this kernel",
            "struct dm_kcopyd_client has no callback_jobs: callbacks that are queued while it runs "
            "are added to what it is running",
            "until the kernel has the callback list, keep fewer copies in flight",
            _CALLBACK_PATCH,
        )


def _waiters(census: KcopydCensus) -> Iterator[Finding]:
    for one in _all(census):
        if not one.waiters:
            continue
        copies = census.copies(one)
        number = "an unknown number of" if copies is None else f"{copies:,}"
        limit = "unknown" if census.threshold is None else f"{census.threshold:,}"
        verb = "waits" if len(one.waiters) == 1 else "wait"
        yield Finding(
            Severity.NOTICE,
            f"{_counted(len(one.waiters), 'task')} {verb} until snapshot {one.device.name} has "
            "copied",
            f"{number} copies are in flight, the threshold is {limit}; "
            f"{_some([f'{waiter.comm}:{waiter.pid}' for waiter in one.waiters])}",
            "its COW device is slower than what is written to the origin; a higher "
            f"{_PARAMETER} trades memory for patience",
        )


def _invalid(census: KcopydCensus) -> Iterator[Finding]:
    bad = sorted(one.device.name for one in _all(census) if not one.valid or one.overflowed)
    if bad:
        yield Finding(
            Severity.NOTICE,
            f"{_counted(len(bad), 'snapshot')} invalid or full: {_some(bad)}",
            "dm_snapshot.valid is 0, or snapshot_overflowed is not",
            "remove the invalid ones, which protect nothing and keep their memory; a full one "
            "takes no more writes",
        )


def _pages(census: KcopydCensus) -> Iterator[Finding]:
    if census.jobs is None or census.clients is None:
        return
    waiting = census.jobs.listed[:, -1]
    hungry = (waiting > 0) & (census.clients.free_pages == 0)
    if hungry.any():
        jobs = int(waiting[hungry].sum())
        yield Finding(
            Severity.NOTICE,
            f"{_counted(jobs, 'job')} of {_counted(int(hungry.sum()), 'client')} "
            f"{'waits' if jobs == 1 else 'wait'} for pages",
            "their clients have used up the pages in reserve, and the kernel gives them no more",
            "memory is short: the table of clients says which jobs hold it",
        )


def _strangers(census: KcopydCensus) -> Iterator[Finding]:
    if census.jobs is None or census.clients is None:
        return
    unknown = [address not in census.owners for address in census.clients.address.tolist()]
    if any(unknown):
        yield Finding(
            Severity.INFO,
            f"{_counted(sum(unknown), 'client')} with "
            f"{_counted(int(census.jobs.jobs[unknown].sum()), 'job')} of no known target",
            "found by their jobs, or in kmalloc()'s caches by the cache they allocate jobs from",
            "the target is vdo or not the kernel's own, its table is not active, or its module's "
            "debug info is missing",
        )


# What the log tells of the past


def log_findings(log: LogEvents) -> list[Finding]:
    """What the log tells of the past."""
    return [*_lockups(log), *_hung(log), *_out_of_memory(log)]


def _lockups(log: LogEvents) -> Iterator[Finding]:
    lockups = log.of("lockup")
    if not lockups:
        return
    worst = max(lockups, key=lambda event: event.seconds or 0)
    there = [event for event in log.of("in-flight") if event.cpus == worst.cpus]
    running = sorted(
        {
            f"{event.function} [{event.module}] of {event.workqueue}"
            if event.module
            else f"{event.function} of {event.workqueue}"
            for event in there
        }
    )
    kcopyd = any(event.workqueue == "kcopyd" for event in there)
    yield Finding(
        Severity.WARNING,
        f"the log reports {_counted(len(lockups), 'workqueue lockup')}, the longest of "
        f"{human_seconds(worst.seconds or 0)} on CPU {worst.cpus}"
        + (", where kcopyd was running" if kcopyd else ""),
        f"running there: {_some(running) or 'nothing shown'}",
        "kernels before 5.0 let kcopyd run callbacks without end, and snapshots copy without a "
        "limit"
        if kcopyd
        else "",
    )


def _hung(log: LogEvents) -> Iterator[Finding]:
    hung = log.of("hung task")
    if hung:
        worst = max(hung, key=lambda event: event.seconds or 0)
        yield Finding(
            Severity.WARNING,
            f"the log reports {_counted(len(hung), 'hung task')}, the longest blocked for more "
            f"than {human_seconds(worst.seconds or 0)}",
            _some(sorted({f"{event.comm}:{event.pid}" for event in hung})),
        )


def _out_of_memory(log: LogEvents) -> Iterator[Finding]:
    ooms = log.of("oom")
    if not ooms:
        return
    largest = max(log.of("slab"), key=lambda event: event.total_bytes or 0, default=None)
    killed = sorted({f"{event.comm}:{event.pid}" for event in log.of("oom kill")})
    yield Finding(
        Severity.WARNING,
        f"the log reports that memory ran out {_counted(len(ooms), 'time')}"
        + (
            f"; the largest unreclaimable slab was {largest.detail} with "
            f"{human_bytes(largest.total_bytes or 0)}"
            if largest
            else ""
        ),
        f"killed: {_some(killed) or 'nobody'}",
        "snapshots copied more than their COW devices can take: limit them by "
        f"{_PARAMETER}, or where the kernel has none (before 5.0) write less at once"
        if largest and largest.detail == "kcopyd_job"
        else "",
    )
