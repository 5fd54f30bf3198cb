# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of kcopyd, and report it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kcensus.analyses.kcopyd.census import Census, take
from kcensus.analyses.kcopyd.checks import checks, gaps
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings import findings, log_findings
from kcensus.analyses.kcopyd.log_events import LogEvents, log_file, parse
from kcensus.analyses.kcopyd.tables import LOG_EVENTS, tables
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import read_log
from kcensus.results import Answer, Figure, Scalar, Unit
from kcensus.results.tables import make_tables


def run(kernel: Kernel, log: str | None = None) -> Answer:
    """Take the census and report it; without a target, report the log file ``log`` only.

    :raises AnalysisError: the file is not a log
    """
    events = None if log is None else parse(log_file(log))
    if events is not None and kernel.prog.platform is None:
        return Answer(
            summary=_log_summary(events),
            tables=make_tables((LOG_EVENTS,), Figures(kernel, Census(), events)),
            findings=log_findings(events),
            measures=False,
            source=log or "",
        )
    census = take(kernel)
    if events is None:
        read = read_log(kernel)
        events = replace(parse(read.lines), lost=read.lost, damage=read.damage)
        if not events.lines:
            events, census.errors["kernel log"] = LogEvents(), read.damage or "empty"
    figures = Figures(kernel, census, events, is_log_file=log is not None)
    return Answer(
        summary=summary(figures) if census.in_use else _absent(figures),
        nothing="" if census.in_use else "kcopyd is not in use: there is no slab cache kcopyd_job",
        tables=tables(figures),
        checks=[*checks(figures)],
        findings=findings(figures),
        gaps=gaps(figures),
    )


def _absent(figures: Figures) -> dict[str, Figure]:
    names = ("jobs", "job_bytes", "total_bytes", "clients", "snapshots", "projected_job_bytes")
    names += ("stalled_pools", *(_log_summary(figures.log) if figures.log.events else ()))
    whole = summary(figures)
    return {name: whole[name] for name in names}


def summary(figures: Figures) -> dict[str, Figure]:
    """Return the totals, with None for unknown ones."""
    census, snapshots = figures.census, figures.snapshots
    jobs, size, has_jobs = census.jobs, census.job_slab.bytes, census.has_jobs
    has_clients = has_jobs or not census.in_use
    has_snapshots = census.has_snapshots or not census.in_use
    has_pools = "workqueues" not in census.errors

    def figure(value: Scalar, label: str, unit: Unit = Unit.COUNT, known: bool = True) -> Figure:
        return Figure(value if known else None, unit, label)

    def share(whole: int | None, label: str) -> Figure:
        return Figure(size / whole if whole else None, Unit.RATIO, label)

    def total(counts: Iterable[int], label: str) -> Figure:
        return figure(sum(counts), label, known=has_snapshots)

    limit, threshold = census.limit and census.limit.value, census.workqueues.threshold
    data_bytes = int(jobs.pages.sum()) * figures.kernel.memory.page_size
    clients = len(census.clients) if census.in_use else 0
    bound, (projected, packed) = figures.largest_bound if limit else None, figures.projected
    total_bytes, bio_bytes = sum(figures.memory.values()), sum(figures.bios.values())
    exception_bytes = sum(figures.exceptions.values())
    has_bios = has_jobs and "bios" not in census.errors
    return {
        "jobs": replace(figure(figures.jobs, "kcopyd jobs"), bound=figures.jobs_bound),
        "total_bytes": replace(
            figure(total_bytes, "kcopyd memory", Unit.BYTES), bound=figures.memory_bound
        ),
        "job_bytes": figure(size, "kcopyd_job slabs", Unit.BYTES),
        "page_bytes": figure(
            figures.page_bytes, "copy pages, reserve included", Unit.BYTES, has_jobs
        ),
        "bio_bytes": figure(bio_bytes, "bios of copies", Unit.BYTES, has_bios),
        "exception_bytes": figure(exception_bytes, "exceptions", Unit.BYTES, has_snapshots),
        "empty_job_bytes": figure(
            census.job_slab.empty_bytes, "empty kcopyd_job slabs", Unit.BYTES
        ),
        "clients": figure(clients, "kcopyd clients", known=has_clients),
        "snapshots": figure(len(snapshots), "snapshots", known=has_snapshots),
        "in_flight_cow": figure(figures.in_flight, "snapshot copies in flight"),
        "cow_threshold": figure(census.threshold, "snapshot_cow_threshold"),
        "limit_mechanism": figure(limit, "limit of copies", Unit.TEXT),
        "limited": figure(figures.limited, "copies are limited", Unit.NONE),
        "callback_list": figure(census.callback_list, "clients have callback_jobs", Unit.NONE),
        "stalled_pools": figure(len(figures.stalled), "stalled worker pools", known=has_pools),
        "share_of_unreclaimable": share(figures.unreclaimable_bytes, "kcopyd_job in SUnreclaim"),
        "share_of_ram": share(figures.kernel.ram_bytes, "kcopyd_job in RAM"),
        "projected_jobs": figure(projected, "jobs under the limit"),
        "projected_job_bytes": figure(packed, "kcopyd_job under the limit", Unit.BYTES),
        "bound_per_snapshot": figure(bound, "copies allowed per snapshot"),
        "reserved_jobs": figure(jobs.reserve, "jobs preallocated in mempools", known=has_jobs),
        "data_page_bytes": figure(data_bytes, "data pages of jobs", Unit.BYTES, has_jobs),
        "pending_exceptions": total((each.pending for each in snapshots), "pending exceptions"),
        "exceptions": total((each.exceptions for each in snapshots), "completed exceptions"),
        "waiting_tasks": total(
            (len(each.waiters) for each in snapshots), "tasks waiting for the limit"
        ),
        "stall_threshold": figure(threshold, "stall threshold", Unit.SECONDS, has_pools),
        **_log_summary(figures.log),
    }


def _log_summary(log: LogEvents) -> dict[str, Figure]:
    return {
        "log_lines": Figure(log.lines, Unit.COUNT, "lines of the kernel log"),
        "log_events": Figure(len(log.events), Unit.COUNT, "events in the kernel log"),
        "log_lines_unknown": Figure(log.unknown, Unit.COUNT, "log lines cut or unknown"),
    }
