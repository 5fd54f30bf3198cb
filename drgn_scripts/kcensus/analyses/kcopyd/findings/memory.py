# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the memory that copies hold, and about jobs that wait for pages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings.remedies import (
    LIMIT_PATCH,
    NO_FEWER,
    released_first,
    set_limit,
    write_less,
)
from kcensus.analyses.kcopyd.findings.words import counts, kept_phrase, number
from kcensus.analyses.kcopyd.kept import keepers, waits
from kcensus.analyses.remedies import written
from kcensus.human import counted, human_bytes, human_ratio
from kcensus.kernel.dm.snapshots import Limit
from kcensus.results import Bound, Danger, Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.severity import MIN_BYTES, severity_of

_SHRINK = "/sys/kernel/slab/kcopyd_job/shrink"
_MODPROBE = "/etc/modprobe.d/snapshot_cow_threshold.conf"
"""A name other than dm_snapshot.conf, which may exist."""
_FIND_SETTER = Remedy(
    effect="Find where the limit was set; the kernel's default is 2,048",
    command=(
        "grep -rs snapshot_cow_threshold /proc/cmdline /etc/default/grub /etc/modprobe.d "
        "/run/modprobe.d /usr/lib/modprobe.d /etc/udev /usr/lib/udev /etc/tuned /usr/lib/tuned "
        "/etc/rc.local /etc/systemd"
    ),
)
_PERSIST = Remedy(
    effect=(
        "Keep the limit after a reboot or reload of dm_snapshot, unless a script sets another one; "
        "rebuild the initramfs if dm_snapshot is loaded from it"
    ),
    command=f"echo 'options dm_snapshot snapshot_cow_threshold={DEFAULT_THRESHOLD}' > {_MODPROBE}",
    undo=f"rm {_MODPROBE}",
)


def memory_findings(figures: Figures) -> Iterator[Finding]:
    """Yield the finding about the memory of all copies, if it is worth one."""
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
        **counts(jobs=jobs, cow_threshold=figures.census.threshold),
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
                f"{DEFAULT_THRESHOLD:,} copies; {_cause(figures)}" + kept_phrase(kept)
            ),
            figures=numbers | counts(copies=copies, snapshots=len(unlimited)),
            memory=memory,
            users={place: of for place, of in figures.users.items() if place in memory},
            remedies=(
                remedies := (
                    *released_first(kept, figures.returned_by(0) or None),
                    *_limit(figures),
                    *_shrink(figures),
                )
            ),
            no_remedy="" if remedies else NO_FEWER,
            patch=LIMIT_PATCH if figures.census.limit is Limit.NONE else "",
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


def _cause(figures: Figures) -> str:
    census = figures.census
    if census.limit is Limit.NONE:
        return "struct dm_snapshot has neither cow_count nor in_progress: there is no limit"
    if census.limit is Limit.SEMAPHORE:
        return (
            "their cow_count is INT_MAX: snapshot_cow_threshold was 0 or less when they were "
            f"created, and is {number(census.threshold)} now"
        )
    now = number(census.threshold)
    return f"snapshot_cow_threshold is {now} (default {DEFAULT_THRESHOLD:,})"


def _limit(figures: Figures) -> tuple[Remedy, ...]:
    census = figures.census
    if census.limit is Limit.NONE:
        return tuple(write_less(figures))
    is_semaphore = census.limit is Limit.SEMAPHORE
    echo = set_limit(
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
    return (echo, _PERSIST, _FIND_SETTER, *(write_less(figures) if is_semaphore else ()))


def _lower(figures: Figures) -> tuple[Remedy, ...]:
    census, threshold = figures.census, figures.census.threshold
    if census.limit is not Limit.IN_PROGRESS or not threshold or not figures.limited:
        return ()
    lower = max(threshold // 4, 1)
    if not (returns := figures.returned_by(lower)):
        return ()
    return (
        set_limit(
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


def page_wait(figures: Figures) -> Iterator[Finding]:
    """Yield the finding about jobs that wait for a free page."""
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
        figures=counts(jobs=jobs, clients=clients),
        no_remedy="The jobs continue once pages are free; `kcensus slab TARGET --table caches` "
        "shows the largest slab caches",
    )
