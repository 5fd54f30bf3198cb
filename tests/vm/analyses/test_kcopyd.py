# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus kcopyd`` on real kernels, against what the guests said and a slow walk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import drgn
import numpy as np
import pandas as pd
import pytest
from drgn import Object, cast
from drgn.helpers.linux.idr import idr_for_each

from kcensus.analyses.kcopyd.log_events import parse
from kcensus.kernel.dm.kcopyd import Kcopyd
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import records
from kcensus.kernel.workqueues import Workqueues, workqueues
from kcensus.results import CheckStatus, Severity, fold
from kcensus.sources import open_target
from tests.lab import alike, build, kernels
from tests.lab.scenario import load
from tests.lab.trials import returned_by, slabinfo
from tests.running import on, rows, runner
from tests.sample.block.poked import Poked
from tests.vm import cases
from tests.vm.cases import analyzed, finding, opened
from tests.vm.oracles import kcopyd as oracle

Case = cases.Case[None]

WRITTEN = 4096
"""Bytes that the scenario writes at a time."""
SCENARIOS = ("kcopyd-waiting", "kcopyd-unlimited", "kcopyd-limited")


@cache
def open_case(kernel: str, scenario: str) -> Case:
    """Each dump is opened and looked at once."""
    dump = build(kernel, scenario)
    return Case.of(dump, opened(dump), "kcopyd", lambda _: None)


CASES = [
    pytest.param((kernel, name), marks=[pytest.mark.usually] * load(name, kernel).on_request)
    for name in SCENARIOS
    for like in kernels()
    for kernel in (like, *alike(like))
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Case:
    return open_case(*request.param)


@pytest.fixture(scope="module")
def waiting(kernel: str) -> Case:
    return open_case(kernel, "kcopyd-waiting")


@pytest.fixture(scope="module")
def stall() -> Case:
    return open_case("6.1", "kcopyd-stall")


def assert_clients_equal(case: Case, truth: dict[int, oracle.ClientTruth]) -> None:
    listed = [f"{name}_jobs" for name in oracle.STATES]
    columns = ("jobs", "nr_jobs", "split", "sub_jobs", "in_flight", "reserved_jobs", *listed)
    assert sorted(rows(case.result, "clients", "address", *columns)) == sorted(
        (
            *(address, len(client.jobs), client.nr_jobs, client.split, client.sub_jobs),
            *(client.in_flight, len(client.reserve)),
            *(client.listed[name] for name in oracle.STATES),
        )
        for address, client in truth.items()
    )


def test_clients_equal_the_slow_walk(case: Case) -> None:
    owners = oracle.clients_of_targets(case.prog)
    truth = oracle.clients(case.prog, set(owners))
    assert_clients_equal(case, truth)
    found = rows(case.result, "clients", "address", "device", "number", "target")
    assert sorted(found) == sorted((address, *owner) for address, owner in owners.items())
    assert case.figure("clients") == len(owners)
    for client in truth.values():
        # Nothing runs in these guests, so the kernel's count has no callback that is half done.
        assert client.nr_jobs == len(client.jobs) + client.sub_jobs


def test_jobs_are_the_slabs_active_objects(case: Case) -> None:
    slabs = case.table("related_slabs").set_index("role").loc["jobs"]
    jobs = int(case.table("clients")["jobs"].sum())
    assert jobs == case.figure("jobs")
    assert jobs + case.figure("reserved_jobs") == int(slabs["objects_active"])
    counted = slabinfo(case.dump.truth["slabinfo.after.2"])["kcopyd_job"]
    # What slabinfo calls active includes free objects of CPUs.
    assert slabs["objects_active"] <= counted.active
    assert (slabs["objects_total"], slabs["slot_size"]) == (counted.total, counted.slot_size)
    assert case.figure("job_bytes") == counted.pages * case.page


def test_snapshots_equal_dmsetup_status(case: Case) -> None:
    frame = case.table("snapshots").set_index("device")
    tables, status = (
        dict(re.findall(r"^(\S+): 0 \d+ snapshot (.*)$", case.dump.truth[name], re.MULTILINE))
        for name in ("dmsetup-table", "dmsetup-status")
    )
    assert set(frame.index) == set(tables) == set(status)
    assert status
    for name, line in status.items():
        row = frame.loc[name]
        origin, cow, store, chunk = tables[name].split()[:4]
        # /dev/ramN of the scenario is disk 1:N.
        assert row["origin"] == f"ram{origin.partition(':')[2]} ({origin})"
        assert f"({cow})" in row["cow"]
        assert row["store"] == store
        assert int(row["chunk_bytes"]) == int(chunk) * 512
        assert row["state"] == ("invalid" if line == "Invalid" else "valid")
        if line != "Invalid":
            assert int(row["used_bytes"]) == int(line.partition("/")[0]) * 512


def test_snapshots_equal_the_slow_walk(case: Case) -> None:
    frame = case.table("snapshots").set_index("address")
    for address, row in frame.iterrows():
        snapshot = Object(case.prog, "struct dm_snapshot *", value=address)
        assert int(row["in_flight"]) == int(snapshot.in_progress)
        assert int(row["exceptions"]) == oracle.exceptions(snapshot.complete)
        assert int(row["pending_exceptions"]) == oracle.exceptions(snapshot.pending)
        waiting = oracle.waiting(snapshot)
        assert pids(row["waiting_tasks"]) == waiting
        assert int(row["waiting"]) == len(waiting)


def pids(tasks: str) -> set[int]:
    return {int(pid) for pid in re.findall(r":(\d+)(?:,|$)", tasks)}


def test_what_the_scenario_wrote_is_what_is_copied(kernel: str) -> None:
    frame = open_case(kernel, "kcopyd-unlimited").table("snapshots").set_index("device")
    # 10,000 pages of 4 KiB, in chunks of 4, 4 and 8 KiB.
    copies = frame["in_flight"].astype(int).to_dict()
    assert copies == {
        "snapshot-1": 10000,
        "snapshot-2": 10000,
        "snapshot-3": 5000,
        "snapshot-fast": 0,
        "snapshot-idle": 0,
    }
    # What the one without delay has copied is a run of chunks, 512 pages to an exception at most.
    assert int(frame.loc["snapshot-fast", "exceptions"]) > 0
    assert int(frame.loc["snapshot-fast", "used_bytes"]) == 10000 * WRITTEN


def test_those_who_wait_are_those_that_the_kernel_shows_blocked(waiting: Case) -> None:
    blocked = {
        int(re.search(r"pid:\s*(\d+)", part)[1])  # type: ignore[index]
        for part in re.split(r"(?=task:)", waiting.dump.truth["dmesg"])[1:]
        if "wait_for_in_progress" in part
    }
    assert len(blocked) >= 3
    row = waiting.table("snapshots").set_index("device").loc["snapshot-1"]
    assert pids(row["waiting_tasks"]) == blocked
    assert waiting.figure("waiting_tasks") == len(blocked)
    assert int(row["in_flight"]) == waiting.figure("cow_threshold") + 1 == 17
    assert any(f"{len(blocked)} tasks wait" in f.title for f in waiting.result.findings)


def test_split_jobs_of_a_mirror_and_zeroing_of_a_thin_pool(waiting: Case) -> None:
    frame = waiting.table("clients").set_index("device")
    mirror = frame.loc["mirror"]
    # A region of 8 MiB in eight parts of 512 KiB at a time.
    counted = ("jobs", "split", "sub_jobs", "nr_jobs", "in_flight")
    assert tuple(int(mirror[name]) for name in counted) == (1, 1, 8, 9, 8)
    assert int(mirror["page_bytes"]) == 4 << 20
    assert (int(frame.loc["pool", "jobs"]), int(frame.loc["pool", "page_bytes"])) == (12, 0)
    assert int(frame.loc["mirror-idle", "nr_jobs"]) == 0


def test_clients_of_unknown_targets_are_found(
    waiting: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcensus.analyses.kcopyd.census.CLIENTS_OF_TARGETS", {})
    frame = analyzed(waiting.target, "kcopyd").tables["clients"].frame
    assert set(frame["address"]) == oracle.idle_clients(waiting.prog)
    assert set(frame["device"]) == {"(unknown)"}
    ours = waiting.table("clients")
    assert sorted(frame["jobs"]) == sorted(ours["jobs"])
    # By their jobs alone, only busy ones.
    monkeypatch.setattr(Kcopyd, "candidates", lambda *_: np.empty(0, np.uint64))
    frame = analyzed(waiting.target, "kcopyd").tables["clients"].frame
    busy = set(ours[ours["nr_jobs"] > 0]["address"])
    # Preallocated jobs of the others may name clients that were freed.
    assert busy <= set(frame["address"])
    got = frame.set_index("address")["jobs"]
    jobs = ours[ours["jobs"] > 0].set_index("address")["jobs"]
    assert got[jobs.index].to_dict() == jobs.to_dict()


def test_unbounded_against_bounded(kernel: str) -> None:
    before, after = open_case(kernel, "kcopyd-unlimited"), open_case(kernel, "kcopyd-limited")
    assert (before.figure("limited"), after.figure("limited")) == (False, True)
    assert before.figure("cow_threshold") == 4294967295
    bound = 2049
    assert after.figure("cow_threshold") + 1 == bound
    assert {each.figure("bound_per_snapshot") for each in (before, after)} == {bound}
    copies = after.table("snapshots").set_index("device")["in_flight"].astype(int)
    # The writer waits as soon as one snapshot has more copies in flight than the threshold. The
    # third has chunks of twice the size.
    assert (copies["snapshot-1"], copies["snapshot-2"]) == (bound, bound)
    assert copies["snapshot-3"] <= bound
    model = sum(min(int(n), bound) for n in before.table("snapshots")["in_flight"])
    assert before.figure("projected_jobs") == model == 3 * bound
    assert after.figure("jobs") <= before.figure("projected_jobs") < before.figure("jobs")
    assert after.figure("projected_jobs") == after.figure("jobs")
    first = next(f for f in before.result.findings if f.severity >= Severity.WARNING)
    assert first.id == "kcopyd-unthrottled"
    assert first.memory["slab:kcopyd_job"] == before.figure("job_bytes")
    assert first.holds == before.figure("total_bytes")
    assert not any(f.severity >= Severity.WARNING for f in after.result.findings)


def test_checks_agree_and_nothing_is_missing(case: Case) -> None:
    assert {check.status for check in case.result.checks} == {CheckStatus.AGREE}
    assert case.result.gaps == []


@pytest.mark.parametrize(
    "case", [*CASES, ("6.1", "kcopyd-stall")], indirect=True, ids="-".join, scope="module"
)
def test_work_equals_the_slow_walk(case: Case) -> None:
    # The slow walk takes names from debug info; ours came out of the kernel's own symbols.
    assert case.target.need_modules("kcensus_stall") == []
    work = case.table("pending_work").groupby(["pool", "state", "function"])["count"].sum()
    ours = work.to_dict()
    expected: Counter[tuple[int, str, str]] = Counter()
    for (pool, state, func), count in oracle.work_items(case.prog).items():
        expected[pool, state, case.prog.symbol(func).name] += count
    assert ours == expected


def test_running_time_of_a_worker_is_exact_since_7_0() -> None:
    case = open_case("7.3", "kcopyd-limited")
    frame = case.table("pending_work")
    (row,) = frame[frame["function"] == "wb_workfn"].itertuples()
    (worker,) = (
        worker for worker in oracle.busy_workers(case.prog) if int(worker.task.pid) == int(row.pids)
    )
    # CONFIG_HZ of Debian.
    ticks = int(case.prog["jiffies_64"]) - int(worker.current_start)
    assert float(row.seconds) == ticks / 250
    # How long writing back took to begin varies; it runs on until the dump.
    assert 0 < float(row.seconds) < 60


# The whole bill, and what remedies return


def test_the_whole_bill(kernel: str) -> None:
    case = open_case(kernel, "kcopyd-unlimited")
    jobs = case.figure("jobs")
    # A copy has whole pages: of 4, 4 and 8 KiB in three snapshots.
    pages = 10000 + 10000 + 5000 * -(-2 * WRITTEN // case.page)
    assert case.figure("data_page_bytes") == pages * case.page
    # The reserve of each client is for a copy of 512 KiB.
    reserve = case.figure("clients") * (512 << 10)
    assert case.figure("page_bytes") == pages * case.page + reserve
    sizes = case.table("related_slabs").set_index("cache")["slot_size"]
    (only,) = case.result.findings
    counts = [
        round(size / int(sizes[place.partition(":")[2]]))
        for place, size in only.memory.items()
        if place not in ("slab:kcopyd_job", "kcopyd pages")
    ]
    # A job has a bio of kcopyd and its clone in the COW device, and a pending exception; of the
    # snapshot that copied all, 40 exceptions remain. A bio may be freed a little after its end.
    assert sorted(counts)[-3:] == pytest.approx([jobs] * 3, abs=5)
    assert sum(only.memory.values()) == case.figure("total_bytes") == only.holds


def test_what_keeps_the_cow_devices_comes_before_the_limit(kernel: str) -> None:
    case = open_case(kernel, "kcopyd-unlimited")
    (only,) = case.result.findings
    first, second = only.remedies[:2]
    cows = {f"dmsetup suspend --nolockfs cow-{n} && dmsetup resume cow-{n}" for n in (1, 2, 3)}
    assert {*first.command.splitlines()} == cows
    assert "snapshot_cow_threshold" in second.command
    waits = analyzed(case.target, "waits").findings
    (delays,) = (each for each in waits if each.kind == "waits-delay")
    assert {*delays.remedies[0].command.splitlines()} == cows
    assert delays.figures["tasks"].value == 1
    assert delays.tasks <= only.tasks
    parts = {each.id: each.part_of for each in fold([only, *waits])}
    assert parts[delays.id] == only.id


def listed_pages(zoneinfo: str) -> int:
    """Pages on the lists of CPUs, which are in no counter of meminfo."""
    return sum(map(int, re.findall(r"^\s+count:\s+(\d+)", zoneinfo, re.MULTILINE)))


@pytest.mark.usually  # it takes three minutes to make
def test_remedies_return_what_they_say(kernel: str) -> None:
    case = open_case(kernel, "kcopyd-trial")
    truth = case.dump.truth
    unthrottled = finding(case.result, "kcopyd-unthrottled")
    returns = {remedy.command: remedy.returns for remedy in unthrottled.remedies if remedy.returns}
    limit = returns.pop("echo 2048 > /sys/module/dm_snapshot/parameters/snapshot_cow_threshold")
    shrink = returns.pop("echo 1 > /sys/kernel/slab/kcopyd_job/shrink", 0)
    # The delays of the COW devices are released first.
    assert all(command.startswith("dmsetup suspend") for command in returns)
    # Kernels whose min_partial is at most 10 keep no empty slabs to speak of.
    freed = returned_by(truth, "shrink", "slabinfo")["kcopyd_job"]
    assert freed == pytest.approx(shrink, rel=0.1) if shrink else freed < 1 << 20
    assert bool(shrink) == (kernel != "5.10")

    def returned(file: str, name: str) -> int:
        first = returned_by(truth, "shrink", file)[name]
        return first + returned_by(truth, "limit", file, after="shrink")[name]

    caches = [place.partition(":")[2] for place in unthrottled.memory if place.startswith("slab:")]
    slabs = sum(returned("slabinfo", cache) for cache in caches)
    # No counter has the pages of kcopyd: they are what all counters together have gained.
    counters = ("MemFree", "Buffers", "Cached", "Slab", "AnonPages", "PageTables", "KernelStack")
    rest = -sum(returned("meminfo", counter) for counter in counters)
    listed = listed_pages(truth["zoneinfo"]) - listed_pages(truth["zoneinfo@limit"])
    assert slabs + rest - listed * case.page == pytest.approx(shrink + limit, rel=0.1)


# A pool that is really stalled


def test_stalled_pool_its_culprit_and_its_victims(stall: Case) -> None:
    pools = stall.table("pools")
    stalled = pools[pools["stalled"]]
    assert len(stalled) == stall.figure("stalled_pools") == 1
    pool = stalled.iloc[0]
    assert int(pool["cpu"]) == 1
    # The guest rested for 52 s after it loaded the module, which began after 8 s; a busy machine
    # takes longer.
    assert 40 < float(pool["age"]) < 90
    assert pool["running"].startswith("do_work [dm_mod] (")
    work = stall.table("pending_work")
    behind = work[work["behind_kcopyd"]]
    assert set(behind["pool"]) == {int(pool["pool"])}
    victims = behind.groupby(["workqueue", "state", "function", "module"])["count"].sum()
    expected = {
        ("kcopyd", "pending", "do_work", "dm_mod"): 3,
        ("events", "pending", "kcensus_victim", "kcensus_stall"): 2,
        ("kcensus_one", "pending", "kcensus_victim", "kcensus_stall"): 1,
        ("kcensus_one", "inactive", "kcensus_victim", "kcensus_stall"): 1,
    }
    assert {key: victims[key] for key in expected} == expected
    first = next(f for f in stall.result.findings if f.severity is Severity.CRITICAL)
    assert first.id == f"kcopyd-stall:{int(pool['pool'])}"
    assert "CPU 1" in first.title
    assert "do_work [dm_mod] of kcopyd" in first.evidence


def test_stalled_is_what_the_kernels_watchdog_would_call_so(
    stall: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    age = float(stall.table("pools").iloc[0]["age"])

    def read() -> Workqueues:
        return workqueues(Kernel(stall.prog))  # a Kernel remembers what it read

    def stalled() -> list[int]:
        return [pool.cpu for pool in read().pools if pool.is_stalled]

    for threshold, expected in ((int(age), [1]), (int(age) + 1, [])):
        monkeypatch.setattr("kcensus.kernel.workqueues._DEFAULT_THRESHOLD", threshold)
        assert stalled() == expected
    # As with CONFIG_WQ_WATCHDOG, which these kernels lack: its threshold and touch_*_watchdog().
    now = int(stall.prog["jiffies_64"])
    own = {"wq_watchdog_thresh": 10, "wq_watchdog_touched_cpu": now, "wq_watchdog_touched": now}

    def find(prog: drgn.Program, name: str, _flags: object, _file: str | None) -> Object | None:
        return Object(prog, "unsigned long", own[name]) if name in own else None

    stall.prog.register_object_finder("watchdog", find, enable_index=0)
    try:
        patched = "kcensus.kernel.workqueues.per_cpu"
        monkeypatch.setattr(patched, lambda variable, _cpu: variable)
        assert (read().threshold, read().has_watchdog) == (10, True)
        assert stalled() == []
        own["wq_watchdog_touched_cpu"] = now - 60 * 250
        assert stalled() == [1]
        own["wq_watchdog_thresh"] = 0
        assert not read().has_watchdog
    finally:
        stall.prog.set_enabled_object_finders(
            [name for name in stall.prog.enabled_object_finders() if name != "watchdog"]
        )


def test_busy_pool_that_makes_progress_is_not_stalled(stall: Case) -> None:
    pools = stall.table("pools")
    busy = pools[(pools["cpu"] == 0) & (pools["nice"] == 0)].iloc[0]
    assert not busy["stalled"]
    assert float(busy["age"]) < 1
    assert int(busy["pending"]) >= 1 or "kcensus_hop" in busy["running"]


MODULES_OF_THE_STALL = ("dm_mod", "kcensus_stall")


def test_memory_shows_what_the_kernel_showed(stall: Case) -> None:
    """The guest had its kernel print "Showing busy workqueues" during the stall."""
    log = parse(records(stall.prog))
    shown = Counter(
        (event.pool, event.event, event.workqueue, event.function, event.module or "")
        for event in log.of("in-flight", "pending", "inactive")
        if event.pool == 2
    )
    frame = stall.table("pending_work")
    keys = ["pool", "state", "workqueue", "function", "module"]
    ours = Counter(frame[frame["pool"] == 2].groupby(keys)["count"].sum().to_dict())
    # Nothing leaves a stalled pool, but the kernel may queue more work of its own until the dump.
    mine = {key: count for key, count in shown.items() if key[-1] in MODULES_OF_THE_STALL}
    assert sum(mine.values()) == 8
    assert mine == {key: count for key, count in ours.items() if key[-1] in MODULES_OF_THE_STALL}
    assert shown <= ours
    assert log.unknown == 0
    hung = next(event for event in log.of("pool") if event.pool == 2)
    assert hung.seconds is not None
    pool = stall.table("pools").set_index("pool").loc[2]
    # 35 s into the stall; the dump came later.
    assert hung.seconds <= float(pool["age"]) <= hung.seconds + 50
    events = stall.table("log_events")
    now = events[(events["event"] == "pool") & (events["pool"] == 2)].iloc[0]
    assert float(now["now_seconds"]) == float(pool["age"])


def test_clients_of_a_stalled_pool(stall: Case) -> None:
    truth = oracle.clients(stall.prog, oracle.idle_clients(stall.prog))
    assert_clients_equal(stall, truth)
    frame = stall.table("clients")
    states = Counter(re.sub(r"\d+", "N", state) for state in frame["work"])
    assert states == {"running (N), pending": 1, "pending": 2, "idle": 1}
    lists = sorted((int(row.callback_jobs), int(row.complete_jobs)) for row in frame.itertuples())
    assert lists == [(0, 0), (1, 0), (2, 2), (5, 0)]
    check = next(c for c in stall.result.checks if c.name == "jobs and sub-jobs")
    # The one whose callback is running is no object any more.
    assert (check.status, check.difference) == (CheckStatus.EXPLAINED, 1)


def test_no_snapshot_where_their_module_is_not_loaded(stall: Case) -> None:
    assert (stall.figure("snapshots"), stall.figure("pending_exceptions")) == (0, 0)
    assert stall.figure("in_flight_cow") == 0
    for name in ("limit_mechanism", "limited", "bound_per_snapshot"):
        assert stall.figure(name) is None


@pytest.mark.usefixtures("without_btf")
def test_without_module_debug_info(kernel: str) -> None:
    dump = open_case(kernel, "kcopyd-unlimited")
    target = open_target(str(dump.dump.core), [dump.dump.vmlinux])
    result = analyzed(target, "kcopyd")
    assert any("dm_mod" in gap.reason or "dm-mod" in gap.reason for gap in result.gaps)
    for name in ("jobs", "job_bytes", "share_of_unreclaimable", "share_of_ram"):
        whole = dump.figure(name)
        ours = result.summary[name].value
        # Without the clients, the jobs preallocated in their mempools are unknown.
        assert ours == whole + (dump.figure("reserved_jobs") if name == "jobs" else 0), name
    assert result.summary["clients"].value is None
    for name in ("limit_mechanism", "snapshots", "pending_exceptions", "bound_per_snapshot"):
        assert result.summary[name].value is None, name
    assert result.tables["related_slabs"].frame["role"].iloc[0] == "jobs"
    # Pools and queues are the kernel's own.
    pd.testing.assert_frame_equal(
        result.tables["pools"].frame[["pool", "pending", "age"]],
        dump.table("pools")[["pool", "pending", "age"]],
    )


def test_not_in_use() -> None:
    case = open_case("6.1", "list-lru")
    assert (case.result.findings, case.result.gaps, case.result.checks) == ([], [], [])
    assert case.result.tables == {}
    assert "not in use" in case.result.nothing
    zeros = ("jobs", "job_bytes", "total_bytes", "clients", "snapshots", "projected_job_bytes")
    assert {name: case.figure(name) for name in zeros} == dict.fromkeys(zeros, 0)
    assert len(case.result.summary) <= 8


def test_log_of_a_file_instead_of_the_one_in_memory(stall: Case, tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(
        "[ 9.0] BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 33s!\n"
        "[ 9.1] Unreclaimable slab info:\n[ 9.2] kcopyd_job 4KB 8KB\n"
    )
    result = analyzed(stall.target, "kcopyd", log=str(log))
    frame = result.tables["log_events"].frame
    assert list(frame["event"]) == ["lockup", "slab"]
    # Beside each, what memory says now of that pool and of that cache.
    assert float(frame["now_seconds"].iloc[0]) == float(stall.table("pools").iloc[0]["age"])
    assert int(frame["now_bytes"].iloc[1]) == stall.figure("job_bytes")


def test_debug_info_of_a_module_that_is_not_loaded() -> None:
    other = open_case("6.1", "list-lru")
    prog = drgn.Program()
    prog.set_core_dump(str(other.dump.core))
    prog.load_debug_info([other.dump.vmlinux])
    for name in ("dm_mod", "dm_snapshot"):
        path = next(p for p in open_case("6.1", "kcopyd-limited").dump.debug if p.stem == name)
        prog.extra_module(name, create=True).try_file(path, force=True)
    assert prog.type("struct dm_kcopyd_client")
    result = runner("kcopyd")(on(prog))
    assert result.nothing
    assert (result.findings, result.gaps) == ([], [])


# Damage


def _table(prog: drgn.Program) -> Object:
    for _, entry in idr_for_each(prog["_minor_idr"].address_of_()):
        md = Object(prog, "struct mapped_device *", value=entry.value_())
        if cast("struct hash_cell *", md.interface_ptr).name.string_() == b"snapshot-1":
            return cast("struct dm_table *", md.map)
    raise AssertionError("no snapshot")


def _snapshot(prog: drgn.Program) -> Object:
    return cast("struct dm_snapshot *", _table(prog).targets[0].private)


_DAMAGES: dict[str, Callable[[drgn.Program], tuple[Object, int | None]]] = {
    "the index of minor numbers is empty": lambda prog: (prog["_minor_idr"].idr_rt.xa_head, 0),
    "the index of pools is empty": lambda prog: (prog["worker_pool_idr"].idr_rt.xa_head, 0),
    "a table without targets": lambda prog: (_table(prog).targets[0], None),
    "a mapped device of zeros": lambda prog: (_table(prog).md[0], None),
    "a snapshot of zeros": lambda prog: (_snapshot(prog)[0], None),
    "an impossible chunk size": lambda prog: (_snapshot(prog).store.chunk_size, 0xC0FFEE),
    "another count of copies": lambda prog: (_snapshot(prog).in_progress, 0xFFFF),
    "another count of jobs": lambda prog: (_snapshot(prog).kcopyd_client.nr_jobs, 3),
    "an empty table of pending exceptions": lambda prog: (
        _snapshot(prog).pending.table[: int(_snapshot(prog).pending.hash_mask) + 1],
        None,
    ),
    "a slab cache of bios that is none": lambda prog: (
        _snapshot(prog).kcopyd_client.io_client.bios.bio_slab,
        0xFFFF_8880_0000_1234,
    ),
    "a list of workqueues that skips some": lambda prog: (
        prog["workqueues"].next,
        int(prog["workqueues"].next.next.next),
    ),
}
"""Places, and the words to write there; None for zeros all over a place."""


@pytest.mark.parametrize("name", _DAMAGES)
def test_damage_is_reported(name: str) -> None:
    target = opened(build("7.3", "kcopyd-waiting"), "dm_mod", "dm_snapshot")
    poked = Poked(target.prog)
    place, word = _DAMAGES[name](target.prog)
    for offset in range(0, drgn.sizeof(place) if word is None else 1, 8):
        poked.word(int(place.address_) + offset, word or 0)
    result = analyzed(target, "kcopyd")
    differ = [check.name for check in result.checks if check.status is CheckStatus.DIFFER]
    assert differ or result.gaps
