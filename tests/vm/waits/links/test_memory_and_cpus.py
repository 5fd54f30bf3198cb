# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory cgroups at their limits, and busy CPUs, against what the guest and our module say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kcensus.analyses.waits.figures.log import kernel_log
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.memcg.limits import limits, memory_by_kind
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.kernel.waiting.finders.cpus.occupied import CPU, RUNS, STARVED
from kcensus.kernel.waiting.finders.cpus.spinning import SPINLOCK
from kcensus.kernel.waiting.finders.memory.cgroups import LIMITED, MEMCG
from kcensus.kernel.waiting.graph import HELD, WAITS
from kcensus.results import Severity
from tests.lab import build
from tests.lab.truth import waits as truth_of
from tests.vm.cases import analyzed, opened
from tests.vm.oracles.waits import sleepers
from tests.vm.waits.scenarios import cases
from tests.vm.waits.test_graph import Case

_MIB = 1 << 20
_FILLERS = {"anonymous", "shared"}
_LIMIT = {"5.10": 44 * _MIB}
_HIGH = 20 * _MIB


def _own(case: Case) -> set[int]:
    """Return the PIDs of the tasks that fill the cgroups and sleep in state D in the dump."""
    return {pid for pid in sleepers(case.target.prog) if case.truth.tasks[pid].comm in _FILLERS}


@cases("waits-memory")
def test_all_tasks_lead_to_the_cgroup_with_the_limit(case: Case) -> None:
    graph, wanted = case.found.graph, _own(case)
    assert len(wanted) >= 4
    address = memcgs(Kernel(case.target.prog)).address
    (shop,) = (
        node
        for node, kind in enumerate(graph.kind)
        if kind is MEMCG and case.found.names[kind, int(graph.address[node])] == "/shop"
    )
    assert int(graph.address[shop]) in address.tolist()
    behind = np.flatnonzero(graph.sure.reached([shop], back=True) & graph.is_task).tolist()
    assert {case.pid(node) for node in behind} == wanted
    assert graph.following[shop] == []
    edges = {graph.edge[edge] for edge in graph.preceding[shop]}
    # With cgroup v1, tasks name the cgroup; with v2, they are throttled for the one around theirs.
    assert edges == ({WAITS} if case.dump.kernel in _LIMIT else {LIMITED})


@cases("waits-memory")
def test_use_and_limit_are_those_of_the_guest(case: Case) -> None:
    kernel = Kernel(case.target.prog)
    groups, known = memcgs(kernel), limits(kernel)
    row, web = groups.path.index("/shop"), groups.path.index("/shop/web")
    words = case.dump.truth["memory"].split()
    if case.dump.kernel in _LIMIT:
        assert int(known.usage[row]) == int(words[0]) == int(known.most[row])
        assert int(known.most[row]) == _LIMIT[case.dump.kernel]
        assert int(known.usage[web]) == int(words[-1])
        assert known.is_without_oom.tolist() == [path == "/shop" for path in groups.path]
    else:
        # They go on, slowly.
        assert int(words[0]) <= int(known.usage[row]) <= int(words[0]) + 16 * _MIB
        assert int(words[-1]) <= int(known.usage[web])
        assert (int(known.high[row]), int(known.most[row])) == (_HIGH, -1)


@cases("waits-memory")
def test_the_finding_has_the_command_that_ends_the_stall(case: Case) -> None:
    result = analyzed(case.target, "waits")
    (finding,) = (each for each in result.findings if not each.part_of)
    assert finding.id == "waits-memory:/shop"
    assert finding.severity is Severity.WARNING
    assert finding.tasks == _own(case)
    is_v1 = case.dump.kernel in _LIMIT
    assert finding.figures["limit"].value == _LIMIT.get(case.dump.kernel, _HIGH)
    directory = "/sys/fs/cgroup/memory/shop" if is_v1 else "/sys/fs/cgroup/shop"
    name = "memory.limit_in_bytes" if is_v1 else "memory.high"
    commands = [remedy.command for remedy in finding.remedies]
    match = re.fullmatch(rf"echo (\d+) > {directory}/{name}", commands[0])
    assert match
    assert int(match[1]) > int(finding.figures["usage"].value or 0)
    # The largest process is the one in "data base", which has begun with most.
    largest = {pid for pid, task in case.truth.tasks.items() if task.comm == "anonymous"}
    assert int(commands[-1].removeprefix("kill -KILL ")) in largest
    # What the trial has done: no task sleeps at the limit any more.
    later = truth_of.read(case.dump.truth, truth_of.LATER)
    assert {task.state for task in later.tasks.values() if task.comm in _FILLERS} <= {"S", "R"}


def test_kinds_of_memory_are_those_of_memory_stat(kernel: str) -> None:
    dump = build(kernel, "mixed")
    read = Kernel(opened(dump).prog)
    groups, compared = memcgs(read), 0
    for name, text in dump.truth.items():
        path = name.removeprefix("memory.stat:")
        if path == name or path not in groups.path:
            continue
        stat = dict(line.split() for line in text.splitlines())
        found = memory_by_kind(read, int(groups.address[groups.path.index(path)]))
        assert found["anonymous"] == int(stat["anon"])
        assert found["shmem (tmpfs)"] == int(stat["shmem"])
        assert found["page cache"] == int(stat["file"]) - int(stat["shmem"])
        compared += 1
    assert compared


def _claim(case: Case, kind: str, *, is_wait: bool) -> list[tuple[int, int]]:
    claims = case.truth.claims
    return [(c.pid, c.address) for c in claims if c.kind == kind and c.is_wait is is_wait]


@cases("waits-cpu")
def test_a_task_that_spins_for_a_lock(case: Case) -> None:
    graph = case.found.graph
    ((spinner, address),) = _claim(case, "spinlock", is_wait=True)
    ((holder, _),) = _claim(case, "spinlock", is_wait=False)
    node = graph.index[SPINLOCK, address]
    waits = [(case.pid(int(graph.source[e])), graph.edge[e]) for e in graph.preceding[node]]
    assert waits == [(spinner, WAITS)]
    held = {
        (case.pid(int(graph.target[e])), graph.edge[e], int(graph.strength[e]))
        for e in graph.following[node]
    }
    assert held <= {(holder, HELD, int(Strength.POSSIBLE))}


@cases("waits-cpu")
def test_work_for_a_busy_cpu_waits_for_the_task_there(case: Case) -> None:
    graph = case.found.graph
    ((flush, item),) = _claim(case, "work", is_wait=True)
    ((holder, _),) = _claim(case, "cpu", is_wait=False)
    assert case.waits()[flush][1] == item
    (work,) = (node for node, at in enumerate(graph.address.tolist()) if at == item)
    (edge,) = graph.following[work]
    cpu = int(graph.target[edge])
    assert (graph.edge[edge], graph.kind[cpu]) == (STARVED, CPU)
    assert case.found.names[CPU, int(graph.address[cpu])] == "1"
    (runs,) = graph.following[cpu]
    assert graph.edge[runs] is RUNS
    assert case.pid(int(graph.target[runs])) == holder


@cases("waits-cpu")
def test_soft_lockups_are_no_oopses_and_name_the_running_tasks(case: Case) -> None:
    log = kernel_log(Kernel(case.target.prog))
    pids = {comm: pid for pid, comm in ((c.pid, c.comm) for c in case.truth.claims)}
    assert log.oopses == []
    assert {*log.lockups} == {pids["spin-holder"], pids["spin-waiter"]}
    result = analyzed(case.target, "waits")
    told = {each.kind: " ".join([each.evidence, *each.story]) for each in result.findings}
    for comm, cpu, kind in (("spin-holder", 1, "behind"), ("spin-waiter", 2, "spinlock")):
        function = comm.replace("-", "_")
        assert f"runs on CPU {cpu} in {function} [kcensus_spin]" in told[f"waits-{kind}"]
        assert "soft lockup" in told[f"waits-{kind}"]
    # Inlined functions are in no frame of their own.
    stacks = result.tables["stacks"].frame
    of_spinner = stacks[stacks["pid"] == pids["spin-waiter"]]["function"].tolist()
    assert sum("spin_lock_slowpath" in name for name in of_spinner) == 1


@cases("waits-rcu")
def test_a_real_time_task_that_starves_a_reader_can_lose_its_priority(case: Case) -> None:
    if case.dump.kernel == "5.10":
        pytest.skip("its readers cannot be preempted")
    pids = {task.comm: pid for pid, task in case.truth.tasks.items()}
    found = {each.id: each for each in analyzed(case.target, "waits").findings}
    finding = found[f"waits-behind:{pids['rcu-above']}"]
    assert [remedy.command for remedy in finding.remedies] == [f"chrt -o -p 0 {pids['rcu-above']}"]
    assert pids["rcu-sync"] in finding.tasks
