# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the census of kcopyd means, in sentences to act on."""

from __future__ import annotations

from drgn_scripts.human import human_bytes, human_ratio, human_seconds
from drgn_scripts.kernel.dm_snapshot import Limit
from drgn_scripts.kernel.kcopyd_census import DEFAULT_THRESHOLD, KcopydCensus
from drgn_scripts.kernel.kcopyd_tables import described
from drgn_scripts.kernel.log_events import LogEvents
from drgn_scripts.kernel.workqueues import Functions, Pool, Workqueues
from drgn_scripts.results import Finding, Severity

_PARAMETER = "/sys/module/dm_snapshot/parameters/snapshot_cow_threshold"
_LARGE_SHARE, _HUGE_SHARE = 0.1, 0.25
"""Of RAM: worth a warning, and close to what brought the OOM killer."""


def findings(census: KcopydCensus, log: LogEvents, functions: Functions, ram: int) -> list[Finding]:
    """All of them, the most severe first."""
    found = [
        *_stalls(census, functions),
        *_limits(census, ram),
        *_waiters(census),
        *_snapshots(census),
        *_pages(census),
        *_strangers(census),
        *log_findings(log),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


def _stalls(census: KcopydCensus, functions: Functions) -> list[Finding]:
    queues = census.workqueues
    found = []
    for pool in queues.pools if queues else []:
        if queues is not None and pool.stalled:
            found.append(_stall(census, queues, pool, functions))
    return found


def _stall(census: KcopydCensus, queues: Workqueues, pool: Pool, functions: Functions) -> Finding:
    items = queues.items[queues.items["pool"] == pool.id]
    busy = items[items["state"] == "in-flight"]
    culprits = sorted(
        f"{described(functions, int(func))} of {queues.names.get(int(wq), '?')} (PID {pid})"
        for func, wq, pid in zip(busy["func"], busy["wq"], busy["pid"], strict=True)
    )
    waiting = items[items["state"] != "in-flight"]
    victims = sorted({described(functions, int(func)) for func in waiting["func"]})
    clients = set(census.clients.wq.tolist()) if census.clients is not None else set()
    kcopyd = any(int(wq) in clients or queues.names.get(int(wq)) == "kcopyd" for wq in busy["wq"])
    where = f"of CPU {pool.cpu}" if pool.cpu >= 0 else f"{pool.id} (unbound)"
    return Finding(
        Severity.CRITICAL,
        f"The worker pool {where} has made no progress for {human_seconds(pool.age or 0)}"
        + (", and kcopyd holds it." if kcopyd else "."),
        f"Pending: {_counted(pool.pending, 'item')}, {_some(victims)}. "
        f"Running: {_some(culprits) or 'nothing, all its workers sleep or starve'}. "
        f"The limit is {queues.threshold} s"
        + ("." if queues.threshold_known else ", the kernel's default; it does not watch itself."),
        _stall_remedy(census) if kcopyd else "Look at what the running worker does.",
        "dm-kcopyd-callback-list" if kcopyd and census.callback_list is False else "",
    )


def _stall_remedy(census: KcopydCensus) -> str:
    if census.callback_list is False:
        return (
            "Until the kernel has the callback list, keep fewer copies in flight: "
            "write less at once, use larger chunks or fewer snapshots of one origin."
        )
    return (
        "This kernel has the callback list, so one run of kcopyd ends: look at which client's "
        "callbacks take that long, and lower what it has in flight."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _limits(census: KcopydCensus, ram: int) -> list[Finding]:
    if census.limit is None or census.job_slab is None:
        return []
    found = []
    use, projected = census.job_slab, census.projected_bytes()
    over = [
        one
        for one in (census.snapshots.all if census.snapshots else [])
        if (one.in_flight or 0) > DEFAULT_THRESHOLD + 1
    ]
    excess = max(use.bytes - projected, 0) if projected is not None else 0
    if census.unlimited and census.snapshots and census.snapshots.all:
        share = use.bytes / ram if ram else 0.0
        severity = Severity.INFO
        if over:
            severity = Severity.CRITICAL if share >= _HUGE_SHARE else Severity.WARNING
        elif share >= _LARGE_SHARE:
            severity = Severity.WARNING
        lifted = census.limit is not Limit.NONE
        jobs = census.jobs.active - census.jobs.reserve if census.jobs else use.active
        found.append(
            Finding(
                severity,
                f"Nothing limits the copies of snapshots: {jobs:,} jobs take "
                f"{human_bytes(use.bytes)}, {human_ratio(share)} of RAM.",
                f"{_counted(len(over), 'snapshot')} with more than {DEFAULT_THRESHOLD} copies in "
                "flight; "
                + (
                    f"snapshot_cow_threshold is {census.threshold}."
                    if lifted
                    else "this kernel's snapshots have no limit at all."
                ),
                f"echo {DEFAULT_THRESHOLD} > {_PARAMETER}"
                + (
                    "; snapshots made before keep their old limit, make them anew."
                    if census.limit is Limit.SEMAPHORE
                    else ""
                )
                if lifted
                else "Write less at once (vm.dirty_bytes), use larger chunks, or fewer snapshots "
                "of one origin, until the kernel has the limit.",
                "" if lifted else "dm-snapshot-cow-in-progress",
                excess,
            )
        )
    if census.limit is Limit.SEMAPHORE and not census.unlimited:
        found.append(
            Finding(
                Severity.NOTICE,
                "This kernel limits copies with a semaphore, which can deadlock.",
                "struct dm_snapshot has cow_count: tasks wait for it with the lock of all origins "
                "held.",
                f"Raise {_PARAMETER} so that nobody waits, until the kernel has the rework.",
                "dm-snapshot-cow-in-progress",
            )
        )
    if census.callback_list is False:
        found.append(
            Finding(
                Severity.NOTICE,
                "kcopyd can run callbacks without end on this kernel.",
                "struct dm_kcopyd_client has no callback_jobs: jobs that complete while it runs "
                "are added to what it is running.",
                "Update the kernel; until then keep fewer copies in flight.",
                "dm-kcopyd-callback-list",
            )
        )
    return found


def _waiters(census: KcopydCensus) -> list[Finding]:
    found = []
    for one in census.snapshots.all if census.snapshots else []:
        if one.waiters:
            found.append(
                Finding(
                    Severity.NOTICE,
                    f"Snapshot {one.device.name} makes {_counted(len(one.waiters), 'task')} wait "
                    "until it has copied.",
                    f"{one.in_flight:,} copies are in flight with a threshold of "
                    f"{census.threshold}: {_some([f'{w.comm}:{w.pid}' for w in one.waiters])}.",
                    "The COW device is slower than what is written to the origin; a higher "
                    f"{_PARAMETER} trades memory for patience.",
                )
            )
    return found


def _snapshots(census: KcopydCensus) -> list[Finding]:
    invalid = [
        one.device.name
        for one in (census.snapshots.all if census.snapshots else [])
        if not one.valid or one.overflowed
    ]
    if not invalid:
        return []
    return [
        Finding(
            Severity.NOTICE,
            f"Invalid or full: {_counted(len(invalid), 'snapshot')}, {_some(sorted(invalid))}.",
            "dm_snapshot.valid is 0, or snapshot_overflowed is not.",
            "Remove them: they protect nothing any more and keep their memory.",
        )
    ]


def _pages(census: KcopydCensus) -> list[Finding]:
    if census.jobs is None or census.clients is None:
        return []
    waiting = census.jobs.listed[:, -1]
    hungry = (waiting > 0) & (census.clients.free_pages == 0)
    if not hungry.any():
        return []
    return [
        Finding(
            Severity.NOTICE,
            f"Waiting for pages: {_counted(int(waiting[hungry].sum()), 'job')} of "
            f"{_counted(int(hungry.sum()), 'client')}.",
            "Their clients have used up the pages in reserve, and the kernel gives them no more.",
            "Memory is short: see which jobs hold it in the table of clients.",
        )
    ]


def _strangers(census: KcopydCensus) -> list[Finding]:
    if census.jobs is None or census.clients is None:
        return []
    unknown = [address not in census.owners for address in census.clients.address.tolist()]
    if not any(unknown):
        return []
    return [
        Finding(
            Severity.INFO,
            f"Of no known target: {_counted(sum(unknown), 'client')} with "
            f"{_counted(int(census.jobs.jobs[unknown].sum()), 'job')}.",
            "They were found in kmalloc()'s caches by the cache that they allocate jobs from.",
            "Their target is not one of the kernel's own, is being made or removed, or its "
            "module's debug info is missing.",
        )
    ]


def log_findings(log: LogEvents) -> list[Finding]:
    """What the log tells of the past."""
    found = []
    lockups = log.of("lockup")
    if lockups:
        worst = max(lockups, key=lambda event: event.seconds or 0)
        running = sorted(
            {
                f"{event.function} [{event.module}]" if event.module else str(event.function)
                for event in log.of("in-flight")
                if event.cpus == worst.cpus
            }
        )
        kcopyd = any(event.workqueue == "kcopyd" for event in log.of("in-flight"))
        found.append(
            Finding(
                Severity.WARNING,
                f"The log reports {_counted(len(lockups), 'workqueue lockup')}, the longest of "
                f"{human_seconds(worst.seconds or 0)} on CPUs {worst.cpus}.",
                f"Running there: {_some(running) or 'nothing shown'}."
                + (" kcopyd was among them." if kcopyd else ""),
                "Hold the worker pools of the dump against them.",
            )
        )
    hung = log.of("hung task")
    if hung:
        worst = max(hung, key=lambda event: event.seconds or 0)
        found.append(
            Finding(
                Severity.WARNING,
                f"The log reports {_counted(len(hung), 'hung task')}, the longest blocked for "
                f"more than {human_seconds(worst.seconds or 0)}.",
                f"{_some(sorted({f'{event.comm}:{event.pid}' for event in hung}))}.",
            )
        )
    ooms = log.of("oom")
    if ooms:
        largest = max(log.of("slab"), key=lambda event: event.total_bytes or 0, default=None)
        found.append(
            Finding(
                Severity.WARNING,
                f"The log reports that memory ran out {_counted(len(ooms), 'time')}."
                + (
                    f" The largest unreclaimable slab was {largest.detail} with "
                    f"{human_bytes(largest.total_bytes or 0)}."
                    if largest
                    else ""
                ),
                f"Killed: "
                f"{_some(sorted({f'{e.comm}:{e.pid}' for e in log.of('oom kill')})) or 'nobody'}.",
            )
        )
    return found
