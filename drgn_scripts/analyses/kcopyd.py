# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who queued those kcopyd jobs, and which worker pools are stuck behind them?

Symptom: the slab cache ``kcopyd_job`` grows to gigabytes until the OOM killer comes, or the log
says ``workqueue lockup`` with ``do_work [dm_mod]`` in flight. Cause: snapshots that copy more at
once than their COW device can take, without a limit or with a limit that was lifted.
"""

from __future__ import annotations

from pathlib import Path

import drgn
import numpy as np
from drgn.helpers.linux.mm import totalram_pages

from drgn_scripts.analyses import Analysis, AnalysisError, Context, Param
from drgn_scripts.engine.memory import Memory
from drgn_scripts.engine.slabs import UnsupportedAllocator
from drgn_scripts.kernel import kcopyd_tables as tables
from drgn_scripts.kernel.kcopyd_census import KcopydCensus, take
from drgn_scripts.kernel.kcopyd_findings import findings, log_findings
from drgn_scripts.kernel.kernel_log import lines, records
from drgn_scripts.kernel.log_events import LogEvents, parse
from drgn_scripts.kernel.vmstat import node_page_state
from drgn_scripts.kernel.workqueues import Functions
from drgn_scripts.results import Check, Figure, Finding, Gap, Result, Severity, Unit


def run(context: Context, log: str = "") -> Result:
    """Take the census and say what it means.

    :param log: a file with the kernel's log, to be read instead of the log in memory
    """
    result = context.result("kcopyd")
    memory = Memory(context.prog, context.chunk_bytes)
    try:
        census = take(memory, context.jobs, context.progress)
    except UnsupportedAllocator as error:
        raise AnalysisError(str(error)) from None
    except LookupError as error:
        raise AnalysisError(
            f"this kernel's slabs cannot be found, its debug info or memory model lacks: {error}"
        ) from None
    result.gaps += census.gaps
    events = _from_file(log) if log else _from_memory(memory.prog, result)
    _Report(result, census, events, memory, context.live).write()
    return result


def from_log(text: str, name: str) -> Result:
    """What a log alone tells, where there is no memory to look at.

    :param text: as ``dmesg`` or a system log has it
    :param name: what to call it
    """
    result = Result(analysis="kcopyd", target=name, kernel="")
    events = parse(lines(text))
    result.summary |= _log_figures(events)
    result.tables["log_events"] = tables.log_events(events, None)
    result.findings += log_findings(events)
    return result


def _from_file(path: str) -> LogEvents:
    try:
        return parse(lines(Path(path).read_bytes().decode(errors="backslashreplace")))
    except OSError as error:
        raise AnalysisError(f"cannot read {path}: {error.strerror}") from None


def _from_memory(prog: drgn.Program, result: Result) -> LogEvents:
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
        self, result: Result, census: KcopydCensus, log: LogEvents, memory: Memory, live: bool
    ) -> None:
        self.result = result
        self.census = census
        self.log = log
        self.memory = memory
        self.prog = memory.prog
        self.note = "the kernel went on while it was read" if live else ""
        self.functions = Functions(memory.prog)
        pages = node_page_state(self.prog, "NR_SLAB_UNRECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE")
        self.unreclaimable = (pages or 0) << memory.page_shift
        self.ram = int(totalram_pages(self.prog)) << memory.page_shift

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
        self._checks()
        if self.census.job_slab is None:
            self.result.findings.append(
                Finding(
                    Severity.INFO,
                    "kcopyd is not in use.",
                    "There is no cache of kcopyd jobs: the device mapper is not loaded.",
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
            "snapshots": Figure(
                len(shots) if census.snapshots or not use else None, count, "snapshots"
            ),
            "in_flight_cow": Figure(self._in_flight(), count, "copies on write in flight"),
            "cow_threshold": Figure(census.threshold, count, "snapshot_cow_threshold"),
            "limit_mechanism": Figure(
                census.limit.value if census.limit else None, Unit.TEXT, "limit of copies by"
            ),
            "limited": Figure(
                None if census.limit is None else not census.unlimited,
                Unit.NONE,
                "copies are limited",
            ),
            "callback_list": Figure(
                census.callback_list, Unit.NONE, "callbacks have a list of their own"
            ),
            "stalled_pools": Figure(len(stalled) if queues else None, count, "stalled pools"),
            "share_of_unreclaimable": Figure(
                bytes_ / self.unreclaimable if self.unreclaimable else 0.0,
                Unit.RATIO,
                "jobs' share of unreclaimable slabs",
            ),
            "share_of_ram": Figure(
                bytes_ / self.ram if self.ram else 0.0, Unit.RATIO, "jobs' share of RAM"
            ),
            "projected_jobs": Figure(
                census.projected_jobs() if use else 0, count, "jobs under the limit"
            ),
            "projected_job_bytes": Figure(projected, size, "slabs of jobs under the limit"),
            "bound_per_snapshot": Figure(
                census.bound, count, "copies of one snapshot at once under the limit"
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
                sum(one.pending for one in shots), count, "pending exceptions"
            ),
            "exceptions": Figure(sum(one.exceptions for one in shots), count, "exceptions"),
            "waiting_tasks": Figure(
                sum(len(one.waiters) for one in shots), count, "tasks waiting for the limit"
            ),
            "stall_threshold": Figure(
                queues.threshold if queues else None, Unit.SECONDS, "a pool is stalled after"
            ),
        } | _log_figures(self.log)

    def _in_flight(self) -> int | None:
        """As the snapshots count them; where they do not, the jobs of their clients."""
        census = self.census
        if census.job_slab is None:
            return 0
        if census.snapshots is None:
            return None
        counted = [one.in_flight for one in census.snapshots.all]
        if None not in counted:
            return sum(one or 0 for one in counted)
        if census.jobs is None or census.clients is None:
            return None
        ours = np.isin(census.clients.address, sorted(census.snapshot_clients()))
        return int(census.jobs.jobs[ours].sum())

    # Checks

    def _checks(self) -> None:
        census, checks = self.census, self.result.checks
        jobs, clients = census.jobs, census.clients
        if jobs is not None and clients is not None and census.job_slab is not None:
            checks.append(
                Check(
                    "jobs of all clients, in reserve, and unknown",
                    int(jobs.jobs.sum()) + jobs.reserve + jobs.unknown,
                    census.job_slab.active,
                    source="active objects of the slab cache",
                    note=self.note,
                )
            )
            running = self._running()
            ours = int((jobs.jobs + jobs.sub_jobs).sum())
            counter = int(clients.nr_jobs.sum())
            checks.append(
                Check(
                    "jobs and sub-jobs",
                    ours,
                    counter,
                    source="dm_kcopyd_client.nr_jobs",
                    note=(
                        "a job is freed before its callback and counts until it has returned; "
                        f"{running} clients are running"
                        if counter != ours
                        else self.note
                    ),
                    explained=counter - ours if 0 < counter - ours <= running else None,
                )
            )
        if census.snapshots is None:
            return
        self._snapshot_checks()

    def _running(self) -> int:
        """Clients whose work item is being run."""
        states = tables.work_states(self.census.workqueues)
        work = self.census.clients.work.tolist() if self.census.clients is not None else []
        return sum(states.get(at, ("", 0))[0].startswith("running") for at in work)

    def _snapshot_checks(self) -> None:
        census, checks = self.census, self.result.checks
        shots = census.snapshots.all if census.snapshots else []
        if census.jobs is not None and census.clients is not None:
            # Merging copies as well, and is not counted by the snapshot.
            copying = [one for one in shots if one.target == "snapshot"]
            rows = census.clients.rows(np.array([one.client for one in copying], np.uint64))
            counted = [one.in_flight for one in copying]
            checks.append(
                Check(
                    "jobs of snapshots",
                    int(census.jobs.jobs[rows[rows >= 0]].sum()),
                    None if None in counted else sum(one or 0 for one in counted),
                    source=f"dm_snapshot.{census.limit.value if census.limit else 'in_progress'}",
                    note=self.note,
                )
            )
        checks.append(
            Check(
                "pending exceptions in tables",
                sum(one.pending_in_table for one in shots),
                sum(one.pending for one in shots),
                source="dm_snapshot.pending_exceptions_count",
                note=self.note,
            )
        )
        for use in census.related:
            if use.role == "exceptions" and not use.merged:
                checks.append(
                    Check(
                        "exceptions in tables",
                        sum(one.exceptions for one in shots),
                        use.active,
                        source="active objects of the slab cache",
                        note=self.note,
                    )
                )


ANALYSIS = Analysis(
    name="kcopyd",
    question="Who queued those kcopyd jobs, and which worker pools are stuck behind them?",
    run=run,
    description=(
        "A job is an object of the cache kcopyd_job: one copy, with room for the eight parts it "
        "may be split into. It is waiting for a callback or has completed, waits to be issued or "
        "for pages, or is in flight: on none of its client's lists. nr_jobs counts jobs and the "
        "parts of split ones. A pool is stalled as the kernel's own watchdog sees it: work is "
        "pending and none was begun for wq_watchdog_thresh seconds (30 where the kernel has no "
        "watchdog). How long a worker has been running is exact since 7.0, before at least that "
        "long. The projection says what would be left if no snapshot had more copies in flight "
        "than the threshold, 2048 where there is none, allows."
    ),
    examples=(
        ("kcensus kcopyd vmcore -s vmlinux", "jobs by client, snapshots and stalled pools"),
        ("kcensus kcopyd vmcore --log dmesg.txt", "with the events of a saved log"),
    ),
    params=(
        Param("log", str, "", "a file with the kernel's log, to use instead of the one in memory"),
    ),
    modules=(
        "dm_mod",
        "dm_snapshot",
        "dm_mirror",
        "dm_thin_pool",
        "dm_cache",
        "dm_clone",
        "dm_writecache",
        "dm_zoned",
    ),
)
