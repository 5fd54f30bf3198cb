# SPDX-License-Identifier: LGPL-2.1-or-later
"""Devices on top of others that keep I/O: their roots, and the tasks that each remedy wakes up."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.finders.io.devices import DEVICE, DISK
from kcensus.kernel.waiting.finders.io.requests import REQUEST, TAGS
from kcensus.kernel.waiting.finders.locks.frozen import FREEZER, THAWED
from kcensus.kernel.waiting.finders.mapped.multipath import MULTIPATH
from kcensus.kernel.waiting.finders.mapped.suspended import SUSPENDED
from kcensus.kernel.waiting.finders.mapped.thin import THIN_POOL
from kcensus.kernel.waiting.finders.stacked.arrays import (
    BARRIER,
    STATE,
    SUPERBLOCK,
    SUSPENDED_ARRAY,
)
from kcensus.kernel.waiting.finders.stacked.loops import BACKED, FILE
from kcensus.kernel.waiting.graph import RUN_BY, TASK, NodeKind
from kcensus.results import Result
from tests.lab.truth import waits as truth_of
from tests.vm.cases import analyzed
from tests.vm.waits.scenarios import FOUND, cases, params
from tests.vm.waits.test_graph import Case

_ENDED_BY = {
    "paths": {MULTIPATH},
    "arrays": {STATE, SUSPENDED_ARRAY},
    "resumed": {SUSPENDED, FREEZER},
    "extended": {THIN_POOL},
}
"""Roots that each trial of the scenario ends, in this order."""
_ROOTS = set().union(*_ENDED_BY.values())


def _blocked(case: Case, read: str = "before") -> set[int]:
    tasks = truth_of.read(case.dump.truth, read).tasks
    return {pid for pid, task in tasks.items() if task.state == "D"}


def _behind(case: Case, node: int) -> set[int]:
    graph = case.found.graph
    tasks = graph.sure.reached([node], back=True) & graph.is_task
    return {case.pid(each) for each in np.flatnonzero(tasks).tolist()}


def _roots(case: Case, *kinds: NodeKind) -> dict[str, set[int]]:
    """The tasks behind each node of some kinds without a further edge, by its name."""
    graph, found = case.found.graph.sure, dict[str, set[int]]()
    for node, kind in enumerate(graph.kind):
        if kind in kinds and not graph.following[node]:
            name = case.found.names[kind, int(graph.address[node])]
            found[name.replace("\\x20", " ")] = _behind(case, node)
    return found


@cases("waits-stacked")
def test_each_remedy_wakes_up_the_tasks_behind_its_roots(case: Case) -> None:
    before = _blocked(case)
    for trial, kinds in _ENDED_BY.items():
        after = _blocked(case, trial)
        found = set().union(*_roots(case, *kinds).values())
        # The array that can be checked again goes on, and sleeps now and then.
        still = {pid for pid in after if case.truth.tasks[pid].comm == "md0_resync"}
        assert before - after == found - still, trial
        before = after
    assert before == still


@cases("waits-stacked")
def test_every_task_has_one_root(case: Case) -> None:
    behind = [pid for tasks in _roots(case, *_ROOTS).values() for pid in tasks]
    assert sorted(behind) == sorted(_blocked(case))
    graph = case.found.graph
    ends = np.flatnonzero(graph.sure.reached(np.flatnonzero(graph.is_task).tolist())).tolist()
    others = {graph.kind[node] for node in ends if not graph.sure.following[node]} - _ROOTS
    # Requests of a loop device with several workers say more than the device.
    assert others <= {DEVICE}


@cases("waits-stacked")
def test_roots_are_those_of_dmsetup_and_sysfs(case: Case) -> None:
    truth = case.dump.truth
    states = re.findall(r"Name: +(.+)\nState: +(\w+)", truth["dmsetup-info"])
    suspended = {name for name, state in states if state == "SUSPENDED"}
    assert {name.split("(")[1][:-1] for name in _roots(case, SUSPENDED)} == suspended
    status = dict(line.split(": ", 1) for line in truth["dmsetup-status"].splitlines())
    maps = {name for name, line in status.items() if " multipath " in f" {line} "}
    assert {name.split("(")[1][:-1] for name in _roots(case, MULTIPATH)} == maps
    full = {name for name, line in status.items() if "out_of_data_space" in line}
    assert {name.split("(")[1][:-1] for name in _roots(case, THIN_POOL)} == full
    lines = dict(line.split(": ", 1) for line in truth["dmsetup-table"].splitlines())
    found = analyzed(case.target, "waits").findings
    (advice,) = (each.no_remedy for each in found if each.kind == "waits-thin")
    assert f"--table '{lines[full.pop()].strip()}'" in advice
    arrays = re.findall(r"block/(\w+)/md/array_state:(.+)", truth["array-states"])
    pending = {name for name, state in arrays if state == "write-pending"}
    assert set(_roots(case, STATE)) == pending == {"md1"}
    assert set(_roots(case, SUSPENDED_ARRAY)) == {"md2"}
    assert set(_roots(case, FREEZER)) == {"on /srv"}


@cases("waits-stacked")
def test_failed_paths_are_those_of_the_map(case: Case, result: Result) -> None:
    status = dict(line.split(": ", 1) for line in case.dump.truth["dmsetup-status"].splitlines())
    found = {each.id: each for each in result.findings if each.kind == "waits-multipath"}
    assert len(found) == 2
    for identity, finding in found.items():
        name = identity.split("(")[1][:-1].replace("\\x20", " ")
        paths = re.findall(r"(\d+:\d+) F (\d+)", status[name])
        assert finding.figures["paths"].value == len(paths) > 0
        for number, failures in paths:
            assert re.search(rf"{number}, failed {failures} time", finding.evidence)


@cases("waits-stacked")
def test_a_thaw_that_waits_is_not_advised(case: Case, result: Result) -> None:
    graph = case.found.graph
    (edge,) = (edge for edge, kind in enumerate(graph.edge) if kind is THAWED)
    assert case.comm(int(graph.target[edge])) == "fsfreeze"
    commands = {each.command for finding in result.findings for each in finding.remedies}
    assert {each for each in commands if "fsfreeze" in each} == {"fsfreeze --unfreeze /srv"}
    assert {"dmsetup resume deep", "dmsetup resume locked"} <= commands


@cases("waits-stacked")
def test_each_finding_has_its_tasks(case: Case, result: Result) -> None:
    told = set().union(*(finding.tasks for finding in result.findings))
    assert told == _blocked(case)
    assert all(finding.remedies or finding.no_remedy for finding in result.findings)
    assert any("loop0 is on file /srv/disk image" in each.evidence for each in result.findings)


def _files(case: Case) -> dict[str, str]:
    graph, names = case.found.graph, case.found.names
    return {
        names[DEVICE, int(graph.address[graph.source[edge]])]: names[
            FILE, int(graph.address[graph.target[edge]])
        ]
        for edge, kind in enumerate(graph.edge)
        if kind is BACKED
    }


@pytest.mark.parametrize(
    "case",
    params({each: FOUND[each] for each in ("waits-stacked", "waits-stacked-disk")}),
    indirect=True,
)
def test_files_of_loop_devices(case: Case) -> None:
    lines = case.dump.truth["losetup"].splitlines()[1:]
    wanted = {line.split()[0].removeprefix("/dev/"): line for line in lines}
    found = _files(case)
    assert found.keys() == wanted.keys()
    assert all(f" {path} " in wanted[name] for name, path in found.items())


@cases("waits-stacked")
def test_workers_of_loop_devices(case: Case) -> None:
    graph = case.found.graph
    found: dict[str, set[str]] = {}
    for edge, kind in enumerate(graph.edge):
        if kind is RUN_BY and graph.kind[graph.source[edge]] is DEVICE:
            name = case.found.names[DEVICE, int(graph.address[graph.source[edge]])]
            worker = case.truth.tasks[case.pid(int(graph.target[edge]))]
            assert name in worker.comm
            found.setdefault(name, set()).add(worker.comm)
    assert found.keys() == {"loop0", "loop1"}


@cases("waits-stacked-disk")
def test_a_disk_that_stops_is_the_root_of_all_above_it(case: Case, result: Result) -> None:
    graph = case.found.graph
    (disk,) = (node for node, kind in enumerate(graph.kind) if kind is DISK)
    assert case.found.names[DISK, int(graph.address[disk])] == "vda"
    assert _behind(case, disk) == _blocked(case)
    # Bios lead to a request of the disk, or the task waits for a free one.
    last = [
        node
        for node, kind in enumerate(graph.kind)
        if kind is TAGS
        or (kind is REQUEST and case.found.names[kind, int(graph.address[node])].startswith("vda"))
    ]
    assert set().union(*(_behind(case, node) for node in last)) == _blocked(case)
    (finding,) = (each for each in result.findings if each.kind == "waits-io")
    assert finding.tasks == _blocked(case)
    assert len(result.findings) == 1


@cases("waits-stacked-disk")
def test_writes_to_an_array_wait_for_its_superblocks_or_its_resync(case: Case) -> None:
    graph = case.found.graph
    asleep = {"md_write_start": STATE, "md_super_wait": SUPERBLOCK, "barrier": BARRIER}
    ends = {STATE: TASK, SUPERBLOCK: REQUEST, BARRIER: REQUEST}
    for function, kind in asleep.items():
        # The resync itself may wait on another queue of the array.
        (node,) = (
            each
            for each, found in enumerate(graph.kind)
            if found is kind and "recovery" not in case.found.names[kind, int(graph.address[each])]
        )
        waiters = {case.pid(int(graph.source[edge])) for edge in graph.preceding[node]}
        assert waiters == {
            pid
            for pid in _blocked(case)
            if any(function in name for name in case.truth.blocked[pid].stack)
        }
        assert waiters
        edges = graph.following[node]
        assert edges
        assert all(graph.strength[edge] >= int(Strength.DERIVED) for edge in edges)
        assert {graph.kind[graph.target[edge]] for edge in edges} == {ends[kind]}
