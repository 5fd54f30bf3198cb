# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of kcopyd, and say what it means."""

from __future__ import annotations

import drgn

from kcensus.analyses.kcopyd.census import take
from kcensus.analyses.kcopyd.checks import checks, gaps
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings import findings, log_findings
from kcensus.analyses.kcopyd.log_events import LogEvents, log_file, parse
from kcensus.analyses.kcopyd.tables import log_events, tables
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import records
from kcensus.results import Answer, Figure, Scalar, Unit


def run(kernel: Kernel, log: str | None = None) -> Answer:
    """Take the census and say what it means; without a target, only what a log says.

    :param log: path of a kernel log to read instead of the one in memory
    :raises AnalysisError: the file is not a log
    :raises UnsupportedAllocator: the kernel does not use SLUB
    :raises LookupError: the debug info or the memory model lacks what is needed
    """
    events = None if log is None else parse(log_file(log))
    if events is not None and kernel.prog.platform is None:
        return Answer(
            summary=_log_summary(events),
            tables={"log_events": log_events(events)},
            findings=log_findings(events),
            measures=False,
            source=log or "",
        )
    census = take(kernel)
    if events is None:
        try:
            events = parse(records(kernel.prog))
        except (LookupError, ValueError, drgn.FaultError) as error:
            events, census.errors["kernel log"] = LogEvents(), str(error)
    figures = Figures(kernel, census, events)
    return Answer(
        summary=summary(figures),
        tables=tables(figures),
        checks=checks(figures),
        findings=findings(figures),
        gaps=gaps(figures),
    )


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals; None for what is unknown."""
    census, snapshots = figures.census, figures.snapshots
    jobs, use = census.jobs, census.job_slab
    has_pools = "workqueues" not in census.errors

    def count_if(known: bool, count: int, label: str) -> Figure:
        return Figure(count if known else None, Unit.COUNT, label)

    def bytes_(value: Scalar, label: str) -> Figure:
        return Figure(value, Unit.BYTES, label)

    def share(whole: int | None, label: str) -> Figure:
        return Figure(use.bytes / whole if whole else None, Unit.RATIO, label)

    has_clients = census.has_jobs or not census.in_use
    has_snapshots = census.has_snapshots or not census.in_use
    data_pages = int(jobs.pages.sum()) * figures.kernel.memory.page_size
    pending = sum(snapshot.pending for snapshot in snapshots)
    exceptions = sum(snapshot.exceptions for snapshot in snapshots)
    waiting = sum(len(snapshot.waiters) for snapshot in snapshots)
    clients = len(census.clients) if census.in_use else 0
    return {
        "jobs": Figure(figures.jobs, Unit.COUNT, "kcopyd jobs"),
        "job_bytes": bytes_(use.bytes, "kcopyd_job slabs"),
        "clients": count_if(has_clients, clients, "kcopyd clients"),
        "snapshots": count_if(has_snapshots, len(snapshots), "snapshots"),
        "in_flight_cow": Figure(figures.in_flight, Unit.COUNT, "snapshot copies in flight"),
        "cow_threshold": Figure(census.threshold, Unit.COUNT, "snapshot_cow_threshold"),
        "limit_mechanism": Figure(
            census.limit.value if census.limit else None, Unit.TEXT, "limit of copies"
        ),
        "limited": Figure(figures.limited, Unit.NONE, "copies are limited"),
        "callback_list": Figure(census.callback_list, Unit.NONE, "clients have callback_jobs"),
        "stalled_pools": count_if(has_pools, len(figures.stalled), "stalled worker pools"),
        "share_of_unreclaimable": share(figures.unreclaimable_bytes, "kcopyd_job in SUnreclaim"),
        "share_of_ram": share(figures.kernel.ram_bytes, "kcopyd_job in RAM"),
        "projected_jobs": Figure(figures.projected_jobs, Unit.COUNT, "jobs under the limit"),
        "projected_job_bytes": bytes_(figures.projected_bytes, "kcopyd_job under the limit"),
        "bound_per_snapshot": count_if(
            census.limit is not None, figures.bound, "most copies of a snapshot"
        ),
        "reserved_jobs": count_if(census.has_jobs, jobs.reserve, "jobs preallocated in mempools"),
        "data_page_bytes": bytes_(data_pages if census.has_jobs else None, "data pages of jobs"),
        "pending_exceptions": count_if(has_snapshots, pending, "pending exceptions"),
        "exceptions": count_if(has_snapshots, exceptions, "completed exceptions"),
        "waiting_tasks": count_if(has_snapshots, waiting, "tasks waiting for the limit"),
        "stall_threshold": Figure(
            census.workqueues.threshold if has_pools else None, Unit.SECONDS, "stall threshold"
        ),
        **_log_summary(figures.log),
    }


def _log_summary(log: LogEvents) -> dict[str, Figure]:
    return {
        "log_lines": Figure(log.lines, Unit.COUNT, "lines of the kernel log"),
        "log_events": Figure(len(log.events), Unit.COUNT, "events in the kernel log"),
        "log_lines_unknown": Figure(log.unknown, Unit.COUNT, "log lines cut or unknown"),
    }
