# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take the census of kcopyd, and say what it means."""

from __future__ import annotations

import drgn

from kcensus.analyses import AnalysisError
from kcensus.analyses.kcopyd import tables
from kcensus.analyses.kcopyd.census import KcopydCensus, take
from kcensus.analyses.kcopyd.checks import kcopyd_checks
from kcensus.analyses.kcopyd.findings import findings, log_findings
from kcensus.analyses.kcopyd.log_events import LogEvents, parse
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import log_file, records
from kcensus.kernel.mm.vmstat import node_page_state
from kcensus.kernel.workqueues import Functions
from kcensus.results import Answer, Figure, Finding, Gap, Severity, Unit


def run(kernel: Kernel, log: str | None = None) -> Answer:
    """Take the census and say what it means; on no target, what a log alone tells.

    :param log: a file with the kernel's log, to be read instead of the log in memory
    """
    result = Answer()
    events = None if log is None else _from_file(log)
    if events is not None and kernel.prog.platform is None:
        result.source = log or ""
        return _of_log(result, events)
    census = take(kernel)
    result.gaps += census.gaps
    if events is None:
        events = _from_memory(kernel.prog, result)
    _Report(result, census, events, kernel).write()
    return result


def _of_log(result: Answer, events: LogEvents) -> Answer:
    result.measures = False
    result.summary |= _log_figures(events)
    result.tables["log_events"] = tables.log_events(events, None)
    result.findings += log_findings(events)
    return result


def _from_file(path: str) -> LogEvents:
    try:
        return parse(log_file(path))
    except ValueError as error:
        raise AnalysisError(f"--log: {error}") from None
    except OSError as error:
        raise AnalysisError(f"--log: cannot read {path}: {error.strerror}") from None


def _from_memory(prog: drgn.Program, result: Answer) -> LogEvents:
    try:
        return parse(records(prog))
    except (LookupError, ValueError, drgn.FaultError) as error:
        result.gaps.append(Gap("kernel log", str(error), 1, "no event of the log is known"))
        return LogEvents()


def _log_figures(log: LogEvents) -> dict[str, Figure]:
    return {
        "log_lines": Figure(log.lines, Unit.COUNT, "lines of the kernel's log"),
        "log_events": Figure(len(log.events), Unit.COUNT, "events in it"),
        "log_lines_unknown": Figure(
            log.unknown, Unit.COUNT, "lines that are cut or not understood"
        ),
    }


class _Report:
    """Turns a census into a result."""

    def __init__(
        self, result: Answer, census: KcopydCensus, log: LogEvents, kernel: Kernel
    ) -> None:
        self.result = result
        self.census = census
        self.log = log
        self.memory = memory = kernel.memory
        self.prog = kernel.prog
        self.live = kernel.live
        self.functions = Functions(kernel.prog)
        pages = node_page_state(self.prog, "NR_SLAB_UNRECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE")
        self.unreclaimable = None if pages is None else pages << memory.page_shift
        self.ram = kernel.ram_bytes

    def write(self) -> None:
        """Fill the result."""
        self._summary()
        try:
            self.prog.constant("POOL_BH")
            bottom_half = True
        except LookupError:
            bottom_half = False
        self.result.tables |= {
            "clients": tables.clients(self.census, self.memory.page_size),
            "snapshots": tables.snapshots(self.census),
            "pools": tables.pools(self.census.workqueues, self.functions, bottom_half),
            "pending_work": tables.pending_work(self.census, self.functions),
            "related_slabs": tables.related_slabs(self.census, self.unreclaimable),
            "log_events": tables.log_events(self.log, self.census),
        }
        self.result.checks += kcopyd_checks(self.census, self.live)
        if self.census.job_slab is None:
            self.result.findings.append(
                Finding(
                    Severity.INFO,
                    "kcopyd is not in use",
                    "there is no cache of kcopyd jobs: the device mapper is not loaded",
                )
            )
        self.result.findings += findings(self.census, self.log, self.functions, self.ram)
        queues = self.census.workqueues
        if queues is not None and queues.damaged:
            self.result.gaps.append(
                Gap(
                    "lists of workqueues",
                    "torn or unreadable",
                    queues.damaged,
                    "work that waits behind the tear is missing",
                )
            )

    def _summary(self) -> None:
        census, count, size = self.census, Unit.COUNT, Unit.BYTES
        jobs, use, queues = census.jobs, census.job_slab, census.workqueues
        shots = census.snapshots.all if census.snapshots else []
        known = census.snapshots is not None or use is None
        bytes_ = use.bytes if use else 0
        used = jobs.active - jobs.reserve if jobs else (use.active if use else 0)
        stalled = [pool for pool in queues.pools if pool.stalled] if queues else []
        projected = census.projected_bytes()
        clients = len(census.clients) if census.clients is not None else None
        if use is None:
            clients, projected = 0, 0
        self.result.summary |= {
            "jobs": Figure(used, count, "jobs"),
            "job_bytes": Figure(bytes_, size, "slabs of jobs"),
            "clients": Figure(clients, count, "clients of kcopyd"),
            "snapshots": Figure(len(shots) if known else None, count, "snapshots"),
            "in_flight_cow": Figure(self._copies(), count, "copies on write in flight"),
            "cow_threshold": Figure(census.threshold, count, "snapshot_cow_threshold"),
            "limit_mechanism": Figure(
                census.limit.value if census.limit else None, Unit.TEXT, "limit of copies by"
            ),
            "limited": Figure(
                census.limited,
                Unit.NONE,
                "copies are limited",
            ),
            "callback_list": Figure(
                census.callback_list, Unit.NONE, "callbacks have a list of their own"
            ),
            "stalled_pools": Figure(len(stalled) if queues else None, count, "stalled pools"),
            "share_of_unreclaimable": Figure(
                self._share(self.unreclaimable),
                Unit.RATIO,
                "jobs' share of unreclaimable slabs",
            ),
            "share_of_ram": Figure(self._share(self.ram), Unit.RATIO, "jobs' share of RAM"),
            "projected_jobs": Figure(
                census.projected_jobs() if use else 0, count, "jobs under the limit"
            ),
            "projected_job_bytes": Figure(projected, size, "slabs of jobs under the limit"),
            "bound_per_snapshot": Figure(
                census.bound if census.limit else None,
                count,
                "copies of one snapshot at once under the limit",
            ),
            "reserved_jobs": Figure(
                jobs.reserve if jobs else None, count, "jobs that pools keep in reserve"
            ),
            "data_page_bytes": Figure(
                int(jobs.pages.sum()) << self.memory.page_shift if jobs else None,
                size,
                "pages that jobs copy through",
            ),
            "pending_exceptions": Figure(
                sum(one.pending for one in shots) if known else None, count, "pending exceptions"
            ),
            "exceptions": Figure(
                sum(one.exceptions for one in shots) if known else None, count, "exceptions"
            ),
            "waiting_tasks": Figure(
                sum(len(one.waiters) for one in shots) if known else None,
                count,
                "tasks waiting for the limit",
            ),
            "stall_threshold": Figure(
                queues.threshold if queues else None, Unit.SECONDS, "a pool is stalled after"
            ),
        } | _log_figures(self.log)

    def _copies(self) -> int | None:
        census = self.census
        if census.job_slab is None:
            return 0
        if census.snapshots is None:
            return None
        counted = [census.copies(one) for one in census.snapshots.all]
        known = [copies for copies in counted if copies is not None]
        return sum(known) if len(known) == len(counted) else None

    def _share(self, whole: int | None) -> float | None:
        """Of the jobs' slabs in ``whole``."""
        part = self.census.job_slab.bytes if self.census.job_slab else 0
        return part / whole if whole else None
