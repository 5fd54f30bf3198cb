# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about events in the kernel log: lockups, hung tasks, the OOM killer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kcensus.analyses.kcopyd.findings.remedies import CALLBACK_PATCH, PARAMETER
from kcensus.analyses.kcopyd.findings.words import counts
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.human import counted, human_bytes, human_seconds, listed
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit
from kcensus.text import task_name

_FIND_PATCHES = Remedy(
    effect="Show whether this kernel limits the callbacks of a kcopyd run, and the copies of "
    "dm-snapshot in flight",
    command="kcensus patches TARGET",
)
_SHOW_PATCH = Remedy(
    effect="Show the patch that limits the callbacks of a kcopyd run, and the releases with it",
    command=f"kcensus patches show {CALLBACK_PATCH}",
)
_SHOW_LIMIT = Remedy(
    effect="Show the limit of copies; the kernel's default is 2,048",
    command=f"cat {PARAMETER}",
    knobs=(PARAMETER,),
)


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
        figures={"seconds": Figure(worst.seconds, Unit.SECONDS), **counts(lockups=len(lockups))},
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
            figures={"seconds": Figure(longest, Unit.SECONDS), **counts(tasks=tasks)},
        )


def _out_of_memory(log: LogEvents) -> Iterator[Finding]:
    if not (ooms := log.of("oom")):
        return
    title = f"the log reports {counted(len(ooms), 'run')} of the OOM killer"
    largest = max(log.of("slab"), key=lambda event: event.total_bytes or 0, default=None)
    numbers = counts(runs=len(ooms))
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
