# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures, findings, checks and gaps of *synthetic* clients and snapshots."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kcensus.analyses.kcopyd.census import Census, _roles
from kcensus.analyses.kcopyd.checks import checks, gaps
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.analyses.kcopyd.findings import findings
from kcensus.analyses.kcopyd.log_events import LogEvents
from kcensus.analyses.kcopyd.run import summary
from kcensus.analyses.kcopyd.tables import tables
from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.dm.kcopyd import Clients
from kcensus.kernel.dm.snapshots import UNLIMITED, Limit, Snapshots, Waiter
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.workqueues import Pool, Workqueues
from kcensus.results import Bound, CheckStatus, Finding, Severity
from tests.unit.analyses.kcopyd.making import MIB, figures_of, read_clients, replace_snapshot, world
from tests.unit.fakekernel import DIRECT_MAP, FakeKernel


def found(figures: Figures) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.patch) for finding in findings(figures)]


@pytest.mark.parametrize(
    ("limit", "threshold", "unlimited", "bound"),
    [
        (Limit.NONE, None, True, 2049),
        (Limit.SEMAPHORE, 0, True, 2048),
        (Limit.SEMAPHORE, -1, True, 2048),
        (Limit.SEMAPHORE, 512, False, 512),
        (Limit.IN_PROGRESS, 0, False, 1),
        (Limit.IN_PROGRESS, 2048, False, 2049),
        (Limit.IN_PROGRESS, UNLIMITED, True, 2049),
        (Limit.IN_PROGRESS, 4294967295, True, 2049),
    ],
)
def test_the_limit_of_new_snapshots(
    limit: Limit, threshold: int | None, unlimited: bool, bound: int
) -> None:
    figures = figures_of(limit, threshold)
    figures.census.snapshots.all = []
    assert (figures.limited is False, figures.largest_bound) == (unlimited, bound)


def test_findings_by_era() -> None:
    # As before 5.0: neither copies nor callbacks are limited.
    old = counted(Limit.NONE, None)
    assert found(old) == [
        (Severity.WARNING, "dm-snapshot-cow-in-progress"),
        (Severity.NOTICE, "dm-kcopyd-callback-list"),
    ]
    # With few jobs, that callbacks are not limited is no danger.
    old.census.jobs.jobs = np.array([10, 0])
    assert [finding.id for finding in findings(old)] == ["kcopyd-jobs"]
    # A semaphore is dangerous when tasks wait for it.
    semaphore = counted(Limit.SEMAPHORE, 2048, available=0)
    semaphore.census.callback_list = True
    assert findings(semaphore) == []
    replace_snapshot(semaphore, waiters=(Waiter(7, "dd"),))
    assert (Severity.WARNING, "dm-snapshot-cow-in-progress") in found(semaphore)
    assert found(figures_of(Limit.IN_PROGRESS, 4294967295)) == [(Severity.WARNING, "")]
    # What the limit allows is as it should be, up to a quarter of RAM.
    assert found(figures_of(Limit.IN_PROGRESS, 30000)) == []
    assert found(figures_of(Limit.IN_PROGRESS, 30000, ram=300 * MIB)) == [(Severity.WARNING, "")]
    huge = figures_of(Limit.IN_PROGRESS, 4294967295, ram=300 * MIB)
    assert found(huge) == [(Severity.CRITICAL, "")]
    # Without a limit, but also without memory to speak of.
    assert found(figures_of(Limit.IN_PROGRESS, 4294967295, ram=1 << 40)) == []
    # The case that brought the OOM killer: before 5.0 the snapshot has no count, but its jobs.
    figures = counted(Limit.NONE, None, ram=300 * MIB)
    assert found(figures)[0] == (Severity.CRITICAL, "dm-snapshot-cow-in-progress")
    assert tables(figures)["snapshots"].frame["in_flight"].tolist() == [30000]


def counted(
    limit: Limit, threshold: int | None, ram: int = 1 << 30, available: int | None = None
) -> Figures:
    """A snapshot without a count of its own, whose client has 30,000 jobs."""
    w = world("4.18")
    figures = figures_of(limit, threshold, callback_list=False, ram=ram)
    read_clients(figures, w)
    figures.census.jobs.jobs = np.array([30000, 0])
    replace_snapshot(figures, client=w.clients["busy"], in_flight=None, available=available)
    return figures


@pytest.mark.parametrize(
    ("available", "threshold", "limit", "limited"),
    [
        (2048, 4294967295, 32048, True),  # created with another limit than today's
        (0, 0, 30000, True),  # reached
        (UNLIMITED - 30000, 2048, None, False),
        (UNLIMITED - 30001, 2048, None, False),  # a callback is running
    ],
)
def test_a_semaphore_keeps_the_limit_that_its_snapshot_was_created_with(
    available: int, threshold: int, limit: int | None, limited: bool
) -> None:
    figures = counted(Limit.SEMAPHORE, threshold, available=available)
    frame = tables(figures)["snapshots"].frame
    assert frame["in_flight"].tolist() == [30000]
    assert frame["limit"].tolist() == [pd.NA if limit is None else limit]
    assert figures.limited is limited
    check = next(check for check in checks(figures) if check.name == "jobs of snapshots")
    assert check.status is CheckStatus.ABSENT
    kinds = {finding.kind for finding in findings(figures)}
    assert ("kcopyd-unthrottled" in kinds) is not limited
    # Whatever the parameter is set to now, the memory of this snapshot does not return.
    assert all(finding.returns is None for finding in findings(figures))


def test_unknown_limit_is_not_unlimited() -> None:
    figures = figures_of(Limit.IN_PROGRESS, None)
    assert figures.limited is None
    assert [finding.id for finding in findings(figures)] == ["kcopyd-jobs"]
    known = figures_of(Limit.NONE, None), figures_of(Limit.IN_PROGRESS, 9)
    assert [figures.limited for figures in known] == [False, True]
    # A snapshot whose copies are unknown has waiters.
    figures = figures_of(Limit.SEMAPHORE, None)
    replace_snapshot(figures, in_flight=None, waiters=(Waiter(7, "dd"),))
    (finding,) = (each for each in findings(figures) if each.kind == "dm-snapshot-waiters")
    assert finding.figures["tasks"].value == 1
    assert summary(figures)["in_flight_cow"].value is None


def test_a_limit_is_restored_or_raised_only_where_there_is_one() -> None:
    figures = counted(Limit.SEMAPHORE, None, available=0)
    replace_snapshot(figures, waiters=(Waiter(7, "dd"),))
    remedies = [each for finding in findings(figures) for each in finding.remedies]
    assert any("snapshot_cow_threshold" in each.command for each in remedies)
    assert not any("None" in each.undo for each in remedies)
    figures = figures_of(Limit.IN_PROGRESS, 4294967295)
    replace_snapshot(figures, waiters=(Waiter(7, "dd"),))
    (waiting,) = (each for each in findings(figures) if each.kind == "dm-snapshot-waiters")
    assert not any("snapshot_cow_threshold" in each.command for each in waiting.remedies)


@pytest.mark.parametrize(
    ("state", "in_progress", "status"),
    [
        ("in-flight", 10, CheckStatus.AGREE),
        ("in-flight", 11, CheckStatus.EXPLAINED),
        ("in-flight", 12, CheckStatus.DIFFER),
        ("pending", 11, CheckStatus.DIFFER),
    ],
)
def test_a_copy_counts_until_its_callback_has_returned(
    state: str, in_progress: int, status: CheckStatus
) -> None:
    w = world("6.10")
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    read_clients(figures, w)
    replace_snapshot(figures, client=w.clients["busy"], in_flight=in_progress)
    work = [figures.census.clients.work[0], np.uint64(0x5000)]
    items = pd.DataFrame({"work": work, "state": state, "pid": 9, "pool": 0})
    figures.census.workqueues = Workqueues(items=items)
    check = next(check for check in checks(figures) if check.name == "jobs of snapshots")
    assert (check.status, check.source) == (status, "dm_snapshot.in_progress")
    # The other work item is not of a client.
    assert len(figures.work_states) == 1


@pytest.mark.parametrize(("by", "moved"), [(0, 0), (6, 6), (None, None)])
def test_the_jobs_of_the_same_clients_are_counted_again(by: int | None, moved: int | None) -> None:
    figures, w = figures_of(Limit.IN_PROGRESS, 2048), world("6.10")
    read_clients(figures, w)
    before = int(figures.census.clients.nr_jobs.sum())
    figures.census.nr_jobs_after = None if by is None else before + by
    check = next(check for check in checks(figures) if check.name == "jobs and sub-jobs")
    assert (check.counter, check.moved) == (before + (by or 0), moved)


def test_share_of_unknown_is_unknown() -> None:
    figures = figures_of(Limit.NONE, None)
    shares = "share_of_unreclaimable"
    assert tables(figures)["related_slabs"].frame[shares].tolist() == [0.5]
    figures.unreclaimable_bytes = None
    assert np.isnan(tables(figures)["related_slabs"].frame[shares]).all()
    assert summary(figures)[shares].value is None


def slab_only(ram: int) -> list[Finding]:
    """Findings without debug info of dm_mod and dm_snapshot."""
    figures = figures_of(None, None, ram=ram)
    figures.census.snapshots, figures.census.has_snapshots = Snapshots(), False
    assert summary(figures)["clients"].value is None
    assert summary(figures)["jobs"].value == 30000
    return findings(figures)


def test_large_slabs_of_unknown_clients_are_found() -> None:
    (finding,) = slab_only(300 * MIB)
    assert finding.severity is Severity.CRITICAL
    assert (finding.id, finding.memory) == ("kcopyd-jobs", {"slab:kcopyd_job": 100 * MIB})
    assert slab_only(64 << 30) == []


def test_screen_is_short_without_kcopyd() -> None:
    figures = Figures(Kernel(FakeKernel("6.10").prog), Census(), LogEvents())
    figures.unreclaimable_bytes = None
    assert (tables(figures), findings(figures)) == ({}, [])
    pool = Pool(
        1, 0, cpu=0, node=0, nice=0, flags=0, workers=1, idle=0, pending=1, age=40, is_stalled=True
    )
    figures.census.workqueues = Workqueues([pool])
    assert tables(figures).keys() == {"pools", "pending_work"}
    assert [finding.id for finding in findings(figures)] == ["workqueue-stall:0"]


def test_jobs_of_a_lost_snapshot_are_a_gap() -> None:
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    read_clients(figures, world("6.10"))
    gap = next(gap for gap in gaps(figures) if gap.what == "busy clients without a device")
    assert gap.count == 1
    # Idle clients may have no target.
    figures.census.jobs.jobs[:] = 0
    assert "busy clients without a device" not in {gap.what for gap in gaps(figures)}


def test_without_debug_info_of_dm_mod_a_gap_says_what_jobs_include() -> None:
    figures = figures_of(None, None)
    assert [gap.what for gap in gaps(figures)] == ["clients"]
    assert {
        key: figure.bound for key, figure in summary(figures).items() if figure.bound.value
    } == {"jobs": Bound.AT_MOST, "total_bytes": Bound.AT_LEAST}
    assert "clients" in {name for name, table in tables(figures).items() if not table.is_known}


def test_figures_of_a_whole_census_are_exact() -> None:
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.has_clients = figures.census.has_snapshots = True
    assert {figures.jobs_bound, figures.memory_bound} == {Bound.EXACT}
    assert all(table.is_known for table in tables(figures).values())
    figures.census.clients = Clients(reserves_lost=1)
    figures.census.errors["bios"] = "unreadable"
    assert [figures.jobs_bound, figures.memory_bound] == [Bound.AT_MOST, Bound.AT_LEAST]
    figures.census.report.slabs_invalid = 1
    assert [figures.jobs_bound, figures.memory_bound] == [Bound.ABOUT, Bound.AT_LEAST]


@pytest.mark.parametrize("where", ["unknown", "unreadable"])
def test_related_caches_that_are_unknown_are_a_gap(where: str) -> None:
    k = FakeKernel("6.10")
    variable = k.variable("exception_cache", "struct kmem_cache *", DIRECT_MAP)
    census, slab_map = Census(), SlabMap(Memory(k.prog))
    if where == "unreadable":
        k.drop(variable.address_)
    assert _roles(census, slab_map) == {}
    assert census.caches_unknown == 1
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.caches_unknown = 1
    assert "slab caches of bios and exceptions" in {gap.what for gap in gaps(figures)}


def test_lost_pools_and_devices_differ_from_their_counts() -> None:
    figures = figures_of(Limit.IN_PROGRESS, 2048)
    figures.census.workqueues = Workqueues(cpu_pools=4)
    figures.census.devices.named = 6
    differ = {check.source for check in checks(figures) if check.status is CheckStatus.DIFFER}
    assert differ == {"cpu_worker_pools", "names in the index of dm ioctl"}
