# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the census of kcopyd and the events of the log mean, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.human import human_bytes, human_ratio, human_seconds
from kcensus.kernel.dm.snapshots import Limit
from kcensus.kernel.workqueues import Pool
from kcensus.results import Finding, Remedy, Severity, ratio

_PARAMETER = "/sys/module/dm_snapshot/parameters/snapshot_cow_threshold"
_LARGE_SHARE, _HUGE_SHARE = 0.1, 0.25
"""Of RAM: worth a warning, and close to the OOM killer."""
_LIMIT_PATCH, _CALLBACK_PATCH = "dm-snapshot-cow-in-progress", "dm-kcopyd-callback-list"
_FEWER = "lower vm.dirty_bytes, use larger chunks or fewer snapshots per origin"
_UNTIL_PATCHED = f"Keep fewer copies in flight until the kernel has the patch: {_FEWER}."
_MAX_NAMES = 6


def _remedies(text: str) -> tuple[Remedy, ...]:
    return (Remedy(effect=text),) if text else ()


def _slabs(size: int | None) -> dict[str, int]:
    return {"slab:kcopyd_job": size} if size else {}


def findings(figures: Figures) -> list[Finding]:
    """Return what is worth acting on, the most severe first."""
    unsorted = [
        *(_stall(figures, pool) for pool in figures.stalled),
        *_memory(figures),
        *_kernel(figures),
        *_snapshots(figures),
        *_clients(figures),
        *log_findings(figures.log),
    ]
    return sorted(unsorted, key=lambda finding: -finding.severity)


def _counted(number: int, noun: str, verb: str = "") -> str:
    """Return ``3 jobs wait`` or ``1 job waits``."""
    if verb:
        verb = f" {verb}s" if number == 1 else f" {verb}"
    return f"{number:,} {noun}{'' if number == 1 else 's'}{verb}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _stall(figures: Figures, pool: Pool) -> Finding:
    queues, describe = figures.census.workqueues, figures.functions.described
    items = queues.items[queues.items["pool"] == pool.id]
    is_busy = items["state"] == "in-flight"
    busy = items[is_busy]
    running = sorted(
        f"{describe(int(func))} of {queues.names.get(int(wq), '?')} (PID {pid})"
        for func, wq, pid in zip(busy["func"], busy["wq"], busy["pid"], strict=True)
    )
    waiting = sorted(describe(func) for func in items["func"][~is_busy].unique().tolist())
    runs_kcopyd = any(figures.is_kcopyd(wq) for wq in busy["wq"].tolist())
    title = f"worker pool of CPU {pool.cpu}" if pool.cpu >= 0 else f"unbound worker pool {pool.id}"
    title += f" has made no progress for {human_seconds(pool.age or 0)}"
    if runs_kcopyd:
        title += " while it runs kcopyd" + (" and other work" if len(busy) > 1 else "")
    has_list, patch = figures.census.callback_list, ""
    remedy = f"Keep fewer copies in flight: {_FEWER}."
    if not runs_kcopyd:
        remedy = "Look at the stacks of the running workers, by their PIDs."
    elif has_list is False:
        remedy, patch = _UNTIL_PATCHED, _CALLBACK_PATCH
    elif has_list:
        remedy = (
            "Find the client whose work item is running in the table clients, and keep fewer of its"
            f" copies in flight: {_FEWER}. This kernel has callback_jobs, so each run of kcopyd "
            "ends; its callbacks take that long."
        )
    return Finding(
        id=f"kcopyd-stall:{pool.id}",
        severity=Severity.CRITICAL,
        title=title,
        evidence=(
            f"pending: {_counted(pool.pending, 'item')}, {_names(waiting)}; "
            f"running: {_names(running) or 'nothing, all workers sleep or starve'}; "
            f"stall threshold: {queues.threshold} s "
            + ("(wq_watchdog_thresh)" if queues.has_watchdog else "(default; the watchdog is off)")
        ),
        remedies=_remedies(remedy),
        patch=patch,
    )


def _memory(figures: Figures) -> Iterator[Finding]:
    census, use, (_, projected) = figures.census, figures.census.job_slab, figures.projected
    share = ratio(use.bytes, figures.kernel.ram_bytes)
    of_ram = f"{human_bytes(use.bytes)} ({human_ratio(share)} of RAM)"
    if not census.in_use:
        return
    if figures.limited is not False or not figures.snapshots:
        if share >= _LARGE_SHARE:
            yield Finding(
                id="kcopyd-jobs",
                severity=Severity.CRITICAL if share >= _HUGE_SHARE else Severity.WARNING,
                title=f"kcopyd jobs use {of_ram}",
                evidence=f"{use.active:,} of {use.objects:,} slots of {use.name} are in use",
                remedies=_remedies(
                    "Keep fewer copies of the first clients in the table clients in flight."
                    if census.has_jobs
                    else "Install the debug info of dm_mod and dm_snapshot to see whose jobs they are."  # noqa: E501
                ),
            )
        return
    above = sum((figures.copies(row) or 0) > figures.bound for row in figures.snapshots)
    severity = Severity.WARNING if above or share >= _LARGE_SHARE else Severity.INFO
    if above and share >= _HUGE_SHARE:
        severity = Severity.CRITICAL
    evidence = f"{_counted(above, 'snapshot')} with more than {DEFAULT_THRESHOLD:,} copies"
    if census.limit is Limit.NONE:
        evidence += "; struct dm_snapshot has neither cow_count nor in_progress"
        remedy = f"Write less at once until the kernel has the patch: {_FEWER}."
    else:
        evidence += f"; snapshot_cow_threshold is {census.threshold}"
        remedy = (
            f"Run `echo {DEFAULT_THRESHOLD} > {_PARAMETER}`: writers to an origin then wait for "
            "copies, so they get slower. A reboot resets it."
        )
        if census.limit is Limit.SEMAPHORE:
            remedy += " Existing snapshots keep their limit."
    jobs = _counted(figures.jobs, "kcopyd job", "use")
    yield Finding(
        id="kcopyd-unthrottled",
        severity=severity,
        title=f"dm-snapshot copy-on-write is unthrottled: {jobs} {of_ram}",
        evidence=evidence,
        remedies=_remedies(remedy),
        patch=_LIMIT_PATCH if census.limit is Limit.NONE else "",
        memory=_slabs(None if projected is None else max(use.bytes - projected, 0)),
    )


def _kernel(figures: Figures) -> Iterator[Finding]:
    """Yield what this kernel lacks, whatever it is doing."""
    census = figures.census
    if not census.in_use:
        yield Finding(
            id="kcopyd-absent",
            severity=Severity.INFO,
            title="kcopyd is not in use",
            evidence="there is no slab cache kcopyd_job: dm_mod is not loaded",
        )
        return
    if census.limit is Limit.SEMAPHORE and figures.limited is not False:
        yield Finding(
            id="dm-snapshot-semaphore",
            severity=Severity.NOTICE,
            title="dm-snapshot limits copies with a semaphore, which can deadlock",
            evidence="struct dm_snapshot has cow_count: tasks wait for it with _origins_lock held",
            remedies=_remedies(
                f"Raise {_PARAMETER} before you create snapshots, so that no task waits: existing ones "  # noqa: E501
                "keep their limit. More copies use more memory, and a reboot resets it."
            ),
            patch=_LIMIT_PATCH,
        )
    if census.callback_list is False:
        yield Finding(
            id="kcopyd-callbacks",
            severity=Severity.NOTICE,
            title="kcopyd can run completion callbacks without end on this kernel",
            evidence="struct dm_kcopyd_client has no callback_jobs: callbacks queued during a run extend it",  # noqa: E501
            remedies=_remedies(_UNTIL_PATCHED),
            patch=_CALLBACK_PATCH,
        )


def _snapshots(figures: Figures) -> Iterator[Finding]:
    threshold = figures.census.threshold
    for snapshot in figures.snapshots:
        if not snapshot.waiters:
            continue
        copies = figures.copies(snapshot)
        tasks = [f"{task.comm}:{task.pid}" for task in snapshot.waiters]
        remedy = f"Use a faster COW device, or raise {_PARAMETER}: "
        if figures.census.limit is Limit.SEMAPHORE:
            remedy += "it applies to snapshots created afterwards, and uses more memory."
        else:
            remedy += "more copies start at once and use more memory. A reboot resets it."
        yield Finding(
            id=f"dm-snapshot-waiters:{snapshot.device.name}",
            severity=Severity.NOTICE,
            title=f"{_counted(len(tasks), 'task', 'wait')} for copies of snapshot {snapshot.device.name}",  # noqa: E501
            evidence=(
                f"{'unknown' if copies is None else f'{copies:,}'} copies in flight, "
                f"snapshot_cow_threshold {'unknown' if threshold is None else f'{threshold:,}'}; "
                f"{_names(tasks)}"
            ),
            remedies=_remedies(remedy),
        )
    names = sorted(row.device.name for row in figures.snapshots if not row.valid or row.overflowed)
    if names:
        yield Finding(
            id=f"dm-snapshot-invalid:{snapshot.device.name}",
            severity=Severity.NOTICE,
            title=(
                f"{_counted(len(names), 'snapshot')} {'is' if len(names) == 1 else 'are'} invalid or "  # noqa: E501
                f"full: {_names(names)}"
            ),
            evidence="dm_snapshot.valid is 0, or snapshot_overflowed is 1",
            remedies=_remedies(
                "Remove the invalid ones (lvremove, dmsetup remove): their content is lost, and they "  # noqa: E501
                "keep their memory. Full ones reject writes."
            ),
        )


def _clients(figures: Figures) -> Iterator[Finding]:
    census = figures.census
    waiting = census.jobs.listed[:, -1]
    starved = (waiting > 0) & (census.clients.free_pages == 0)
    if starved.any():
        yield Finding(
            id="kcopyd-page-wait",
            severity=Severity.NOTICE,
            title=(
                f"{_counted(int(waiting[starved].sum()), 'job')} of "
                f"{_counted(int(starved.sum()), 'client', 'wait')} for pages"
            ),
            evidence="they are on pages_jobs: the reserved pages are in use, and the kernel gives no more",  # noqa: E501
            remedies=_remedies("Free memory; the table clients shows which jobs hold pages."),
        )
    unowned = [address not in census.owners for address in census.clients.address.tolist()]
    if any(unowned) and census.has_jobs:
        jobs = int(census.jobs.jobs[unowned].sum())
        yield Finding(
            id="kcopyd-unowned",
            severity=Severity.INFO,
            title=(
                f"{_counted(sum(unowned), 'kcopyd client')} with {_counted(jobs, 'job')} "
                f"{'belongs' if sum(unowned) == 1 else 'belong'} to no known target"
            ),
            evidence="found by their jobs, or in kmalloc() caches by the cache of their mempool",
            remedies=_remedies(
                "Look for vdo or out-of-tree targets, inactive tables, and modules without debug info."  # noqa: E501
            ),
        )


def log_findings(log: LogEvents) -> list[Finding]:
    """Return what the log says of the past."""
    return [*_lockups(log), *_hung_tasks(log), *_out_of_memory(log)]


def _lockups(log: LogEvents) -> Iterator[Finding]:
    worst = max(log.of("lockup"), key=lambda event: event.seconds or 0, default=None)
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
        title=(
            f"the log reports {_counted(len(log.of('lockup')), 'workqueue lockup')}, the longest of "  # noqa: E501
            f"{human_seconds(worst.seconds or 0)} on CPU {worst.cpus}"
            + (" while it ran kcopyd" if runs_kcopyd else "")
        ),
        evidence=f"running there: {_names(sorted(running)) or 'nothing shown'}",
        remedies=_remedies(
            "Run `kcensus patches` on a dump of this kernel: it shows whether kcopyd limits the "
            "callbacks of a run, and dm-snapshot the copies in flight."
            if runs_kcopyd
            else ""
        ),
    )


def _tasks(log: LogEvents, kind: str) -> str:
    return _names(sorted({f"{event.comm}:{event.pid}" for event in log.of(kind)}))


def _hung_tasks(log: LogEvents) -> Iterator[Finding]:
    if hung := log.of("hung task"):
        longest = human_seconds(max(event.seconds or 0 for event in hung))
        title = f"the log reports {_counted(len(hung), 'hung task')}, the longest blocked for more "
        yield Finding(
            id="log-hung-task",
            severity=Severity.WARNING,
            title=f"{title}than {longest}",
            evidence=_tasks(log, "hung task"),
        )


def _out_of_memory(log: LogEvents) -> Iterator[Finding]:
    if not (ooms := log.of("oom")):
        return
    title = f"the log reports {_counted(len(ooms), 'run')} of the OOM killer"
    largest = max(log.of("slab"), key=lambda event: event.total_bytes or 0, default=None)
    remedy = ""
    if largest:
        title += (
            f"; the largest unreclaimable slab cache was {largest.detail} with "
            f"{human_bytes(largest.total_bytes or 0)}"
        )
        if largest.detail == "kcopyd_job":
            remedy = (
                f"Limit the copies of snapshots with {_PARAMETER}; where the kernel has none, "
                f"write less at once: {_FEWER}."
            )
    evidence = f"killed: {_tasks(log, 'oom kill') or 'none'}"
    yield Finding(
        id="log-oom",
        severity=Severity.WARNING,
        title=title,
        evidence=evidence,
        remedies=_remedies(remedy),
    )
