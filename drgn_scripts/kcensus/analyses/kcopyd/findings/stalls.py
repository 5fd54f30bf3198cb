# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about worker pools without progress, and runs of callbacks that can cause that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings.remedies import CALLBACK_PATCH, NO_FEWER, write_less
from kcensus.analyses.kcopyd.findings.words import counts
from kcensus.human import counted, human_seconds, listed
from kcensus.kernel.names import DAMAGED
from kcensus.kernel.waiting.frames import place_of
from kcensus.kernel.workqueues import Pool
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit

_MAX_STACKS = 6


def stall(figures: Figures, pool: Pool) -> Finding:
    """Return the finding about a stalled worker pool."""
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
            **counts(pending=pool.pending, running=len(busy)),
        },
        remedies=(*remedies, *(write_less(figures) if runs_kcopyd else ())),
        no_remedy=""
        if runs_kcopyd or stacks
        else "No worker of the pool runs any work: look in the kernel log for a stuck CPU, or for "
        "workers that could not be created",
        patch=CALLBACK_PATCH if runs_kcopyd and figures.census.callback_list is False else "",
    )


def _inside(figures: Figures, pid: int) -> str:
    """Return the function in which a worker is, as the end of a phrase."""
    with contextlib.suppress(*DAMAGED):
        if place := place_of(figures.kernel, pid):
            return f", in {place}"
    return ""


def callbacks(figures: Figures) -> Iterator[Finding]:
    """Yield the finding about a kernel without a bound of callbacks, if a client has many jobs."""
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
        figures=counts(jobs=most),
        remedies=(remedies := tuple(write_less(figures))),
        no_remedy="" if remedies else NO_FEWER,
        patch=CALLBACK_PATCH,
    )
